"""Fresh machines with public units, scripts and directories: the guide typed with a clock, a migration, its rollback, a second migration to its end.

The tests are one journey, in this order. Configuration management writes other content in the soak, at the approval and at the
finalization: each time the key is named and nothing goes on. The steps run as the DAGs' tasks run them, without an Airflow.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_kmigrate.core.cluster_state.decision import Wait
from airflow_provider_kmigrate.core.cluster_state.model import Fields
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.migration.plan import MIGRATION
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.steps.catalog import build, run_plan, run_rollback
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from benchmarks import direct
from benchmarks.rehearsal import Rehearsal
from tests.kit.fleet import FILES
from tests.kit.machines import PORT, USER, missing
from tests.machines.journey import machines_up
from tests.machines.public_units import GUIDE, METADATA, REQUIRING, SUPERVISED, PublicFleet
from tests.system import evidence

pytestmark = [
    pytest.mark.machines,
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.flaky(reruns=0),  # a part cannot be repeated without those before it
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]

MOST_ACTIONS = 24
RUN = "journey"  # one run may do everything: another would have to take its fence over
STILL_S = 8.0  # for so long nothing may go on after a file was named
KEY = "log.cleaner.threads"  # a key that the brokers' and the controllers' files do not have, and that no stage needs


@dataclass
class Guide:
    """What an administrator types and edits, by the guide, and when each began; in the folder of the cluster files."""

    folder: Path
    home: Path
    actions: list[tuple[float, str]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def edits(self, what: str) -> None:
        self.actions.append((time.monotonic() - self.began, f"edit: {what}"))

    def types(self, *words: str, code: int = 0) -> str:
        """Run a command of kmigrate; what it says. It must end with this code."""
        self.actions.append((time.monotonic() - self.began, " ".join(("kmigrate", *words))[:200]))
        done = subprocess.run(
            [Path(sys.executable).with_name("kmigrate"), *words],
            cwd=self.folder,
            env={**os.environ, "HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        said = done.stdout + done.stderr
        sys.stderr.write(f"$ kmigrate {' '.join(words)}\n{said[-6000:]}[{done.returncode}]\n")
        assert done.returncode == code, said
        return said

    def account(self) -> str:
        lines = [f"{at / 60:5.1f} min  {what}" for at, what in self.actions]
        return "\n".join([*lines, f"{len(self.actions)} actions, {(time.monotonic() - self.began) / 60:.1f} min"])


@dataclass
class Story:
    """What the tests of the journey share. `done`: those that passed."""

    rehearsal: Rehearsal
    done: list[str] = field(default_factory=list)

    @property
    def fleet(self) -> PublicFleet:
        fleet = self.rehearsal.cluster
        assert isinstance(fleet, PublicFleet)
        return fleet

    @contextlib.contextmanager
    def part(self, name: str, after: str = "") -> Iterator[PublicFleet]:
        """A part of the journey; raises AssertionError if the one before it did not come to its end."""
        assert self.done[-1:] == ([after] if after else []), f"an earlier part failed; parts that passed: {self.done}"
        yield self.fleet
        self.done.append(name)

    def phase(self) -> Phase:
        with direct.context(self.fleet, "looking", acting=False) as here:
            return position_of(here.observer.observe(evidence.EVERYTHING)).phase

    def acts(self) -> int:
        """How many acts the journals of all runs have."""
        lines = [
            line
            for path in (self.rehearsal.folder / "kmigrate" / "journal").rglob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return len([line for line in lines if json.loads(line)["kind"] == "act"])

    @contextlib.contextmanager
    def rewritten(self, node: NodeSpec) -> Iterator[Callable[[str], None]]:
        """A tool adds one key to a node's file, until the block ends; the block's function judges what was said meanwhile."""
        path = self.fleet.machine(node).path(FILES[node.role])
        right, acts = path.read_text(), self.acts()
        path.write_text(f"{right}{KEY}=3\n")

        def judge(said: str) -> None:
            assert "[O03]" in said, said
            assert f"+ {KEY}=3" in said, said
            assert node.name in said.lower(), said
            assert self.acts() == acts, "it went on"

        try:
            yield judge
        finally:
            path.write_text(right)


def held(here: StepContext, kind: str, **arguments: Any) -> str:
    """What a step says that does not go on: why it waits after some seconds, or its error."""
    try:
        outcome = run_step(build(here.spec, kind, arguments), here, sync_for=STILL_S)
    except KMigrateError as error:
        return str(error)
    assert isinstance(outcome, Wait), outcome
    return " ".join(map(str, outcome.reasons))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("public")
    with machines_up(folder, "public", PublicFleet) as rehearsal:
        yield Story(rehearsal)


def test_the_guide_leads_from_nothing_to_a_preflight_without_findings(story: Story) -> None:
    with story.part("installed") as fleet:
        right, connections = fleet.spec_path.read_text(), str(fleet.plan.connections_path)
        name, hosts = fleet.spec_path.name, sorted(fleet.machines)
        known_hosts = fleet.home / ".ssh" / "known_hosts"
        known_hosts.unlink()
        fingerprints = "".join(fingerprint_of(fleet, host) for host in hosts)
        guide = Guide(fleet.spec_path.parent, fleet.home)
        guide.edits("the connections to ZooKeeper, Kafka and the machines")
        kept = json.loads(Path(connections).read_text())
        names = {kind: conn_id for conn_id, kind in ((conn_id, one["conn_type"]) for conn_id, one in kept.items())}
        fleet.spec_path.unlink()
        guide.types("init", "public", "--zookeeper", names["kmigrate_zookeeper"], "--kafka", names["kafka"],
                    "--connections", connections, "--out", name)  # fmt: skip
        written = yaml.safe_load(fleet.spec_path.read_text())
        known = [(broker["id"], broker["host"], broker["port"]) for broker in written["brokers"]]
        assert known == [(node.id, node.host, node.port) for node in fleet.plan.brokers]
        guide.edits("each FILL_IN of the cluster file")
        fleet.spec_path.write_text(right)
        guide.types("check", name)
        (guide.folder / "fingerprints").write_text(fingerprints)
        guide.edits("the fingerprints of the machines, from their consoles")
        guide.types("node", "known-hosts", name, "--port", str(PORT), "--fingerprints", "fingerprints")
        inventory = yaml.safe_load(guide.types("node", "inventory", name))
        inventory["all"]["vars"] = {**inventory["all"].get("vars", {}), "ansible_user": USER, "ansible_port": PORT,
                                    "ansible_ssh_private_key_file": str(fleet.key), "ansible_become": True}  # fmt: skip
        (guide.folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
        guide.edits("user, port and key of hosts.yml")
        supervised = fleet.node(SUPERVISED).host
        alone = fleet.node("controller 3002").host
        usual = [word for host in sorted({node.host for node in fleet.plan.brokers} - {supervised}) for word in ("--host", host)]
        reach = ("--inventory", "hosts.yml", "--known-hosts", str(known_hosts))
        guide.types("node", "install", name, *reach, *usual, "--drop-in", "write", "--brief", "--yes")
        own_unit = ("--unit", "kafka-controller.service", "--drop-in", "write", "--brief", "--yes")
        guide.types("node", "install", name, *reach, "--host", alone, *own_unit)
        guide.types("node", "install", name, *reach, "--host", supervised, *supervised_words(), "--brief", "--yes")
        guide.types("node", "check", name)
        said = guide.types("preflight", name, "--connections", connections, "--out", "report")
        assert f"kafka.service of {REQUIRING} (Requires=zookeeper.service)" in said
        for machine in fleet.machines.values():  # from here on the agent alone
            machine.path("/etc/sudoers.d/admin").unlink()
        guide.edits("the administrator's right to sudo, taken away")
        guide.types("node", "check", name)
        sys.stderr.write(guide.account())
        assert len(guide.actions) <= MOST_ACTIONS, guide.account()


def supervised_words() -> list[str]:
    """The guide's own words for supervisord."""
    found = re.findall(r"--(start|stop|status) '(/usr/bin/supervisorctl .*?)'", GUIDE)
    assert len(found) == 3
    return [word for verb, command in found for word in (f"--{verb}", command)]


