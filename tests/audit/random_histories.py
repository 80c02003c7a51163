"""Random histories in which anything may go wrong, with the data and with the audit; many of them packed into one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_kmigrate.core.events.lines import decode, encode
from airflow_provider_kmigrate.core.events.model import DeliveryRun, Event, OwnershipChange, Stop
from tests.core.histories import History

_NAMES = {"writer", "group", "member", "topic", "producer", "topics", "writers"}


def packed(count: int, seed: int) -> list[Event]:
    """The events of `count` histories in any order; no name occurs in two of them."""
    rng = random.Random(seed)  # noqa: S311
    events = [event for number in range(count) for event in renamed(history(rng), f"{number}.")]
    rng.shuffle(events)
    return events


def renamed(events: Sequence[Event], prefix: str) -> list[Event]:
    return [decode(json.dumps(_renamed(json.loads(encode(event)), prefix))) for event in events]


def _renamed(value: dict[str, Any], prefix: str) -> dict[str, Any]:
    changed = {name: _prefixed(item, prefix) for name, item in value.items() if name in _NAMES}
    for name in ("partitions", "offsets", "records"):
        if name in value:
            changed[name] = [[prefix + row[0], *row[1:]] for row in value[name]]
    return value | changed


def _prefixed(item: Any, prefix: str) -> Any:
    if isinstance(item, list):
        return [_prefixed(one, prefix) for one in item]
    if item is None:
        return None
    return f"^{prefix}{item[1:]}" if item.startswith("^") else prefix + item


_Fault = Callable[["_Made"], None]
_Hole = Callable[[list[Event], random.Random], list[Event]]


def history(
    rng: random.Random,
    kinds: Sequence[_Fault] | None = None,
    holes: Sequence[_Hole] | None = None,
    make: type[_Made] | None = None,
) -> list[Event]:
    """One history: a third of them is calm, most have one thing wrong, some have many."""
    kinds, holes = FAULTS if kinds is None else kinds, HOLES if holes is None else holes
    made = (make or _Made)(rng)
    faults = rng.choice([0, 0, 1, 1, 1, 2, 4])
    for _ in range(rng.randint(2, 8)):
        made.step()
        if faults and rng.random() < 0.5:
            rng.choice(kinds)(made)
            faults -= 1
    events = made.end()
    for _ in range(rng.choice([0, 0, 0, 1, 2]) if holes else 0):
        events = rng.choice(holes)(events, rng)
    return events


class _Made:
    """Two producers, one or two groups of two members, two partitions; everything flows until a fault is planted."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.story = History()
        self.groups = ["g", "h"][: rng.randint(1, 2)]
        self.numbers_known = rng.random() < 0.6
        self.tick = rng.choice([1_000, 1_000, 40])  # how far apart events are; members' clocks agree within 100
        self.killed: list[str] = []
        for group in self.groups:
            for member in "ab":
                self.story.consumer(group + member, group, ("^t",), rng.choice(["earliest", "earliest", "earliest", "latest"]))
        self.producers = ["p", "q"][: rng.randint(1, 2)]
        for producer in self.producers:
            self.story.producer(producer)
        self.owner = {(group, part): group + "a" for group in self.groups for part in (0, 1)}
        self.offset = {0: 0, 1: 0}
        self.number = {(producer, part): 0 for producer in self.producers for part in (0, 1)}
        self.log: dict[int, list[tuple[str, int, int, int]]] = {0: [], 1: []}
        self.read = dict.fromkeys(self.owner, 0)  # how many log entries each reader was given
        for group in self.groups:
            self.story.own(group, group + "a", OwnershipChange.ACQUIRED, (0, 1), ordered=rng.random() < 0.8)

    def ago(self, ms: int | None = None) -> None:
        """The next event comes `tick` later instead of a second."""
        self.story.now += (self.tick if ms is None else ms) - 1_000

    def append(self, part: int, count: int) -> None:
        producer = self.rng.choice(self.producers)
        entry = (producer, self.offset[part], self.number[producer, part], count)
        self.log[part].append(entry)
        self.ago()
        self.story.ack(producer, part, *entry[1:])
        self.offset[part] += count
        self.number[producer, part] += count

    def deliver(self, group: str, part: int, entry: tuple[str, int, int, int], member: str | None = None) -> None:
        producer, first, seq, count = entry
        known = seq if self.numbers_known else None
        self.ago()
        self.story.deliver(group, member or self.owner[group, part], part, first, count, known, producer=producer)

    def catch_up(self, group: str, part: int) -> None:
        for entry in self.log[part][self.read[group, part] :]:
            self.deliver(group, part, entry)
        self.read[group, part] = len(self.log[part])

    def step(self) -> None:
        """Some records, most of them read at once, most of that committed, sometimes a handover."""
        part = self.rng.randint(0, 1)
        for _ in range(self.rng.randint(1, 3)):
            self.append(part, self.rng.randint(1, 6))
        for group in self.groups:
            if self.rng.random() < 0.8:
                self.catch_up(group, part)
            if self.rng.random() < 0.5 and self.read[group, part] == len(self.log[part]):
                self.ago()
                self.story.commit(group, self.owner[group, part], part, self.offset[part])
            if self.rng.random() < 0.2:
                self.hand_over(group, part)

    def hand_over(self, group: str, part: int) -> None:
        old = self.owner[group, part]
        new = group + ("b" if old.endswith("a") else "a")
        self.story.own(group, old, OwnershipChange.RELEASED, (part,))
        self.story.own(group, new, OwnershipChange.ACQUIRED, (part,))
        self.owner[group, part] = new

    def end(self) -> list[Event]:
        for group, part in self.owner:
            self.catch_up(group, part)
        return self.story.end(*self.killed)


