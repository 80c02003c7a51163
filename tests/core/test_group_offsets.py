"""Copying offsets: what is written, left alone, refused; and what a plan is still good for later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Refuse
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.offsets import (
    CopyPlan,
    OffsetWrite,
    find_missing_writes,
    outdated_plan_reasons,
    plan_copy,
    plan_raising_writes,
)
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, Store, StoredOffset, ZkGroup
from airflow_provider_kmigrate.core.member.registration import Flaw, MemberProgress, Mode, Registration, Unreadable

A, B, C = (TopicPartition("t", index) for index in range(3))
KAFKA, ZOOKEEPER = Store.KAFKA, Store.ZOOKEEPER
BAD = Unreadable(Flaw.NOT_A_NUMBER, "x")
WANTS = Registration("static", {"t": 1})
MEMBERS = KafkaGroup("Stable", (KafkaMember("uuid", "app", frozenset({A})),))


def seen(
    zk: dict[TopicPartition, int | Unreadable],
    kafka: dict[TopicPartition, int],
    group: KafkaGroup | None = None,
    **changes: object,
) -> GroupSeen:
    stored = {where: StoredOffset(offset, 0.0) for where, offset in zk.items()}
    tree = replace(ZkGroup(offsets=stored), **changes)  # type: ignore[arg-type]
    return GroupSeen("g", tree, group or KafkaGroup("Empty"), kafka, dict.fromkeys((A, B, C), 100))


PLANS: list[tuple[str, GroupSeen, Store, bool, CopyPlan]] = [
    ("nothing there", seen({}, {}), KAFKA, False, CopyPlan("g", KAFKA)),
    ("equal", seen({A: 5}, {A: 5}), KAFKA, False, CopyPlan("g", KAFKA)),
    ("new", seen({A: 5}, {}), KAFKA, False, CopyPlan("g", KAFKA, (OffsetWrite(A, 5, None),))),
    ("ahead", seen({A: 5, B: 0}, {A: 4}), KAFKA, False, CopyPlan("g", KAFKA, (OffsetWrite(A, 5, 4), OffsetWrite(B, 0, None)))),
    ("behind", seen({A: 5}, {A: 6}), KAFKA, False, CopyPlan("g", KAFKA, lower=(A,))),
    ("behind, reset", seen({A: 5}, {A: 6}), KAFKA, True, CopyPlan("g", KAFKA, (OffsetWrite(A, 5, 6),))),
    (
        "no such partition",
        seen({TopicPartition("old", 0): 5}, {}),
        KAFKA,
        False,
        CopyPlan("g", KAFKA, gone=(TopicPartition("old", 0),)),
    ),
    ("only in the target", seen({}, {A: 5}), KAFKA, True, CopyPlan("g", KAFKA)),
    ("at the end", seen({A: 100}, {}), KAFKA, False, CopyPlan("g", KAFKA, (OffsetWrite(A, 100, None),))),
    ("none was committed", seen({A: -1}, {}), KAFKA, False, CopyPlan("g", KAFKA)),
    ("back", seen({A: 4}, {A: 5}), ZOOKEEPER, False, CopyPlan("g", ZOOKEEPER, (OffsetWrite(A, 5, 4),))),
    ("back over rubbish", seen({A: BAD}, {A: 5}), ZOOKEEPER, False, CopyPlan("g", ZOOKEEPER, (OffsetWrite(A, 5, None),))),
    ("back, behind", seen({A: 6}, {A: 5}), ZOOKEEPER, False, CopyPlan("g", ZOOKEEPER, lower=(A,))),
    (
        "the source's members may live",
        seen({A: 5}, {}, registrations={"g_a": WANTS}, owners={A: "g_a-0"}),
        KAFKA,
        False,
        CopyPlan("g", KAFKA, (OffsetWrite(A, 5, None),)),
    ),
    (
        "the other source's, too",
        seen({}, {A: 5}, MEMBERS),
        ZOOKEEPER,
        False,
        CopyPlan("g", ZOOKEEPER, (OffsetWrite(A, 5, None),)),
    ),
]


@pytest.mark.parametrize(("observed", "to", "reset", "expected"), [case[1:] for case in PLANS], ids=[case[0] for case in PLANS])
def test_plans(observed: GroupSeen, to: Store, reset: bool, expected: CopyPlan) -> None:
    assert plan_copy(observed, to, reset=reset) == expected


SOUND = seen({A: 5}, {A: 4})
FOLLOWS = MemberProgress(1, Mode.ZOOKEEPER, settled=True)
REFUSED: list[tuple[str, GroupSeen, Store, set[str]]] = [
    ("no ZooKeeper", replace(SOUND, zk=None), KAFKA, {"K30"}),
    ("no coordinator", replace(SOUND, kafka=None), KAFKA, {"K30"}),
    ("no commits", replace(SOUND, committed=None), ZOOKEEPER, {"K30"}),
    ("no ends", replace(SOUND, ends=None), KAFKA, {"K30"}),
    ("members in Kafka", seen({A: 5}, {}, MEMBERS), KAFKA, {"K71"}),
    ("a member joins Kafka", seen({A: 5}, {}, KafkaGroup("PreparingRebalance")), KAFKA, {"K71"}),
    ("members in ZooKeeper", seen({}, {A: 5}, registrations={"g_a": WANTS}), ZOOKEEPER, {"K71"}),
    ("one about to join", seen({}, {A: 5}, progress={"g_a": FOLLOWS}), ZOOKEEPER, {"K71"}),
    ("owners of a dying session", seen({}, {A: 5}, owners={A: "g_a-0"}), ZOOKEEPER, {"K71"}),
    ("an unreadable member", seen({}, {A: 5}, registrations={"g_a": BAD}), ZOOKEEPER, {"K71"}),
    ("no number", seen({A: BAD, B: 1}, {}), KAFKA, {"K42"}),
    ("beyond the end", seen({A: 101}, {}), KAFKA, {"K42"}),
    ("beyond the end, back", seen({}, {A: 101}), ZOOKEEPER, {"K42"}),
    ("everything at once", seen({A: BAD, B: 101}, {}, MEMBERS), KAFKA, {"K71", "K42"}),
]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(("observed", "to", "codes"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refusals_that_no_reset_gets_past(observed: GroupSeen, to: Store, codes: set[str], reset: bool) -> None:
    found = plan_copy(observed, to, reset=reset)
    assert isinstance(found, Refuse)
    assert {reason.code for reason in found.reasons} == codes


LATER: list[tuple[str, GroupSeen, set[str]]] = [
    ("as it was", SOUND, set()),
    ("the source went on", seen({A: 9}, {A: 4}), set()),
    ("another partition of the target", seen({A: 5}, {A: 4, B: 7}), set()),
    ("the target went on", seen({A: 5}, {A: 6}), {"K71"}),
    ("the target is gone", seen({A: 5}, {}), {"K71"}),
    ("a member joined", seen({A: 5}, {A: 4}, MEMBERS), {"K71"}),
    ("nothing answers", GroupSeen("g"), {"K30"}),
]


@pytest.mark.parametrize(("now", "codes"), [case[1:] for case in LATER], ids=[case[0] for case in LATER])
def test_a_plan_is_good_while_its_target_stands(now: GroupSeen, codes: set[str]) -> None:
    made = plan_copy(SOUND, KAFKA)
    assert isinstance(made, CopyPlan)
    assert {reason.code for reason in outdated_plan_reasons(made, now)} == codes


@pytest.mark.parametrize("case", PLANS, ids=[case[0] for case in PLANS])
def test_a_plan_that_was_carried_out_leaves_nothing_to_do(case: tuple[str, GroupSeen, Store, bool, CopyPlan]) -> None:
    _, observed, to, reset, made = case
    written = {write.where: write.offset for write in made.writes}
    stored = dict(observed.zk.offsets) if observed.zk else {}
    if to is KAFKA:
        after = replace(observed, committed={**(observed.committed or {}), **written})
    else:
        after = replace(observed, zk=ZkGroup(offsets=stored | {where: StoredOffset(at, 1.0) for where, at in written.items()}))
    again = plan_copy(after, to, reset=reset)
    assert isinstance(again, CopyPlan)
    assert (again.writes, find_missing_writes(made, after)) == ((), ())
    assert find_missing_writes(made, observed) == made.writes


@pytest.mark.parametrize(
    ("source", "target", "written"),
    [
        ({}, {A: 5}, ()),
        ({A: 5}, {A: 5}, ()),
        ({A: 5}, {A: 6}, ()),
        ({A: 5}, {}, (OffsetWrite(A, 5, None),)),
        ({B: 7, A: 5, C: 1}, {A: 4, C: 2}, (OffsetWrite(A, 5, 4), OffsetWrite(B, 7, None))),
    ],
)
def test_what_is_behind_is_raised_and_nothing_is_lowered(
    source: dict[TopicPartition, int], target: dict[TopicPartition, int], written: tuple[OffsetWrite, ...]
) -> None:
    assert plan_raising_writes(source, target) == written
