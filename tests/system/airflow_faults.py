"""Airflow's own processes are killed in the middle of a migration and of the rollback: real components, DAGs and brokers, under load.

A worker's task process, the scheduler and the API server get SIGKILL as soon as the journal tells a certain act, the triggerer while it
holds a task's wait, and come back where they are services. Required: the DAG comes to its end, each broker was restarted once a pass,
nothing was lost. Leaves `summary.json` and `run.json` as `tests.system.faults` does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.exceptions import Failed, TimedOut
from benchmarks import direct
from benchmarks.airflow_ui import Airflow, serving, title
from benchmarks.rehearsal import Rehearsal
from tests.kit.load import TopicPlan
from tests.kit.localcluster.plan import Shape
from tests.kit.processes import NodeProcess
from tests.kit.workload import GroupPlan
from tests.system import evidence
from tests.system.cell_table import table
from tests.system.cells import Cell, Diary, ended, save, wall
from tests.system.nodes import of
from tests.system.oracle import Oracle
from tests.waiting import beside

TOPICS = (TopicPlan("orders", 18), TopicPlan("payments", 12))
#: A killed task is missed after seconds instead of minutes: the same ways through Airflow, only sooner.
SETTINGS = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
}
_DOWN_S = 3.0
_FOLLOW_S = 0.05
_DEFERRED = "deferred"
_SOAK_S = 75  # a task waits by itself for 30 s, then in the triggerer
_REPORTED_S = 5.0  # seconds of a timeline after the journal went on
RESTARTS = "I7 each broker started once a pass"
_RUN_S = 900.0
#: A task's own process. One of the executor's, killed while it waits for work, would leave the executor's queue locked for ever.
_TASK_TITLE = re.compile(r"airflow worker -- [0-9a-f]{8}-")


class Seen(NamedTuple):
    """A DAG run as it is: its acts so far, by the journal, and its tasks' states."""

    acts: Sequence[Mapping[str, Any]]
    tasks: Mapping[str, str]


Due = Callable[[Seen], bool]


def act(step: str, nth: int) -> Due:
    """At the `nth` act of steps whose name contains this."""
    return lambda seen: sum(step in one["step"] for one in seen.acts) >= nth


def waits(task: str) -> Due:
    """While a task whose id contains this waits in the triggerer."""
    return lambda seen: any(task in name and state == _DEFERRED for name, state in seen.tasks.items())


@dataclass
class Kill:
    """`made` returns what was not as it had to be for this cell; empty where all was. `at`: when it was set off, by the wall clock."""

    phase: str
    fault: str
    due: Due
    made: Callable[[], str]
    at: float = 0.0
    wrong: str = "never set off"


