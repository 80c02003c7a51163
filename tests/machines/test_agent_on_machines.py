"""kmigrate-node over a real ssh, sudo and systemd: each verb, and each way in which a connection, a process or a machine ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.clients.hosts import host_for
from airflow_provider_kmigrate.clients.hosts.agent import AgentHost, Agents, Program, Restart
from airflow_provider_kmigrate.core.cluster_state.model import ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.exceptions import Failed, Fenced, Refused, TimedOut, Unavailable, Unreachable
from tests.kit.machines import CLUSTER, NODE, USER, Machine, Template, booted, missing, properties, properties_path
from tests.node.machine import file
from tests.waiting import wait_for, wait_until

pytestmark = [
    pytest.mark.machines,
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]

DATA = "/var/lib/kafka/data"
META = f"#\nversion=0\nbroker.id={NODE}\ncluster.id={CLUSTER}\n"
JOB = "/usr/bin/python3 -I /usr/local/sbin/kmigrate-node run"
SERVE = "/usr/bin/python3 -I /usr/local/sbin/kmigrate-node serve"
SLOW = 3  # seconds of a stop in whose middle something happens
ACTS = ("stage", "stop", "install", "write_meta", "pause", "start")


class Bench:
    """A machine, its nodes, and a host that acts on them over ssh."""

    def __init__(self, machine: Machine, agents: Agents) -> None:
        self.machine, self.agents, self.token = machine, agents, 7
        self.node, self.controller = self.spec(NodeRole.BROKER), self.spec(NodeRole.CONTROLLER)
        host = host_for(self.node, None, agents, CLUSTER)
        assert isinstance(host, AgentHost)
        self.host = host
        self.connection = agents(self.node, None)

    def spec(self, role: NodeRole) -> NodeSpec:
        hosts = HostSpec("agent", properties=properties_path(role), connect=self.machine.ssh(), stop_timeout=60.0)
        return NodeSpec(NODE, role, self.machine.address, 9092, hosts)

    def ask(self, verb: str, **fields: object) -> dict[str, Any]:
        named: dict[str, Any] = {"role": "broker", "cluster": CLUSTER, "token": self.token}
        return self.connection.ask(verb, **(named | fields))

    def runs(self) -> bool:
        return self.host.observe(self.node).process().state is ProcessState.RUNNING

    def pid(self) -> int:
        pid = self.host.observe(self.node).process().pid
        assert pid
        return pid

    def stops_slowly(self, seconds: float = SLOW) -> str:
        """Start the node with a file of which its stop takes so long; returns the file."""
        text = properties(stop_seconds=seconds)
        self.machine.path(properties_path("broker")).write_text(text)
        self.machine.run("systemctl", "restart", "kafka")
        return text

    def record(self) -> dict[str, Any]:
        """The job's record as it is on the disk: read faster than a request is answered."""
        with contextlib.suppress(FileNotFoundError):
            return json.loads(self.machine.path("/var/lib/kmigrate/broker/job.json").read_text())  # type: ignore[no-any-return]
        return {}

    def act(self) -> str:
        done = self.record().get("done")
        return str(done[-1]["act"]) if done else ""

    def reaches(self, act: str) -> None:
        deadline = time.monotonic() + 30
        while (seen := self.act()) != act:
            assert time.monotonic() < deadline, f"the job does not reach {act}: {seen}"

    def ended(self, job: str) -> dict[str, Any]:
        """The record of a job that nothing carries out any more."""
        return wait_for(lambda: self.ask("job", wait=1), lambda seen: seen["id"] == job and not seen["busy"] and seen["state"] != "running",
                        f"job {job} ends", 60)  # fmt: skip

    def starts(self) -> int:
        """How often the node was started since the machine booted."""
        return self.machine.run("journalctl", "--no-pager", "--unit=kafka", "--output=cat").count("started with")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def machine(tmp_path: Path, template: Template) -> Iterator[Machine]:
    with booted(tmp_path, template) as made:
        yield made


@pytest.fixture
def bench(machine: Machine) -> Iterator[Bench]:
    agents = Agents()
    made = Bench(machine, agents)
    wait_until(made.runs, "the node runs", 30)
    yield made
    agents.close()


