"""The units of applications: what the agent does with them, and what it does not."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.clients.commands import command_environment
from airflow_provider_kmigrate.clients.hosts.agent import AgentUnits, Connection, Program
from airflow_provider_kmigrate.clients.settings import HostSettings
from airflow_provider_kmigrate.clients.tools import Instances
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, HostSpec, InstanceSpec, UnitSpec
from airflow_provider_kmigrate.exceptions import Failed, Fenced, Refused, Unavailable
from tests.clients.fake_pipe import FakePipe
from tests.node.agent_parts import agent_module
from tests.node.machine import AGENT, CLUSTER, SLEEPER, Node
from tests.waiting import wait_until

OLD, NEW = "billing-old.service", "billing.service"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Node]:
    """A machine with two versions of an application, as plain processes: there is no systemd here."""
    node = Node(tmp_path)
    node.configure({name: application(node, name) for name in (OLD, NEW)})
    yield node
    node.close()
    for name in (OLD, NEW):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id(node, name), signal.SIGKILL)


def application(node: Node, name: str) -> dict[str, Any]:
    (node.root / "log").mkdir(exist_ok=True)
    return {
        "process": {"start": [*SLEEPER, name]},
        "state": str(node.state / name),
        "log": f"{node.root}/log/{name}",
        "stop_timeout": 10,
    }


def units(node: Node) -> AgentUnits:
    argv = (sys.executable, "-I", str(AGENT), "serve", "--config", str(node.config))
    return AgentUnits(Connection("app0", lambda: Program(argv, command_environment(None))), CLUSTER)


def unit(name: str, seconds: float = 10.0) -> UnitSpec:
    return UnitSpec(name, "app0", HostSpec("agent"), seconds)


def process_id(node: Node, name: str) -> int:
    """Of the version that runs; no other process has it."""
    pid = agent_module().Role(name, application(node, name), str(node.config)).find().pid
    if not pid:
        raise ProcessLookupError
    return int(pid)


def runs(node: Node, name: str) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return bool(process_id(node, name))
    return False


INSTANCE = InstanceSpec("billing-0", "app0", units={"zookeeper": unit(OLD), "kafka": unit(NEW)})
GROUP = GroupSpec("billing", (INSTANCE,))


@pytest.mark.slow
def test_one_version_runs_at_a_time_and_the_other_one_is_stopped_first(machine: Node) -> None:
    agent = units(machine)
    instances = Instances("prod", {}, {}, lambda _: agent)
    instances.require(GROUP, must_answer=True)
    for kind, running in [("zookeeper", (True, False)), ("stopped", (False, False)), ("kafka", (False, True)), ("kafka", (False, True)),
                          ("zookeeper", (True, False)), ("stopped", (False, False)), ("stopped", (False, False))]:  # fmt: skip
        instances.switch(GROUP, INSTANCE, kind, 7)
        wait_until(lambda running=running: (runs(machine, OLD), runs(machine, NEW)) == running, f"{kind}: {running}", 10)  # type: ignore[misc]


@pytest.mark.slow
def test_a_version_that_does_not_stop_keeps_the_other_one_down(machine: Node) -> None:
    stubborn = application(machine, OLD) | {
        "process": {"start": ["/bin/sh", "-c", "trap '' TERM; exec sleep 600"]},
        "stop_timeout": 1,
    }
    machine.configure({OLD: stubborn, NEW: application(machine, NEW)})
    agent = units(machine)
    instances = Instances("prod", {}, {}, lambda _: agent)
    instances.switch(GROUP, INSTANCE, "zookeeper", 7)
    with pytest.raises(Unavailable, match="not stopped 1 s after its stop"):
        instances.switch(GROUP, INSTANCE, "kafka", 7)
    assert (runs(machine, OLD), runs(machine, NEW)) == (True, False)


def test_an_older_run_switches_nothing(machine: Node) -> None:
    agent = units(machine)
    agent.start(unit(OLD), 7)
    with pytest.raises(Fenced):
        agent.stop(unit(OLD), 6)
    assert runs(machine, OLD)


@pytest.mark.parametrize(
    "verb", ["facts", "read_log", "install_file", "write_meta", "remove", "restart", "format", "set_aside", "try_tool"]
)
def test_nothing_but_the_process_of_an_application_is_touched_or_shown(machine: Node, verb: str) -> None:
    machine.role = NEW
    assert machine.refused(verb, job="x1") == "verb"


def test_a_unit_that_is_not_in_node_json_is_refused(machine: Node) -> None:
    with pytest.raises(Refused, match=r"no role 'cron\.service'"):
        units(machine).require(unit("cron.service"))


@pytest.mark.parametrize(
    "roles",
    [
        {},
        {"billing": {"systemd": "billing.service"}},
        {"../x.service": {"systemd": "billing.service"}},
        {NEW: {"systemd": "billing.socket"}},
        {NEW: {"systemd": NEW}, OLD: {"systemd": NEW}},
        {NEW: {"systemd": NEW, "path": "/etc"}},
        {NEW: {}},
    ],
)
def test_a_node_json_with_another_role_is_refused(machine: Node, roles: dict[str, Any]) -> None:
    good = machine.config.read_text()
    machine.configure(roles)
    assert machine.refused("hello") == "config"
    machine.config.write_text(good)


class TestMachineThatIsAway:
    def instances(self) -> Instances:
        silent = AgentUnits(Connection("app0", FakePipe), CLUSTER)
        return Instances("prod", {}, {}, lambda _: silent)

    def test_a_migration_is_refused_before_anything_stops(self) -> None:
        with pytest.raises(Unavailable):
            self.instances().require(GROUP, must_answer=True)

    def test_a_rollback_does_what_it_can(self) -> None:
        self.instances().require(GROUP, must_answer=False)


def test_without_an_agent_nothing_is_switched() -> None:
    with pytest.raises(Failed, match="no agent"):
        Instances("prod", {"x": HostSettings({})}, {}).switch(GROUP, INSTANCE, "kafka", 7)


class Units:
    """An agent's units that keep what was asked of them."""

    def __init__(self, fails: str = "") -> None:
        self.asked, self.fails = list[tuple[str, str]](), fails

    def stop(self, asked: UnitSpec, _token: int) -> None:
        self.asked.append(("stop", asked.unit))
        if self.fails == asked.unit:
            raise Failed("systemctl stop ended with exit code 1")

    def start(self, asked: UnitSpec, _token: int) -> None:
        self.asked.append(("start", asked.unit))


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("stopped", [("stop", OLD), ("stop", "both.service"), ("stop", NEW)]),
        ("zookeeper", [("stop", "both.service"), ("stop", NEW), ("start", OLD)]),
        ("migrating", [("stop", OLD), ("stop", NEW), ("start", "both.service")]),
        ("kafka", [("stop", OLD), ("stop", "both.service"), ("start", NEW)]),
    ],
)
def test_the_units_of_other_kinds_are_stopped_before_one_starts(kind: str, asked: list[tuple[str, str]]) -> None:
    agent: Any = Units()
    instance = InstanceSpec("billing-0", units={"zookeeper": unit(OLD), "migrating": unit("both.service"), "kafka": unit(NEW)})
    Instances("prod", {}, {}, lambda _: agent).switch(GROUP, instance, kind, 7)
    assert agent.asked == asked


def test_nothing_starts_beside_a_unit_whose_stop_failed() -> None:
    agent: Any = Units(fails=OLD)
    with pytest.raises(Failed):
        Instances("prod", {}, {}, lambda _: agent).switch(GROUP, INSTANCE, "kafka", 7)
    assert agent.asked == [("stop", OLD)]
