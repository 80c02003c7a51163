"""Offsets that an operator recorded: nobody who reads them may leave before they are taken up, and none is recorded for nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, MemberKind
from airflow_provider_kmigrate.core.coordination.registration import Flaw, Unreadable
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.move import clean_up, switch
from airflow_provider_kmigrate.core.groups.offsets import pending, resets_pending, unfit
from tests.core.test_group_move import MIGRATING, OLD, PLAIN, SPEC, T0, T1, changed, codes, group, observations, verdict

ASKED = {"resets": {T0: 3}}


@pytest.mark.parametrize(
    ("seen", "target", "hurry", "expected"),
    [
        (changed(group("m", "m", "kafka"), **ASKED), PLAIN, False, "wait K46"),
        (changed(group("p", "m", "kafka"), **ASKED), PLAIN, False, "wait K46"),
        (changed(group("m", "m"), **ASKED), OLD, False, "wait K46"),
        (changed(group("m", "m"), **ASKED), OLD, True, "switch"),
        (changed(group("m", "o"), **ASKED), MIGRATING, False, "switch"),
        (changed(group("p", "p", "kafka"), **ASKED), MIGRATING, False, "switch"),
        (group("p", "m", "kafka"), PLAIN, False, "switch"),
    ],
)
def test_who_reads_them_stays_until_they_are_taken_up(seen: GroupSeen, target: MemberKind, hurry: bool, expected: str) -> None:
    """Not at any price: a canary that is worse goes back all the same, and the scan tells of them before the next way forward."""
    assert verdict(switch(observations(seen), SPEC, "b", target, hurry=hurry)) == expected


@pytest.mark.parametrize("mode", ["kafka", None])
def test_what_nobody_took_up_is_not_cleaned_up(mode: str | None) -> None:
    assert verdict(clean_up(changed(group("p", "p", mode), **ASKED), SPEC)) == "never K46"


def test_what_is_pending_is_told_with_what_cannot_be_read() -> None:
    seen = changed(group("m", "m"), resets={T1: Unreadable(Flaw.EMPTY, ""), T0: 3})
    assert pending(seen) == "t-0 at 3, t-1 at ''"
    assert (pending(group("m", "m")), pending(GroupSeen("g"))) == ("", "")
    assert resets_pending(GroupSeen("g")) == ()


@pytest.mark.parametrize(
    ("seen", "wanted", "expected"),
    [
        (group("m", "m"), {T0: 0, T1: 10}, []),
        (group("m", "m"), {T0: 11}, ["K76"]),
        (group("m", "m"), {TopicPartition("t", 7): 0}, ["K76"]),
        (group("m", "m"), {TopicPartition("u", 0): 0}, ["K76"]),
        (group("o", "o"), {T0: 0}, ["K76"]),
        (group("p", "p", "kafka"), {T0: 0}, ["K76"]),
        (replace(group("m", "m"), ends=None), {T0: 0}, ["K30"]),
        (group("m", "m", zk=None), {T0: 0}, ["K30"]),
    ],
)
def test_what_may_be_recorded(seen: GroupSeen, wanted: dict[TopicPartition, int], expected: list[str]) -> None:
    assert codes(unfit(seen, wanted)) == expected
