"""What is said of a group's members: each reason by what is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups import members
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, StoredOffset
from airflow_provider_kmigrate.core.member.registration import Flaw, Unreadable
from tests.core.group_facts import PLACES, SPEC, STATIC, T0, T1, changed, group
from tests.core.views import codes

STABLE = group("z", "z")


def without_owner(seen: GroupSeen) -> GroupSeen:
    assert seen.zk is not None
    return replace(seen, zk=replace(seen.zk, owners={PLACES["a"]: "g_a-0"}))


def rebalancing(seen: GroupSeen) -> GroupSeen:
    return replace(seen, kafka=KafkaGroup("PreparingRebalance"))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (STABLE, []),
        (group("m", "m", "zookeeper"), []),
        (replace(STABLE, zk=None, kafka=None), ["K55"]),  # nothing was read; nothing is seen of its instances
        (replace(STABLE, kafka=None), ["K55"]),
        (rebalancing(STABLE), ["K52"]),
        (without_owner(STABLE), ["K44"]),
        (group("z", ""), ["K55"]),
    ],
)
def test_a_group_is_at_rest_or_says_why_not(seen: GroupSeen, expected: list[str]) -> None:
    assert codes(members.instability_reasons(seen, SPEC)) == expected


def test_an_instance_may_be_missing_on_purpose() -> None:
    assert members.instability_reasons(group("z", ""), SPEC, excused_instances=("b",)) == ()
    assert codes(members.missing_instance_reasons(group("", ""), SPEC, excused_instances=("b",))) == ["K55"]


ALL = replace(STABLE, ends={T0: 100, T1: 100}, committed={})


@pytest.mark.parametrize(
    ("change", "asked", "unread"),
    [
        (lambda seen: seen, {"ends": True}, []),
        (lambda seen: replace(seen, zk=None), {}, ["its znodes"]),
        (lambda seen: replace(seen, kafka=None), {}, ["its members in Kafka"]),
        (lambda seen: replace(seen, kafka=None), {"kafka": False}, []),
        (lambda seen: replace(seen, committed=None), {}, ["its offsets in Kafka"]),
        (lambda seen: replace(seen, committed=None), {"offsets": False}, []),
        (lambda seen: replace(seen, ends=None), {}, []),
        (lambda seen: replace(seen, ends=None), {"ends": True}, ["its logs' ends"]),
        (lambda seen: replace(seen, ends={T0: 1}), {"ends": True}, ["the ends of t-1"]),
        (lambda seen: replace(seen, ends={T0: 1}), {}, []),
        (lambda seen: replace(seen, zk=None, kafka=None), {}, ["its znodes", "its members in Kafka"]),
    ],
)
def test_what_was_not_read_is_named(change: Callable[[GroupSeen], GroupSeen], asked: dict[str, bool], unread: list[str]) -> None:
    found = members.unread_reasons(change(ALL), "g", **asked)
    assert codes(found) == ["K30"] * bool(unread)
    assert all(what in found[0].text for what in unread)


def test_a_group_of_which_nothing_was_read() -> None:
    assert codes(members.unread_reasons(None, "g")) == ["K30"]
    assert codes(members.no_member_reasons(None, "g")) == ["K55"]
    assert codes(members.no_member_reasons(group("", ""), "g")) == ["K55"]
    assert members.no_member_reasons(group("z", ""), "g") == ()


LEFT = TopicPartition("left", 0)
STORED = {where: StoredOffset(10, 90_000.0) for where in (T0, T1, LEFT)}


@pytest.mark.parametrize(
    ("seen", "spec", "hides"),
    [
        (group("m", "m", "kafka"), SPEC, False),
        (group("z", "z"), SPEC, False),
        (group("m", "m", "kafka"), replace(SPEC, instances=()), True),  # the file names no instance
        (group("m", "", "kafka"), SPEC, True),  # one is missing
        (group("m", "k", "kafka"), SPEC, True),
        (
            group("m", "k", "kafka"),
            replace(SPEC, instances=SPEC.instances[:1]),
            True,
        ),  # a Kafka consumer that the file does not know
        (changed(group("m", "m", "kafka"), registrations={"g_a": STATIC, "g_b": Unreadable(Flaw.NOT_JSON, "x")}), SPEC, True),
    ],
)
def test_what_was_committed_of_late_counts_if_a_member_may_read_it_unseen(seen: GroupSeen, spec: GroupSpec, hides: bool) -> None:
    seen = replace(changed(seen, offsets=STORED), ends={T0: 10, T1: 10, LEFT: 10})
    assert (LEFT in members.consumed_partitions(seen, spec)) is hides
    late = changed(seen, offsets={**STORED, LEFT: StoredOffset(10, 90_000.0 - members._FORGOTTEN)})
    assert LEFT not in members.consumed_partitions(late, spec), "of a topic that is read no more"


def test_partitions_as_a_sentence_has_them() -> None:
    assert members.format_partitions([T1, T0]) == "t-0, t-1"
    many = [TopicPartition("t", number) for number in range(9)]
    assert members.format_partitions(many[:8]) == "t-0, t-1, t-2, t-3, t-4, t-5, t-6, t-7"
    assert members.format_partitions(many) == "t-0, t-1, t-2, t-3, t-4, t-5, t-6, t-7 and 1 more"
