"""How often the canary's judge fails a real group in which nothing changes, and how often it misses what is planted: `make bench BENCH=canary`.

A group of real consumers reads under load for some minutes, and no member is changed. Then every member plays the canary at many moments
of that time (`canary_trials`). What is slower is planted in the numbers, not in the group. Trials overlap: no independent draws.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.rehearsal import ROOT, Rehearsal
from tests.kit.load import TopicPlan
from tests.kit.localcluster.plan import Shape
from tests.kit.workload import GroupPlan

GROUP, MEMBERS, PARTITIONS, RATE, SECONDS = "load", 6, 12, 300.0, 420


def main(arguments: Sequence[str], build: Path) -> dict[str, Any]:
    """Arguments: seconds under load, 420 by default."""
    seconds = int(arguments[0]) if arguments else SECONDS
    shape, topics = Shape(name="canary", brokers=1, controllers=1), [TopicPlan("orders", PARTITIONS, 1)]
    there = Rehearsal(build / "canary", shape, topics, [GroupPlan(GROUP, MEMBERS)], rate=RATE, producers=1, foreign=None)
    with closing(there):
        there.up()
        workload = there.load()
        time.sleep(seconds)
        workload.stop()
        words = [
            str(ROOT / ".venv-spark/bin/python"),
            "-m",
            "benchmarks.canary_trials",
            str(workload.events),
            GROUP,
            str(MEMBERS),
        ]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=600, cwd=ROOT)
    return dict(json.loads(done.stdout))
