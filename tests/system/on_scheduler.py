"""What only a real scheduler shows, of this Airflow or an older one: `python -m tests.system.on_scheduler --python PATH`.

On real brokers, with Airflow's scheduler, DAG processor, triggerer and API server: the probe's task is killed, cleared with a failed step, and
ended with its run; a cluster is migrated under load, with a soak that is deferred and a request that a person answers. `--python`: of an
environment with Airflow and kmigrate's wheel (`tests.airflows`). Prints a line for each part; any error ends it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from airflow_provider_kmigrate.applications.event_log import list_open_writers
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.ledger import Facts
from airflow_provider_kmigrate.core.migration.plan import APPROVE, FINALIZE
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.probe.probe import Probe, find_flow, has_ended
from airflow_provider_kmigrate.spec import load
from benchmarks.airflow_ui import Airflow
from benchmarks.rehearsal import Rehearsal
from tests.kit.load import TopicPlan
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.plan import Shape
from tests.kit.workload import GroupPlan
from tests.verdicts import verdict_of
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PROBED = "probed"
# On a busy machine a heartbeat may come half a minute late; whoever waits for a healthy Airflow would wait for ever.
_SETTINGS = {
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "120",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "120",
}
_START_S = 600.0
_SOAK = "45s"  # a task waits by itself for 30 s, then in the triggerer
_ASKS = frozenset({"deferred", "awaiting_input"})  # a request's task, before Airflow 3.3 and since
_TASK_S = 400.0  # the longest wait for one task: a killed probe must have been silent for a minute
_RUN_S = 1_500.0

# The tasks of the probe as kmigrate's own DAGs have them, around a step that a file ends.
_DAG = """
import time
from datetime import timedelta
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from airflow_provider_kmigrate.airflow_releases import AirflowFailException
from airflow_provider_kmigrate.dag_builders import audit
from airflow_provider_kmigrate.spec import load

SPEC, WORDS = load({spec!r}), Path({words!r})


def roll(run_id):
    while not (WORDS / f"{{run_id}}.go").exists():
        if (WORDS / f"{{run_id}}.fail").exists():
            raise AirflowFailException("a broker does not start")
        time.sleep(0.5)


# A busy machine's API server may answer the start of a task too late.
with DAG({dag_id!r}, schedule=None, default_args={{"retries": 3, "retry_delay": timedelta(seconds=5)}}) as dag:
    begin = EmptyOperator(task_id="begin")
    [check], [stop] = audit.probe_check_tasks(SPEC), audit.probe_stop_tasks(SPEC)
    begin >> check >> PythonOperator(task_id="roll", python_callable=roll) >> stop
    audit.run_probe_beside(dag, SPEC, "check_probe")
"""


def ask(airflow: Airflow, path: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> dict[str, Any]:
    """One call of Airflow's public API; again for 90 s if it does not answer."""
    answers: list[dict[str, Any]] = []

    def ask_once() -> bool:
        answers.append(airflow.ask(path, body, method))
        return True

    wait_until(ask_once, path, 90.0, despite=(OSError,))
    return answers[-1]


@dataclass
class Run:
    """A run of a DAG, by Airflow's public API. `seen`: every state that each task was seen in."""

    airflow: Airflow
    dag_id: str
    run_id: str
    conf: Mapping[str, Any] = field(default_factory=dict)
    seen: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Trigger it."""
        body = {"dag_run_id": self.run_id, "logical_date": None, "conf": dict(self.conf)}
        ask(self.airflow, f"dags/{self.dag_id}/dagRuns", body)

    def ask(self, path: str = "", body: Mapping[str, Any] | None = None, method: str | None = None) -> dict[str, Any]:
        """One call about this run; as `ask`."""
        return ask(self.airflow, f"dags/{self.dag_id}/dagRuns/{self.run_id}{path}", body, method)

    def state(self) -> str:
        """The run's."""
        return str(self.ask()["state"])

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Each task as Airflow describes it: `state`, `try_number`, `pid`."""
        tasks = {task["task_id"]: task for task in self.ask("/taskInstances?limit=200")["task_instances"]}
        for task_id, task in tasks.items():
            self.seen.setdefault(task_id, set()).add(str(task["state"]))
        return tasks

    def wait_for(self, holds: Callable[[dict[str, dict[str, Any]]], object], what: str, timeout: float = _TASK_S) -> None:
        """Wait until this holds of the tasks. Fails if it does not."""

        def look() -> bool:
            self.airflow.check()
            time.sleep(1.0)  # each look costs Airflow some processor time
            return bool(holds(self.tasks()))

        try:
            wait_until(look, what, timeout)
        except AssertionError as error:
            states = {task: (one["state"], one["try_number"]) for task, one in self.tasks().items()}
            raise AssertionError(
                f"{error}; {self.dag_id} {self.run_id} is {self.state()}: {states}; {self.airflow.home}"
            ) from None

    def wait_until_over(self, state: str, timeout: float = _TASK_S) -> None:
        """Wait until the run has this state. Fails if it does not get it."""
        self.wait_for(lambda _: self.state() == state, f"the run is {state}", timeout)


@dataclass
class ProbedRuns:
    """Runs of a DAG that has the probe beside one step. `folder`: of the probe's cluster file and results."""

    airflow: Airflow
    folder: Path

    def begin(self, run_id: str) -> Run:
        """A run whose step waits, and whose probe's records arrive."""
        run = Run(self.airflow, PROBED, run_id)
        run.wait_for(lambda tasks: is_in(tasks, "running", "roll", "probe"), "the step and the probe run")
        return run

    def say(self, run: Run, word: str) -> None:
        """End the run's step: `go` well, `fail` badly."""
        (self.folder / f"{run.run_id}.{word}").touch()

    def probe(self, run: Run) -> Probe:
        """The run's, to read."""
        return Probe(Path(load(spec_path(self.folder)).probe_folder) / run.run_id, {})

    def facts(self, run: Run) -> Facts:
        """The run's ledger."""
        return self.probe(run).facts()


