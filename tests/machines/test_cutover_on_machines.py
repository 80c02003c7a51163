"""A real JVM application whose versions are systemd units with `Restart=always`, cut over and back by the agents of its machines, under load."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.catalog import find_group
from airflow_provider_kmigrate.steps.groups import ReleaseGroup
from airflow_provider_kmigrate.steps.run import run_step
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import lent
from tests.kit.localcluster.plan import Shape
from tests.kit.machines import Machine, Template, booted, missing, new_key
from tests.old_consumer.cutover import OLD, PLAIN, Running, check_nothing_lost
from tests.old_consumer.jvm_application import JvmApplication, Load
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.machines,
    pytest.mark.long,
    pytest.mark.slow(seconds=150),
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]
PARTITIONS = 8
UNITS = {OLD: "invoices@old.service", PLAIN: "invoices@new.service"}
_UNIT = """\
[Unit]
StartLimitIntervalSec=0
[Service]
EnvironmentFile=/etc/invoices/%i.env
ExecStart=/opt/invoices/run $VERSION
SuccessExitStatus=143
Restart=always
RestartSec=100ms
[Install]
WantedBy=multi-user.target
"""
# Each life has a log of its own, in the folder that all machines share with this one.
_RUN = """\
#!/bin/sh
exec >>{folder}/{name}.$(date +%s%N).$1.log 2>>{folder}/{name}.errors
case $1 in zookeeper) exec {zookeeper} ;; kafka) exec {kafka} ;; esac
"""


@dataclass
class UnitsApplication(JvmApplication):
    """Each instance has a machine of its own, with one unit for each version; its group is in the cluster file."""

    cluster_file: Path = Path()
    machines: dict[str, Machine] = field(default_factory=dict)  # by instance

    def boot(self, folder: Path, stack: ExitStack) -> None:
        """Boot the machines, on which the old version starts, and write the group into the cluster file."""
        self.prepare()
        commands: dict[str, list[str]] = json.loads((self.folder / "application.json").read_text())
        class_path = {path for words in commands.values() for path in words[words.index("-cp") + 1].removesuffix("/*").split(":")}
        shown = [Path(path) for path in sorted(class_path)]
        key = new_key(folder)
        for name in self.names:
            own = folder / name
            own.mkdir()
            files = _files_of_machine(self.folder, name, commands)
            template = Template(own, files, key=key, enabled=[UNITS[OLD]], shown=shown, shared=[self.folder])
            self.machines[name] = stack.enter_context(booted(own / "machine", template))
        first = next(iter(self.machines.values()))
        (first.folder / "known_hosts").write_text("".join(machine.known_host for machine in self.machines.values()))
        connect = [word.replace(f"@{first.address}", "@{host}") for word in first.ssh()]
        instances = [{"name": name, "host": machine.address} for name, machine in self.machines.items()]
        group = self.entry(units={str(kind): unit for kind, unit in UNITS.items()}, instances=instances)
        del group["switch"]
        document = yaml.safe_load(self.cluster_file.read_text()) | {"hosts": {"connect": connect}, "groups": [group]}
        self.cluster_file.write_text(yaml.safe_dump(document, sort_keys=False))

    def spec(self) -> GroupSpec:
        """The group of the cluster file."""
        return load(self.cluster_file).groups[0]

    def check_runs_as(self, kind: str | None) -> None:
        """On every machine the unit of this kind alone runs, and alone starts at boot; None: no unit does."""
        for machine in self.machines.values():
            for unit_kind, unit in UNITS.items():
                runs, starts_at_boot = (
                    machine.run("systemctl", verb, unit, fails=True).strip() for verb in ("is-active", "is-enabled")
                )
                seen = (machine.address, unit, runs, starts_at_boot)
                assert (runs == "active") is (unit_kind == kind), seen
                assert starts_at_boot == ("enabled" if unit_kind == kind else "disabled"), seen

    def crash(self, name: str, kind: str) -> None:
        """Kill the instance's process; returns once systemd has started it again."""
        machine = self.machines[name]
        assert machine.signal("/usr/bin/java", signal.SIGKILL) == 1
        show = ("systemctl", "show", "--value", "--property=NRestarts", UNITS[kind])
        wait_until(lambda: machine.run(*show).strip() == "1" and machine.processes("/usr/bin/java"), f"{name} is started again")


def _files_of_machine(logs: Path, name: str, commands: dict[str, list[str]]) -> dict[str, str]:
    roles = {unit: {"systemd": unit, "stop_timeout": 60} for unit in UNITS.values()}  # as `kmigrate node install` writes them
    run = {kind: shlex.join(words).replace("{instance}", name) for kind, words in commands.items()}
    return {
        "etc/kmigrate/node.json": json.dumps({"version": 1, "roles": roles}),
        "etc/systemd/system/invoices@.service": _UNIT,
        "etc/invoices/old.env": "VERSION=zookeeper\n",
        "etc/invoices/new.env": "VERSION=kafka\n",
        "opt/invoices/run": _RUN.format(folder=logs, name=name, **run),
    }


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        cluster = stack.enter_context(lent(tmp_path / "cluster", Shape(name="units", brokers=1, controllers=1)))
        logs, machines = tmp_path / "invoices", tmp_path / "machines"
        application = UnitsApplication(logs, cluster.bootstrap, cluster.zookeeper, cluster_file=cluster.spec_path)
        create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan(application.topic, PARTITIONS, 1)])
        machines.mkdir()
        application.boot(machines, stack)
        load_ = stack.enter_context(Load(cluster.bootstrap, application.topic, PARTITIONS))
        there = Running(cluster, application, load_)
        wait_until(lambda: there.kinds() == [OLD, OLD], "both instances are there")
        wait_until(lambda: len({partition for _, partition, _ in application.processed()}) == PARTITIONS, "it consumes")
        yield there


def test_an_application_of_systemd_units_is_cut_over_and_back_and_over_again(running: Running) -> None:
    application = running.application
    assert isinstance(application, UnitsApplication)
    first, second = application.names

    application.crash(second, OLD)
    assert "was stopped for" in running.cut_over()
    assert running.kinds() == [PLAIN, PLAIN]
    application.check_runs_as(PLAIN)

    application.machines[first].reboot()
    wait_until(lambda: running.kinds() == [PLAIN, PLAIN], "the new version alone starts at boot")
    application.check_runs_as(PLAIN)

    application.crash(second, PLAIN)
    running.roll_back()
    assert running.kinds() == [OLD, OLD]
    application.check_runs_as(OLD)

    with running.context() as context:
        run_step(ReleaseGroup(find_group(context.spec, application.group)), context)
    killed = running.run_tool("cutover", "--at", "copied")
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    assert running.kinds() == []
    application.check_runs_as(None)
    again = running.run_tool("cutover")
    assert again.returncode == 0, again.stdout
    assert running.kinds() == [PLAIN, PLAIN]
    application.check_runs_as(PLAIN)

    check_nothing_lost(running.settle())
