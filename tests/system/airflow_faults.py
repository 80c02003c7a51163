"""Airflow's own processes are killed in the middle of a migration and of the way back: real components, DAGs and brokers, under load.

A worker's task process, the scheduler, the triggerer and the API server get SIGKILL as soon as the journal tells a certain act, and
come back where they are services. Required: the DAG comes to its end, each broker was restarted once a pass, nothing was lost.
Leaves `summary.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_kmigrate.consumer.kafka_calls import TopicPlan
from airflow_provider_kmigrate.consumer.workload.plan import GroupPlan
from airflow_provider_kmigrate.core.phase import Phase, where
from airflow_provider_kmigrate.exceptions import Failed, TimedOut
from airflow_provider_kmigrate.localcluster.plan import Shape
from benchmarks import direct
from benchmarks.airflow_ui import Airflow, serving, title
from benchmarks.rehearsal import Rehearsal, rehearsing
from tests.system import evidence

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
_RUN_S = 900.0
#: A task's own process. One of the executor's, killed while it waits for work, would leave the executor's queue locked for ever.
_TASK_TITLE = re.compile(r"airflow worker -- [0-9a-f]{8}-")


@dataclass
class Kill:
    """`when`: what the step of a journal's act contains; its `nth` act sets it off."""

    phase: str
    fault: str
    when: str
    nth: int
    made: Callable[[], None]
    done: bool = False


@dataclass
class Cell:
    phase: str
    fault: str
    required: str
    seen: str
    passed: bool


