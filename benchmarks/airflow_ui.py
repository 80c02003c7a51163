"""`make airflow`: a real local cluster and a real Airflow with the migration's DAG in its pages, until Ctrl-C ends both."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
from cryptography.fernet import Fernet

from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, TimedOut
from benchmarks.old_application import OldApplication
from benchmarks.rehearsal import Rehearsal
from benchmarks.run_dag import environment
from tests.kit.load import TopicPlan
from tests.kit.localcluster.plan import Shape

TOPICS = (TopicPlan("orders", 12), TopicPlan("payments", 12), TopicPlan("clicks", 6))
APPLICATIONS = (OldApplication("reports", "clicks"),)
# What `airflow standalone` starts, but without its log servers: those listen on every address of the machine.
COMPONENTS = {
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "api-server": ("api-server",),
}
HELLO = """
Airflow           {url}
user, password    {user}, {password}
cluster           {cluster_id}: {brokers} brokers, {controllers} controllers, {partitions} partitions; {load}
cluster file      {spec}
journal, backup   {kmigrate}
logs              {logs} (Airflow), {cluster} (the nodes)

  1. Admin, Connections: Test {name}_zookeeper and {name}_kafka.
  2. Dags, kmigrate_preflight__{name}: Trigger. It only looks; its log says where the page is.
  3. Dags, {dag}: Trigger. Leave "Approve finalization beforehand" empty to be asked.
  4. Open the run and its graph: every node of the cluster is a task. Click one for its log.
  5. When `approve` waits: Required Actions, read the evidence, choose Finalize; or go back: kmigrate_rollback__{name}.

