"""A group that was rolled back stays where it is until an operator says otherwise."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Done, Wait
from airflow_provider_kmigrate.core.groups.move import decide_release, hold_reasons
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, ZkGroup
from airflow_provider_kmigrate.core.member.registration import GroupHold, read_hold, write_hold

BY = GroupHold("kmigrate_consumers__x/scheduled__1", "app0 is rolled back to old: it was worse.")


def seen(hold: GroupHold | None) -> GroupSeen:
    return GroupSeen("billing", ZkGroup(hold=hold))


@pytest.mark.parametrize(
    ("seen_now", "run", "codes"),
    [
        (seen(None), "r", []),
        (seen(BY), BY.run, []),
        (seen(BY), "kmigrate_consumers__x/scheduled__2", ["K69"]),
        (seen(BY), "", ["K69"]),
        (seen(GroupHold("", "?")), "", ["K69"]),
        (GroupSeen("billing"), "r", []),
        (None, "r", []),
    ],
    ids=["never", "its own run", "another run", "of no run", "unreadable", "not read", "not observed"],
)
def test_a_group_that_was_rolled_back_is_held_for_every_run_but_its_own(
    seen_now: GroupSeen | None, run: str, codes: list[str]
) -> None:
    assert [reason.code for reason in hold_reasons(seen_now, run)] == codes


def test_the_refusal_says_who_took_it_back_why_and_how_to_go_on() -> None:
    (reason,) = hold_reasons(seen(BY), "r")
    assert BY.run in reason.text
    assert BY.why in reason.text
    assert '{"release_groups": ["billing"]}' in reason.text
    assert "groups release --group billing" in reason.text


@pytest.mark.parametrize(("seen_now", "kind"), [(None, Wait), (GroupSeen("billing"), Wait), (seen(None), Done), (seen(BY), Act)])
def test_a_release(seen_now: GroupSeen | None, kind: type) -> None:
    assert isinstance(decide_release(seen_now, "billing"), kind)


def test_a_release_says_what_it_releases_and_afterwards_that_no_run_holds_the_group() -> None:
    unnamed = decide_release(seen(GroupHold("", "it was worse.")), "billing")
    assert isinstance(unnamed, Act)
    assert unnamed.text == "Group billing may migrate again. It was rolled back by an unknown run: it was worse."
    assert decide_release(seen(None), "billing") == Done("No run holds group billing: it may migrate.")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"run": "r"}', b"\xff"])
def test_a_note_that_cannot_be_read_holds_too(data: bytes) -> None:
    assert read_hold(data).run == ""
    assert read_hold(write_hold(BY)) == BY