def test_every_verb(bench: Bench) -> None:
    host, node, machine = bench.host, bench.node, bench.machine
    hello = bench.ask("hello")
    assert (hello["root"], hello["host"], sorted(hello["roles"])) == (True, "kafka0", ["broker", "controller"])
    first, text = bench.pid(), properties(note="new")
    assert len(host.put_properties(node, text, 7)) == 64
    assert host.read_properties(node) == text
    found = machine.path(properties_path("broker")).stat()
    assert (oct(found.st_mode & 0o777), found.st_uid, found.st_gid) == ("0o640", 0, machine.path("/etc/kafka").stat().st_gid)
    host.start(node, 7)
    assert bench.pid() == first
    assert 0.9 < host.restart(node, Restart({DATA: META + "#\n"}), 7) < 10
    assert bench.pid() != first
    assert 0.9 < host.stop(node, 7) < 10
    assert host.observe(node).process().state is ProcessState.STOPPED
    host.put_meta(node, DATA, META, 7)
    files = host.files(node)
    assert files.meta == {DATA: {"version": "0", "broker.id": str(NODE), "cluster.id": CLUSTER}}
    assert machine.run("stat", "-c%U", f"{DATA}/meta.properties") == "kafka\n"
    host.start(node, 7)
    assert "started with" in host.log_tail(node)
    [(kind, kept)] = left = host.leftovers(node)
    assert kind == "kept file"
    assert machine.path(kept).read_text() != text
    host.remove(node, left, [kind], 7)
    assert host.leftovers(node) == []
    assert not machine.path(kept).exists()


def test_a_controller_is_formatted_started_and_set_aside(bench: Bench) -> None:
    host, node = bench.host, bench.controller
    host.format_storage(node, CLUSTER, "3.9", 7)
    assert (host.files(node).meta or {})["/var/lib/kafka/controller"]["cluster.id"] == CLUSTER
    host.start(node, 7)
    assert host.observe(node).process().at_boot is True
    bench.machine.reboot()
    wait_until(lambda: host.observe(node).process().state is ProcessState.RUNNING, "the controller starts at boot", 30)
    with pytest.raises(Refused, match="running"):
        host.wipe_storage(node, CLUSTER, 7)
    host.stop(node, 7)
    assert host.observe(node).process().at_boot is False
    bench.machine.reboot()
    wait_until(bench.runs, "the machine's broker starts at boot", 30)
    assert host.observe(node).process().state is ProcessState.STOPPED
    host.wipe_storage(node, CLUSTER, 7)
    kept = bench.machine.run("ls", "/var/lib/kafka").split()
    assert kept == ["controller.rolled-back-1", "data"]
    aside = ("set aside", "/var/lib/kafka/controller.rolled-back-1")
    left = host.leftovers(node)
    assert aside in left
    host.remove(node, left, [aside[0]], 7)
    assert aside not in host.leftovers(node)
    assert bench.machine.run("ls", "/var/lib/kafka").split() == ["data"]
    assert bench.runs()  # the machine's broker


def test_a_unit_starts_at_boot_only_if_it_is_enabled(bench: Bench) -> None:
    bench.ask("boot", enabled=False)
    assert bench.ask("facts")["boot_enabled"] is False
    bench.machine.reboot()
    assert bench.host.observe(bench.node).process().state is ProcessState.STOPPED
    bench.ask("boot", enabled=True)
    bench.machine.reboot()
    wait_until(bench.runs, "the node starts at boot", 30)
    assert bench.ask("facts")["boot_enabled"] is True


def cut_connection(bench: Bench) -> None:
    pipe = bench.connection._pipe
    assert isinstance(pipe, Program)
    pipe._child.kill()


def end_sessions(bench: Bench) -> None:
    bench.machine.run("loginctl", "terminate-user", USER)


def kill_agent(bench: Bench) -> None:
    assert bench.machine.signal(SERVE, signal.SIGKILL)


def stop_sshd_for_a_while(bench: Bench) -> None:
    assert bench.machine.signal("sshd", signal.SIGSTOP)
    time.sleep(SLOW + 1)
    bench.machine.signal("sshd", signal.SIGCONT)


def refuse_connections_for_a_while(bench: Bench) -> None:
    bench.machine.run("systemctl", "stop", "ssh")
    bench.machine.signal("sshd", signal.SIGKILL)
    time.sleep(SLOW + 1)
    bench.machine.run("systemctl", "start", "ssh")


@pytest.mark.parametrize(
    "fault", [cut_connection, end_sessions, kill_agent, stop_sshd_for_a_while, refuse_connections_for_a_while]
)
def test_a_restart_survives_its_connection(bench: Bench, fault: Callable[[Bench], None]) -> None:
    bench.stops_slowly()
    first, down = bench.pid(), []

    def while_down(_: float) -> None:
        down.append(bench.host.observe(bench.node).process().state)

    with ThreadPoolExecutor(1) as pool:
        restart = pool.submit(bench.host.restart, bench.node, Restart(while_down=while_down), 7)
        bench.reaches("stop")
        fault(bench)
        assert SLOW < restart.result() < SLOW + 3
    assert down == [ProcessState.STOPPED]
    assert (bench.runs(), bench.starts()) == (True, 3)
    assert bench.pid() != first


