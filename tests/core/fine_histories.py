"""Histories of events in which nothing is lost."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from tests.core.histories import History


def cut(total: int, draw: st.DrawFn) -> list[tuple[int, int]]:
    """(first, count) pieces of 0..total-1."""
    points = sorted({0, total, *draw(st.lists(st.integers(0, total), max_size=4))})
    return [(a, b - a) for a, b in pairwise(points)]


@st.composite
def fine_histories(draw: st.DrawFn) -> History:
    """Anything that may lawfully happen: several producers, partitions and groups, handovers, gaps of markers."""
    history = History()
    for group in ("g1", "g2"):
        for member in ("a", "b"):
            history.consumer(f"{group}{member}", group, ("^t",))
    for producer in ("p", "q"):
        history.producer(producer)
    for partition in (0, 1):
        offset, numbers, log = 0, {"p": 0, "q": 0}, []
        for _ in range(draw(st.integers(1, 6))):
            producer, count = draw(st.sampled_from("pq")), draw(st.integers(1, 5))
            history.ack(producer, partition, offset, numbers[producer], count)
            log.append((producer, offset, numbers[producer], count))
            numbers[producer] += count
            offset += count + draw(st.integers(0, 2))
        for group in ("g1", "g2"):
            member = "a"
            for producer, first, seq, count in log:
                for start, size in cut(count, draw):
                    member = draw(st.sampled_from("ab"))
                    known = draw(st.booleans())
                    history.deliver(
                        group, group + member, partition, first + start, size, seq + start if known else None, producer=producer
                    )
    return history
