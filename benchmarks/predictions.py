"""Short real runs that leave what their plans predicted beside what they took (`tests.kit.predictions`); `BENCH=plan` judges all such records.

Each kind of cluster is migrated to its end under a light load, by the DAG's steps without Airflow. `within`: kind -> predicted over real.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from benchmarks import direct
from benchmarks.rehearsal import Rehearsal
from tests.kit.fleet import Fleet
from tests.kit.load import TopicPlan
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape
from tests.kit.predictions import FOLDER, read_predictions
from tests.kit.workload import GroupPlan

KINDS: Final[dict[str, tuple[Shape, Callable[[Path], LocalCluster]]]] = {
    "local": (Shape("predicted"), LocalCluster),
    "single": (Shape("predicted", controllers=1), LocalCluster),
    "ensemble": (Shape("predicted", zookeepers=3, chroot="/kafka"), LocalCluster),
    "machines": (Shape("predicted", chroot="/kafka"), Fleet),
}
_TOPICS: Final = (TopicPlan("orders", 12), TopicPlan("payments", 6))


def main(arguments: Sequence[str], build: Path) -> dict[str, object]:
    """The figures of `predictions.json`."""
    parser = argparse.ArgumentParser(prog="predictions")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only this kind of cluster; machines needs root")
    chosen = parser.parse_args(arguments).kind or list(KINDS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    return {"within": {kind: _predict_and_run(kind, build / "predictions" / kind) for kind in chosen}}


def _predict_and_run(kind: str, folder: Path) -> float:
    shape, cluster_type = KINDS[kind]
    policy, groups = {"min_soak": "1s", "canary_bake": "0s"}, (GroupPlan("billing", 1),)
    earlier = {json.dumps(record) for record in read_predictions(FOLDER)}
    with closing(
        Rehearsal(folder, shape, _TOPICS, groups, 100.0, producers=1, policy=policy, foreign=None, cluster_type=cluster_type)
    ) as rehearsal:
        rehearsal.cluster.end_with_this_process()
        rehearsal.up()
        rehearsal.load()
        rehearsal.forward(direct.forward)
    (record,) = (record for record in read_predictions(FOLDER) if json.dumps(record) not in earlier)
    predicted, real = (sum(phase[name] for phase in record["phases"]) for name in ("predicted", "real"))
    return round(predicted / real, 2)
