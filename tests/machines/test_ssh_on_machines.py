"""Nodes behind an Airflow SSH connection, on machines: sshd, sudo and systemd as they are; and the commands that install and check the agent."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.clients.connections import ssh_settings
from airflow_provider_kmigrate.clients.hosts import AgentHost, Agents, Restart
from airflow_provider_kmigrate.core.cluster_state.model import ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.exceptions import Refused, Unreachable
from tests.kit.localcluster import clocks
from tests.kit.machines import (
    CLUSTER,
    NODE,
    USER,
    Machine,
    Template,
    booted,
    clock_files,
    missing,
    properties,
    properties_path,
)
from tests.machines.agent_install import Command, allow_more, fields
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.machines,
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]

FILES = ("/usr/local/sbin/kmigrate-node", "/etc/kmigrate/node.json", "/etc/sudoers.d/kmigrate")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def machine(tmp_path: Path, template: Template, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("AIRFLOW_HOME", os.environ.get("AIRFLOW_HOME", str(tmp_path / "airflow")))
    with booted(tmp_path / "machine", template) as made:
        yield made


class Node:
    """The broker of a machine, as a DAG reaches it."""

    def __init__(self, machine: Machine, connection: dict[str, Any]) -> None:
        from airflow_provider_kmigrate.hooks.connections import open_ssh  # noqa: PLC0415  # AIRFLOW_HOME comes first

        settings = ssh_settings("prod_ssh", connection)
        hosts = HostSpec("agent", properties=properties_path("broker"), ssh_conn_id="prod_ssh", stop_timeout=60.0)
        self.spec = NodeSpec(NODE, NodeRole.BROKER, machine.address, 9092, hosts)
        self.agents = Agents(lambda node: open_ssh(settings, node.host))
        self.host = AgentHost(self.agents(self.spec, None), CLUSTER)

    def state(self) -> ProcessState:
        return self.host.observe(self.spec).process().state

    def refused(self) -> str:
        with pytest.raises(Refused) as caught:
            self.state()
        return str(caught.value)


@pytest.fixture
def node(machine: Machine, template: Template) -> Iterator[Node]:
    made = Node(machine, fields(template))
    yield made
    made.agents.close()


def runs(node: Node) -> None:
    wait_until(lambda: node.state() is ProcessState.RUNNING, "the node runs", 30)


def test_a_node_is_changed_and_restarted_over_ssh(node: Node) -> None:
    runs(node)
    host, spec, text = node.host, node.spec, properties(note="new")
    host.put_properties(spec, text, 7)
    first, down = host.observe(spec).process().pid, []
    host.restart(spec, Restart(while_down=lambda _: down.append(node.state())), 7)
    assert down == [ProcessState.STOPPED]
    assert host.observe(spec).process().pid not in (None, first)
    assert host.read_properties(spec) == text
    assert "started with" in host.log_tail(spec)


def test_sshd_that_restarts_costs_one_answer_at_most(machine: Machine, node: Node) -> None:
    runs(node)
    machine.run("systemctl", "restart", "ssh")
    wait_until(machine.has_sshd, "sshd answers", 10)
    assert node.state() is ProcessState.RUNNING, "a session outlives its sshd"
    machine.run("loginctl", "terminate-user", USER)
    wait_until(lambda: node.state() is ProcessState.RUNNING, "the connection is opened again", 10, (Unreachable,))
    machine.run("systemctl", "stop", "ssh")
    machine.run("loginctl", "terminate-user", USER)
    wait_until(lambda: not machine.has_sshd(), "sshd is away", 10)
    with pytest.raises(Unreachable, match=r"no SSH connection|connection to kmigrate-node ended"):
        node.state()
    machine.run("systemctl", "start", "ssh")
    wait_until(machine.has_sshd, "sshd answers", 10)
    wait_until(lambda: node.state() is ProcessState.RUNNING, "the connection is opened again", 10, (Unreachable,))


def test_a_wrong_host_key_and_a_refused_login_over_ssh(machine: Machine, template: Template, node: Node, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    said = Node(machine, fields(template, key_file=str(tmp_path / "other"))).refused()
    assert "[M06]" in said
    assert "does not accept the login" in said
    machine.run(
        "sh",
        "-ec",
        "rm /etc/ssh/ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key; systemctl restart ssh",
    )
    wait_until(machine.has_sshd, "sshd starts again", 10)
    said = node.refused()
    assert "[M06]" in said
    assert "Another machine may answer in its place" in said


def test_what_is_missing_behind_ssh_is_named(machine: Machine, template: Template) -> None:
    line = machine.path(FILES[2]).read_text().strip()
    machine.run("rm", FILES[0])
    said = Node(machine, fields(template)).refused()
    assert ("[M03]" in said, "node install CLUSTER.yaml" in said) == (True, True), said
    machine.run("rm", FILES[2])
    machine.run("sh", "-ec", f"echo >{FILES[0]}; chmod 755 {FILES[0]}")
    said = Node(machine, fields(template)).refused()
    assert ("[M03]" in said, "a password is required" in said, line in said) == (True, True, True), said


def test_the_agent_is_installed_and_checked_over_ssh(machine: Machine, command: Command) -> None:
    machine.run("rm", *FILES)
    allow_more(machine)
    code, said = command("install", "--dry-run")
    assert (code, all(f"would write {path}" in said for path in FILES)) == (0, True), said
    assert machine.run("sh", "-c", f"ls {' '.join(FILES)}", fails=True) == ""
    code, said = command("install", "--yes")
    assert (code, "kmigrate-node answers" in said) == (0, True), said
    assert machine.run("stat", "-c", "%U:%G:%a", *FILES).split() == ["root:root:755", "root:root:644", "root:root:440"]
    code, said = command("install", "--yes")
    assert (code, said.endswith("Nothing to do.\n")) == (0, True), said
    machine.run("rm", "/etc/sudoers.d/admin")

    code, said = command("check")
    assert (code, said.count("FAIL"), said.count("[W7]")) == (1, 2, 2), said
    machine.sets_stop_timeout("10min")
    before = machine.run("systemctl", "show", "-p", "MainPID", "kafka"), machine.path(properties_path("broker")).read_text()
    code, said = command("check")
    assert (code, said.count("ok    ")) == (0, 2), said
    unknown = "not known: the release that it runs, the release that its next start loads"  # its Kafka is a stand-in without jars
    assert re.search(
        rf"kafka\.service running, Java 17\S*, {unknown}, TimeoutStopSec=10min, Restart=on-failure, starts at boot", said
    )
    assert "install_file (the same bytes), start (it runs)" in said
    after = machine.run("systemctl", "show", "-p", "MainPID", "kafka"), machine.path(properties_path("broker")).read_text()
    assert after == before
    assert machine.run("stat", "-c", "%U:%G:%a", properties_path("broker")) == "root:kafka:640\n"


def test_an_installation_behind_links_with_data_below_the_root_is_pinned_until_a_link_leads_elsewhere(
    machine: Machine, command: Command
) -> None:
    """As most tutorials have it: a folder with the release in its name behind a link; an upgrade exchanges the link."""
    machine.run("rm", *FILES)
    allow_more(machine)
    machine.sets_stop_timeout("10min")
    machine.run("systemctl", "stop", "kafka")
    machine.run("sh", "-c", "mv /etc/kafka /etc/kafka-3.9.2 && ln -s kafka-3.9.2 /etc/kafka && mv /var/lib/kafka/data /data")
    machine.path("/etc/kafka-3.9.2/server.properties").write_text(properties(log_dirs="/data/"))
    machine.run("systemctl", "start", "kafka")
    code, said = command("install", "--yes")
    assert (code, "kmigrate-node answers" in said) == (0, True), said
    assert '"/etc/kafka/server.properties" leads to "/etc/kafka-3.9.2/server.properties"' in said
    code, said = command("check")
    assert (code, said.count("ok    ")) == (0, 2), said
    assert "install_file (the same bytes)" in said
    code, said = command("install", "--yes")
    assert (code, said.endswith("Nothing to do.\n")) == (0, True), said

    machine.run("sh", "-c", "cp -a /etc/kafka-3.9.2 /etc/kafka-4.0.0 && ln -sfn kafka-4.0.0 /etc/kafka")
    before = machine.path("/etc/kafka-4.0.0/server.properties").read_text()
    code, said = command("check")
    assert (code, "led to /etc/kafka-3.9.2/server.properties" in said) == (1, True), said
    assert machine.path("/etc/kafka-4.0.0/server.properties").read_text() == before
    assert command("install", "--yes")[0] == 0
    code, said = command("check")
    assert (code, said.count("ok    ")) == (0, 2), said


def test_an_ssh_login_that_may_run_only_the_agent_is_referred_to_the_script(machine: Machine, command: Command) -> None:
    code, said = command("install", "--yes")
    assert (code, "[M03]" in said, "install --script" in said) == (1, True, True), said
    machine.run("rm", *FILES)
    code, script = command("install", "--script")
    machine.path("/root/install.sh").write_text(script)
    said = machine.run("sh", "/root/install.sh", machine.address)
    assert (code, "kmigrate-node answers" in said) == (0, True), said
    assert machine.run("sh", "/root/install.sh", machine.address).count(" is there") == len(FILES)
    machine.sets_stop_timeout("10min")
    code, said = command("check")
    assert code == 0, said


@pytest.mark.parametrize(("protocol", "update"), [(0, "node install CLUSTER.yaml"), (2, "pip install --upgrade")])
def test_an_agent_that_is_older_or_newer_is_refused_with_the_command_that_replaces_it(
    machine: Machine, command: Command, protocol: int, update: str
) -> None:
    machine.sets_stop_timeout("10min")
    machine.run("sed", "-i", f"s/^PROTOCOL = 1$/PROTOCOL = {protocol}/", FILES[0])
    code, said = command("check")
    refused = f"speaks protocol {protocol}, the request 1"
    assert (code, refused in said, "[M03]" in said, update in said) == (1, True, True, True), said
    allow_more(machine)
    machine.run("rm", FILES[1])  # it has keys that were written by hand, which `install` leaves alone
    code, said = command("install", "--yes")
    assert (code, f"writes {FILES[0]}" in said) == (0, True), said
    code, said = command("check")
    assert code == 0, said


def test_a_clock_that_is_ten_minutes_off_is_named(machine: Machine, command: Command) -> None:
    if why_not := clocks.why_not():
        pytest.skip(why_not)
    machine.sets_stop_timeout("10min")
    machine.write(clock_files(600))
    code, said = command("check")
    assert (code, said.count("[W8]"), "differs by +600" in said or "differs by +599" in said) == (1, 2, True), said


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        ("userdel kafka", "no user kafka"),
        ("rm /opt/kafka/bin/kafka-storage.sh", "no program /opt/kafka/bin/kafka-storage.sh"),
        ("rm /etc/kafka/server.properties", "no file /etc/kafka/server.properties"),
        (
            "rm /usr/local/lib/systemd/system/kafka-controller.service; systemctl daemon-reload",
            "no unit kafka-controller.service",
        ),
    ],
)
def test_a_machine_behind_ssh_that_is_not_ready_gets_no_agent(
    machine: Machine, command: Command, break_it: str, said: str
) -> None:
    machine.run("systemctl", "stop", "kafka")
    machine.run("rm", FILES[0], FILES[1])
    allow_more(machine)
    machine.run("sh", "-ec", break_it)
    code, shown = command("install", "--yes")
    assert (code, said in shown, shown.count(f"{machine.address}: ")) == (1, True, 1), shown
    assert machine.run("sh", "-c", f"ls {FILES[0]} {FILES[1]}", fails=True) == ""
