"""A cutover of a real JVM application under load, and what planning and scanning of many groups costs.

`pause_s`: from the first stop of the old version to the progress of every partition in the new one. `app_stop_start_s`: the same of the application
alone: all instances stop at once, start at once, and every partition makes progress, without kmigrate. `repeated` and `uncommitted` are counted from the
application's own log. `plan_200_groups_s`, `scan_1000_groups_s`: as in `groups_scan`, with members that are znodes; `scan_1000_groups_cpu_s`: the scan's
processor time, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, GroupWay, InstanceSpec
from airflow_provider_kmigrate.core.groups.cutover import describe_plan
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.spec import load
from benchmarks import direct
from benchmarks.groups_scan import plant_groups, scan_once
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape
from tests.old_consumer import jvm_instance
from tests.old_consumer.jvm_application import JvmApplication, Load
from tests.waiting import wait_until

MUST_BE_ZERO = ("skipped", "lost")
_GROUPS, _PLANNED = 1_000, 200


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The flat figures of `cutover.json`."""
    parser = argparse.ArgumentParser(prog="cutover")
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--rate", type=float, default=400.0)
    chosen = parser.parse_args(arguments)
    folder = build / "cutover"
    shutil.rmtree(folder, ignore_errors=True)
    cluster = LocalCluster(folder / "cluster")
    cluster.clean()
    try:
        cluster.up(Shape(name="cutover", brokers=1, controllers=1))
        return _measure_many_groups(cluster) | _measure_cutover(cluster, folder, chosen)
    finally:
        cluster.clean()


def _measure_many_groups(cluster: LocalCluster) -> dict[str, object]:
    client = KazooClient(cluster.zookeeper, timeout=60)
    client.start(timeout=60)
    try:
        names = [f"team-{number % 37:02}-application-{number:04}" for number in range(_GROUPS)]
        plant_groups(cluster, client, names)
        scans = [scan_once(cluster, _GROUPS) for _ in range(3)]
        groups = {name: GroupSpec(name, (InstanceSpec(f"{name}_host0"),), way=GroupWay.CUTOVER) for name in names[:_PLANNED]}
        spec = replace(load(cluster.spec_path), groups=tuple(groups.values()))
        with direct.context(cluster, "plan", spec=spec, acting=False) as context:
            began = time.monotonic()
            found = context.observer.observe(Fields.ZOOKEEPER | Fields.GROUP_MEMBERS, groups=tuple(groups)).groups or {}
            plans = [describe_plan(found[name], group) for name, group in groups.items()]
            planned = time.monotonic() - began
        if sum("stop at once" in plan for plan in plans) != _PLANNED:
            raise SystemExit(f"Not every group was planned, such as: {plans[0]}")
    finally:
        client.stop()
        client.close()
    scanned = statistics.median(scan["look"] + scan["decide"] for scan in scans)
    cpu = statistics.median(scan["cpu"] for scan in scans)
    return {
        "plan_200_groups_s": round(planned, 3),
        "scan_1000_groups_s": round(scanned, 3),
        "scan_1000_groups_cpu_s": round(cpu, 3),
    }


def _measure_cutover(cluster: LocalCluster, folder: Path, chosen: argparse.Namespace) -> dict[str, object]:
    group = "invoices"
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan(group, chosen.partitions, 1)])
    application = JvmApplication(
        folder / "application", cluster.bootstrap, cluster.zookeeper, group, group, instances=chosen.instances
    )
    application.prepare()
    try:
        application.switch_all("zookeeper")
        with Load(cluster.bootstrap, group, chosen.partitions, chosen.rate) as records:
            _await_progress(application, chosen.partitions)
            pause = _step(cluster, application, "cutover")
            own = _restart(application, chosen.partitions)
            _step(cluster, application, "roll back group", goal=Goal.ZOOKEEPER_CONSUMERS)
            records.stop()
            wait_until(lambda: records.acked <= application.processed().keys(), "everything is processed", 120.0)
            account = application.account(records.acked)
    finally:
        application.end()
    return {
        "instances": chosen.instances,
        "partitions": chosen.partitions,
        "pause_s": round(pause, 1),
        "app_stop_start_s": round(own, 1),
        "skipped": account.skipped,
        "lost": account.lost,
        "repeated": account.repeated,
        "uncommitted": account.uncommitted,
        "records": account.acked,
    }


def _step(cluster: LocalCluster, application: JvmApplication, kind: str, **arguments: Any) -> float:
    """Run one step; returns the pause that it tells, 0 if it tells none."""
    spec = replace(load(cluster.spec_path), groups=(application.spec(),))
    with direct.context(cluster, kind.replace(" ", "-"), spec=spec) as context:
        text = getattr(direct.step(context, kind, group=application.group, **arguments), "text", "")
        context.fence.release()
    return float(text.partition("was stopped for ")[2].partition(" s")[0] or 0.0)


def _await_progress(application: JvmApplication, partitions: int) -> None:
    """Until a record of each partition was processed that was not there before."""
    before = set(application.processed())
    wait_until(
        lambda: len({record[1] for record in application.processed().keys() - before}) == partitions,
        "each partition makes progress",
        120.0,
    )


def _restart(application: JvmApplication, partitions: int) -> float:
    """Seconds of the application's own stop and start, all instances at once."""
    began = time.monotonic()
    with ThreadPoolExecutor(application.instances) as threads:
        for kind in ("stopped", "kafka"):
            list(threads.map(partial(_switch, application, kind), application.names))
    _await_progress(application, partitions)
    return time.monotonic() - began


def _switch(application: JvmApplication, kind: str, name: str) -> None:
    jvm_instance.switch(application.folder, name, kind)
