"""Random histories as single records: what a run that notes every record would leave."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_provider_kmigrate.audit.schema import LOG, NAMES, RECORDS
from airflow_provider_kmigrate.core.events import Ack, Change, DeliveryRun, Event, Ownership, Role, Stamp, Start, Stop
from tests.audit.random_histories import HOLES, RECORD_FAULTS, dense, history, renamed


@dataclass
class SingleRecords:
    """A history that notes every record: tables of rows, and the events beside them."""

    records: list[dict[str, Any]] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    names: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def tables(self) -> dict[str, pa.Table]:
        rows = {"records": (self.records, RECORDS), "log": (self.log, LOG), "names": (self.names, NAMES)}
        return {name: pa.Table.from_pylist(found, schema=schema) for name, (found, schema) in rows.items()}

    def as_events(self) -> list[Event]:
        """The same as the ledger takes it: a run for each record, a row that is there twice once, the log as a producer."""
        events = list(self.events)
        started = {event.stamp.writer for event in events if isinstance(event, Start)}
        topics = {row["id"]: row["name"] for row in self.names if row["kind"] == "topic"}
        members = {row["id"]: (row["consumer_group"], row["name"]) for row in self.names if row["kind"] == "member"}
        by_member: dict[int, dict[tuple[int, ...], int]] = {}
        for row in sorted(self.records, key=lambda row: -row["t_ms"]):
            key = (row["tid"], row["part"], row["seq"], row["pos"])
            by_member.setdefault(row["mid"], {})[key] = row["t_ms"]
        for mid, rows in by_member.items():
            group, member = members[mid]
            writer = f"{member} records"
            if member in started:
                events.append(Start(Stamp(writer, 0, min(rows.values())), Role.CONSUMER, group=group))
                events.append(Stop(Stamp(writer, len(rows) + 1, max(rows.values())), clean=True))
            else:
                events.append(Ownership(Stamp(writer, 0, 0), group, member, None, Change.RELEASED, ()))
            for number, ((tid, part, seq, pos), t_ms) in enumerate(rows.items(), 1):
                stamp = Stamp(writer, number, t_ms)
                events.append(DeliveryRun(stamp, group, member, None, topics[tid], part, pos, pos, 1, seq, t_ms, t_ms))
        events.append(Start(Stamp("log", 0, 0), Role.PRODUCER))
        events.append(Stop(Stamp("log", len(self.log) + 1, 0), clean=True))
        for number, row in enumerate(self.log, 1):
            pos = row["pos"]
            events.append(Ack(Stamp("log", number, 0), "log", topics[row["tid"]], row["part"], pos, pos, 1, pos, pos, None, 0))
        return events


def single_records(count: int, seed: int) -> SingleRecords:
    """`count` histories in single records; no name occurs in two of them."""
    rng = random.Random(seed)  # noqa: S311
    made = SingleRecords()
    for number in range(count):
        _add_history(made, renamed(history(rng, RECORD_FAULTS, ()), f"{number}."), rng)
    for rows in (made.records, made.log, made.events):
        rng.shuffle(rows)
    return made


def _add_history(made: SingleRecords, events: list[Event], rng: random.Random) -> None:
    """Split one history; then lose some rows or repeat them, or lose events beside them."""
    topics, members = _Ids(made.names, "topic"), _Ids(made.names, "member")
    records = [
        {
            "tid": topics.of(run.topic, None),
            "part": run.partition,
            "mid": members.of(run.member, run.group),
            "pos": run.first + at,
            "seq": run.seq + at,
            "t_ms": run.t_first_ms,
            "latency_us": 1_000,
        }
        for run in events
        if isinstance(run, DeliveryRun)
        for at in range(run.count)
    ]
    acked = {(ack.topic, ack.partition, ack.first + at) for ack in events if isinstance(ack, Ack) for at in range(ack.count)}
    made.log += [{"tid": topics.of(topic, None), "part": part, "pos": pos} for topic, part, pos in sorted(acked)]
    if records and rng.random() < 0.2:
        del records[rng.randrange(len(records))]
    if records and rng.random() < 0.2:
        records += rng.sample(records, min(len(records), 3))
    made.records += records
    rest = dense([event for event in events if not isinstance(event, DeliveryRun | Ack)])
    made.events += rng.choice(HOLES)(rest, rng) if rng.random() < 0.2 else rest


class _Ids:
    def __init__(self, names: list[dict[str, Any]], kind: str) -> None:
        self._names, self._kind = names, kind

    def of(self, name: str, group: str | None) -> int:
        for row in reversed(self._names):
            if (row["kind"], row["name"]) == (self._kind, name):
                return int(row["id"])
        self._names.append({"kind": self._kind, "id": len(self._names) * 7, "name": name, "consumer_group": group})
        return int(self._names[-1]["id"])
