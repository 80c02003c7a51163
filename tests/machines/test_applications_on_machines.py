"""Units of an application on a real systemd: installed from the cluster file, switched by the agent, and what starts them again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.clients.hosts.agent import Agents, AgentUnits
from airflow_provider_kmigrate.clients.tools import Instances
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, HostSpec, InstanceSpec, UnitSpec
from airflow_provider_kmigrate.exceptions import Refused
from tests.kit.machines import CLUSTER, Machine, Template, booted, missing, node_config, stand_in_files
from tests.machines.agent_install import Command, allow_more
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.machines,
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]

# one template, whose instances differ in their environment: the old version and the new one
_UNIT = """\
[Service]
EnvironmentFile=/etc/billing/%i.env
ExecStart=/bin/sh -c 'echo version $VERSION; exec $PROGRAM'
Restart=always
RestartSec=100ms
StartLimitIntervalSec=0
[Install]
WantedBy=multi-user.target
"""
OLD, NEW = "billing@old.service", "billing@new.service"
FILES = {
    "etc/systemd/system/billing@.service": _UNIT,
    "etc/billing/old.env": "VERSION=old\nPROGRAM=/bin/sleep 600\n",
    "etc/billing/new.env": "VERSION=new\nPROGRAM=/bin/sleep 600\n",
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    config: Any = node_config()
    for role in config["roles"].values():
        del role["start_timeout"]  # a key that was written by hand, which `install` would not remove
    files = stand_in_files() | FILES | {"etc/kmigrate/node.json": json.dumps(config)}
    return Template(tmp_path_factory.mktemp("template"), files, enabled=())


@pytest.fixture
def machine(tmp_path: Path, template: Template) -> Iterator[Machine]:
    with booted(tmp_path, template) as made:
        allow_more(made)
        yield made


class Billing:
    """The instance, whose units the agent of its machine switches."""

    def __init__(self, machine: Machine, agents: Agents) -> None:
        self.machine = machine
        hosts = HostSpec("agent", connect=machine.ssh())
        units = {kind: UnitSpec(name, machine.address, hosts, 30.0) for kind, name in (("zookeeper", OLD), ("kafka", NEW))}
        self.instance = InstanceSpec("billing-0", machine.address, units=units)
        self.group = GroupSpec("billing", (self.instance,))
        self.instances = Instances("prod", {}, {}, lambda unit: AgentUnits(agents(unit, None), CLUSTER))

    def become(self, kind: str) -> None:
        self.instances.switch(self.group, self.instance, kind, 7)

    def states(self) -> list[str]:
        return self.machine.run("systemctl", "is-active", OLD, NEW, fails=True).split()

    def at_boot(self) -> list[str]:
        return self.machine.run("systemctl", "is-enabled", OLD, NEW, fails=True).split()


def test_an_application_is_installed_stopped_and_started_as_its_other_version(
    machine: Machine, command: Command, template: Template
) -> None:
    del template
    text = command.file.read_text()
    groups = (
        "groups:\n  - name: billing\n    way: cutover\n"
        f"    units: {{zookeeper: {OLD}, kafka: {NEW}}}\n    instances: [{{name: billing-0, host: {machine.address}}}]\n"
    )
    agents = Agents()
    billing = Billing(machine, agents)
    try:
        with pytest.raises(Refused, match="no role"):  # before it is installed
            billing.instances.require(billing.group, must_answer=True)
        command.file.write_text(text + groups)
        code, said = command("install", "--yes", "--login", "kmigrate")
        assert code == 0, said
        agents.close()  # an agent that runs has read its node.json
        agents = Agents()
        billing = Billing(machine, agents)
        billing.instances.require(billing.group, must_answer=True)
        code, said = command("check")
        assert f"ok    {OLD} on {machine.address}: an application's unit" in said, said
        machine.run("systemctl", "enable", "--now", OLD)
        assert billing.states() == ["active", "inactive"]
        billing.become("stopped")
        assert (billing.states(), billing.at_boot()) == (["inactive", "inactive"], ["disabled", "disabled"])
        billing.become("kafka")
        assert (billing.states(), billing.at_boot()) == (["inactive", "active"], ["disabled", "enabled"])
        machine.reboot()
        wait_until(lambda: billing.states() == ["inactive", "active"], "only the new version starts at boot", 30)
        # the new version crashes and is started again and again: its stop must end that
        machine.path("/etc/billing/new.env").write_text("VERSION=new\nPROGRAM=/bin/false\n")
        machine.run("systemctl", "restart", NEW, fails=True)
        wait_until(
            lambda: int(machine.run("systemctl", "show", "--value", "-pNRestarts", NEW)) > 2, "it crashes again and again", 30
        )
        billing.become("zookeeper")
        assert (billing.states(), billing.at_boot()) == (["active", "failed"], ["enabled", "disabled"])
    finally:
        agents.close()
