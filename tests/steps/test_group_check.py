"""What is refused, and what is said, before anything of a group is moved."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, StoredOffset
from airflow_provider_kmigrate.core.member.registration import Flaw, Registration, Unreadable
from airflow_provider_kmigrate.steps.groups import CheckGroup
from tests.core.group_facts import SPEC, STATIC, T0, T1, changed, group, verdict

SETTINGS = {"compression.type": "producer", "message.downconversion.enable": "true"}
SOUND = group("z", "z")


def checked(now: GroupSeen | None, first: GroupSeen | None = None, gap: float = 100.0, **settings: str) -> Decision:
    views = [
        ClusterView(taken_at=at, groups={"g": seen} if seen else None)
        for at, seen in ((1000.0 + gap, now), (1000.0, first or now))
    ]
    step = CheckGroup(SPEC, lambda topics: {topic: {**SETTINGS, **settings} for topic in topics})
    return step.decide(*views)


def registered(entry: Registration | Unreadable) -> GroupSeen:
    return changed(SOUND, registrations={"g_a": entry, "g_b": STATIC})


@pytest.mark.parametrize(
    ("now", "first", "code"),
    [
        (registered(Unreadable(Flaw.NOT_JSON, "t")), None, "K31"),
        (registered(Registration("white_list", {"(?i)t": 1})), None, "K33"),
        (changed(SOUND, mode_data=b"kafka\n"), None, "K35"),
        (group("z", "z", committed={T0: 10, T1: 10}), group("z", "z", committed={T0: 5, T1: 10}), "K37"),
        (group("z", "k"), None, "K38"),
        (changed(SOUND, owners={T0: "g_a-0"}), None, "K44"),
        (changed(SOUND, offsets={T0: StoredOffset(Unreadable(Flaw.NOT_A_NUMBER, "x"), 0.0)}), None, "K42"),
        (group("z", "z", ends={T0: 20, T1: 10}), group("z", "z", ends={T0: 15, T1: 10}), "K44"),
    ],
)
def test_what_blocks_a_group_is_refused_with_what_to_do(now: GroupSeen, first: GroupSeen | None, code: str) -> None:
    decision = checked(now, first)
    assert isinstance(decision, Refuse)
    (reason,) = [reason for reason in decision.reasons if reason.code == code]
    assert reason.text
    assert reason.meaning
    assert reason.next_step


@pytest.mark.parametrize(
    ("now", "first", "settings", "code"),
    [
        (SOUND, None, {"compression.type": "zstd"}, "K40"),
        (SOUND, None, {"message.downconversion.enable": "false"}, "K40"),
        (changed(SOUND, registrations={"g_a": STATIC, "g_b": Registration("static", {"gone": 1})}), None, {}, "K33"),
    ],
)
def test_what_a_person_should_know_is_said_and_stops_nothing(
    now: GroupSeen, first: GroupSeen | None, settings: dict[str, str], code: str
) -> None:
    decision = checked(now, first, **settings)
    assert isinstance(decision, Done)
    assert f"[{code}]" in decision.text


def test_a_sound_group() -> None:
    assert checked(SOUND) == Done("Group g (zookeeper) may be moved. No objection was found.")


def test_what_is_not_known_is_waited_for() -> None:
    assert verdict(checked(None)) == verdict(checked(group("z", "z", kafka=None))) == "wait K30"
    assert verdict(checked(group("z", "z", ends=None))) == "wait K30"


def test_the_second_observation_comes_when_every_member_has_committed_once() -> None:
    wait = checked(SOUND, gap=99.0)
    assert verdict(wait) == "wait T01"
    assert isinstance(wait, Wait)
    assert wait.healthy


@pytest.mark.parametrize("hole", [None, group("z", "z", ends=None), group("z", "z", zk=None)])
def test_a_stalled_group_is_found_though_the_first_observation_was_incomplete(hole: GroupSeen | None) -> None:
    step = CheckGroup(SPEC, lambda topics: dict.fromkeys(topics, SETTINGS))
    ends = {0.0: 15, 50.0: 15, 100.0: 18, 151.0: 20}
    views = [ClusterView(taken_at=0.0, groups={"g": hole} if hole else None)]
    views += [ClusterView(taken_at=at, groups={"g": group("z", "z", ends={T0: end, T1: 10})}) for at, end in ends.items() if at]
    said = [verdict(step.decide(view, views[0])).split()[:2] for view in views]
    assert said == [["wait", "K30"], ["wait", "T01"], ["wait", "T01"], ["never", "K44"]]
