"""An Airflow on a machine of its own, as users have it: PostgreSQL, LocalExecutor, and a unit of systemd for each component."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from airflow_provider_kmigrate.exceptions import Failed
from benchmarks.airflow_ui import COMPONENTS, Airflow, title
from benchmarks.run_dag import ROOT
from tests.kit import machines
from tests.kit.fleet import Fleet
from tests.kit.machines import Machine, Template, pid_inside

_PASSED_ON = ("AIRFLOW", "PYTHON")  # what names of the environment begin with
_DATABASE = "/var/lib/database/data"
_DATABASE_UNIT = """\
[Service]
Type=notify
User=postgres
StateDirectory=database
RuntimeDirectory=database
ExecStartPre={bin}/initdb -D {data} --auth=trust --encoding=UTF8 --locale=C.UTF-8
ExecStart={bin}/postgres -D {data} -c listen_addresses={address} -c unix_socket_directories=/run/database -c max_connections=200
"""
_UNIT = """\
[Service]
EnvironmentFile=/etc/airflow.env
WorkingDirectory={home}
ExecStart={python} -m airflow {arguments}
StandardOutput=append:{home}/{name}.log
StandardError=inherit
KillMode=mixed
Restart=on-failure
RestartSec=5
"""


def missing() -> str:
    """Why there can be no such machine here, with the packages to install; empty if there can."""
    if why_not := machines.missing():
        return why_not
    if _postgresql() is None:
        return "Airflow's machine needs postgresql: apt-get install it"
    drivers = [name for name in ("psycopg2", "asyncpg") if importlib.util.find_spec(name) is None]
    return f"Airflow's machine needs {' and '.join(drivers)}: make setup" if drivers else ""


def _postgresql() -> Path | None:
    """The newest release's programs, where Debian has them."""
    return next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)


class AirflowMachine(Airflow):
    """As `Airflow`; its `home` is a directory of this machine, which the other one shares.

    It also sees, read-only, this program, the cluster file, the connections, and the key and the host keys for ssh.
    """

    def __init__(self, home: Path, fleet: Fleet, settings: Mapping[str, str]) -> None:
        address = f"127.0.{fleet.plan.network}.40"
        own = {
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://metadata@{address}/metadata",
            "HOME": str(fleet.home),
        }
        plan = fleet.plan
        super().__init__(home, plan.spec_path.parent, plan.connections_path, {**settings, **own}, address=address)
        self._fleet = fleet
        self._machine: Machine | None = None

    @property
    def machine(self) -> Machine:
        if self._machine is None:
            raise Failed("Airflow's machine was not started")
        return self._machine

    def prepare(self) -> None:
        """Make and boot the machine, and start its database."""
        folder, binaries = self._fleet.folder / self.address, _postgresql()
        template = Template(
            folder / "template",
            self._files(str(binaries)),
            name="airflow",
            address=self.address,
            key=self._fleet.key,
            enabled=(),
            shown=self._shown(),
            shared=[self.home],
            megabytes=1024,
        )
        self._machine = self._fleet.machines[self.address] = Machine(folder, template)
        template.disk.unlink()
        self.machine.boot()
        self.machine.run("systemctl", "start", "database")
        made = ("CREATE ROLE metadata LOGIN", "CREATE DATABASE metadata OWNER metadata")
        commands = (word for each in made for word in ("-c", each))
        self.machine.run(f"{binaries}/psql", "-q", "-U", "postgres", "-h", self.address, *commands)

    def _shown(self) -> list[Path]:
        program = {ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()} - {Path("/usr")}  # it has a /usr
        plan = self._fleet.plan
        return [*sorted(program), self._fleet.key, self._fleet.home, plan.spec_path.parent, plan.connections_path]

    def _files(self, binaries: str) -> dict[str, str]:
        lines = [f'{name}="{value}"\n' for name, value in self._passed_on().items()]
        units = "etc/systemd/system"
        database = _DATABASE_UNIT.format(bin=binaries, data=_DATABASE, address=self.address)
        return {"etc/airflow.env": "".join(lines), f"{units}/database.service": database} | {
            f"{units}/airflow-{name}.service": _UNIT.format(
                name=name, home=self.home, python=sys.executable, arguments=" ".join(argv)
            )
            for name, argv in COMPONENTS.items()
        }

    def _passed_on(self) -> dict[str, str]:
        found = self._environment
        return {name: found[name] for name in found if name == "HOME" or name.startswith(_PASSED_ON)}

    def _airflow(self, *argv: str) -> None:
        environment = (f"{name}={value}" for name, value in self._passed_on().items())
        self.machine.run("env", f"--chdir={self.home}", *environment, sys.executable, "-m", "airflow", *argv)

    def begin(self, name: str) -> None:
        """Start one component; one that systemd has started again by itself goes on."""
        self.machine.run("systemctl", "start", f"airflow-{name}")

    def kill(self, name: str) -> None:
        """SIGKILL for one component's first process; systemd ends what that has started, and starts it again."""
        self.machine.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", f"airflow-{name}", fails=True)  # it may be down

    def descendants(self) -> list[psutil.Process]:
        """Airflow's own processes that the components have started."""
        units = (f"airflow-{name}" for name in COMPONENTS)
        first = set(self.machine.run("systemctl", "show", "--property=MainPID", "--value", *units).split())
        found = []
        for process in psutil.Process(self.machine.leader).children(recursive=True):
            with contextlib.suppress(OSError):  # it ended meanwhile
                if "airflow" in title(process) and pid_inside(process.pid) not in first:
                    found.append(process)
        return found

    def check(self) -> None:
        """Raises `Failed` when a component has ended and is not started again."""
        for name in COMPONENTS:
            state = self.machine.run("systemctl", "is-active", f"airflow-{name}", fails=True).strip()
            if state not in {"active", "activating", "deactivating"}:
                raise Failed(f"Airflow's {name} is {state}; its log: {self.home / name}.log")

    def stop(self, grace: float = 20.0) -> None:
        """Cut the machine's power."""
        del grace
        if self._machine is not None:
            self.machine.close()