class Uneven(_Made):
    """Deliveries begin and end elsewhere than acknowledgements: some hold a part of one, some hold several."""

    def deliver(self, group: str, part: int, entry: tuple[str, int, int, int], member: str | None = None) -> None:
        producer, first, seq, count = entry
        cut = self.rng.randint(0, count - 1)
        if cut and self.rng.random() < 0.6:
            super().deliver(group, part, (producer, first, seq, cut), member)
            entry = (producer, first + cut, seq + cut, count - cut)
        super().deliver(group, part, entry, member)

    def catch_up(self, group: str, part: int) -> None:
        joined: list[tuple[str, int, int, int]] = []
        for producer, first, seq, count in self.log[part][self.read[group, part] :]:
            if joined and self.rng.random() < 0.5:
                known, begin, number, size = joined[-1]
                if (known, begin + size, number + size) == (producer, first, seq):
                    joined[-1] = (known, begin, number, size + count)
                    continue
            joined.append((producer, first, seq, count))
        for entry in joined:
            self.deliver(group, part, entry)
        self.read[group, part] = len(self.log[part])


def _place(made: _Made) -> tuple[str, int]:
    return made.rng.choice(sorted(made.owner))


def skip(made: _Made) -> None:
    group, part = _place(made)
    made.catch_up(group, part)
    made.append(part, made.rng.randint(1, 4))
    made.read[group, part] += 1
    made.append(part, 2)


def rewind(made: _Made) -> None:
    group, part = _place(made)
    if made.log[part]:
        made.story.generation += made.rng.choice([0, 1])  # by the client itself, or by the group
        made.deliver(group, part, made.rng.choice(made.log[part]), group + made.rng.choice("ab"))


def swap(made: _Made) -> None:
    group, part = _place(made)
    made.catch_up(group, part)
    made.append(part, 3)
    made.append(part, 2)
    for entry in reversed(made.log[part][-2:]):
        made.deliver(group, part, entry)
    made.read[group, part] = len(made.log[part])


def commit_early(made: _Made) -> None:
    group, part = _place(made)
    made.append(part, made.rng.randint(1, 3))
    made.story.commit(
        group, made.owner[group, part], part, made.offset[part] + made.rng.choice([0, 0, 7]), made.rng.random() < 0.8
    )


def own_twice(made: _Made) -> None:
    group, part = _place(made)
    made.story.own(group, group + "b", OwnershipChange.ACQUIRED, (part,), ordered=made.rng.random() < 0.8)
    if made.rng.random() < 0.7:
        made.story.own(group, group + "b", made.rng.choice([OwnershipChange.RELEASED, OwnershipChange.LOST]), (part,))


