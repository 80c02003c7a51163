"""A day of gates: `python -m benchmarks.audit_day FOLDER POLLS HOUR ...` in Spark's environment, on two cores. Prints JSON.

24 hours of 500 records/s (43.2 M records) over 100 partitions, in `POLLS` polls: each hour's events become a part of an event store. At each HOUR, of
which the last is 24, there is a gate, which reads what came after the settled cuts, and settles. At the end of an hour 40 % of the partitions have an acknowledged record
that was not delivered. `day_gate_s`: the last gate's verdict; `hour24_over_hour1`: over the first one's, which reads its hour whole, after two audits for
practice; `day_whole_s`: an audit of everything at the end; `day_settle_s`: the longest settling, which comes after the verdict. `_cpu_s`: of processors.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_kmigrate.audit.event_store import _PartWriter, _State
from airflow_provider_kmigrate.audit.job import Result, audit_sources, settle_sources
from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.audit.session import SparkEngine, start_session
from airflow_provider_kmigrate.audit.sources import EVENTS, Source, rows_of_event, table_of
from airflow_provider_kmigrate.core.audit.settled import SettledKey
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events.model import Stamp, Start, WriterRole
from airflow_provider_kmigrate.core.ledger import Demand
from benchmarks.audit_run import _cpu_s

T0, HOUR_MS, RECORDS = 1_760_000_000_000, 3_600_000, 43_200_000
PARTITIONS, CLIENTS, UNREAD_OF_FIVE = 100, 10, 2
KEY = SettledKey("benchmark", AuditPolicy().skew_ms)


class Day:
    """Writes one hour after the other. `polls`: of a partition in an hour, a multiple of 6."""

    def __init__(self, store: Path, polls: int) -> None:
        self.store, self.polls = store, polls
        self.records = RECORDS // (24 * PARTITIONS * polls)
        self.numbers: Counter[str] = Counter()
        self.rows = 0
        store.mkdir(parents=True)

    def write_hour(self, hour: int) -> None:
        """The hour's part: acknowledgements, deliveries and commits; the last delivery of some partitions comes with the next hour."""
        if hour == 0:
            self._write(table_of(row for event in self._starts() for row in rows_of_event(event)))
        number, part = np.meshgrid(np.arange(hour * self.polls, (hour + 1) * self.polls), np.arange(PARTITIONS))
        number, part = number.ravel(), part.ravel()
        late = (number % self.polls == self.polls - 1) & (part % 5 < UNREAD_OF_FIVE)
        earlier = np.arange(PARTITIONS)[np.arange(PARTITIONS) % 5 < UNREAD_OF_FIVE] if hour else np.empty(0, int)
        read = np.append(np.full(len(earlier), hour * self.polls - 1), number[~late])
        read_part = np.append(earlier, part[~late])
        done = read % 6 == 5
        self._write(self._rows("ack", "p", number, part, 0))
        self._write(self._rows("delivery", "m", read, read_part, 20))
        self._write(self._rows("commit", "m", read[done], read_part[done], 30))

    def _starts(self) -> list[Start]:
        producers = [Start(Stamp(f"p{number}", 0, T0 - 5_000), WriterRole.PRODUCER) for number in range(CLIENTS)]
        members = [f"m{number}" for number in range(CLIENTS)]
        self.numbers.update([*members, *(start.stamp.writer for start in producers)])
        return [
            *producers,
            *(Start(Stamp(name, 0, T0 - 5_000), WriterRole.CONSUMER, group="g", topics=("t",)) for name in members),
        ]

    def _rows(self, kind: str, role: str, poll: Any, part: Any, later_ms: int) -> pa.Table:
        order = np.lexsort((poll, part % CLIENTS))
        poll, part = poll[order], part[order]
        client = part % CLIENTS
        numbers = np.empty(len(poll), np.int64)
        for code in range(CLIENTS):
            of_client = client == code
            count = int(of_client.sum())
            numbers[of_client] = self.numbers[f"{role}{code}"] + np.arange(count)
            self.numbers[f"{role}{code}"] += count
        sent = T0 + poll * HOUR_MS // self.polls + part * 7
        first = poll * self.records
        names = pa.array([f"{role}{code}" for code in range(CLIENTS)]).take(pa.array(client))
        columns = {"row_kind": pa.array([kind]).take(pa.array(np.zeros(len(poll), int))), "writer": names, "number": numbers}
        columns |= {
            "nth": np.zeros(len(poll), np.int32),
            "t_ms": sent + later_ms,
            "topic": pa.array(["t"] * len(poll)),
            "part": part,
        }
        if kind == "commit":
            columns |= {"lo": first + self.records, "hi": first + self.records - 1}
        else:
            columns |= {"lo": first, "hi": first + self.records - 1, "n": np.full(len(poll), self.records), "seq": first}
            columns |= {
                "producer": pa.array([f"p{code}" for code in range(CLIENTS)]).take(pa.array(client)),
                "producer_seq": first,
            }
            columns |= {"t_sent_ms": sent - 5, "t_last_ms": sent + later_ms}
        if kind == "delivery":
            columns |= {"t_first_ms": sent + 10, "gap_ms": np.zeros(len(poll), np.int64)}
        if kind != "ack":
            columns |= {"consumer_group": pa.array(["g"] * len(poll)), "member": names}
        self.rows += len(poll)
        absent = pa.nulls(len(poll))
        return pa.table([pa.array(columns.get(item.name, absent)).cast(item.type) for item in EVENTS], schema=EVENTS)

    def _write(self, table: pa.Table) -> None:
        writer = _PartWriter(self.store)
        writer.add(table)
        path = self.store / "state.json"
        state = _State(**json.loads(path.read_bytes())) if path.exists() else _State()
        state.parts |= writer.finish()
        path.write_text(json.dumps(asdict(state)))


