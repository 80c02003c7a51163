"""Our assignment against the old consumer's own classes, on as many random groups as wanted: how many agree, and what either costs.

`python -m benchmarks.assignment`, or `make bench BENCH=assignment`; an argument is the number of groups for each assignor (1000).
"""

from __future__ import annotations

import time
from pathlib import Path

from airflow_provider_kmigrate.core.member.assignors import Strategy
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.old_consumer.old_consumers import BEFORE_1_0, LATEST, asked
from tests.old_consumer.random_groups import groups, put

_KINDS = (
    (LATEST, "range", Strategy.RANGE),
    (LATEST, "roundrobin", Strategy.ROUND_ROBIN),
    (BEFORE_1_0, "range", Strategy.RANGE),
    (BEFORE_1_0, "roundrobin", Strategy.ROUND_ROBIN_0_10),
)


def main(arguments: list[str], build: Path) -> dict[str, object]:
    """The figures; `arguments`: groups of each kind."""
    count = int(arguments[0]) if arguments else 1000
    with lent(build / "assignment" / "cluster", Shape(name="assignment", brokers=1, controllers=1)) as cluster:
        return {"groups_each": count, "kinds": [_compared(cluster, seed, count) for seed in range(len(_KINDS))]}


def _compared(cluster: LocalCluster, seed: int, count: int) -> dict[str, object]:
    version, name, strategy = _KINDS[seed]
    chroot, made = f"/bench-{seed}", list(groups(count, 1000 + seed, odd=version == LATEST))
    put(cluster.zookeeper, chroot, made)
    questions = [(group.name, consumer, name) for group in made for consumer in sorted(group.data)]
    began = time.monotonic()
    answers = dict(zip(questions, asked(f"{cluster.zookeeper}{chroot}", questions, version), strict=True))
    theirs_s, began = time.monotonic() - began, time.monotonic()
    ours = {group.name: group.owned(strategy) for group in made}
    ours_s = time.monotonic() - began
    differing = [
        group.name for group in made if ours[group.name] != {each: answers[group.name, each, name] for each in group.data}
    ]
    return {
        "version": version,
        "strategy": name,
        "members": len(questions),
        "members_that_cannot_compute": sum(answer is None for answer in answers.values()),
        "differing": differing,
        "old_consumer_s": round(theirs_s, 2),
        "ours_s": round(ours_s, 3),
    }