def killed_in(bench: Bench, act: str, inputs: dict[str, Any]) -> str:
    """The id of a job that was killed in this act. Some acts take a millisecond: then another job is tried."""
    for number in range(20):
        job = f"r{number}"
        bench.ask("restart", job=job, **inputs)
        (process,) = wait_for(lambda: bench.machine.processes(JOB), bool, "the job's process begins", 10)
        while bench.act() != act and bench.record()["state"] == "running":
            pass
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: not bench.ask("job")["busy"], "the job's process ends", 10)
        if bench.record()["state"] == "running" and bench.act() == act:
            return job
        bench.ask("restart", job=job, **inputs)
        bench.ended(job)
    raise AssertionError(f"no kill of 20 was in {act}")


@pytest.mark.parametrize("act", ACTS)
def test_a_job_that_is_killed_is_continued_by_its_id(bench: Bench, act: str) -> None:
    bench.stops_slowly(1)
    text = properties(note="new")
    inputs = {"metas": {DATA: file(META)}, "pause": 0.5} | file(text)
    job = killed_in(bench, act, inputs)
    before = bench.starts()
    bench.ask("restart", job=job, **inputs)
    assert [entry["act"] for entry in bench.ended(job)["done"]] == list(ACTS)
    assert (bench.record()["state"], bench.runs()) == ("done", True)
    assert bench.starts() <= before + 1, "it was restarted twice"
    assert bench.host.read_properties(bench.node) == text
    assert bench.ask("facts")["log_dirs"][DATA]["meta"] == META


def test_work_between_waits_for_the_stop_of_a_job_that_was_killed(bench: Bench) -> None:
    bench.stops_slowly(8)  # longer than a request waits for a job
    down = []
    with ThreadPoolExecutor(1) as pool:
        how = Restart(while_down=lambda _: down.append(bench.host.observe(bench.node).process().state))
        restart = pool.submit(bench.host.restart, bench.node, how, 7)
        bench.reaches("stop")
        assert bench.machine.signal(JOB, signal.SIGKILL) == 1
        restart.result()
    assert down == [ProcessState.STOPPED]
    assert (bench.runs(), bench.starts()) == (True, 3)


@pytest.mark.parametrize("end", [Machine.cut_power, Machine.power_off])
@pytest.mark.parametrize("act", ["stop", "pause"])
def test_a_machine_that_goes_down_during_a_restart_leaves_no_node_down(
    bench: Bench, act: str, end: Callable[[Machine], None]
) -> None:
    old, text = bench.stops_slowly(), properties(note="new")
    bench.machine.run("sync")
    inputs = {"job": "r1", "metas": {DATA: file(META)}, "pause": SLOW} | file(text)
    bench.ask("restart", **inputs)
    bench.reaches(act)
    end(bench.machine)
    bench.machine.boot()
    wait_until(bench.runs, "the node starts at boot", 30)
    first = bench.pid()
    with contextlib.suppress(Unavailable):
        bench.ask("restart", **inputs)
    record = bench.ended("r1")
    assert (record["state"], (record["error"] or {}).get("code")) == (
        ("failed", "restarted") if act == "stop" else ("done", None)
    )
    assert bench.pid() == first
    assert bench.host.read_properties(bench.node) == (old if act == "stop" else text)


def test_a_restart_that_lost_its_power_is_continued_if_the_unit_does_not_start_at_boot(bench: Bench) -> None:
    bench.ask("boot", enabled=False)
    bench.stops_slowly()
    inputs = {"job": "r1"} | file(properties(note="new"))
    bench.ask("restart", **inputs)
    bench.reaches("stop")
    bench.machine.cut_power()
    bench.machine.boot()
    assert not bench.runs()
    bench.ask("restart", **inputs)
    assert bench.ended("r1")["state"] == "done"
    assert (bench.runs(), bench.starts(), bench.host.read_properties(bench.node)) == (True, 1, properties(note="new"))