def fingerprint_of(fleet: PublicFleet, host: str) -> str:
    """A line of `--fingerprints`, as a console of the machine shows it."""
    said = fleet.machines[host].run("ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub")
    return f"{host} {said.split()[1]}\n"


def test_every_broker_comes_to_kraft_mode_in_dual_write(story: Story) -> None:
    with story.part("migrated", after="installed") as fleet:
        story.rehearsal.load()
        with direct.context(fleet, RUN) as here:
            direct.until(here, "soak")
        fleet.wait_running((*fleet.plan.brokers, *fleet.plan.controllers))


def test_the_soak_names_a_key_that_a_tool_wrote(story: Story) -> None:
    with story.part("soaked", after="migrated") as fleet, direct.context(fleet, RUN) as here:
        with story.rewritten(fleet.node("broker 1")) as judge:
            judge(held(here, "soak", seconds=10))
        direct.step(here, "soak", seconds=5)


def test_neither_the_request_for_approval_nor_the_finalization_passes_while_a_controllers_file_has_other_content(
    story: Story,
) -> None:
    with story.part("approved", after="soaked") as fleet, direct.context(fleet, RUN) as here:
        readiness = tuple(row for row in MIGRATION if row.kind == "readiness")
        run_plan(here, readiness)
        with story.rewritten(fleet.node("controller 3001")) as judge:
            with pytest.raises(KMigrateError) as refused:
                run_plan(here, readiness)
            judge(str(refused.value))
            judge(held(here, "finalize", node=fleet.node("controller 3000").id))
        assert story.phase() is not Phase.FINALIZED


