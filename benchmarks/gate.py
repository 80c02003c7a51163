"""The gate before each act: the fence, which a real ZooKeeper is asked for, beside an observation that was just taken.

The kill switch of this program is off without a question; on Airflow it is one more request to Airflow's own API.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.steps.run import pass_gate
from benchmarks import direct
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The figures of `gate.json`, in milliseconds."""
    parser = argparse.ArgumentParser(prog="gate")
    parser.add_argument("--times", type=int, default=500)
    chosen = parser.parse_args(arguments)
    cluster = LocalCluster(build / "gate" / "cluster")
    cluster.clean()
    try:
        cluster.up(Shape(name="gate", brokers=1))
        took = sorted(_asked(cluster, chosen.times))
    finally:
        cluster.clean()
    return {
        "times": len(took),
        "median_ms": round(statistics.median(took), 2),
        "p99_ms": round(took[int(0.99 * (len(took) - 1))], 2),
        "longest_ms": round(took[-1], 2),
    }


def _asked(cluster: LocalCluster, times: int) -> list[float]:
    found = []
    with direct.context(cluster, "gate") as here:
        view = here.observer.observe(Fields.POSITION)
        for _ in range(times):
            view = replace(view, taken_at=time.monotonic())
            began = time.perf_counter()
            if why := pass_gate("gate", here, view):
                raise RuntimeError(why)
            found.append(1000 * (time.perf_counter() - began))
    return found
