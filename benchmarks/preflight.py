"""Preflight of a large cluster: 5,000 topics with 50,000 partitions.

Real: ZooKeeper with all of their znodes, three brokers that hold and serve the metadata of all of them, and every request. Not real: the
partitions have no replica that lives (they are assigned to brokers 100 to 102, which do not exist), because small brokers on one machine
could not keep 50,000 logs open. Preflight therefore blocks, and says that they are out of sync.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.core.preflight import checks as preflight
from airflow_provider_kmigrate.preflight.page import as_document, render_page
from airflow_provider_kmigrate.steps.prepare import Preflight, observe_preflight
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from tests.kit.localcluster import members
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape

_NO_MEMBERS = (100, 101, 102)
_IN_FLIGHT = 8
_PATIENCE = 120.0  # seconds


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `preflight.json`."""
    parser = argparse.ArgumentParser(prog="preflight")
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--partitions", type=int, default=10, help="of each topic")
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args(arguments)
    cluster = LocalCluster(build / "preflight" / "cluster")
    cluster.clean()
    try:
        planted = _up(cluster, chosen.topics, chosen.partitions)
        print(f"planted in {planted} s, brokers are up", flush=True)
        runs = [_run(cluster, chosen.topics * chosen.partitions) for _ in range(chosen.runs)]
    finally:
        cluster.clean()
    return {**_figures(runs), "planting_seconds": planted, "runs": chosen.runs, "real_replicas": 0}


def _up(cluster: LocalCluster, topics: int, partitions: int) -> float:
    """Brokers that learn of the topics when they start, as after any restart."""
    cluster.up(Shape(name="large"))
    cluster.down()
    members.start(cluster.plan.zookeeper_folder)
    began = time.monotonic()
    client = KazooClient(cluster.plan.zookeeper)
    client.start(timeout=60)
    try:
        _plant(client, topics, partitions)
    finally:
        client.stop()
        client.close()
    seconds = round(time.monotonic() - began, 3)
    cluster.up(timeout=300)
    return seconds


def _plant(client: KazooClient, topics: int, partitions: int) -> None:
    waiting: deque[Any] = deque()
    for number in range(topics):
        waiting.append(_topic(client, f"topic-of-some-team-{number:05}", number, partitions))
        if len(waiting) == _IN_FLIGHT:
            waiting.popleft().get(60)
    for result in waiting:
        result.get(60)


def _topic(client: KazooClient, name: str, number: int, partitions: int) -> Any:
    """One transaction with everything that Kafka writes of a topic."""
    transaction = client.transaction()
    where = f"/brokers/topics/{name}"
    assigned = {str(index): list(_NO_MEMBERS) for index in range(partitions)}
    identity = base64.urlsafe_b64encode((number + 1_000).to_bytes(16, "big")).decode().rstrip("=")
    body = {"removing_replicas": {}, "partitions": assigned, "topic_id": identity, "adding_replicas": {}, "version": 3}
    transaction.create(where, json.dumps(body).encode())
    transaction.create(f"{where}/partitions")
    state = {"controller_epoch": 1, "leader": -1, "version": 1, "leader_epoch": 0, "isr": [_NO_MEMBERS[0]]}
    for index in range(partitions):
        transaction.create(f"{where}/partitions/{index}")
        transaction.create(f"{where}/partitions/{index}/state", json.dumps(state).encode())
    transaction.create(f"/config/topics/{name}", json.dumps({"version": 1, "config": {"retention.ms": "86400000"}}).encode())
    return transaction.commit_async()


def _run(cluster: LocalCluster, expected: int) -> dict[str, Any]:
    with direct.context(cluster, acting=False) as context:
        _wait(context, expected)
        began = time.monotonic()
        result = observe_preflight(context)
        seconds = time.monotonic() - began
    found = {"seconds": seconds, **_decided(result)}
    print(json.dumps(found), flush=True)
    return {**found, "looked": result}


def _wait(context: StepContext, expected: int) -> None:
    """Until the controller has sent the brokers all metadata; it begins by trying to elect a leader for each partition."""
    deadline = time.monotonic() + _PATIENCE
    while len(context.observer.observe(Fields.PARTITIONS).partitions or ()) < expected:
        if time.monotonic() > deadline:
            raise SystemExit(f"The brokers do not know {expected} partitions after {_PATIENCE:.0f} s.")
        time.sleep(1.0)


def _decided(result: Preflight) -> dict[str, float]:
    began = time.monotonic()
    preflight.run_checks(result.view, result.facts)
    decided = time.monotonic()
    page = render_page(as_document(result))
    return {"decide": decided - began, "page": time.monotonic() - decided, "page_bytes": len(page)}


def _figures(runs: list[dict[str, Any]]) -> dict[str, object]:
    result: Preflight = runs[-1]["looked"]
    view = result.view
    assert view.topics is not None
    return {
        "preflight_seconds": round(statistics.median(run["seconds"] for run in runs), 3),
        "preflight_worst_seconds": round(max(run["seconds"] for run in runs), 3),
        "decide_seconds": round(statistics.median(run["decide"] for run in runs), 3),
        "look_seconds": round(view.took, 3),
        "page_seconds": round(runs[-1]["page"], 3),
        "page_bytes": runs[-1]["page_bytes"],
        "topics_of_zookeeper": len(view.topics[0]),
        "topics_of_brokers": len(view.topics[1]),
        "partitions": len(view.partitions or ()),
        "findings": len(result.found),
        "unread_codes": " ".join(reason.code for reason in view.unknowns),  # G23: the controllers, which have not been started
        "unread_around": len(result.facts.environment.unread),
    }