Ctrl-C ends Airflow and the cluster.
"""


class Airflow:
    """An Airflow of its own in `home`, which is emptied first; on one address and a free port only. `settings` go to its environment.

    `python`: of the environment whose Airflow it is; by default this one's.
    """

    def __init__(
        self,
        home: Path,
        clusters: Path,
        connections: Path,
        settings: Mapping[str, str] | None = None,
        *,
        address: str = "127.0.0.1",
        python: Path = Path(sys.executable),
    ) -> None:
        self.home = home.resolve()
        self._python = str(python)
        self._connections = connections
        self.address, port = address, _free_port(address)
        self.url = f"http://{address}:{port}"
        self._environment = {**os.environ, **environment(home, clusters), **self._own_settings(port), **(settings or {})}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._orphans: list[psutil.Process] = []

    def _own_settings(self, port: int) -> dict[str, str]:
        return {
            "AIRFLOW__API__HOST": self.address,
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(64),
            "AIRFLOW__CORE__FERNET_KEY": Fernet.generate_key().decode(),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        }

    @property
    def kmigrate(self) -> Path:
        """The folder `[kmigrate] folder` of this Airflow."""
        return self.home / "kmigrate"

    def start(self, dag_id: str, timeout: float = 180.0) -> None:
        """Database, connections, all components; returns when the DAG can be triggered."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        self.prepare()
        self._airflow("db", "migrate")
        self._airflow("connections", "import", str(self._connections))
        for name in COMPONENTS:
            self.begin(name)
        deadline = time.monotonic() + timeout
        while not self._offers(dag_id):
            self.check()
            if time.monotonic() > deadline:
                raise TimedOut(f"Airflow did not offer {dag_id} within {timeout:.0f} s; its logs: {self.home}/*.log")
            time.sleep(0.5)

    def prepare(self) -> None:
        """What must be there before the database is made, besides an empty `home`: nothing."""

    def begin(self, name: str) -> None:
        """Start one component."""
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [self._python, "-m", "airflow", *COMPONENTS[name]],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """SIGKILL for one component's first process only, as the kernel does it; what it has started lives on, until `stop`."""
        process = self._processes[name]
        if process.poll() is None:
            self._orphans += _children(psutil.Process(process.pid))
            process.kill()
            process.wait(10)

    def descendants(self) -> list[psutil.Process]:
        """Airflow's own processes that the components have started, orphans too; never a node of the cluster that a task has started."""
        alive = [psutil.Process(process.pid) for process in self._processes.values() if process.poll() is None]
        orphans = [process for process in self._orphans if process.is_running()]
        found = [child for process in (*alive, *orphans) for child in _children(process)] + orphans
        return [process for process in found if "airflow" in title(process)]

    def _airflow(self, *argv: str) -> None:
        done = subprocess.run(
            [self._python, "-m", "airflow", *argv],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise Failed(f"airflow {' '.join(argv)} failed: {done.stderr.strip()[-2000:]}")

    def check(self) -> None:
        """Raises `Failed` when a component has ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise Failed(f"Airflow's {name} ended ({process.returncode}); its log: {self.home / name}.log")

    def login(self) -> tuple[str, str]:
        """User and password; there are none before the API server has started once."""
        path = self.home / "simple_auth_manager_passwords.json.generated"
        [(user, password)] = json.loads(path.read_text()).items()
        return user, password

    def _offers(self, dag_id: str) -> bool:
        """Whether all components are healthy and the DAG is there."""
        with contextlib.suppress(OSError, ValueError, KeyError):  # not yet
            health = self.ask("monitor/health")
            dag = self.ask(f"dags/{dag_id}")
            return dag["dag_id"] == dag_id and all(part["status"] == "healthy" for part in health.values() if part["status"])
        return False

    def ask(self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> dict[str, Any]:
        """One call of its public API, as the user of `login`. Raises `OSError` where it does not answer or refuses."""
        user, password = self.login()
        token = _ask(f"{self.url}/auth/token", {"username": user, "password": password})["access_token"]
        return _ask(f"{self.url}/api/v2/{path}", body, token, method)

    def stop(self, grace: float = 20.0) -> None:
        """Everything that was started, and whatever that has started; the last resort is SIGKILL."""
        processes = [psutil.Process(process.pid) for process in self._processes.values() if process.poll() is None]
        everything = [*processes, *self.descendants()]
        _signal(processes, signal.SIGTERM)
        _, left = psutil.wait_procs(everything, grace)
        _signal(left, signal.SIGKILL)
        psutil.wait_procs(left, grace)


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        found: list[psutil.Process] = process.children(recursive=True)
        return found
    return []


def title(process: psutil.Process) -> str:
    """What it calls itself; empty where it is gone."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()[:3])
    return ""


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # psutil never signals a pid that another process has by now
            process.send_signal(number)


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _ask(url: str, body: Mapping[str, Any] | None = None, token: str = "", method: str | None = None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310  # our own URL
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)
    return found


@contextmanager
def serving(airflow: Airflow, dag_id: str) -> Iterator[Airflow]:
    """Everything it started is stopped at the end, whatever happens."""
    try:
        airflow.start(dag_id)
        yield airflow
    finally:
        airflow.stop()


def main() -> int:
    """Bring up a cluster and an Airflow, and serve until a signal; returns the exit code."""
    arguments = _parser().parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    shape = Shape(name="demo", brokers=arguments.brokers, controllers=arguments.controllers)
    applications = APPLICATIONS if arguments.groups else ()
    policy = {"min_soak": arguments.soak}
    rehearsal = Rehearsal(
        arguments.dir, shape, TOPICS, rate=arguments.rate, policy=policy, applications=applications, foreign=None
    )
    try:
        with closing(rehearsal):
            _serve(rehearsal, load=arguments.load or arguments.groups)
    except KMigrateError as error:
        print(f"{error}\nLogs: {arguments.dir.absolute()}", file=sys.stderr)
        return 1
    return 0


def _end(number: int, frame: object) -> None:
    """Stop what was started, once; an impatient second Ctrl-C must not leave half of it behind."""
    del frame
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    print("\nStopping Airflow and the cluster ...", flush=True)
    sys.exit(0 if number == signal.SIGINT else 128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/airflow"))
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--controllers", type=int, default=3)
    parser.add_argument("--soak", default="45s", help="policy min_soak; more than 30s shows how a task waits without a worker")
    parser.add_argument("--load", action="store_true", help="producers and consumer groups work on the cluster meanwhile")
    parser.add_argument(
        "--groups", action="store_true", help="with --load, and a group of old consumers with the DAGs that move it"
    )
    parser.add_argument("--rate", type=float, default=200.0, help="records a second, with --load")
    return parser


def _serve(rehearsal: Rehearsal, *, load: bool) -> None:
    print("Starting ZooKeeper and the brokers ...", flush=True)
    rehearsal.up()
    if load:
        rehearsal.load()
        rehearsal.start_applications()
    plan = rehearsal.cluster.plan
    print("Starting Airflow ...", flush=True)
    airflow = Airflow(rehearsal.folder / "home", plan.spec_path.parent, plan.connections_path)
    with serving(airflow, rehearsal.dag_id):
        print(hello(airflow, rehearsal, load=load), flush=True)
        while True:
            airflow.check()
            time.sleep(1.0)


def hello(airflow: Airflow, rehearsal: Rehearsal, *, load: bool) -> str:
    """Where to go and what to click."""
    user, password = airflow.login()
    plan = rehearsal.cluster.plan
    return HELLO.format(
        url=airflow.url,
        user=user,
        password=password,
        cluster_id=plan.cluster_id,
        brokers=plan.shape.brokers,
        controllers=plan.shape.controllers,
        partitions=sum(topic.partitions for topic in rehearsal.topics),
        load=f"{rehearsal.rate:.0f} records/s flow" if load else "no load (ARGS=--load has some)",
        spec=plan.spec_path,
        kmigrate=airflow.kmigrate,
        logs=airflow.home,
        cluster=rehearsal.cluster.folder,
        dag=rehearsal.dag_id,
        name=plan.shape.name,
    )


if __name__ == "__main__":
    sys.exit(main())
