"""Offsets that an operator recorded: the members that apply them must stay until then, and none is recorded without such a member."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.move import decide_clean_up, decide_switch
from airflow_provider_kmigrate.core.groups.offsets import describe_pending_resets, pending_reset_reasons, reset_refusal_reasons
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind
from airflow_provider_kmigrate.core.member.registration import Flaw, Unreadable
from tests.core.group_facts import KAFKA, MIGRATING, SPEC, T0, T1, ZOOKEEPER, changed, group, observations, verdict
from tests.core.views import codes

ASKED = {"resets": {T0: 3}}


@pytest.mark.parametrize(
    ("seen", "target", "hurry", "expected"),
    [
        (changed(group("m", "m", "kafka"), **ASKED), KAFKA, False, "wait K46"),
        (changed(group("k", "m", "kafka"), **ASKED), KAFKA, False, "wait K46"),
        (changed(group("m", "m"), **ASKED), ZOOKEEPER, False, "wait K46"),
        (changed(group("m", "m"), **ASKED), ZOOKEEPER, True, "switch"),
        (changed(group("m", "z"), **ASKED), MIGRATING, False, "switch"),
        (changed(group("k", "k", "kafka"), **ASKED), MIGRATING, False, "switch"),
        (group("k", "m", "kafka"), KAFKA, False, "switch"),
    ],
)
def test_a_member_that_applies_recorded_resets_stays_until_they_are_applied(
    seen: GroupSeen, target: MemberKind, hurry: bool, expected: str
) -> None:
    """A canary that is worse is rolled back all the same, and the scan reports the resets before the next migration."""
    assert verdict(decide_switch(observations(seen), SPEC, "b", target, hurry=hurry)) == expected


@pytest.mark.parametrize("mode", ["kafka", None])
def test_a_reset_that_no_member_applied_is_not_cleaned_up(mode: str | None) -> None:
    assert verdict(decide_clean_up(changed(group("k", "k", mode), **ASKED), SPEC)) == "never K46"


def test_pending_resets_are_named_with_those_that_cannot_be_read() -> None:
    seen = changed(group("m", "m"), resets={T1: Unreadable(Flaw.EMPTY, ""), T0: 3})
    assert describe_pending_resets(seen) == "t-0 at 3, t-1 at ''"
    assert (describe_pending_resets(group("m", "m")), describe_pending_resets(GroupSeen("g"))) == ("", "")
    assert pending_reset_reasons(GroupSeen("g")) == ()


@pytest.mark.parametrize(
    ("seen", "wanted", "expected"),
    [
        (group("m", "m"), {T0: 0, T1: 10}, []),
        (group("m", "m"), {T0: 11}, ["K76"]),
        (group("m", "m"), {TopicPartition("t", 7): 0}, ["K76"]),
        (group("m", "m"), {TopicPartition("u", 0): 0}, ["K76"]),
        (group("z", "z"), {T0: 0}, ["K76"]),
        (group("k", "k", "kafka"), {T0: 0}, ["K76"]),
        (replace(group("m", "m"), ends=None), {T0: 0}, ["K30"]),
        (group("m", "m", zk=None), {T0: 0}, ["K30"]),
    ],
)
def test_what_may_be_recorded(seen: GroupSeen, wanted: dict[TopicPartition, int], expected: list[str]) -> None:
    assert codes(reset_refusal_reasons(seen, wanted)) == expected