@dataclass
class Trial:
    """One cluster and one Airflow."""

    rehearsal: Rehearsal
    airflow: Airflow
    cells: list[Cell] = field(default_factory=list)
    diary: Diary = field(default_factory=Diary)

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.rehearsal.cluster, tuple(group.name for group in self.rehearsal.groups))
        self._run, self._began = "", 0.0  # the DAG run that is followed

    @property
    def journal(self) -> list[dict[str, Any]]:
        """Every whole line of all runs."""
        folder = self.airflow.kmigrate / "journal" / self.rehearsal.cluster.plan.shape.name
        lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def worker(self) -> str:
        """The process of the task that runs; its supervisor lives and tells Airflow."""
        tasks = [process for process in self.airflow.descendants() if _TASK_TITLE.match(title(process))]
        if not tasks:
            raise Failed("no task runs")
        for process in tasks:
            process.kill()
        return ""

    def service(self, name: str) -> str:
        self.airflow.kill(name)
        time.sleep(_DOWN_S)
        self.airflow.begin(name)
        return ""

    def triggerer(self, task: str) -> str:
        """A task that waits in it when it dies stays deferred until it is back, so what is read then was so at the kill."""
        self.airflow.kill("triggerer")
        states = {name: state for name, state in self._tasks().items() if task in name}
        self.diary.print(f"the triggerer is dead; {states}")
        time.sleep(_DOWN_S)
        self.airflow.begin("triggerer")
        return "" if _DEFERRED in states.values() else f"nothing was deferred at the kill: {states}"

    def standby(self) -> NodeProcess:
        """A controller that does not lead: without its answer a rollback waits, and no client misses it."""
        plan = self.rehearsal.cluster.plan
        with direct.context(self.rehearsal.cluster, "looking", acting=False) as context:
            quorum = context.observer.observe(Fields.CONTROLLERS | Fields.QUORUM).quorum
        return of(next(node for node in plan.controllers if quorum is None or node.id != quorum.leader_id))

    def everything(self) -> str:
        """The task's process, the scheduler above it and the triggerer: as when a machine goes down."""
        for process in self.airflow.descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return self.service("scheduler") + self.service("triggerer")

    def run(self, dag_id: str, conf: dict[str, str], kills: list[Kill], until: Callable[[dict[str, str]], bool]) -> str:
        """The DAG run's state at its end, or "parked" as soon as `until` holds for its tasks; tasks that failed are cleared thrice."""
        made = self.asked("POST", f"dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})
        self._run, self._began = f"dags/{dag_id}/dagRuns/{made['dag_run_id']}", time.time()
        return self.follow(dag_id, kills, until)

    def follow(self, dag_id: str, kills: list[Kill], until: Callable[[dict[str, str]], bool]) -> str:
        """As `run`, for the run that began last."""
        with self._following(dag_id, kills):
            return self._to_its_end(dag_id, kills, until)

    def _to_its_end(self, dag_id: str, kills: Sequence[Kill], until: Callable[[dict[str, str]], bool]) -> str:
        path = self._run
        clears, deadline = 0, time.monotonic() + _RUN_S
        while time.monotonic() < deadline:
            state, tasks = self.asked("GET", path)["state"], self._tasks()
            self._set_off(kills, Seen((), tasks))
            if until(tasks):
                return self._message("parked", clears)
            if state == "success":
                return self._message("success", clears)
            if state == "failed":
                clears += 1
                if clears > 3:
                    failed = [task for task, found in tasks.items() if found == "failed"]
                    return f"failed: {failed}"
                body = {"dry_run": False, "dag_run_id": path.rpartition("/")[2], "only_failed": True}
                self.asked("POST", f"dags/{dag_id}/clearTaskInstances", body)
            time.sleep(0.3)
        raise TimedOut(f"{dag_id} did not end within {_RUN_S:g} s")

    def park(self, dag_id: str) -> None:
        """A person marks what waits for approval as failed: the migration is held."""
        [run] = self.asked("GET", f"dags/{dag_id}/dagRuns?state=running")["dag_runs"]
        self.asked("PATCH", f"dags/{dag_id}/dagRuns/{run['dag_run_id']}", {"state": "failed"})

    def _set_off(self, kills: Sequence[Kill], seen: Seen) -> None:
        for kill in kills:
            if kill.at or not kill.due(seen):
                continue
            kill.at = time.time()
            print(f"  {kill.phase}: {kill.fault}", flush=True)
            self.diary.print(f"fault: {kill.fault}")
            try:
                kill.wrong = kill.made()
            except Failed as error:  # the trial goes on, with a red cell
                kill.wrong = str(error)

    @contextlib.contextmanager
    def _following(self, dag_id: str, kills: Sequence[Kill]) -> Iterator[None]:
        """Beside the thread that asks Airflow, which takes half a second a time: an act such as the handover is over in one."""

        def follow(over: threading.Event) -> None:
            while not over.wait(_FOLLOW_S):
                acts = [line for line in self.journal if line["kind"] == "act" and line["run"].startswith(dag_id)]
                self._set_off(kills, Seen([line for line in acts if line["at"] >= self._began], {}))

        with beside(follow):
            yield

    def _tasks(self) -> dict[str, str]:
        found = self.asked("GET", f"{self._run}/taskInstances?limit=200")["task_instances"]
        return {one["task_id"]: one["state"] for one in found}

    def asked(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The API server may be just the one that was killed."""
        deadline = time.monotonic() + 90.0
        while True:
            try:
                return self.airflow.ask(path, body, method)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    @staticmethod
    def _message(state: str, clears: int) -> str:
        return f"{state}; failed tasks were cleared {clears} times" if clears else state

    def starts(self) -> dict[str, int]:
        return {node.name: evidence.starts(node) for node in self.rehearsal.cluster.plan.brokers}

    def phase(self) -> Phase:
        with direct.context(self.rehearsal.cluster, "looking", acting=False) as context:
            return position_of(context.observer.observe(evidence.EVERYTHING)).phase

    def note(self, kills: Sequence[Kill], seen: str, *, passed: bool, required: str) -> None:
        """A cell for each; `seconds`: until the journal went on after it. What must hold of the cluster is asked once for all."""
        names, violated = self.oracle.check()
        journal, ended = self.journal, time.time()
        for line in journal:
            self.diary.print(f"journal: {line['kind']} {line['step']}: {line['text']}", line["at"])
        for kill in kills:
            began = kill.at or ended
            on = next((line["at"] for line in journal if line["at"] > began), ended)
            over = min(ended, on + _REPORTED_S)
            cell = Cell(kill.phase, kill.fault, required, kill.wrong or seen, round(on - began, 1), passed and not kill.wrong)
            cell = replace(cell, passed=cell.passed and not violated, invariants=(RESTARTS, *names), violated=violated)
            timeline = self.diary.between(began, over)
            self.cells.append(replace(cell, began=wall(began), ended=wall(over), timeline=timeline))
        print(table([asdict(cell) for cell in self.cells]), flush=True)


def forward(trial: Trial) -> None:
    """To the approval, which is not given."""
    kills = [
        Kill("first roll", "task SIGKILLed", act("to migration", 1), trial.worker),
        Kill("first roll", "scheduler SIGKILLed", act("to migration", 2), partial(trial.service, "scheduler")),
        Kill("first roll", "API server SIGKILLed", act("to migration", 3), partial(trial.service, "api-server")),
        Kill("second roll", "task and scheduler SIGKILLed", act("to kraft", 1), trial.everything),
        Kill("soak", "triggerer SIGKILLed while the soak is deferred", waits("soak"), partial(trial.triggerer, "soak")),
    ]
    dag_id = trial.rehearsal.dag_id
    before = trial.starts()
    seen = trial.run(dag_id, {}, kills, lambda tasks: tasks.get("approve") in {"deferred", "awaiting_input"})
    again = {name: count - before[name] for name, count in trial.starts().items()}
    trial.park(dag_id)
    passed = seen.startswith("parked") and set(again.values()) == {2}
    required = "it comes to the approval, each broker restarted once a pass"
    trial.note(kills, f"{seen}; restarts {sorted(again.values())}", passed=passed, required=required)


def roll_back(trial: Trial) -> None:
    standby, task = trial.standby(), "to_migration."

    def in_the_triggerer() -> str:
        try:
            return trial.triggerer(task)
        finally:
            standby.signal(signal.SIGCONT)

    def wait() -> str:
        """So long that a task defers."""
        standby.signal(signal.SIGSTOP)
        return ""

    made_to_wait = Kill("rollback", "controller SIGSTOPped", act("to migration", 1), wait)
    kills = [
        Kill("rollback", "task SIGKILLed", act("to migration", 1), trial.worker),
        Kill("rollback", "scheduler SIGKILLed", act("to migration", 2), partial(trial.service, "scheduler")),
        Kill("rollback", "triggerer SIGKILLed while a task is deferred", waits(task), in_the_triggerer),
        Kill("rollback", "task SIGKILLed in the handover", act("handover", 1), trial.worker),
        Kill("rollback", "API server SIGKILLed", act("to zookeeper", 1), partial(trial.service, "api-server")),
        Kill("rollback", "task and scheduler SIGKILLed", act("to zookeeper", 2), trial.everything),
    ]
    plan = trial.rehearsal.cluster.plan
    before = trial.starts()
    seen = trial.run(
        f"kmigrate_rollback__{plan.shape.name}", {"approve_rollback": plan.cluster_id}, [made_to_wait, *kills], lambda _: False
    )
    again = {name: count - before[name] for name, count in trial.starts().items()}
    phase = trial.phase()
    passed = seen.startswith("success") and phase is Phase.ZOOKEEPER and set(again.values()) == {2}
    required = "it comes to working ZooKeeper mode, each broker restarted once a pass"
    trial.note(kills, f"{seen}; {phase}; restarts {sorted(again.values())}", passed=passed, required=required)


@contextlib.contextmanager
def under_way(folder: Path) -> Iterator[Trial]:
    policy = {"min_soak": f"{_SOAK_S}s", "canary_bake": "0s"}
    rehearsal = Rehearsal(folder, Shape(name="killed"), TOPICS, (GroupPlan("billing", 2),), 100.0, producers=1, policy=policy)
    with closing(rehearsal):
        rehearsal.up()
        plan = rehearsal.cluster.plan
        airflow = Airflow(folder / "airflow", plan.spec_path.parent, plan.connections_path, SETTINGS)
        with serving(airflow, rehearsal.dag_id):
            rehearsal.load()
            yield Trial(rehearsal, airflow)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/faults/airflow"))
    folder = parser.parse_args().dir
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    with under_way(folder) as trial:
        try:
            forward(trial)
            roll_back(trial)
        finally:
            save(folder, trial.cells, {})
        account = trial.rehearsal.account()
    keys = (
        "verdict",
        "acked",
        "lost",
        "duplicated",
        "reordered",
        "longest_stall_ms",
        "longest_delivery_gap_ms",
        "judge",
        "failures",
    )
    seen = account.summary()
    save(folder, trial.cells, {key: seen[key] for key in keys})
    print({key: seen[key] for key in keys})
    return ended(trial.cells, account)


if __name__ == "__main__":
    sys.exit(main())