def is_in(tasks: Mapping[str, Mapping[str, Any]], state: str, *task_ids: str) -> bool:
    """Whether these tasks are in this state."""
    return all(tasks.get(task_id, {}).get("state") == state for task_id in task_ids)


def spec_path(folder: Path) -> Path:
    """The probe's cluster file: with a section `audit`, for which the other DAGs of its cluster would need Spark."""
    return folder / "probed.yaml"


def write_probed_dag(folder: Path, cluster: LocalCluster, dags: Path) -> None:
    """Write the DAG with the probe into `dags`, and its cluster file into `folder`."""
    document = yaml.safe_load(cluster.spec_path.read_text())
    document["audit"] = {"conn_id": "spark_default", "result": str(folder / "audit")}
    spec_path(folder).write_text(yaml.safe_dump(document))
    load(spec_path(folder))  # what is wrong with it is said here, and not as a DAG that never appears
    (dags / f"{PROBED}.py").write_text(_DAG.format(spec=str(spec_path(folder)), words=str(folder), dag_id=PROBED))


@contextmanager
def scheduled(folder: Path, cluster: LocalCluster, python: Path = Path(sys.executable)) -> Iterator[Airflow]:
    """An Airflow with all its components: kmigrate's DAGs of the cluster, and the one with the probe."""
    dags = folder / "dags"
    shutil.copytree(ROOT / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
    write_probed_dag(folder, cluster, dags)
    settings = {**_SETTINGS, "AIRFLOW__CORE__DAGS_FOLDER": str(dags)}
    if python != Path(sys.executable):
        settings |= {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}  # the wheel of that environment, not this checkout
    plan = cluster.plan
    airflow = Airflow(folder / "airflow", plan.spec_path.parent, plan.connections_path, settings, python=python)
    try:
        airflow.start(PROBED, _START_S)
        yield airflow
    finally:
        airflow.stop()


def end_with_run(runs: ProbedRuns) -> str:
    """The run is marked failed: its probe ends by itself, and no try follows."""
    run = runs.begin("marked")
    began = run.tasks()["probe"]
    run.ask("", {"state": "failed"}, "PATCH")
    wait_until(lambda: not psutil.pid_exists(began["pid"]), "the probe's process ends", _TASK_S)
    assert run.state() == "failed"
    task = run.tasks()["probe"]
    assert (task["state"], task["try_number"]) == ("failed", began["try_number"])
    probe, facts = runs.probe(run), runs.facts(run)
    assert list_open_writers(probe.events) == [], "each client wrote its stop before its process was killed"
    assert has_ended(probe.folder)
    assert (facts.lost.count, facts.violations) == (0, {})
    return f"the run was marked failed: the probe ended, {facts.acked} records, 0 lost"


def go_on_after_clear(runs: ProbedRuns) -> str:
    """A step fails; the probe ends by itself; both are cleared, and the run's ledger is one."""
    run = runs.begin("cleared")
    runs.say(run, "fail")
    run.wait_until_over("failed")
    assert is_in(run.tasks(), "success", "probe", "probe_ended"), run.tasks()
    (runs.folder / "cleared.fail").unlink()
    body = {
        "dry_run": False,
        "dag_run_id": run.run_id,
        "task_ids": ["roll", "probe"],
        "only_failed": False,
        "include_downstream": True,
    }
    ask(run.airflow, f"dags/{PROBED}/clearTaskInstances", body)
    run.wait_for(lambda tasks: is_in(tasks, "running", "roll", "probe"), "the step and the probe run again")
    wait_until(lambda: find_flow(runs.probe(run).events, 5.0), "records of the second attempt", _TASK_S)
    runs.say(run, "go")
    run.wait_until_over("success")
    facts = runs.facts(run)
    assert (verdict_of(facts), facts.reasons, facts.violations) == (AuditOutcome.PASS, (), {})
    return f"a failed step was cleared with the probe: one ledger of two attempts, PASS, {facts.acked} records"


def go_on_after_kill(runs: ProbedRuns) -> str:
    """The probe's process is killed: the next try takes over, and the run's own end ends it."""
    run = runs.begin("killed")
    task = run.tasks()["probe"]
    killed_try = task["try_number"]
    os.kill(task["pid"], signal.SIGKILL)
    run.wait_for(
        lambda tasks: is_in(tasks, "running", "probe") and tasks["probe"]["try_number"] > killed_try, "the next try of the probe"
    )
    wait_until(lambda: find_flow(runs.probe(run).events, 5.0), "records of the second try", _TASK_S)
    runs.say(run, "go")
    run.wait_until_over("success")
    tasks = run.tasks()
    assert {task["state"] for task in tasks.values()} == {"success"}
    assert tasks["probe"]["try_number"] == killed_try + 1
    facts = runs.facts(run)
    assert (facts.lost.count, facts.violations) == (0, {})
    assert {reason.cause for reason in facts.reasons} == {AuditCause.NO_STOP}, "of the try that was killed"
    return f"the probe was killed: the next try took over, {facts.acked} records, 0 lost, 0 delivered twice"


SCENES = (end_with_run, go_on_after_clear, go_on_after_kill)


def migrate(rehearsal: Rehearsal, airflow: Airflow) -> str:
    """A migration of the rehearsal's cluster under load; a person answers its request."""
    run = Run(airflow, rehearsal.dag_id, "migrated")
    began = time.monotonic()
    run.wait_for(lambda tasks: tasks.get(APPROVE, {}).get("state") in _ASKS or run.state() == "failed", "the request", _RUN_S)
    assert run.state() == "running", {task: one["state"] for task, one in run.tasks().items()}

    refusals = list[str]()

    def answer_and_look(tasks: Mapping[str, Mapping[str, Any]]) -> bool:
        """An answer within moments of the question may be overwritten by what Airflow still writes of it: then the task waits on."""
        if tasks[APPROVE]["state"] in _ASKS:
            body = {"chosen_options": [FINALIZE], "params_input": {}}
            path = f"dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{APPROVE}/-1/hitlDetails"
            try:
                airflow.ask(path, body, "PATCH")
            except OSError as error:  # it is busy, or has the answer already
                refusals.append(str(error))
        return run.state() != "running"

    try:
        run.wait_for(answer_and_look, "the run's end", _RUN_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; Airflow's last refusals of the answer: {refusals[-3:]}") from None
    took = time.monotonic() - began
    tasks = run.tasks()
    assert run.state() == "success", {task: one["state"] for task, one in tasks.items()}
    deferred = sorted(task for task, states in run.seen.items() if "deferred" in states)
    assert any("soak" in task for task in deferred), deferred
    answers = run.ask(f"/taskInstances/{APPROVE}/xcomEntries")["total_entries"]
    assert answers, "the answer is an XCom"
    account = rehearsal.account()
    assert account.failures == (), account.failures
    summary = account.summary()
    return (
        f"migrated and finalized: {len(tasks)} tasks, {took:.0f} s, deferred: {', '.join(deferred)}; "
        f"{summary['acked']} records, {summary['lost']} lost"
    )


@contextmanager
def migrating(folder: Path, python: Path) -> Iterator[tuple[Rehearsal, Airflow]]:
    """A cluster under load, and its Airflow."""
    policy = {"min_soak": _SOAK, "canary_bake": "0s"}
    shape = Shape(name="scheduled", brokers=3, controllers=1)
    groups = (GroupPlan("billing", 1),)
    rehearsal = Rehearsal(folder, shape, (TopicPlan("orders", 6),), groups, 50.0, producers=1, policy=policy)
    with closing(rehearsal):
        rehearsal.up()
        with scheduled(folder, rehearsal.cluster, python) as airflow:
            yield rehearsal, airflow


def main() -> int:
    """Prints what was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.on_scheduler", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of an environment with Airflow and kmigrate")
    parser.add_argument("--dir", type=Path, default=Path("build/on_scheduler"), help="emptied first")
    parser.add_argument("--part", choices=("probe", "migration"), help="one of the two; by default both")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    folder = arguments.dir.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with migrating(folder, arguments.python) as (rehearsal, airflow):
        for scene in SCENES if arguments.part != "migration" else ():
            print(scene(ProbedRuns(airflow, folder)), flush=True)
        if arguments.part != "probe":
            rehearsal.load()
            print(migrate(rehearsal, airflow), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
