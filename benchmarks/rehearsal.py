"""One rehearsal: a real local cluster with topics and load, a migration of it, and what the clients saw."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_kmigrate.core.cluster_state.model import ProbeFigures
from airflow_provider_kmigrate.core.events.model import Slow, SlowRecord
from airflow_provider_kmigrate.preflight.plan_page import write_plan
from airflow_provider_kmigrate.probe.latency import read_figures
from airflow_provider_kmigrate.probe.probe import Probe
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.journal import FileJournal, read_journal_lines
from airflow_provider_kmigrate.steps.prepare import observe_preflight, plan_from_here
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from benchmarks.old_application import OldApplication
from tests.kit.account import Account, account_of, kafka_of
from tests.kit.judge import Acknowledged, Foreign
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape
from tests.kit.predictions import keep_prediction
from tests.kit.workload import GroupPlan, Workload, WorkloadPlan
from tests.old_consumer import jvm_application
from tests.old_consumer.jvm_application import CutoverGroup

ROOT = Path(__file__).resolve().parent.parent
TOPICS = (TopicPlan("orders", 48), TopicPlan("payments", 36), TopicPlan("clicks", 24, config={"retention.ms": "86400000"}))
_AIRFLOW_START_S = 240.0
_LAST_REPORTS_S = 420.0  # a little more than the session itself has for them
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
    applications: Sequence[OldApplication | CutoverGroup] = ()  # groups of old consumers, which the cluster file has moved
    foreign: tuple[int, int] | None = (20, 1)  # of the load of Kafka's own tools: records a second, members of its group
    cluster_type: Callable[[Path], LocalCluster] = LocalCluster

    def __post_init__(self) -> None:
        self.cluster = self.cluster_type((self.folder / "cluster").absolute())
        self.workload: Workload | None = None
        self.beside: Foreign | None = None
        self.probe: Probe | None = None
        self._airflow: subprocess.Popen[bytes] | None = None
        self._last = ""  # the DAG with which that Airflow ends

    def up(self) -> None:
        """A serving cluster with its topics, and the policy in its cluster file."""
        self.cluster.clean()
        self.cluster.up(self.shape)
        path = self.cluster.spec_path
        document = yaml.safe_load(path.read_text())
        document["policy"].update(self.policy)
        document["groups"] = [one.entry(self._application(one)) for one in self.applications]
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        create_topics(self._properties, self.topics)

    def _application(self, one: OldApplication | CutoverGroup) -> Path:
        return self.folder / "applications" / one.group

    def start_applications(self) -> None:
        """The old consumers, beside the load and writing where it does."""
        if self.workload is None:
            raise ValueError("the load is to flow before the old consumers are started")
        for one in self.applications:
            _remove(self._application(one))  # an earlier run's logs name the same topics and offsets
            one.start(self._application(one), self.cluster.bootstrap, self.cluster.zookeeper, self.workload.events)

    def stop_applications(self) -> None:
        """As whatever they run."""
        for one in self.applications:
            one.stop(self._application(one))

    def load(self, name: str = "load", plan: WorkloadPlan | None = None) -> Workload:
        """Producers and groups, all of them running, of this `plan` or the rehearsal's own; and beside them a load of Kafka's own tools."""
        folder, topics = self.folder / name, tuple(topic.name for topic in self.topics)
        for one in (folder, self.folder / f"{name}-foreign"):
            _remove(one)
        if self.foreign is not None:
            self._begin_foreign(self.folder / f"{name}-foreign", *self.foreign)
        plan = plan or WorkloadPlan(topics, self.rate, self.producers, tuple(self.groups))
        self.workload = Workload(folder, self._properties, plan)
        self.workload.start()
        return self.workload

    def _begin_foreign(self, folder: Path, rate: int, members: int) -> None:
        if self.beside is not None:
            self.beside.close()
        self.beside = Foreign(kafka_of(self.cluster, folder.absolute()), rate=rate, members=members)
        self.beside.create_topic()
        self.beside.start()

    def account(self, topics: Sequence[str] | None = None) -> Account:
        """Stop all load and the old consumers, and judge: by the ledger, and by what shares no line with kmigrate.

        `topics`: whose logs must hold all that was acknowledged in them; by default all that are not compacted.
        """
        if self.workload is None or self.beside is None:
            raise ValueError("nothing was measured: the load never ran")
        whole = [topic.name for topic in self.topics if topic.config.get("cleanup.policy", "delete") == "delete"]
        self.workload.stop()
        self.stop_applications()
        return account_of(self.cluster, self.workload, self.beside, whole if topics is None else topics)

    def account_of_jvm(self, group: CutoverGroup) -> jvm_application.Account:
        """A JVM application's, which reads what Kafka's own producer writes: that load ends, and the application catches up."""
        if self.beside is None:
            raise ValueError("nothing was measured: the load never ran")
        self.beside.stop()
        acked: set[jvm_application.Record] = {
            (self.beside.topic, *place) for place in Acknowledged.read(self.beside.lines("producer")).values
        }
        return group.account(acked)

    def watch(self) -> Callable[[], ProbeFigures]:
        """kmigrate's own probe, flowing through every broker; returns what it has measured, as a step's context asks for it."""
        place = self.folder / "probe"
        _remove(place)
        self.probe = Probe(place / "run", self._properties)
        self.probe.start()
        return partial(read_figures, place)

    def end_watch(self) -> None:
        """End the probe, if there is one."""
        if self.probe is not None:
            self.probe.stop(drain=0.0)
            self.probe = None

    @property
    def _properties(self) -> dict[str, str]:
        return {"bootstrap.servers": self.cluster.bootstrap}

    @property
    def consumers_dag(self) -> str:
        """The id of the DAG that moves consumer groups."""
        return f"kmigrate_consumers__{self.cluster.plan.shape.name}"

    @property
    def dag_id(self) -> str:
        """The id of the migration's DAG."""
        return f"kmigrate_zk_to_kraft__{self.cluster.plan.shape.name}"

    @property
    def rollback_dag(self) -> str:
        """The id of the rollback's DAG."""
        return f"kmigrate_rollback__{self.cluster.plan.shape.name}"

    def start_airflow(self, *, fresh: bool = True, between: Sequence[tuple[str, dict[str, Any]]] = ()) -> None:
        """A new Airflow if `fresh`, ready to move the groups, where there are any, and to begin the migration; approved beforehand.

        `between`: DAGs that `finish_dag` runs after the groups moved, as of `run_dags`.

        As one that has run all along would be: its start keeps a core busy for 15 s, and beside a load it would take three times as long.
        """
        if fresh:
            _remove(self.home)
        runs: list[tuple[str, dict[str, Any]]] = [(self.consumers_dag, {})] if self.applications else []
        runs += [(f"{kind}__{self.cluster.plan.shape.name}", conf) for kind, conf in between]
        self._start_dags([*runs, (self.dag_id, {"approve_finalization": self.cluster.plan.cluster_id})])

    def move_groups(self, tell: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:
        """Run the DAG that moves the old consumers, in the Airflow that was started."""
        return self._finish_dag(self.consumers_dag, tell)

    def migrate(self, tell: Callable[[dict[str, Any]], None] = lambda _: None, *, fresh: bool = True) -> dict[str, Any]:
        """Run the DAG, in the Airflow that was started for it or starts now; `tell` gets each line of the journal as it appears."""
        if self._airflow is None:
            self.start_airflow(fresh=fresh)
        result = self._finish_dag(self.dag_id, tell)
        if result["state"] == "success":
            self._keep_prediction()
        return result

    def finish_dag(self, kind: str, tell: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:
        """Run a DAG that Airflow was started with."""
        return self._finish_dag(f"{kind}__{self.cluster.plan.shape.name}", tell)

    def roll_back(self) -> dict[str, Any]:
        """Run the rollback's DAG, approved beforehand, in the Airflow whose backup the way forward made."""
        return self.run_dag("kmigrate_rollback", {"approve_rollback": self.cluster.plan.cluster_id})

    def run_dag(self, kind: str, conf: dict[str, Any], tell: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:
        """Run the cluster's DAG `<kind>__<cluster>`; `tell` gets each line of the journal as it appears."""
        return next(self.run_dags([(kind, conf)], tell))

    def run_dags(
        self, runs: Sequence[tuple[str, dict[str, Any]]], tell: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> Iterator[dict[str, Any]]:
        """As `run_dag`, each DAG when its result is asked for, all in one Airflow, which takes a processor for 15 s to start."""
        named = [(f"{kind}__{self.cluster.plan.shape.name}", conf) for kind, conf in runs]
        self._start_dags(named)
        for dag_id, _ in named:
            yield self._finish_dag(dag_id, tell)

    def forward(self, steps: Callable[[StepContext], None], tell: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        """These steps without Airflow, as a run that is over; the backup and the journal are where a DAG keeps them."""
        with direct.context(self.cluster, "forward", folder=self.home / "kmigrate") as context:
            journal = _ToldJournal(self.journal_folder / "forward.jsonl", "forward", tell)
            told = replace(context, journals=self.journal_folder)  # the restarts that were measured so far
            write_plan(plan_from_here(told, observe_preflight(told)), self._plan_path.parent)
            steps(replace(context, journal=journal, say=lambda _: None))
            context.fence.release()
        self._keep_prediction()

    @property
    def _plan_path(self) -> Path:
        """Where a preflight leaves its plan."""
        return self.home / "kmigrate" / "preflight" / self.cluster.plan.shape.name / "plan.json"

    def _keep_prediction(self) -> None:
        """Keep what the plan predicted beside what its run took, for `python -m benchmarks plan`."""
        bake = load(self.cluster.spec_path).policy.canary_bake
        keep_prediction(describe_kind(self.cluster, self.shape), self._plan_path, self.journal_folder, bake)

    def _start_dags(self, runs: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """In a process of its own (`benchmarks.run_dag`); returns when the first one can begin."""
        self.home.mkdir(parents=True, exist_ok=True)
        for dag_id, _ in runs:
            for left in (self._of(dag_id, name) for name in ("ready", "go", "json")):
                left.unlink(missing_ok=True)
        plan = self.cluster.plan
        argv = [sys.executable, "-m", "benchmarks.run_dag", "--home", str(self.home), "--clusters", str(plan.spec_path.parent)]
        argv += ["--connections", str(plan.connections_path), "--results", str(self.folder)]
        for dag_id, conf in runs:
            argv += ["--run", json.dumps({"dag": dag_id, "conf": conf})]
        with self.dag_log.open("wb") as log:
            process = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        ready, deadline = self._of(runs[0][0], "ready"), time.monotonic() + _AIRFLOW_START_S
        while process.poll() is None and not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        if not ready.exists():
            _end(process)
            raise SystemExit(f"Airflow did not come up within {_AIRFLOW_START_S:g} s; its log: {self.dag_log}")
        self._airflow, self._last = process, runs[-1][0]

    def _finish_dag(self, dag_id: str, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """To its end; Airflow ends with its last DAG."""
        process, result = self._airflow, self._of(dag_id, "json")
        if process is None:
            raise ValueError("no DAG was started")
        self._of(dag_id, "go").touch()
        follow(process, self.journal_folder, tell, result.exists)
        if dag_id == self._last or not result.exists():
            self._airflow = None
            with suppress(subprocess.TimeoutExpired):  # its audit session ends with it, and makes the last gate's report before
                process.wait(_LAST_REPORTS_S)
            _end(process)
        if not result.exists():
            raise SystemExit(f"The DAG run broke off (exit code {process.returncode}); its log: {self.dag_log}")
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    def _of(self, dag_id: str, name: str) -> Path:
        return self.folder / f"{dag_id}.{name}"

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
        """The log of the process that runs DAGs."""
        return self.folder / "dag.log"

    @property
    def journal_folder(self) -> Path:
        """The folder of the cluster's journals."""
        return self.home / "kmigrate" / "journal" / self.cluster.plan.shape.name

    def journal(self) -> list[dict[str, Any]]:
        """The lines of all runs, in the order of their times."""
        lines = [json.loads(line) for line in read_journal_lines(self.journal_folder)]
        return sorted(lines, key=lambda line: float(line["at"]))

    def close(self) -> None:
        """Stop Airflow, the applications, the load and the cluster."""
        if self._airflow is not None:
            _end(self._airflow)
        self.stop_applications()
        self.end_watch()
        self.end_load()
        self.cluster.down()

    def end_load(self) -> None:
        """End all load at once, without an account."""
        if self.workload is not None:
            self.workload.stop(drain=0.0)
        if self.beside is not None:
            self.beside.close()


def describe_kind(cluster: LocalCluster, shape: Shape) -> str:
    """The kind of a cluster: where its nodes run, how many there are, and what is special about its ZooKeeper."""
    special = (("chroot", bool(shape.chroot)), ("ensemble", shape.zookeepers > 1))
    words = [f"{type(cluster).__name__.lower()}", f"{shape.brokers}brokers", f"{shape.controllers}controllers"]
    return "-".join((*words, *(word for word, is_so in special if is_so)))


_PAUSE = "was stopped for "


def pause_of_cutover(journal: Sequence[dict[str, Any]]) -> float:
    """Seconds for which the application that was cut over last was stopped, as its step said; 0: none was."""
    told = [line["text"] for line in journal if line["kind"] == "done" and _PAUSE in line["text"]]
    return float(told[-1].partition(_PAUSE)[2].partition(" s")[0]) if told else 0.0


class _ToldJournal(FileJournal):
    """A journal whose lines are also shown as they are written."""

    def __init__(self, path: Path, run: str, tell: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(path, run, time.time)
        self._tell = tell

    def write(self, kind: str, step: str, text: str, **facts: object) -> None:
        """Write the line, and show it."""
        super().write(kind, step, text, **facts)
        self._tell({"kind": kind, "step": step, "text": text})


def follow(
    process: subprocess.Popen[bytes], folder: Path, tell: Callable[[dict[str, Any]], None], over: Callable[[], bool]
) -> None:
    """Tell every whole line that appears in the folder's journals from now on, until it is `over` or the process ends."""
    reported = {path: len(_whole(path)) for path in _journals(folder)}
    while True:
        ended = over() or process.poll() is not None
        for path in _journals(folder):
            whole = _whole(path)
            for line in whole[reported.get(path, 0) :]:
                tell(json.loads(line))
            reported[path] = len(whole)
        if ended:
            return
        time.sleep(0.2)


def _journals(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl")) if folder.exists() else []


def _whole(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


_AFTER_STEP_S = 10.0  # what a step may still cause: a controller gives a broker up after 9 s (broker.session.timeout.ms)
NO_ACT = "between the acts"


def stalls_by_act(slow: Sequence[SlowRecord], journal: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each act of the journal the slowest record that it may have delayed, in ms, and the time above 100 ms; last the row `NO_ACT`.

    An act has the records sent from its beginning to 10 s after its step was done, or to the next act. All others are of the last row: what
    delayed them is no act, but Spark's audit, the start of a streaming job, or the machine.
    """
    acts = [line for line in journal if line["kind"] == "act"]
    begins = [*(line["at"] for line in acts), float("inf")]
    stalls, left = [], list(slow)
    for act, next_act in zip(acts, begins[1:], strict=True):
        until = _effect_ends(act, next_act, journal)
        mine = [record for record in left if act["at"] <= record.t_sent_ms / 1000 < until]
        left = [record for record in left if not act["at"] <= record.t_sent_ms / 1000 < until]
        stalls.append(_stall(act["step"], mine))
    return [*stalls, _stall(NO_ACT, left)]


def slow_records(workload: Workload) -> list[SlowRecord]:
    """Every record of the load that its producer noted as slow."""
    return [record for event in workload.read_all_events().events if isinstance(event, Slow) for record in event.records]


def _effect_ends(act: dict[str, Any], next_act: float, journal: Sequence[dict[str, Any]]) -> float:
    done = (line["at"] for line in journal if line["kind"] == "done" and line["step"] == act["step"] and line["at"] >= act["at"])
    return min(next_act, min(done, default=float("inf")) + _AFTER_STEP_S)


def _stall(step: str, records: Sequence[SlowRecord]) -> dict[str, Any]:
    latencies = [record.latency_us / 1000 for record in records]
    over = sum(latency - 100 for latency in latencies) / 1000
    return {"step": step, "longest_ms": round(max(latencies, default=0.0), 1), "over_100ms_record_s": round(over, 1)}


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True) if folder.exists() else []:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    if folder.exists():
        folder.rmdir()