def main(folder: Path, polls: int, hours: list[int]) -> dict[str, Any]:
    """The figures of a day with gates at these hours."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "events").mkdir(parents=True)
    day = Day(folder / "store", 6 * max(1, polls // (24 * PARTITIONS * 6)))
    source = Source(Level.PRODUCER, lines=(str(folder / "events"),), store=str(folder / "store"))
    session = start_session("local[2]", settings={"spark.driver.memory": "2g"})
    engine = SparkEngine(session)

    def audit(hour: int, key: SettledKey | None) -> tuple[Result, float, float]:
        end_ms = T0 + hour * HOUR_MS
        policy = AuditPolicy(alive_since=end_ms - 60_000, required_evidence=Demand(end_ms - HOUR_MS))
        began, used = time.monotonic(), _cpu_s()
        result = audit_sources([source], policy, engine, settled=key)
        return result, round(time.monotonic() - began, 1), round(_cpu_s() - used, 1)

    gates: dict[int, tuple[float, float]] = {}
    settle_s, suspects = [], []
    for hour in range(1, hours[-1] + 1):
        day.write_hour(hour - 1)
        for _ in range(2 if hour == hours[0] else 0):
            audit(hour, None)
        if hour in hours:
            result, *gates[hour] = audit(hour, KEY)
            suspects.append(result.sources[0].suspects)
            began = time.monotonic()
            print(hour, gates[hour], result.verdict.headline, settle_sources(engine, result, KEY), file=sys.stderr, flush=True)
            settle_s.append(round(time.monotonic() - began, 1))
    whole, whole_s, whole_cpu_s = audit(hours[-1], None)
    session.stop()
    first, last = gates[hours[0]], gates[hours[-1]]
    return {
        "day_rows": day.rows,
        "day_records": sum(whole.sources[0].facts.delivered.values()),
        "day_gate_s": last[0],
        "day_gate_cpu_s": last[1],
        "day_whole_s": whole_s,
        "day_whole_cpu_s": whole_cpu_s,
        "hour24_over_hour1": round(last[0] / first[0], 2),
        "hour24_over_hour1_cpu": round(last[1] / first[1], 2),
        "day_gates": {hour: list(figures) for hour, figures in gates.items()},
        "day_settle_s": max(settle_s),
        "day_suspects": suspects,
        "day_differs": int((result.sources[0].facts, result.verdict) != (whole.sources[0].facts, whole.verdict)),
        "day_load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), list(map(int, sys.argv[3:])) or list(range(1, 25)))))
