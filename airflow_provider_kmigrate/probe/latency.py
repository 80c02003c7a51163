"""How fast the probe's records are acknowledged, in a small file beside its events: in its first seconds, and in the last ones.

The sender writes the file once a second, so that a roll need not read events before each restart (`core.migration.gates.latency_recovered`).
The first seconds lie before the first restart of the run, because that waits for them.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.core.cluster_state.model import ProbeFigures, ProduceLatency
from airflow_provider_kmigrate.core.events.model import counted_quantile
from airflow_provider_kmigrate.exceptions import Failed

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

FILE: Final = "latency.json"
#: Seconds from the first acknowledgement that do not count: connections are made, metadata and producer ids are fetched.
SETTLING: Final = 5.0
#: Seconds after that which are the state before the first restart, and the last seconds that are compared with it. At five records
#: a second and partition they hold 75 and 25 records. What a restart delayed is out of the second window five seconds later.
BEFORE_S: Final = 15.0
NOW_S: Final = 5.0
_EVERY_S: Final = 1.0
_SHARE: Final = 0.95


class LatencyRecorder:
    """Measures the acknowledgements that are `delivered`, and writes the figures into the probe's `folder`."""

    def __init__(
        self, folder: Path, monotonic: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._path, self._monotonic, self._now = folder / FILE, monotonic, now
        self._acked = deque[tuple[float, str, int]]()  # when, of which partition, after how many microseconds
        self._began: float | None = None  # the first one
        stored = _read_file(self._path, now())
        #: Of the run's first attempt: what another one measures may lie between two restarts.
        self._before: Mapping[str, ProduceLatency] | None = stored.before if stored else None
        self._due = 0.0

    def add_delivery_report(self, error: KafkaError | None, message: Message) -> None:
        """Add one delivery report; records that were given up show as missing acknowledgements."""
        if error is None:
            at = self._monotonic()
            self._began = at if self._began is None else self._began
            partition_name = f"{message.topic()}-{message.partition()}"
            self._acked.append((at, partition_name, round((message.latency() or 0.0) * 1_000_000)))

    def write_if_due(self) -> None:
        """Write the figures, if a second has passed. A disk that is full ends no probe: the figures get old, and readers see that."""
        at = self._monotonic()
        if at < self._due:
            return
        self._due = at + _EVERY_S
        while self._acked and self._acked[0][0] <= at - BEFORE_S:
            self._acked.popleft()
        if self._before is None and self._began is not None and at - self._began >= SETTLING + BEFORE_S:
            self._before = self._measure_latencies(at, BEFORE_S) or None
        before, last = self._before, self._measure_latencies(at, NOW_S)
        figures = {"at": self._now(), "before": None if before is None else _to_rows(before), "now": _to_rows(last)}
        with suppress(Failed):
            atomic.replace(self._path, json.dumps(figures).encode(), mode=atomic.ALL_USERS, durable=False)

    def _measure_latencies(self, at: float, seconds: float) -> dict[str, ProduceLatency]:
        counts_by_partition = defaultdict[str, Counter[int]](Counter)
        for acked_at, partition_name, latency_us in self._acked:
            if acked_at > at - seconds:
                counts_by_partition[partition_name][latency_us] += 1
        return {partition_name: _produce_latency(counts, seconds) for partition_name, counts in counts_by_partition.items()}


def _produce_latency(counts: Counter[int], seconds: float) -> ProduceLatency:
    p95 = counted_quantile(sorted(counts.items()), _SHARE) or 0
    return ProduceLatency(counts.total() / seconds, p95 / 1_000_000)


def _to_rows(figures: Mapping[str, ProduceLatency]) -> dict[str, tuple[float, float]]:
    return {partition_name: (latency.rate, latency.p95) for partition_name, latency in figures.items()}


def read_figures(folder: Path, now: Callable[[], float] = time.time) -> ProbeFigures:
    """The newest figures of the probes below `folder`, one folder for each run; of infinite age if none can be read.

    A sender whose clock is ahead is as old as it is ahead: its figures cannot be dated either.
    """
    readable_figures = [figures for path in folder.glob(f"*/{FILE}") if (figures := _read_file(path, now())) is not None]
    return min(readable_figures, key=lambda figures: figures.age, default=ProbeFigures(math.inf))


def _read_file(path: Path, now: float) -> ProbeFigures | None:
    """The figures in a file; None if it has none, or is of another release."""
    try:
        stored = files.read_object(path) or {}
        before = None if stored["before"] is None else _parse_latencies(stored["before"])
        return ProbeFigures(abs(now - float(stored["at"])), before, _parse_latencies(stored["now"]))
    except (Failed, KeyError, TypeError, ValueError, AttributeError):
        return None


def _parse_latencies(stored: Any) -> dict[str, ProduceLatency]:
    return {partition_name: ProduceLatency(float(rate), float(p95)) for partition_name, (rate, p95) in stored.items()}
