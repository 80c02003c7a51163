"""One rehearsal: a real local cluster with topics and load, a migration of it, and what the clients saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_kmigrate.consumer.kafka_calls import TopicPlan, create_topics
from airflow_provider_kmigrate.consumer.probe import Probe
from airflow_provider_kmigrate.consumer.workload.control import Workload
from airflow_provider_kmigrate.consumer.workload.plan import GroupPlan, WorkloadPlan
from airflow_provider_kmigrate.core.events import Slow
from airflow_provider_kmigrate.localcluster.cluster import LocalCluster
from airflow_provider_kmigrate.localcluster.plan import Shape
from airflow_provider_kmigrate.steps.run import World
from benchmarks import direct

ROOT = Path(__file__).resolve().parent.parent
TOPICS = (TopicPlan("orders", 48), TopicPlan("payments", 36), TopicPlan("clicks", 24, config={"retention.ms": "86400000"}))
_AIRFLOW_START_S = 240.0
GROUPS = (GroupPlan("billing", 2), GroupPlan("search", 2, topics=("orders",)))


@dataclass
class Rehearsal:
    """Lives in `folder`, which is emptied first. `policy` overrides keys of the cluster file's policy."""

    folder: Path
    shape: Shape = field(default_factory=Shape)
    topics: Sequence[TopicPlan] = TOPICS
    groups: Sequence[GroupPlan] = GROUPS
    rate: float = 500.0
    producers: int = 3
    policy: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster = LocalCluster(self.folder / "cluster")
        self.workload: Workload | None = None
        self.probe: Probe | None = None
        self._airflow: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        """A serving cluster with its topics, and the policy in its cluster file."""
        self.cluster.clean()
        self.cluster.up(self.shape)
        path = self.cluster.spec_path
        document = yaml.safe_load(path.read_text())
        document["policy"].update(self.policy)
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        create_topics(self._properties, self.topics)

    def load(self, name: str = "load") -> Workload:
        """Producers and groups, all of them running."""
        folder = self.folder / name
        _remove(folder)
        plan = WorkloadPlan(tuple(topic.name for topic in self.topics), self.rate, self.producers, tuple(self.groups))
        self.workload = Workload(folder, self._properties, plan)
        self.workload.start()
        return self.workload

    def watch(self) -> Probe:
        """kmigrate's own probe, flowing through every broker."""
        folder = self.folder / "probe"
        _remove(folder)
        self.probe = Probe(folder, self._properties)
        self.probe.start()
        return self.probe

    @property
    def _properties(self) -> dict[str, str]:
        return {"bootstrap.servers": self.cluster.bootstrap}

    @property
    def dag_id(self) -> str:
        return f"kmigrate_zk_to_kraft__{self.cluster.plan.shape.name}"

    def start_airflow(self, *, fresh: bool = True) -> None:
        """A new Airflow if `fresh`, ready to begin the migration, approved beforehand: as one that has run all along would be.

        Its start keeps a core busy for 15 s; beside a load it would take three times as long.
        """
        if fresh:
            _remove(self.home)
        self._airflow = self._start_dag(self.dag_id, {"approve_finalization": self.cluster.plan.cluster_id})

    def migrate(self, tell: Callable[[dict[str, Any]], None] = lambda _: None, *, fresh: bool = True) -> dict[str, Any]:
        """Run the DAG, in the Airflow that was started for it or starts now; `tell` gets each line of the journal as it appears."""
        if self._airflow is None:
            self.start_airflow(fresh=fresh)
        return self._finish_dag(tell)

    def roll_back(self) -> dict[str, Any]:
        """Run the rollback's DAG, approved beforehand, in the Airflow whose backup the way forward made."""
        conf = {"approve_rollback": self.cluster.plan.cluster_id}
        self._airflow = self._start_dag(f"kmigrate_rollback__{self.cluster.plan.shape.name}", conf)
        return self._finish_dag(lambda _: None)

    def forward(self, steps: Callable[[World], None]) -> None:
        """These steps without Airflow, as a run that is over; the backup is where a DAG finds it."""
        with direct.world(self.cluster, "forward", folder=self.home / "kmigrate") as world:
            steps(world)
            world.fence.release()

    def _start_dag(self, dag_id: str, approved: dict[str, str]) -> subprocess.Popen[bytes]:
        """In a process of its own (`benchmarks.run_dag`), which returns when the DAG can begin."""
        self.home.mkdir(parents=True, exist_ok=True)
        for left in (self._result, self._ready, self._go):
            left.unlink(missing_ok=True)
        plan = self.cluster.plan
        argv = [sys.executable, "-m", "benchmarks.run_dag", f"--dag={dag_id}", "--conf", json.dumps(approved)]
        argv += ["--home", str(self.home), "--clusters", str(plan.spec_path.parent)]
        argv += ["--connections", str(plan.connections_path), "--result", str(self._result)]
        with self.dag_log.open("wb") as log:
            process = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + _AIRFLOW_START_S
        while process.poll() is None and not self._ready.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        if not self._ready.exists():
            _end(process)
            raise SystemExit(f"Airflow did not come up within {_AIRFLOW_START_S:g} s; its log: {self.dag_log}")
        return process

    def _finish_dag(self, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        process, self._airflow = self._airflow, None
        if process is None:
            raise ValueError("no DAG was started")
        self._go.touch()
        follow(process, self.journal_folder, tell, self._result.exists)
        if not self._result.exists():
            raise SystemExit(f"The DAG run broke off (exit code {process.returncode}); its log: {self.dag_log}")
        found: dict[str, Any] = json.loads(self._result.read_text())
        return found

    @property
    def _result(self) -> Path:
        return self.folder / "dag.json"

    @property
    def _ready(self) -> Path:
        return self.folder / "airflow.ready"

    @property
    def _go(self) -> Path:
        return self.folder / "airflow.go"

    def floor(self) -> dict[str, Any]:
        """The bare script instead of the DAG."""
        result = self.folder / "floor.json"
        argv = [
            sys.executable,
            "-m",
            "benchmarks.floor",
            str(self.cluster.spec_path),
            self.cluster.bootstrap,
            self.cluster.zookeeper,
            str(result),
        ]
        with (self.folder / "floor.log").open("wb") as log:
            subprocess.run(argv, cwd=ROOT, stdout=log, stderr=log, check=True, timeout=600)
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    @property
    def home(self) -> Path:
        """Airflow's."""
        return self.folder / "airflow"

    @property
    def dag_log(self) -> Path:
        return self.folder / "dag.log"

    @property
    def journal_folder(self) -> Path:
        return self.home / "kmigrate" / "journal" / self.cluster.plan.shape.name

    def journal(self) -> list[dict[str, Any]]:
        return [
            line
            for path in sorted(self.journal_folder.glob("*.jsonl"))
            for line in map(json.loads, path.read_text().splitlines())
        ]

    def close(self) -> None:
        if self._airflow is not None:
            _end(self._airflow)
        for one in (self.workload, self.probe):
            if one is not None:
                one.stop(drain=0.0)
        self.cluster.down()


@contextmanager
def rehearsing(rehearsal: Rehearsal) -> Iterator[Rehearsal]:
    """Everything it started is stopped at the end, whatever happens."""
    try:
        yield rehearsal
    finally:
        rehearsal.close()


def follow(
    process: subprocess.Popen[bytes], folder: Path, tell: Callable[[dict[str, Any]], None], over: Callable[[], bool]
) -> None:
    """Tell every whole line that appears in the folder's journals until it is `over` or the process ends; then it is ended."""
    told: dict[Path, int] = {}
    try:
        while True:
            ended = over() or process.poll() is not None
            for path in sorted(folder.glob("*.jsonl")) if folder.exists() else []:
                lines = path.read_text().splitlines(keepends=True)
                whole = [line for line in lines if line.endswith("\n")]
                for line in whole[told.get(path, 0) :]:
                    tell(json.loads(line))
                told[path] = len(whole)
            if ended:
                return
            time.sleep(0.2)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, 15)
        process.wait(30)


def stalls_by_act(workload: Workload, journal: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each act of the journal the slowest record sent between it and the next one, in ms, and the time above 100 ms."""
    slow = [
        (r.t_sent_ms, r.latency_us / 1000)
        for event in workload.reading().events
        if isinstance(event, Slow)
        for r in event.records
    ]
    acts = [line for line in journal if line["kind"] == "act"]
    ends = [*(line["at"] for line in acts), float("inf")][1:]
    return [_stall(line, end, slow) for line, end in zip(acts, ends, strict=True)]


def _stall(act: dict[str, Any], end: float, slow: Sequence[tuple[int, float]]) -> dict[str, Any]:
    mine = [latency for sent, latency in slow if act["at"] <= sent / 1000 < end]
    over = sum(latency - 100 for latency in mine) / 1000
    return {"step": act["step"], "longest_ms": round(max(mine, default=0.0), 1), "over_100ms_record_s": round(over, 1)}


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True) if folder.exists() else []:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    if folder.exists():
        folder.rmdir()