@pytest.mark.parametrize("act", ["stage", "install", "write_meta", "start"])
def test_lost_power_leaves_the_old_file_or_the_new_one(bench: Bench, act: str) -> None:
    old, text = bench.stops_slowly(1), properties(note="x" * 100_000)
    bench.machine.run("sync")
    bench.ask("restart", job="r1", metas={DATA: file(META)}, pause=0.1, **file(text))
    bench.reaches(act)
    bench.machine.cut_power()
    bench.machine.boot()
    wait_until(bench.runs, "the node starts at boot", 30)
    assert bench.host.read_properties(bench.node) in {old, text}
    assert (bench.host.files(bench.node).meta or {})[DATA]["cluster.id"] == CLUSTER
    bench.host.restart(bench.node, Restart(), 7)
    assert bench.runs()


def test_a_token_is_on_the_disk_before_anything_is_done_with_it(bench: Bench) -> None:
    text = properties(note="new")
    bench.host.put_properties(bench.node, text, 8)
    bench.machine.cut_power()
    bench.machine.boot()
    wait_until(bench.runs, "the node starts at boot", 30)
    assert bench.host.read_properties(bench.node) == text
    first = bench.pid()
    with pytest.raises(Fenced, match="token 7"):
        bench.host.restart(bench.node, Restart(), 7)
    with pytest.raises(Fenced, match="token 7"):
        bench.host.put_properties(bench.node, text, 7)
    assert bench.pid() == first


def test_a_full_disk_stops_nothing(bench: Bench) -> None:
    first, text = bench.pid(), properties(note="new")
    bench.machine.run(
        "sh", "-ec", "cp -a /etc/kafka /tmp/kept; mount -t tmpfs -o size=32k,mode=750 tmpfs /etc/kafka; chown root:kafka /etc/kafka; "
        "cp -a /tmp/kept/. /etc/kafka; dd if=/dev/zero of=/etc/kafka/core bs=1k 2>/dev/null || true"
    )  # fmt: skip
    with pytest.raises(Failed, match=r"No space left.*disk_full"):
        bench.host.put_properties(bench.node, text, 7)
    bench.ask("restart", job="r1", **file(text))
    record = bench.ended("r1")
    assert (record["error"]["code"], [entry["act"] for entry in record["done"]]) == ("disk_full", ["stage"])
    assert (bench.pid(), bench.host.read_properties(bench.node)) == (first, properties())
    assert sorted(bench.machine.run("ls", "-A", "/etc/kafka").split()) == ["controller.properties", "core", "server.properties"]
    bench.machine.run("rm", "/etc/kafka/core")
    bench.ask("restart", job="r1", **file(text))
    assert bench.ended("r1")["state"] == "done"
    assert bench.host.read_properties(bench.node) == text


def test_a_disk_of_the_agent_that_fills_up_leaves_no_node_down(bench: Bench) -> None:
    bench.machine.run("sh", "-ec", "mkdir -p /var/lib/kmigrate; mount -t tmpfs -o size=64k,mode=700 tmpfs /var/lib/kmigrate")
    bench.stops_slowly()
    first = bench.pid()
    bench.ask("restart", job="r1", **file(properties(note="new")))
    bench.reaches("stop")
    bench.machine.run("sh", "-c", "dd if=/dev/zero of=/var/lib/kmigrate/fill bs=1k 2>/dev/null || true")
    wait_until(lambda: bench.host.observe(bench.node).process().pid not in (None, first), "the node starts again", 15)
    wait_until(
        lambda: bench.starts() == 3, "the journal has the third start: at boot, for its slow stop, after the disk was full", 10
    )
    assert bench.runs()


def as_kafka(machine: Machine, script: str) -> None:
    machine.run("runuser", "-u", "kafka", "--", "sh", "-ec", script)


@pytest.mark.parametrize(
    "script",
    [
        "ln -sf /etc/shadow /etc/kafka/server.properties",
        f"ln -sf /etc/shadow {DATA}/meta.properties",
        f"mkdir {DATA}/__cluster_metadata-0; ln -s /etc/shadow {DATA}/__cluster_metadata-0/quorum-state",
        f"rm {DATA}/meta.properties; mkfifo {DATA}/meta.properties",
        f"mv {DATA} {DATA}2; ln -s /root {DATA}",
    ],
)
def test_a_link_of_the_services_user_is_neither_read_nor_written(bench: Bench, script: str) -> None:
    host, node, machine = bench.host, bench.node, bench.machine
    shadow = machine.path("/etc/shadow")
    before = (shadow.read_text(), shadow.stat())
    machine.run("chmod", "770", "/etc/kafka")
    as_kafka(machine, script)
    said = []
    for act in (
        lambda: bench.ask("facts"),
        lambda: host.restart(node, Restart({DATA: META}), 7),
        lambda: host.put_properties(node, META, 7),
        lambda: host.stop(node, 7),
        lambda: host.put_meta(node, DATA, META, 7),
        lambda: host.log_tail(node),
    ):
        try:
            said.append(json.dumps(act()))
        except (Refused, Failed) as error:
            said.append(str(error))
    assert not [text for text in said if "root:" in text or ":0:99999:" in text]
    assert "link" in said[0] or "not a file" in said[0]
    assert machine.run("systemctl", "is-active", "kafka") == "active\n"
    assert (shadow.read_text(), shadow.stat()) == before
    assert machine.run("ls", "-A", "/root").split() == [".ssh"] or not machine.run("ls", "-A", "/root")