def test_rolls_back(story: Story) -> None:
    with story.part("rolled back", after="approved") as fleet:
        with direct.context(fleet, RUN) as here:
            run_rollback(here)
        assert story.phase() is Phase.ZOOKEEPER
        assert [node.name for node in fleet.plan.controllers if fleet.pid_of(node)] == []
        for node in fleet.plan.controllers:
            assert fleet.machine(node).run("sh", "-c", f"ls -d {METADATA}*", fails=True).strip().startswith(f"{METADATA}.rolled")


def test_migrates_again_to_its_end_and_the_finalization_holds_while_a_file_has_other_content(story: Story) -> None:
    with story.part("finalized", after="rolled back") as fleet, direct.context(fleet, RUN) as here:
        direct.until(here, "soak")
        direct.step(here, "soak", seconds=5)
        quorum = here.observer.observe(Fields.QUORUM).quorum
        assert quorum is not None
        first, second = (node.id for node in fleet.plan.controllers if node.id != quorum.leader_id)
        direct.step(here, "finalize", node=first)
        with story.rewritten(fleet.node(SUPERVISED)) as judge:
            judge(held(here, "finalize", node=second))
        direct.finalize(here)
        assert story.phase() is Phase.FINALIZED


def test_nothing_was_lost(story: Story) -> None:
    with story.part("audited", after="finalized"):
        assert story.rehearsal.account().failures == ()


def test_zookeepers_unit_stops_and_no_kafka_with_it(story: Story) -> None:
    """A drop-in cannot take `Requires=` back: the guide says to edit the unit itself, which restarts nothing."""
    with story.part("without ZooKeeper", after="audited") as fleet:
        unit = "/etc/systemd/system/kafka.service"
        machine = fleet.machine(fleet.node(REQUIRING))
        every = (*fleet.plan.brokers, *fleet.plan.controllers)
        before = {node.name: fleet.pid_of(node) for node in every}
        assert all(before.values()), before
        machine.write(
            {unit[1:]: re.sub("^(Requires|After)=zookeeper.service\n", "", machine.path(unit).read_text(), flags=re.MULTILINE)}
        )
        for address in fleet.plan.zookeeper_addresses():
            fleet.machines[address].run("systemctl", "stop", "zookeeper")
        fleet.wait_brokers(time.monotonic() + 30)
        assert {node.name: fleet.pid_of(node) for node in every} == before
