"""A migration on a scheduler of its own whose approver answers *Roll back*, and the rollback that this answer starts: two DAG runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final

from airflow_provider_kmigrate.exceptions import Failed
from benchmarks.airflow_ui import Airflow, serving
from benchmarks.rehearsal import Rehearsal
from benchmarks.run_dag import phases
from tests.system.airflow_faults import Trial

_WAITS: Final = frozenset({"deferred", "awaiting_input"})
_ASKS: Final = "approve"
_ANSWER: Final = "Roll back"

Tell = Callable[[dict[str, Any]], None]


def roll_back_by_answer(rehearsal: Rehearsal, tell: Tell) -> dict[str, Any]:
    """The rollback's run as `benchmarks.run_dag` describes one, without memory and processor time.

    `migration`: the run before it; `asked`: how that came to its request, "parked" where no task of it had to be cleared. Its Airflow has a home
    of its own; what kmigrate keeps lies where a later run in the rehearsal's Airflow finds it. Raises `Failed` where the migration does not come
    to its request, or the answer starts nothing.
    """
    plan = rehearsal.cluster.plan
    settings = {"AIRFLOW__KMIGRATE__FOLDER": str((rehearsal.home / "kmigrate").resolve())}
    airflow = Airflow(rehearsal.folder / "airflow-scheduler", plan.spec_path.parent, plan.connections_path, settings)
    with serving(airflow, rehearsal.dag_id):
        person = _Person(rehearsal, airflow, tell)
        migration = person.run(rehearsal.dag_id, {}, lambda tasks: tasks.get(_ASKS) in _WAITS)
        if not migration["state"].startswith("parked"):
            raise Failed(f"the migration did not come to its request: {migration['state']}; Airflow's logs: {airflow.home}")
        ended = person.goes_on(rehearsal.dag_id, answer=_ANSWER)
        # Where nobody but kmigrate can be told from other clients of ZooKeeper, the rollback asks again instead of believing the record (H13).
        rollback = person.goes_on(rehearsal.rollback_dag, person.newest(rehearsal.rollback_dag), _ANSWER)
    return {**rollback, "migration": ended, "asked": migration["state"]}


class _Person(Trial):
    """Who starts the migration, reads the request and answers it, by Airflow's public API."""

    def __init__(self, rehearsal: Rehearsal, airflow: Airflow, tell: Tell) -> None:
        super().__init__(rehearsal, airflow)
        self._told, self._tell = len(self.journal), tell

    @property
    def journal(self) -> list[dict[str, Any]]:
        return self.rehearsal.journal()

    def run(self, dag_id: str, conf: dict[str, str], until: Callable[[dict[str, str]], bool]) -> dict[str, Any]:  # type: ignore[override]
        """Start a run, and see it to its end or until this holds."""
        return self._described(super().run(dag_id, conf, [], self._telling(until)))

    def goes_on(self, dag_id: str, run: str = "", answer: str = "") -> dict[str, Any]:
        """The run that began last, or this one, to its end; whenever it asks, this is the answer."""
        self._run = run or self._run

        def ends(tasks: dict[str, str]) -> bool:
            if answer and tasks.get(_ASKS) in _WAITS:
                self._answer(answer)
            return False

        return self._described(self.follow(dag_id, [], self._telling(ends)))

    def _answer(self, option: str) -> None:
        """As a person does on the page of required actions. One within moments of the question may be overwritten by what Airflow still writes
        of the question (seen): then the task waits on, and is answered again; one that it has already is refused.
        """
        with suppress(OSError):
            body = {"chosen_options": [option], "params_input": {}}
            self.airflow.ask(f"{self._run}/taskInstances/{_ASKS}/-1/hitlDetails", body, "PATCH")

    def newest(self, dag_id: str) -> str:
        """The run of this DAG that began last."""
        found = self.asked("GET", f"dags/{dag_id}/dagRuns?order_by=-id&limit=1")["dag_runs"]
        if not found:
            raise Failed(f"the answer started no run of {dag_id}")
        return f"dags/{dag_id}/dagRuns/{found[0]['dag_run_id']}"

    def _telling(self, until: Callable[[dict[str, str]], bool]) -> Callable[[dict[str, str]], bool]:
        def holds(tasks: dict[str, str]) -> bool:
            lines = self.journal
            for line in lines[self._told :]:
                self._tell(line)
            self._told = len(lines)
            return until(tasks)

        return holds

    def _described(self, state: str) -> dict[str, Any]:
        found = self.asked("GET", f"{self._run}/taskInstances?limit=200")["task_instances"]
        run = self.asked("GET", self._run)
        began = _moment(run, "start_date") or datetime.now().astimezone()
        ended = _moment(run, "end_date") or datetime.now().astimezone()
        ordered = sorted((one for one in found if one["start_date"]), key=lambda one: str(one["start_date"]))
        times = [
            SimpleNamespace(task_id=one["task_id"], start_date=_moment(one, "start_date"), end_date=_moment(one, "end_date"))
            for one in ordered
        ]
        tasks = {one["task_id"]: one["state"] for one in found}
        return {"state": state, "seconds": round((ended - began).total_seconds(), 3), "tasks": tasks, "phases": phases(times)}


def _moment(found: Mapping[str, Any], key: str) -> datetime | None:
    value = found.get(key)
    return datetime.fromisoformat(str(value)) if value else None