def test_links_beside_the_properties_file_do_not_matter(bench: Bench) -> None:
    machine, text = bench.machine, properties(note="new")
    before = machine.path("/etc/shadow").read_text()
    machine.run("chmod", "770", "/etc/kafka")
    machine.run("chown", "kafka", "/etc/kafka/server.properties")
    as_kafka(machine, "for name in x.properties .kmigrate.0 server.properties.new; do ln -s /etc/shadow /etc/kafka/$name; done")
    bench.host.put_properties(bench.node, text, 7)
    assert (bench.host.read_properties(bench.node), machine.path("/etc/shadow").read_text()) == (text, before)


def test_without_its_line_of_sudoers_the_error_names_it(bench: Bench) -> None:
    line = bench.machine.path("/etc/sudoers.d/kmigrate").read_text().strip()
    bench.connection.close()
    bench.machine.run("rm", "/etc/sudoers.d/kmigrate")
    with pytest.raises(Refused, match=r"M03.*a password is required") as error:
        bench.host.observe(bench.node).process()
    assert line in str(error.value)


def test_sudo_allows_nothing_but_the_agent(bench: Bench) -> None:
    for command in (
        "id",
        "/usr/local/sbin/kmigrate-node serve --config /tmp/node.json",
        "/usr/local/sbin/kmigrate-node run broker r1",
    ):
        connect = bench.machine.ssh("sudo", "-n", *command.split())
        node = replace(bench.node, hosts=replace(bench.node.hosts, connect=connect))
        with pytest.raises(Refused, match="a password is required"):
            Agents()(node, None).ask("hello")


def test_a_unit_that_systemd_kills_counts_as_stopped_and_shows_why(bench: Bench) -> None:
    bench.machine.sets_stop_timeout("2")
    bench.stops_slowly(30)
    assert bench.ask("facts")["unit"]["TimeoutStopUSec"] == "2s"
    assert 2 <= bench.host.stop(bench.node, 7) < 10
    facts = bench.ask("facts")
    assert (facts["process"]["state"], facts["unit"]["Result"], facts["unit"]["ActiveState"]) == ("stopped", "timeout", "failed")
    bench.host.start(bench.node, 7)
    assert bench.runs()
    first, said = bench.pid(), list[str]()
    assert 2 <= bench.host.restart(bench.node, Restart(say=said.append), 7) < 10
    assert [text for text in said if "[R14]" in text and "systemd's result: timeout" in text]
    assert bench.pid() != first


def test_a_masked_unit_is_refused_before_anything_is_done(bench: Bench) -> None:
    bench.machine.run("systemctl", "mask", "kafka")
    for act in (bench.host.stop, bench.host.start):
        with pytest.raises(Refused, match=r"M03.*kafka\.service.*masked"):
            act(bench.node, 7)
    bench.machine.run("systemctl", "unmask", "kafka")
    assert (bench.runs(), bench.starts()) == (True, 1)


def test_another_host_key_is_refused(bench: Bench) -> None:
    bench.connection.close()
    bench.machine.run(
        "sh",
        "-ec",
        "rm /etc/ssh/ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key; systemctl restart ssh",
    )
    wait_until(bench.machine.has_sshd, "sshd starts again", 10)
    with pytest.raises(Unreachable, match="Host key verification failed"):
        bench.host.observe(bench.node).process()


def test_a_machine_that_does_not_answer_is_unreachable_and_never_stopped(bench: Bench) -> None:
    bench.machine.signal("sshd", signal.SIGSTOP)
    with pytest.raises(TimedOut):
        bench.connection.ask("facts", 1, role="broker")
    bench.machine.signal("sshd", signal.SIGCONT)
    assert bench.runs()
    bench.machine.run("systemctl", "stop", "ssh")
    bench.machine.signal("sshd", signal.SIGKILL)
    bench.connection.close()
    with pytest.raises(Unreachable, match="Connection refused"):
        bench.host.observe(bench.node).process()