def sleep(made: _Made) -> None:
    """The owner is gone for a while; another one takes over, and the first one finds out late. Sometimes it says too much."""
    group, part = _place(made)
    old = made.owner[group, part]
    new = group + ("b" if old.endswith("a") else "a")
    until = made.story.now + made.rng.choice([-1_500, 0, 0, 0, 700, 1_500])
    made.ago(made.rng.choice([40, 2_000]))
    made.story.own(group, new, OwnershipChange.ACQUIRED, (part,), ordered=made.rng.random() < 0.8)
    made.owner[group, part] = new
    if made.rng.random() < 0.5:
        made.append(part, 2)
        made.deliver(group, part, made.log[part][-1], made.rng.choice([old, new, new]))
        made.read[group, part] = len(made.log[part])
    made.ago(3_000)
    made.story.own(group, old, OwnershipChange.LOST, (part,), ordered=made.rng.random() < 0.8, until_ms=until)


def store_twice(made: _Made) -> None:
    _, part = _place(made)
    if made.log[part]:
        producer, _, seq, count = made.rng.choice(made.log[part])
        made.log[part].append((producer, made.offset[part], seq, count))
        made.offset[part] += count


def overwrite(made: _Made) -> None:
    group, part = _place(made)
    if made.log[part]:
        producer, first, seq, count = made.log[part][-1]
        made.deliver(group, part, (producer, first, seq + 500, count))


def truncate(made: _Made) -> None:
    _, part = _place(made)
    made.story.extent(
        part, made.rng.choice([0, 0, 2]), max(2, made.offset[part] - made.rng.randint(0, 3)), made.rng.random() < 0.2
    )


def lose_place(made: _Made) -> None:
    part = made.rng.randint(0, 1)
    producer = made.producers[0]
    made.story.ack(producer, part, -1, made.number[producer, part], 2)
    made.number[producer, part] += 2


def read_in_holes(made: _Made) -> None:
    group, _ = _place(made)
    made.catch_up(group, 0)
    made.append(0, 2)
    made.offset[0] += 1
    made.append(0, 2)
    low = made.log[0][-2][1]
    made.story.inexact(group, made.owner[group, 0], low, low + 4, made.rng.choice([3, 4, 4, 5]))
    made.read[group, 0] = len(made.log[0])


def kill(made: _Made) -> None:
    made.killed.append(made.rng.choice([*made.producers, *(group + member for group in made.groups for member in "ab")]))


def skip_markers(made: _Made) -> None:
    made.offset[made.rng.randint(0, 1)] += made.rng.randint(1, 3)


RECORD_FAULTS: tuple[_Fault, ...] = (skip, rewind, rewind, swap, commit_early, own_twice, sleep, truncate, kill, skip_markers)
FAULTS: tuple[_Fault, ...] = (*RECORD_FAULTS, store_twice, overwrite, lose_place, read_in_holes)


def lose_event(events: list[Event], rng: random.Random) -> list[Event]:
    gone = rng.choice(events)
    return [event for event in events if event is not gone]


def repeat_events(events: list[Event], rng: random.Random) -> list[Event]:
    return [*events, *rng.sample(events, min(3, len(events)))]


def contradict(events: list[Event], rng: random.Random) -> list[Event]:
    chosen = rng.choice(events)
    return [*events, replace(chosen, stamp=chosen.stamp._replace(t_ms=chosen.stamp.t_ms + 1))]


def stop_unclean(events: list[Event], rng: random.Random) -> list[Event]:
    stops = [event for event in events if isinstance(event, Stop)]
    chosen = rng.choice(stops)
    return [replace(event, clean=False) if event is chosen else event for event in events]


def renumber_without(events: list[Event], rng: random.Random) -> list[Event]:
    """A run is taken out of its file, and the numbers do not show it."""
    runs = [event for event in events if isinstance(event, DeliveryRun)]
    if not runs:
        return events
    gone = rng.choice(runs)
    kept = [event for event in events if event is not gone]
    return [
        replace(event, stamp=event.stamp._replace(event_seq=event.stamp.event_seq - 1))
        if event.stamp.writer == gone.stamp.writer and event.stamp.event_seq > gone.stamp.event_seq
        else event
        for event in kept
    ]


HOLES: tuple[_Hole, ...] = (
    lose_event,
    lose_event,
    repeat_events,
    contradict,
    stop_unclean,
    renumber_without,
)