@dataclass
class Trial:
    """One cluster and one Airflow."""

    rehearsal: Rehearsal
    airflow: Airflow
    cells: list[Cell] = field(default_factory=list)

    @property
    def _journal(self) -> list[dict[str, Any]]:
        folder = self.airflow.kmigrate / "journal" / self.rehearsal.cluster.plan.shape.name
        lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def worker(self) -> None:
        """The process of the task that runs; its supervisor lives and tells Airflow."""
        tasks = [process for process in self.airflow.descendants() if _TASK_TITLE.match(title(process))]
        if not tasks:
            raise Failed("no task runs")
        for process in tasks:
            process.kill()

    def service(self, name: str) -> None:
        self.airflow.kill(name)
        time.sleep(_DOWN_S)
        self.airflow.begin(name)

    def everything(self) -> None:
        """The task's process, and the scheduler above it: as when a machine goes down."""
        for process in self.airflow.descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.service("scheduler")

    def run(self, dag_id: str, conf: dict[str, str], kills: list[Kill], until: Callable[[dict[str, str]], bool]) -> str:
        """The DAG run's state at its end, or "parked" as soon as `until` holds for its tasks; tasks that failed are cleared thrice."""
        made = self._asked("POST", f"dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})
        path = f"dags/{dag_id}/dagRuns/{made['dag_run_id']}"
        clears, deadline = 0, time.monotonic() + _RUN_S
        while time.monotonic() < deadline:
            self._set_off(kills, [line for line in self._journal if line["kind"] == "act" and line["run"].startswith(dag_id)])
            state = self._asked("GET", path)["state"]
            tasks = {
                one["task_id"]: one["state"] for one in self._asked("GET", f"{path}/taskInstances?limit=200")["task_instances"]
            }
            if until(tasks):
                return self._told("parked", clears)
            if state == "success":
                return self._told("success", clears)
            if state == "failed":
                clears += 1
                if clears > 3:
                    failed = [task for task, found in tasks.items() if found == "failed"]
                    return f"failed: {failed}"
                body = {"dry_run": False, "dag_run_id": made["dag_run_id"], "only_failed": True}
                self._asked("POST", f"dags/{dag_id}/clearTaskInstances", body)
            time.sleep(0.3)
        raise TimedOut(f"{dag_id} did not end within {_RUN_S:g} s")

    def park(self, dag_id: str) -> None:
        """A person marks what waits for approval as failed: the migration is held."""
        [run] = self._asked("GET", f"dags/{dag_id}/dagRuns?state=running")["dag_runs"]
        self._asked("PATCH", f"dags/{dag_id}/dagRuns/{run['dag_run_id']}", {"state": "failed"})

    def _set_off(self, kills: list[Kill], acts: list[dict[str, Any]]) -> None:
        for kill in kills:
            if not kill.done and sum(kill.when in act["step"] for act in acts) >= kill.nth:
                kill.done = True
                print(f"  {kill.phase}: {kill.fault}", flush=True)
                kill.made()

    def _asked(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
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
    def _told(state: str, clears: int) -> str:
        return f"{state}; failed tasks were cleared {clears} times" if clears else state

    def starts(self) -> dict[str, int]:
        return {node.name: evidence.starts(node) for node in self.rehearsal.cluster.plan.brokers}

    def phase(self) -> Phase:
        with direct.world(self.rehearsal.cluster, "looking", acting=False) as world:
            return where(world.observer.look(evidence.EVERYTHING)).phase

    def note(self, kills: list[Kill], seen: str, *, passed: bool, required: str) -> None:
        for kill in kills:
            told = seen if kill.done else "never set off"
            self.cells.append(Cell(kill.phase, kill.fault, required, told, passed and kill.done))


def forward(trial: Trial) -> None:
    """To the approval, which nobody gives."""
    kills = [
        Kill("first roll", "task SIGKILLed", "to migration", 1, trial.worker),
        Kill("first roll", "scheduler SIGKILLed", "to migration", 2, partial(trial.service, "scheduler")),
        Kill("first roll", "API server SIGKILLed", "to migration", 3, partial(trial.service, "api-server")),
        Kill("second roll", "task and scheduler SIGKILLed", "to kraft", 1, trial.everything),
        Kill("second roll", "triggerer SIGKILLed", "to kraft", 2, partial(trial.service, "triggerer")),
    ]
    dag_id = trial.rehearsal.dag_id
    before = trial.starts()
    seen = trial.run(dag_id, {}, kills, lambda tasks: tasks.get("approve") in {"deferred", "awaiting_input"})
    again = {name: count - before[name] for name, count in trial.starts().items()}
    trial.park(dag_id)
    passed = seen.startswith("parked") and set(again.values()) == {2}
    required = "it comes to the approval, each broker restarted once a pass"
    trial.note(kills, f"{seen}; restarts {sorted(again.values())}", passed=passed, required=required)


def back(trial: Trial) -> None:
    kills = [
        Kill("way back", "task SIGKILLed", "back to migration", 1, trial.worker),
        Kill("way back", "scheduler SIGKILLed", "back to migration", 2, partial(trial.service, "scheduler")),
        Kill("way back", "task SIGKILLed in the hand-over", "hand over", 1, trial.worker),
        Kill("way back", "API server SIGKILLed", "back to zookeeper", 1, partial(trial.service, "api-server")),
        Kill("way back", "task and scheduler SIGKILLed", "back to zookeeper", 2, trial.everything),
    ]
    plan = trial.rehearsal.cluster.plan
    before = trial.starts()
    seen = trial.run(f"kmigrate_rollback__{plan.shape.name}", {"approve_rollback": plan.cluster_id}, kills, lambda _: False)
    again = {name: count - before[name] for name, count in trial.starts().items()}
    phase = trial.phase()
    passed = seen.startswith("success") and phase is Phase.ZOOKEEPER and set(again.values()) == {2}
    required = "it comes to working ZooKeeper mode, each broker restarted once a pass"
    trial.note(kills, f"{seen}; {phase}; restarts {sorted(again.values())}", passed=passed, required=required)


@contextlib.contextmanager
def under_way(folder: Path) -> Iterator[Trial]:
    policy = {"min_soak": "5s", "canary_bake": "0s"}
    rehearsal = Rehearsal(folder, Shape(name="killed"), TOPICS, (GroupPlan("billing", 2),), 100.0, producers=1, policy=policy)
    with rehearsing(rehearsal):
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
        forward(trial)
        back(trial)
        workload = trial.rehearsal.workload
        if workload is None:
            raise ValueError("nothing was measured: the load never ran")
        workload.stop()
        ledger = workload.summary()
    keys = ("verdict", "acked", "lost", "duplicated", "reordered", "longest_stall_ms", "longest_delivery_gap_ms")
    summary = {"cells": [asdict(cell) for cell in trial.cells], **{key: ledger[key] for key in keys}}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary, indent=1))
    return 0 if all(cell.passed for cell in trial.cells) and ledger["verdict"].upper() == "PASS" else 1


if __name__ == "__main__":
    sys.exit(main())
