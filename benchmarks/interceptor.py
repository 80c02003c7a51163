"""What the interceptor costs a JVM client: Kafka's own performance tools with it and without it, in turn, on one broker.

Ratios are of the medians of records a second; the order of each pair changes, so that a machine that warms up favours neither. The bar of
`producer_ratio` is 0.97. `acked_missing`: records that the tools had acknowledged and the events do not hold.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.core.ledger import balance
from tests.kit import interceptor
from tests.kit.account import kafka_of
from tests.kit.judge import Kafka
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import lent
from tests.kit.localcluster.plan import Shape

MUST_BE_ZERO: Final = ("acked_missing",)
TOPIC: Final = "measured"
_RUN_S: Final = 300.0
_SENT: Final = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `interceptor.json`."""
    parser = argparse.ArgumentParser(prog="interceptor")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a record")
    chosen = parser.parse_args(arguments)
    folder = build / "interceptor"
    shutil.rmtree(folder, ignore_errors=True)
    with lent(folder / "cluster", Shape("icptbench", brokers=1, controllers=1)) as cluster:
        create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan(TOPIC, 6, 1)])
        plain = kafka_of(cluster, folder)
        kafka = Kafka(plain.java, f"{interceptor.classes()}:{plain.class_path}", plain.bootstrap, folder)
        return _measure(kafka, chosen.pairs, chosen.records, chosen.size)


def _measure(kafka: Kafka, pairs: int, records: int, size: int) -> dict[str, object]:
    events = kafka.folder / "events"
    settings = {
        "plain": {},
        "intercepted": interceptor.settings(interceptor.PRODUCER, events),
    }
    rates: dict[str, list[float]] = {"plain": [], "intercepted": []}
    consumed: dict[str, list[float]] = {"plain": [], "intercepted": []}
    _produce(kafka, {}, records // 4, size)  # the broker's code is compiled by it
    for number in range(pairs):
        for kind in sorted(rates, reverse=bool(number % 2)):
            rates[kind].append(_produce(kafka, settings[kind], records, size))
    reading = interceptor.settings(interceptor.CONSUMER, events)
    for number in range(pairs):
        for kind in sorted(consumed, reverse=bool(number % 2)):
            group = f"{kind}-{number}"
            consumed[kind].append(_consume(kafka, reading if kind == "intercepted" else {}, group, records))
    return {
        "pairs": pairs,
        "records": records,
        "record_bytes": size,
        **{f"producer_{kind}_per_s": round(statistics.median(of)) for kind, of in rates.items()},
        "producer_ratio": _ratio(rates),
        "producer_ratios": [round(one / other, 3) for one, other in zip(rates["intercepted"], rates["plain"], strict=True)],
        **{f"consumer_{kind}_per_s": round(statistics.median(of)) for kind, of in consumed.items()},
        "consumer_ratio": _ratio(consumed),
        "consumer_ratios": [round(one / other, 3) for one, other in zip(consumed["intercepted"], consumed["plain"], strict=True)],
        "acked_missing": pairs * records - balance(read_events(events).events).acked,
        "event_bytes": sum(path.stat().st_size for path in events.glob("*.jsonl")),
    }


def _ratio(rates: Mapping[str, Sequence[float]]) -> float:
    return round(statistics.median(rates["intercepted"]) / statistics.median(rates["plain"]), 3)


def _produce(kafka: Kafka, settings: Mapping[str, str], records: int, size: int) -> float:
    """Records a second, by the tool's own account."""
    config = kafka.config("producer", {"bootstrap.servers": kafka.bootstrap, "acks": "all", "linger.ms": "5", **settings})
    how = ["--topic", TOPIC, "--num-records", str(records), "--record-size", str(size), "--throughput", "-1"]
    printed = _run(kafka, "ProducerPerformance", *how, "--producer.config", config)
    sent, rate = _SENT.findall(printed)[-1]
    if int(sent) != records:
        raise SystemExit(f"The tool sent {sent} of {records} records.")
    return float(rate)


def _consume(kafka: Kafka, settings: Mapping[str, str], group: str, records: int) -> float:
    """Records a second while it fetches, by the tool's own account: the column fetch.nMsg.sec."""
    config = kafka.config("consumer", settings)
    how = ["--bootstrap-server", kafka.bootstrap, "--topic", TOPIC, "--group", group, "--messages", str(records)]
    header, figures = _run(kafka, "ConsumerPerformance", *how, "--consumer.config", config).strip().splitlines()[-2:]
    return float(figures.split(", ")[header.split(", ").index("fetch.nMsg.sec")])


def _run(kafka: Kafka, tool: str, *arguments: str) -> str:
    """What a tool printed; run by Java's own settings, because the kit's are for a quick start."""
    logging = kafka.argv(tool)[-2]
    argv = [kafka.java, "-Xmx256m", logging, f"org.apache.kafka.tools.{tool}", *arguments]
    done = subprocess.run(argv, env=kafka.environment, capture_output=True, text=True, timeout=_RUN_S, check=False)
    if done.returncode:
        raise SystemExit(f"{tool} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout
