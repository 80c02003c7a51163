"""How the figures of a group add up: whatever its events show, nothing that was acknowledged is unexplained."""

from __future__ import annotations

import random
from dataclasses import astuple

import pytest

from airflow_provider_kmigrate.audit.report.labels import describe_balance
from airflow_provider_kmigrate.core.events.model import OwnershipChange
from airflow_provider_kmigrate.core.ledger import Facts, balance
from airflow_provider_kmigrate.core.ledger.facts import GroupBalance
from tests.core.histories import History


def read_by_one(delivered: int) -> History:
    """Ten records acknowledged at a time, of which the group received the first ones."""
    history = History()
    history.consumer("c", "g")
    history.producer("p")
    history.own("g", "c", OwnershipChange.ACQUIRED)
    for first in range(0, 100, 10):
        history.ack("p", 0, first, first, 10)
    if delivered:
        history.deliver("g", "c", 0, 0, delivered, 0)
    return history


def add_up(sums: GroupBalance) -> None:
    known = sums.once + sums.to_come + sums.unread + sums.lost + sums.unseen + sums.not_due
    assert sums.acked + sums.unacknowledged == known, sums
    assert min(astuple(sums)[1:]) >= 0


def only(facts: Facts) -> GroupBalance:
    (sums,) = facts.balances
    add_up(sums)
    return sums


class TestWhatOneGroupHasNot:
    def test_all_delivered(self) -> None:
        sums = only(balance(read_by_one(100).end()))
        assert (sums.acked, sums.once) == (100, 100)
        assert describe_balance(sums) == "g: 100 acknowledged = 100 delivered."

    def test_newest_records_after_the_end_of_the_groups_events_are_not_read_yet(self) -> None:
        history = read_by_one(70)
        at = history.now
        for first in range(100, 120, 10):
            history.ack("p", 0, first, first, 10)  # later than anything of the consumer
        sums = only(balance(history.events, alive_since=at - 8_000, now_ms=history.now))
        assert (sums.acked, sums.once) == (120, 70)
        assert sums.unread >= 20
        assert sums.lost == 0
        assert "not read yet" in describe_balance(sums)

    def test_newest_records_within_the_groups_events_are_still_to_come(self) -> None:
        history = read_by_one(0)
        since = history.now - 20_000
        for _ in range(3):
            history.deliver("g", "c", 0, history.counted["c", 0], 10, history.counted["c", 0])
        sums = only(balance(history.events, alive_since=since, now_ms=history.now))
        assert (sums.once, sums.to_come, sums.unread) == (30, 70, 0)
        assert describe_balance(sums) == "g: 100 acknowledged = 30 delivered + 70 still to come."

    def test_duplicates_and_losses(self) -> None:
        history = read_by_one(40)
        history.deliver("g", "c", 0, 50, 50, 50)
        history.deliver("g", "c", 0, 0, 5, 0)
        sums = only(balance(history.end()))
        assert (sums.lost, sums.repeats, sums.once) == (10, 5, 90)
        assert describe_balance(sums) == "g: 100 acknowledged = 90 delivered + 10 lost; 5 duplicates besides."

    def test_records_of_producers_without_events(self) -> None:
        history = read_by_one(100)
        history.deliver("g", "c", 0, 100, 7)
        sums = only(balance(history.end()))
        assert (sums.unacknowledged, sums.once) == (7, 107)
        assert describe_balance(sums) == "g: 100 acknowledged + 7 without an acknowledgement = 107 delivered."

    def test_records_before_the_group_began(self) -> None:
        history = History()
        history.consumer("c", "g", reset="latest")
        history.producer("p")
        history.own("g", "c", OwnershipChange.ACQUIRED)
        history.ack("p", 0, 0, 0, 10)
        history.ack("p", 0, 10, 10, 10)
        history.deliver("g", "c", 0, 10, 10, 10)
        sums = only(balance(history.end()))
        assert (sums.not_due, sums.once) == (10, 10)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happened_the_figures_add_up(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    history = History()
    for member in ("a", "b"):
        history.consumer(member, "g", reset=chance.choice(("earliest", "latest")))
    history.consumer("z", "h")
    history.producer("p")
    history.own("g", "a", OwnershipChange.ACQUIRED, (0, 1))
    ends = {0: 0, 1: 0}
    for _ in range(40):
        partition, count = chance.randrange(2), chance.randrange(1, 9)
        if chance.random() < 0.6:
            history.ack("p", partition, ends[partition] if chance.random() < 0.95 else -1, ends[partition], count)
            ends[partition] += count
        else:
            first = chance.randrange(ends[partition] + 3)
            group, member = chance.choice((("g", "a"), ("g", "b"), ("h", "z")))
            history.deliver(group, member, partition, first, count, chance.choice((first, None)))
    alive = chance.choice((None, history.now - 20_000))
    facts = balance(history.events if alive else history.end(), alive_since=alive)
    assert {sums.group for sums in facts.balances} == {"g", "h"}
    for sums in facts.balances:
        add_up(sums)
        assert sums.delivered == facts.delivered[sums.group]
    assert sum(sums.lost for sums in facts.balances) == facts.lost.count
