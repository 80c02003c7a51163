"""Faults in a history of events that the ledger, and so each audit, must find."""

from __future__ import annotations

from tests.core.histories import History


def lost_in_the_middle(h: History) -> None:
    h.ack("p", 0, 30, 30, 20)
    h.deliver("g", "m", 0, 30, 5, 30)
    h.deliver("g", "m", 0, 38, 12, 38)


def overwritten(h: History) -> None:
    """An unclean election cut the log and other records took the offsets."""
    h.ack("p", 0, 30, 30, 3)
    h.producer("q")
    h.ack("q", 0, 30, 0, 5)
    h.deliver("g", "m", 0, 30, 5, 0, producer="q")


def read_again(h: History) -> None:
    h.generation += 1  # a rebalance gives it its partitions again
    h.deliver("g", "m", 0, 25, 5, 25)


def stored_twice(h: History) -> None:
    h.deliver("g", "m", 0, 30, 2, 28)


def delivered_out_of_order(h: History) -> None:
    h.ack("p", 0, 30, 30, 10)
    h.deliver("g", "m", 0, 36, 4, 36)
    h.deliver("g", "m", 0, 30, 6, 30)


def committed_too_early(h: History) -> None:
    h.ack("p", 0, 30, 30, 7)
    h.commit("g", "m", 0, 37)
    h.deliver("g", "m", 0, 30, 7, 30)
