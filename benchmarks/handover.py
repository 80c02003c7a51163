"""What the migrating consumer costs and how fast it hands over, on a real broker. Parts: `--part throughput old toggle faults`, or all.

`throughput`: two million small records by a plain consumer and by a migrating one in turn, record by record and in batches; a ratio is
of the medians of one run on one machine, above 1 where the migrating one is faster. Both with their own defaults, and (`tuned_`) with
one `fetch.queue.backoff.ms`: librdkafka's second of it hides what either costs. `old`, `toggle`: see `handover_group`; `faults`: see
`handover_faults`. `double_owned` (ms) and `lost` (records) are of all parts that were run, `*_judged` is what a judge without kmigrate's code
finds missing in what the clients wrote; `benchmarks` fails where they are not 0. An old
consumer that backs off, for its partitions are not free at its first try, is not provoked: `old` has it where it happens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer

from airflow_provider_kmigrate.applications.migrating import consumer_of
from benchmarks.handover_faults import hurt
from benchmarks.handover_group import toggled, with_old_consumers
from tests.consumer.cut_off import Cut
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster

PARTITIONS: Final = 6
_VALUE: Final = b"x" * 100
_TOPIC: Final = "throughput"
_BATCH: Final = 500
_SUMS: Final = ("double_owned", "lost")
MUST_BE_ZERO: Final = (
    *(*_SUMS, "toggle_late", "toggle_incomplete", "toggle_judged"),
    *("fault_delivered_at_once", "fault_again_after_commit", "fault_other_violations", "fault_judged"),
)
_PARTS: Final = ("old", "toggle", "faults", "throughput")

Read = Callable[[Any], int]  # from a consumer, how many records


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `handover.json`."""
    parser = argparse.ArgumentParser(prog="handover")
    parser.add_argument("--records", type=int, default=2_000_000, help="of the throughput: what a second or two suffice for")
    parser.add_argument("--reads", type=int, default=5, help="how often each of both reads all of them")
    parser.add_argument("--rounds", type=int, default=3, help="of each other part")
    parser.add_argument("--part", nargs="+", choices=_PARTS, default=list(_PARTS))
    chosen = parser.parse_args(arguments)
    folder, figures = build / "handover", dict[str, object](dict.fromkeys(MUST_BE_ZERO))
    with _cluster(folder) as cut, tempfile.TemporaryDirectory() as events:
        cluster = cut.cluster
        if "old" in chosen.part:
            figures |= with_old_consumers(cluster, Path(events) / "old", chosen.rounds)
        if "toggle" in chosen.part:
            figures |= toggled(cluster, Path(events) / "toggle", chosen.rounds)
        if "faults" in chosen.part:
            figures |= hurt(cut, Path(events) / "faults", chosen.rounds)
        if "throughput" in chosen.part:
            _fill(cluster, chosen.records)
            figures |= _throughput(cluster, chosen.records, chosen.reads, "", {})
            figures |= _throughput(cluster, chosen.records, chosen.reads, "tuned_", {"fetch.queue.backoff.ms": 50})
    return figures | {
        name: sum(int(str(value)) for key, value in figures.items() if key.endswith(f"_{name}") and value is not None)
        for name in _SUMS
    }


@contextmanager
def _cluster(folder: Path) -> Iterator[Cut]:
    there = LocalCluster(folder / "cluster")
    there.clean()
    try:
        with Cut(there.folder) as cut:
            yield cut
    finally:
        there.clean()


def _throughput(cluster: LocalCluster, records: int, rounds: int, prefix: str, more: Mapping[str, Any]) -> dict[str, object]:
    """With each one's own defaults, or with `more` for both."""
    reads: dict[str, Read] = {"poll": _one, "consume": _some}
    figures: dict[str, object] = {"records": records, "reads": rounds}
    for name, read in reads.items():
        found: dict[str, list[float]] = {"kafka": [], "migrating": []}
        for number in range(rounds):
            for stage, rates in found.items():
                rates.append(_rate(cluster, stage, f"{prefix}{name}-{stage}-{number}", read, records, more))
                print(json.dumps({"read": f"{prefix}{name}", "stage": stage, "records_per_s": round(rates[-1])}), flush=True)
        plain, ours = (statistics.median(rates) for rates in found.values())
        figures |= {
            f"{prefix}{name}_plain_records_per_s": round(plain),
            f"{prefix}{name}_migrating_records_per_s": round(ours),
            f"{prefix}{name}_throughput_ratio": round(ours / plain, 3),
        }
    return figures


def _fill(cluster: LocalCluster, records: int) -> None:
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan(_TOPIC, PARTITIONS, 1)])
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 200_000})
    for number in range(records):
        producer.produce(_TOPIC, _VALUE, partition=number % PARTITIONS)
        while len(producer) > 150_000:
            producer.poll(0.05)
    if producer.flush(60.0):
        raise SystemExit("The broker does not take the records.")


def _rate(  # noqa: PLR0917
    cluster: LocalCluster, stage: str, group: str, read: Read, records: int, more: Mapping[str, Any]
) -> float:
    """Records a second, from the first to the last."""
    consumer = consumer_of(
        {
            "bootstrap.servers": cluster.bootstrap,
            "zookeeper.connect": cluster.zookeeper,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "coordination.migration.stage": stage,
            **more,
        }
    )
    consumer.subscribe([_TOPIC])
    seen, deadline = 0, time.monotonic() + 120.0
    while not seen and time.monotonic() < deadline:
        seen = read(consumer)
    began, first = time.perf_counter(), seen
    while seen < records and time.monotonic() < deadline:
        seen += read(consumer)
    took = time.perf_counter() - began
    consumer.close()
    if seen < records:
        raise SystemExit(f"{group}: {seen} of {records} records came")
    return (records - first) / took


def _one(consumer: Consumer) -> int:
    message = consumer.poll(1.0)
    return 0 if message is None or message.error() else 1


def _some(consumer: Consumer) -> int:
    return sum(not message.error() for message in consumer.consume(_BATCH, 1.0))
