"""Driver `agent` over a real agent on this machine: each verb, a broken pipe, a killed worker, what answers wrongly."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import IO, Any, cast

import pytest

from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.clients.hosts import agent, answers, host_for
from airflow_provider_kmigrate.clients.hosts.agent import AgentHost, Agents, Connection, Program, Restart
from airflow_provider_kmigrate.clients.settings import (
    ClusterSettings,
    KafkaSettings,
    SshSettings,
    WireSecurity,
    ZooKeeperSettings,
)
from airflow_provider_kmigrate.clients.tools import open_tools
from airflow_provider_kmigrate.core.cluster_state.model import ProcessState
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.exceptions import (
    Failed,
    Fenced,
    KMigrateError,
    Refused,
    TimedOut,
    Unavailable,
    Unreachable,
)
from airflow_provider_kmigrate.node.script import read_agent_version
from tests.clients.fake_pipe import FakePipe
from tests.kit.processes import Launch, NodeProcess
from tests.node.machine import AGENT, CLUSTER, META, NEW, OLD, STUBBORN, Node
from tests.waiting import wait_until

VERSION = read_agent_version(AGENT.read_text())


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    made.properties.write_text(OLD + f"log.dirs={made.data}\n")
    yield made
    made.close()


@pytest.fixture
def agents() -> Iterator[Agents]:
    opened = Agents()
    yield opened
    opened.close()


def node_of(machine: Node, *connect: str) -> NodeSpec:
    argv = connect or (sys.executable, "-I", str(AGENT), "serve", "--config", str(machine.config))
    hosts = HostSpec("agent", properties=str(machine.properties), connect=argv, stop_timeout=10.0)
    return NodeSpec(1, NodeRole.BROKER, "127.0.0.1", 9092, hosts)


@pytest.fixture
def node(machine: Node) -> NodeSpec:
    return node_of(machine)


@pytest.fixture
def host(node: NodeSpec, agents: Agents) -> AgentHost:
    found = host_for(node, None, agents, CLUSTER)
    assert isinstance(found, AgentHost)
    return found


def child_of(agents: Agents, node: NodeSpec) -> subprocess.Popen[bytes]:
    """The process that holds the pipe."""
    pipe = agents(node, None)._pipe
    assert isinstance(pipe, Program)
    return pipe._child


def test_every_verb(host: AgentHost, node: NodeSpec, machine: Node) -> None:
    (machine.data / "meta.properties").write_text(META)
    assert host.observe(node).process().state is ProcessState.STOPPED
    host.start(node, 7)
    first = host.observe(node).process()
    assert first.state is ProcessState.RUNNING
    digest = host.put_properties(node, NEW + f"log.dirs={machine.data}\n", 7)
    assert host.read_properties(node) == machine.properties.read_text() == NEW + f"log.dirs={machine.data}\n"
    files = host.files(node)
    assert files.properties is not None
    assert files.meta == {str(machine.data): {"version": "0", "broker.id": "1", "cluster.id": CLUSTER}}
    assert (files.has_metadata_log, len(digest)) == (False, 64)
    assert files.free is not None
    assert files.free > 0, "of the file system of its data"
    host.start(node, 7)
    assert host.observe(node).process().pid == first.pid
    host.restart(node, Restart({str(machine.data): META + "#\n"}), 7)
    assert host.observe(node).process().pid not in (None, first.pid)
    assert (machine.data / "meta.properties").read_text() == META + "#\n"
    assert 0 <= host.stop(node, 7) < 10
    host.put_meta(node, str(machine.data), META, 7)
    assert "started" in host.log_tail(node)
    assert host.observe(node).process().state is ProcessState.STOPPED


def test_the_replaced_file_is_kept_where_kmigrate_says(host: AgentHost, node: NodeSpec, machine: Node) -> None:
    old = machine.properties.read_text()
    said = Path(host.kept_as(node, old))
    host.put_properties(node, NEW, 7)
    assert (said.parent, said.read_text()) == (machine.state / "broker", old)


def test_a_text_that_java_would_misread_is_not_sent(host: AgentHost, node: NodeSpec, machine: Node) -> None:
    with pytest.raises(Failed, match="unless it is escaped"):
        host.put_properties(node, "password=\u20ac", 7)
    assert not (machine.state / "broker").exists()


def test_a_missing_file_is_said_and_has_no_keys(host: AgentHost, node: NodeSpec, machine: Node) -> None:
    machine.properties.unlink()
    assert (host.files(node).properties, host.files(node).kept_by) == (None, None)
    with pytest.raises(Failed, match="no properties file"):
        host.read_properties(node)


def test_a_text_crosses_the_connection_once(
    host: AgentHost, node: NodeSpec, agents: Agents, machine: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, sent, ask = agents(node, None), list[str | None](), Connection.ask

    def asked(self: Connection, *arguments: Any, **fields: Any) -> dict[str, Any]:
        answer = ask(self, *arguments, **fields)
        sent.append(answer["file"] and answer["file"]["text"])
        return dict(answer, file=answer["file"] and dict(answer["file"]))

    monkeypatch.setattr(Connection, "ask", asked)
    first = machine.properties.read_text()
    assert [host.read_properties(node) for _ in range(2)] == [first, first]
    machine.properties.write_text(first + "a=1\n")
    assert [host.read_properties(node) for _ in range(2)] == [first + "a=1\n"] * 2
    assert sent == [first, None, first + "a=1\n", None]
    machine.properties.unlink()
    assert host.files(node).properties is None
    machine.properties.write_text(first)
    assert host.read_properties(node) == first
    assert connection._pipe is not None


def test_two_roles_of_one_machine_share_a_connection_and_errors_name_the_node_that_asked(machine: Node, agents: Agents) -> None:
    broker = node_of(machine)
    controller = replace(broker, id=3000, role=NodeRole.CONTROLLER)
    assert host_for(broker, None, agents, CLUSTER).observe(broker).process().state is ProcessState.STOPPED
    assert agents(controller, None) is agents(broker, None)
    with pytest.raises(Refused, match=r"M03.*controller 3000: this machine has no role 'controller'"):
        host_for(controller, None, agents, CLUSTER).observe(controller).process()
    machine.config.write_text("{")
    agents(broker, None).close()
    with pytest.raises(Refused, match=r"M03.*broker 1: "):
        host_for(broker, None, agents, CLUSTER).observe(broker).process()


def test_a_controller_is_waited_for_a_minute_at_most(node: NodeSpec) -> None:
    patient = replace(node, hosts=replace(node.hosts, stop_timeout=330.0))
    assert patient.stop_timeout == 330.0
    assert replace(patient, role=NodeRole.CONTROLLER).stop_timeout == 60.0
    assert replace(node, role=NodeRole.CONTROLLER, hosts=replace(node.hosts, stop_timeout=5.0)).stop_timeout == 5.0


def test_a_plain_process_is_found_if_node_process_started_it(host: AgentHost, node: NodeSpec, machine: Node) -> None:
    """The agent and `NodeProcess` keep one record in one folder, under one lock."""
    plain = NodeProcess(machine.state / "broker")
    plain.define(Launch(tuple(machine.entry["process"]["start"])))
    with locked(plain.folder):
        started = plain.start()
    assert (host.observe(node).process().state, host.observe(node).process().pid) == (ProcessState.RUNNING, started.pid)
    assert host.stop(node, 7) < 10
    assert plain.find().state is ProcessState.STOPPED
    host.start(node, 7)
    assert (plain.find().state, plain.find().pid) == (ProcessState.RUNNING, host.observe(node).process().pid)
    assert os.getsid(plain.find().pid or 0) == plain.find().pid, "it has a session of its own"


def test_work_between_stop_and_start_sees_a_stopped_node(host: AgentHost, node: NodeSpec) -> None:
    host.start(node, 7)
    seen: list[ProcessState] = []
    host.restart(node, Restart(while_down=lambda _: seen.append(host.observe(node).process().state)), 7)
    assert seen == [ProcessState.STOPPED]
    assert host.observe(node).process().state is ProcessState.RUNNING


def test_a_worker_that_dies_after_a_quick_stop_keeps_no_node_down(host: AgentHost, node: NodeSpec, machine: Node) -> None:
    host.start(node, 7)
    machine.ok("restart", job="r1", token=7, pause=30, pause_after=10)  # and nothing more is heard of that worker
    seen = machine.ok("job", wait=10)
    assert seen["state"] == "done"
    assert seen["done"][-1]["ended"] - seen["done"][0]["began"] < 10


def test_a_quick_stop_is_reported_although_nothing_waits_for_it(host: AgentHost, node: NodeSpec) -> None:
    host.start(node, 7)
    seen: list[float] = []
    host.restart(node, Restart(while_down=seen.append, slow=10.0), 7)
    assert [0 < seconds < 10 for seconds in seen] == [True]


def test_a_long_stop_is_reported_again_and_again(machine: Node, agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.entry["process"] = {"start": STUBBORN}
    machine.configure({"broker": machine.entry})
    node = node_of(machine)
    host = host_for(node, None, agents, CLUSTER)
    assert isinstance(host, AgentHost)
    host.start(node, 7)
    for name in ("_SAY_EVERY", "_JOB_WAIT"):
        monkeypatch.setattr(agent, name, 0.2)
    said: list[str] = []
    host.restart(node, Restart(say=said.append), 7)
    assert len(said) > 2
    texts = [
        text for text in said if not text.startswith("broker 1: begins, ")
    ]  # on a slow machine the job's process starts later
    assert re.match(r"broker 1: stop, \d s so far; it is waited for, \d\d s more", texts[0])


def test_a_stop_in_vain_is_tried_once(machine: Node, agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    machine.entry |= {"process": {"start": [sys.executable, "-ISc", deaf]}, "stop_timeout": 1}
    machine.configure({"broker": machine.entry})
    node = node_of(machine)
    host = host_for(node, None, agents, CLUSTER)
    assert isinstance(host, AgentHost)
    host.start(node, 7)
    wait_until(lambda: "up" in host.log_tail(node), "it is deaf", 10)
    monkeypatch.setattr(host, "_carry_out", lambda *_, **__: pytest.fail("the failed job was asked for once more"))
    with pytest.raises(TimedOut):
        host.restart(node, Restart(), 7)


def test_a_restart_writes_its_own_meta_although_an_earlier_one_of_the_process_failed(machine: Node, agents: Agents) -> None:
    once = "import signal, time; signal.signal(15, lambda *_: signal.signal(15, 0)); print('up', flush=True)\nwhile True: time.sleep(1)"
    machine.entry |= {"process": {"start": [sys.executable, "-ISc", once]}, "stop_timeout": 1}
    machine.configure({"broker": machine.entry})
    (machine.data / "meta.properties").write_text(META)
    node = node_of(machine)
    host = host_for(node, None, agents, CLUSTER)
    host.start(node, 7)
    wait_until(lambda: "up" in host.log_tail(node), "it takes signals", 10)
    with pytest.raises(TimedOut):
        host.restart(node, Restart(), 7)
    host.restart(node, Restart({str(machine.data): META + "#\n"}, slow=10.0), 8)
    assert (machine.data / "meta.properties").read_text() == META + "#\n"


def test_a_node_starts_although_the_work_between_fails(host: AgentHost, node: NodeSpec) -> None:
    host.start(node, 7)

    def fail(_: float) -> None:
        raise Failed("no ZooKeeper")

    with pytest.raises(Failed, match="no ZooKeeper"):
        host.restart(node, Restart(while_down=fail), 7)
    wait_until(lambda: host.observe(node).process().state is ProcessState.RUNNING, "the node starts", 10)


def test_a_start_ends_the_pause_of_a_worker_that_died(host: AgentHost, node: NodeSpec) -> None:
    host.start(node, 7)
    first = host.observe(node).process().pid

    def dies(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        ask = Connection.ask

        def asked(self: Connection, verb: str, *arguments: Any, **fields: Any) -> dict[str, Any]:
            return {} if verb == "go_on" else ask(self, verb, *arguments, **fields)

        patch.setattr(Connection, "ask", asked)
        with pytest.raises(KeyboardInterrupt):
            host.restart(node, Restart(while_down=dies), 7)
    assert host.observe(node).process().state is ProcessState.STOPPED
    began = time.monotonic()
    host.start(node, 8)
    assert time.monotonic() - began < 10, "it waited for the pause to end"
    assert host.observe(node).process().pid not in (None, first)


def test_an_older_run_is_fenced_on_the_node(host: AgentHost, node: NodeSpec, machine: Node) -> None:
    text = host.read_properties(node)
    host.put_properties(node, text + "a=8\n", 8)
    for act in (
        lambda: host.put_properties(node, text, 7),
        lambda: host.start(node, 7),
        lambda: host.restart(node, Restart(), 7),
    ):
        with pytest.raises(Fenced, match="token 7"):
            act()
    assert machine.properties.read_text() == text + "a=8\n"


def test_a_directory_that_the_agent_does_not_know_is_named(host: AgentHost, node: NodeSpec, machine: Node) -> None:
    machine.properties.write_text(OLD + "log.dirs=/x;touch${IFS}/PWNED\n")
    with pytest.raises(Refused, match=r"M03.*node\.json"):
        host.files(node)


def test_a_pipe_that_breaks_is_opened_again(host: AgentHost, node: NodeSpec, agents: Agents) -> None:
    host.observe(node).process()
    child = child_of(agents, node)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    assert host.observe(node).process().state is ProcessState.STOPPED


def test_a_pipe_that_breaks_during_a_restart_does_not_matter(
    machine: Node, agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.entry["process"] = {"start": STUBBORN}
    machine.configure({"broker": machine.entry})
    node = node_of(machine)
    host = host_for(node, None, agents, CLUSTER)
    assert isinstance(host, AgentHost)
    host.start(node, 7)
    first = host.observe(node).process().pid

    def cut() -> None:
        wait_until(
            lambda: machine.ok("job").get("done", [{}])[-1:] and machine.ok("job")["done"][-1]["act"] == "stop", "it stops", 10
        )
        os.kill(child_of(agents, node).pid, signal.SIGKILL)

    cutter = threading.Thread(target=cut)
    cutter.start()
    said: list[str] = []
    seconds = host.restart(node, Restart(say=said.append), 7)
    cutter.join()
    assert 1 < seconds < 5
    assert any("its machine has not answered for" in line and "What was begun continues there" in line for line in said)
    assert host.observe(node).process().pid not in (None, first)


def test_a_worker_that_is_killed_leaves_no_node_down(machine: Node, node: NodeSpec, host: AgentHost) -> None:
    host.start(node, 7)
    first = host.observe(node).process().pid
    program = (
        "import sys, time; from airflow_provider_kmigrate.clients.hosts import Agents, Restart, host_for; from tests.clients.test_hosts_agent import node_of; "
        "from tests.node.machine import CLUSTER; from types import SimpleNamespace; "
        "node = node_of(SimpleNamespace(config=sys.argv[1], properties=sys.argv[2])); "
        "host_for(node, None, Agents(), CLUSTER).restart(node, Restart(while_down=lambda _: (print('down', flush=True), time.sleep(600))), 7)"
    )
    argv = [sys.executable, "-c", program, str(machine.config), str(machine.properties)]
    worker = subprocess.Popen(argv, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])})
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"down\n"
    worker.kill()
    worker.communicate()
    assert host.observe(node).process().state is ProcessState.STOPPED
    machine.ok("go_on", job=machine.ok("job")["id"])  # what its own clock does after the pause
    wait_until(lambda: host.observe(node).process().pid not in (None, first), "the node starts without its worker", 10)


ANSWERS = """\
import sys
for line in sys.stdin:
    print({!r}, flush=True)
"""


@pytest.mark.parametrize(
    ("connect", "error", "text"),
    [
        (("/no/such/ssh",), Failed, "cannot run"),
        (("sh", "-c", "echo 'kafka0: Connection refused' >&2; exit 255"), Unreachable, "Connection refused"),
        (
            ("sh", "-c", "echo 'sudo: a password is required' >&2; exit 1"),
            Refused,
            "M03.*a password is required; sudo needs this line",
        ),
        (("sh", "-c", "echo 'kmigrate-node: not found' >&2; exit 127"), Refused, "M03.*not found; install the agent there"),
        (("sh", "-c", "echo 'kmigrate-node: /etc/x' >&2; exit 2"), Refused, "M03.*exit code 2: kmigrate-node: /etc/x "),
        (("echo", "Welcome to kafka0!"), Failed, "Welcome to kafka0"),
        ((sys.executable, "-c", ANSWERS.format('{"v": 1, "id": 99, "ok": {}}')), Failed, "another request"),
        ((sys.executable, "-c", ANSWERS.format("[" * 100_000)), Failed, "no kmigrate-node"),
        (
            (sys.executable, "-c", ANSWERS.format('{"v": 1, "id": 1, "ok": {"process": {}}}')),
            Failed,
            "M09.*process.state: Field required.*more",
        ),
        (
            (sys.executable, "-c", ANSWERS.format('{"v": 1, "id": null, "error": {"code": "config", "text": "a link"}}')),
            Refused,
            "M03.*a link",
        ),
        (
            (sys.executable, "-c", ANSWERS.format('{"v": 1, "id": 1, "error": {"code": "busy", "text": "job r1"}}')),
            Unavailable,
            "job r1",
        ),
        (
            (sys.executable, "-c", ANSWERS.format('{"v": 1, "id": 1, "error": {"code": "disk_full", "text": "/etc"}}')),
            Failed,
            "disk_full",
        ),
    ],
)
def test_what_does_not_answer_as_an_agent_is_an_error_with_its_words(
    machine: Node, agents: Agents, connect: tuple[str, ...], error: type[KMigrateError], text: str
) -> None:
    node = node_of(machine, *connect)
    with pytest.raises(error, match=text):
        host_for(node, None, agents, CLUSTER).observe(node).process()


@pytest.mark.parametrize(("unit", "seconds"), [({"TimeoutStopUSec": "1min 30s"}, 90.0), ({}, None)])
def test_after_how_long_the_machine_kills_a_node_that_does_not_stop(
    machine: Node, agents: Agents, unit: dict[str, str], seconds: float | None
) -> None:
    process = {"state": "running", "pid": 7, "since": 1.0, "birth": "b"}
    facts = {"process": process, "unit": unit, "boot_enabled": None, "file": None, "log_dirs": {}, "kept_in": "/"}
    said = json.dumps({"v": 1, "id": 1, "ok": facts})
    node = node_of(machine, sys.executable, "-c", ANSWERS.format(said))
    assert host_for(node, None, agents, CLUSTER).observe(node).process().killed_after == seconds


ENDED = "systemd[1]: kafka.service: Failed with result 'exit-code'."
LOG = f"kafka0 kafka[7]: java.net.UnknownHostException: ctl1\nkafka0 kafka[7]: ERROR \x1b[2JExiting Kafka\nkafka0 {ENDED}\n"


@pytest.mark.parametrize(
    ("unit", "age", "failing", "loop"),
    [
        (
            {"ActiveState": "activating", "SubState": "auto-restart"},
            None,
            LOG,
            "UnknownHostException: ctl1 / kafka0 kafka[7]: ERROR",
        ),
        ({"ActiveState": "activating", "SubState": "auto-restart-queued"}, None, None, ""),
        ({"ActiveState": "active", "SubState": "running", "NRestarts": "3"}, 59.0, None, ""),
        ({"ActiveState": "active", "SubState": "running", "NRestarts": "3"}, 61.0, None, None),
        ({"ActiveState": "active", "SubState": "running", "NRestarts": "2"}, 1.0, None, None),
        ({"ActiveState": "activating", "SubState": "start"}, 1.0, None, None),
        ({}, 1.0, None, None),
    ],
)
def test_a_restart_loop_is_distinguished_from_a_running_unit(
    unit: dict[str, str], age: float | None, failing: str | None, loop: str | None
) -> None:
    since = 0.0 if age is None else 1_000.0 - age
    facts = {"process": {"state": "running", "pid": 0, "since": since}, "unit": unit, "boot_enabled": True, "clock": 1_000.0}
    node = NodeSpec(1, NodeRole.BROKER, "127.0.0.1", 9092, HostSpec("agent", properties="/c", connect=("x",)))
    found = agent.AgentObservation(node, facts | {"failing": failing}).process().restart_loop
    assert (found is None) is (loop is None)
    assert (loop or "") in (found or "")
    assert "systemd[1]" not in (found or "")
    assert (found or "").isprintable(), "a client's name in the log may move a terminal's cursor"


class Unswitchable:
    """The connection to a machine with a unit that `systemctl` neither enables nor disables, such as a generated one."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.job = ""

    def ask(self, verb: str, _timeout: float = 0.0, _who: str = "", **fields: Any) -> dict[str, Any]:
        if verb == "boot":
            raise Failed("systemctl ended with exit code 1")
        if verb in {"start", "stop"}:
            self.jobs.append(verb)
            self.job = fields["job"]
        return {"id": self.job, "state": "done", "busy": False, "done": []}

    def facts(self, _who: str, _role: str) -> dict[str, Any]:
        process = {"state": "running", "pid": 7, "since": 1.0, "birth": "b"}
        return {"process": process, "unit": {}, "boot_enabled": False, "file": None, "log_dirs": {}}


def test_a_unit_that_cannot_be_enabled_keeps_no_controller_down_nor_up() -> None:
    node = NodeSpec(3000, NodeRole.CONTROLLER, "127.0.0.1", 9093, HostSpec("agent", properties="/c", connect=("x",)))
    machine = Unswitchable()
    host = AgentHost(cast(Any, machine), CLUSTER)
    for act in (host.start, host.stop):
        with pytest.raises(Failed, match="exit code 1"):
            act(node, 7)
    assert machine.jobs == ["start", "stop"]


class SlowToStart:
    """The connection to an agent whose job holds its lock until the node, after a quick stop, has started. `result`: systemd's of the stop."""

    def __init__(self, result: str | None = "success") -> None:
        self.asked: list[str] = []
        self.result = result
        self.left = 3

    def facts(self, *_: object) -> dict[str, Any]:
        return {"process": {"birth": "b"}}

    def ask(self, verb: str, *_: object, **fields: Any) -> dict[str, Any]:
        self.asked.append(verb)
        if verb == "restart":
            if self.asked.count(verb) > 1 and self.left:
                raise Unavailable("another request acts on this broker")
            self.job = fields["job"]
        acts = ["stop", "pause", "start"] if self.asked.count("job") > 1 else ["stop", "pause"]
        done = [{"act": act, "began": 1.0, "ended": 2.0, "result": self.result if act == "stop" else None} for act in acts]
        if verb == "job":
            self.left -= 1
        return {"id": self.job, "state": "running" if self.left else "done", "busy": bool(self.left), "done": done}


class Dying:
    """The connection to an agent whose machine dies under a job after `answers` answers about it, and is back after `back` seconds."""

    def __init__(self, answers: int, silence: float, back: float = inf) -> None:
        self.left, self.silence, self.back = answers, silence, back
        self.now, self.died = 0.0, inf

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def facts(self, *_: object) -> dict[str, Any]:
        return {"process": {"birth": "b"}}

    def ask(self, verb: str, timeout: float = 30.0, *_: object, **fields: Any) -> dict[str, Any]:
        if verb != "job":
            self.job, self.verb = fields.get("job"), verb
            return {}
        if self.left:
            self.left, self.now = self.left - 1, self.now + 1.0
            return {"id": self.job, "state": "running", "busy": True, "done": [{"act": "stop", "began": 1.0}]}
        self.died = min(self.died, self.now)
        if self.now - self.died < self.back:
            self.now += min(timeout, self.silence)
            raise Unreachable("no SSH connection: No route to host")
        done = [{"act": act, "began": 1.0, "ended": 2.0, "result": None} for act in ("stop", "pause", "start")]
        return {"id": self.job, "state": "done", "busy": False, "done": done}


@pytest.mark.parametrize("answers", [0, 1, 30])
@pytest.mark.parametrize("silence", [0.0, 3.0, inf], ids=["refused at once", "no route", "no answer at all"])
@pytest.mark.parametrize("verb", ["stop", "start"])
def test_a_stop_or_start_is_given_up_soon_after_its_machine_died_and_says_why(
    node: NodeSpec, monkeypatch: pytest.MonkeyPatch, answers: int, silence: float, verb: str
) -> None:
    machine, said = Dying(answers, silence), list[str]()
    monkeypatch.setattr(agent, "time", machine)
    host = AgentHost(cast(Connection, machine), CLUSTER)
    with pytest.raises(Unreachable, match=r"broker 1: its machine has not answered for 1\d s.*No route to host"):
        host.stop(node, 7, said.append) if verb == "stop" else host.start(node, 7)
    assert machine.now - machine.died <= 14
    if verb == "stop" and silence < inf:
        assert "What was begun continues there; its answer is waited for" in said[-1]
        assert re.search(r"[1-9]\d? s more\. no SSH connection: No route to host", said[-1])


@pytest.mark.parametrize("silence", [0.0, 3.0, inf], ids=["refused at once", "no route", "no answer at all"])
@pytest.mark.parametrize(("silent", "latest"), [(3.0, 6.0), (60.0, 14.0)])
def test_a_stop_without_which_no_quorum_is_left_gives_a_dead_machine_up_sooner(
    node: NodeSpec, monkeypatch: pytest.MonkeyPatch, silence: float, silent: float, latest: float
) -> None:
    machine = Dying(5, silence)
    monkeypatch.setattr(agent, "time", machine)
    with pytest.raises(Unreachable):
        AgentHost(cast(Connection, machine), CLUSTER).stop(node, 7, unresponsive_after=silent)
    assert min(silent, 10.0) <= machine.now - machine.died <= latest


@pytest.mark.parametrize(("silent", "within"), [(3.0, 10.0), (inf, 90.0)])
def test_a_stop_that_ends_the_quorum_asks_an_unresponsive_machine_only_for_a_short_time(
    node: NodeSpec, monkeypatch: pytest.MonkeyPatch, silent: float, within: float
) -> None:
    machine, asked = Dying(0, inf), list[tuple[str, float]]()
    monkeypatch.setattr(agent, "time", machine)

    def ask(verb: str, timeout: float, *_: object, **__: object) -> dict[str, Any]:
        asked.append((verb, timeout))
        raise TimedOut("kmigrate-node did not answer in time")

    monkeypatch.setattr(machine, "ask", ask)
    controller = replace(node, role=NodeRole.CONTROLLER)
    with pytest.raises(TimedOut):
        AgentHost(cast(Connection, machine), CLUSTER).stop(controller, 7, unresponsive_after=silent)
    assert asked == [("boot", within)]


def test_a_restart_waits_for_a_machine_that_boots_and_says_for_how_much_longer(
    node: NodeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, said = Dying(2, inf, back=65.0), list[str]()
    monkeypatch.setattr(agent, "time", machine)
    assert AgentHost(cast(Connection, machine), CLUSTER).restart(node, Restart(say=said.append), 7) == 1.0
    away = [text for text in said if "its machine has not answered for" in text]
    assert len(away) >= 2
    assert all(re.search(r"is waited for, \d\d s more", text) for text in away)


def test_a_restart_whose_machine_stays_away_ends_with_the_connections_own_error(
    node: NodeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Dying(2, 0.0)
    monkeypatch.setattr(agent, "time", machine)
    with pytest.raises(
        TimedOut, match=r"has not answered for \d\d s; the job continues on its machine no SSH connection: No route"
    ):
        AgentHost(cast(Connection, machine), CLUSTER).restart(node, Restart(), 7)


def test_a_restart_is_not_asked_for_again_while_its_node_starts(node: NodeSpec) -> None:
    connection = SlowToStart()
    assert AgentHost(cast(Connection, connection), CLUSTER).restart(node, Restart(slow=10.0), 7) == 1.0
    assert connection.asked == ["restart", "job", "go_on", "job", "job"]


@pytest.mark.parametrize("result", ["timeout", "oom-kill", "signal", "success", "exit-code", None])
def test_a_node_that_was_killed_in_its_stop_is_named_and_started(node: NodeSpec, result: str | None) -> None:
    connection, said = SlowToStart(result), list[str]()
    AgentHost(cast(Connection, connection), CLUSTER).restart(node, Restart(say=said.append, slow=10.0), 7)
    named = [text for text in said if "[R14]" in text and f"killed after 1 s (systemd's result: {result})" in text]
    assert len(named) == (result in {"timeout", "oom-kill", "signal"})
    assert connection.asked[-1] == "job"


class OneJob:
    """The connection to an agent that reports this record of its last job."""

    def __init__(self, **record: Any) -> None:
        self.record, self.asked = record, list[str]()

    def facts(self, *_: object) -> dict[str, Any]:
        return {"process": {"birth": "b"}}

    def ask(self, verb: str, *_: object, **fields: Any) -> dict[str, Any]:
        self.asked.append(verb)
        self.job = fields.get("job") or self.job
        return {"id": self.job, "busy": False, "done": []} | self.record


@pytest.mark.parametrize(
    ("verb", "act"),
    [
        ("start", lambda host, node: host.start(node, 7)),
        ("stop", lambda host, node: host.stop(node, 7)),
        ("restart", lambda host, node: host.restart(node, Restart(), 7)),
    ],
    ids=["start", "stop", "restart"],
)
def test_a_job_that_failed_is_not_begun_again(node: NodeSpec, verb: str, act: Callable[[AgentHost, NodeSpec], object]) -> None:
    connection = OneJob(state="failed", error={"code": "disk_full", "text": "/etc"})
    with pytest.raises(Failed, match="disk_full"):
        act(AgentHost(cast(Connection, connection), CLUSTER), node)
    assert [asked for asked in connection.asked if asked != "boot"] == [verb, "job"]


class Waiting(OneJob):
    """The connection to an agent whose job begins only after so many answers."""

    def __init__(self, answers: float) -> None:
        super().__init__(state="running")
        self.left = answers

    def ask(self, verb: str, *words: object, **fields: Any) -> dict[str, Any]:
        self.left -= verb == "job"
        if self.left < 0:
            self.record = {"state": "done", "done": [{"act": "stop", "began": 1.0, "ended": 2.0}]}
        return super().ask(verb, *words, **fields)


def test_a_job_whose_process_is_slow_to_start_is_waited_for(node: NodeSpec) -> None:
    connection = Waiting(5)
    AgentHost(cast(Connection, connection), CLUSTER).stop(node, 7)
    assert connection.asked == ["stop", *["job"] * 6]


def test_a_job_that_never_begins_is_begun_three_times(node: NodeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "_BEGINS", 0.0)
    connection = Waiting(inf)
    with pytest.raises(TimedOut, match="its stop was begun 3 times, and each time it was killed or slow to begin"):
        AgentHost(cast(Connection, connection), CLUSTER).stop(node, 7)
    assert connection.asked == ["stop", "job"] * 3


def test_the_record_of_another_job_is_not_taken_for_the_own_ones(node: NodeSpec) -> None:
    connection = OneJob(id="another", state="done")
    with pytest.raises(Unavailable, match="another job began on its machine: another"):
        AgentHost(cast(Connection, connection), CLUSTER).stop(node, 7)


def test_an_agent_that_hangs_is_given_up(machine: Node, agents: Agents) -> None:
    node = node_of(machine, "sleep", "600")
    connection = agents(node, None)
    with pytest.raises(TimedOut):
        connection.ask("hello", 0.2)
    assert connection._pipe is None


@pytest.mark.parametrize(
    ("protocol", "update"),
    [
        (0, "older than this kmigrate. Update the agent: `kmigrate node install CLUSTER.yaml`"),
        (2, "newer than this kmigrate. Update kmigrate: `pip install --upgrade airflow-provider-kmigrate` on each worker"),
    ],
)
def test_an_agent_of_another_protocol_is_refused_with_the_command_that_updates_the_older_side(
    machine: Node, tmp_path: Path, agents: Agents, protocol: int, update: str
) -> None:
    other = tmp_path / "kmigrate-node"
    other.write_text(AGENT.read_text().replace("PROTOCOL = 1", f"PROTOCOL = {protocol}"))
    node = node_of(machine, sys.executable, "-I", str(other), "serve", "--config", str(machine.config))
    with pytest.raises(Refused) as refused:
        host_for(node, None, agents, CLUSTER).observe(node).process()
    [reason] = refused.value.reasons
    assert reason.code == "M03"
    assert reason.text.startswith(f"{node.name}: kmigrate-node on {node.host} is {update}")
    assert f"agent {VERSION} speaks protocol {protocol}, the request 1" in reason.text


def test_the_worker_passes_no_secret_of_its_environment_on(
    machine: Node, agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AIRFLOW_CONN_PROD", "AWS_SECRET_ACCESS_KEY", "VAULT_TOKEN", "DATABASE_URL"):
        monkeypatch.setenv(name, "canary")
    echo = "import json, os, sys; sys.stdin.readline(); print(json.dumps({'id': 1, 'ok': {'log': repr(os.environ)}}))"
    said = agents(node_of(machine, sys.executable, "-c", echo), None).ask("read_log")
    assert "PATH" in said["log"]
    assert "canary" not in json.dumps(said)


def test_one_connection_serves_many_threads(host: AgentHost, node: NodeSpec, agents: Agents) -> None:
    answers: list[ProcessState] = []
    threads = [threading.Thread(target=lambda: answers.append(host.observe(node).process().state)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [ProcessState.STOPPED] * 8
    assert len(agents._connections) == 1


def test_a_program_that_takes_no_more_is_not_waited_for_without_end() -> None:
    pipe = Program(("sleep", "60"), {"PATH": os.environ["PATH"]})
    with closing(pipe), pytest.raises(TimeoutError):
        pipe.write(bytes(1 << 20), 0.2)


def test_a_program_takes_more_than_a_pipe_holds() -> None:
    pipe = Program(("wc", "-c"), {"PATH": os.environ["PATH"]})
    with closing(pipe):
        pipe.write(bytes(1 << 20), 30.0)
        cast(IO[bytes], pipe._child.stdin).close()
        assert pipe.read(30.0).split() == [b"1048576"]


def test_what_a_program_leaves_behind_does_not_hold_its_end() -> None:
    pipe = Program(("sh", "-c", "sleep 30 & echo up; exec cat"), {"PATH": os.environ["PATH"]})
    assert pipe.read(30.0) == b"up\n"
    began = time.monotonic()
    pipe.close()
    os.killpg(pipe._child.pid, signal.SIGKILL)
    assert time.monotonic() - began < 20


def flooding(script: str) -> Program:
    return Program((sys.executable, "-u", "-c", f"import os, sys, time\n{script}"), {"PATH": os.environ["PATH"]})


def test_error_output_without_end_is_kept_nowhere_but_its_end_and_holds_up_no_answer() -> None:
    pipe = flooding("for _ in range(300): os.write(2, b'x' * 1_000_000)\nos.write(2, b'last words')\nprint('up')")
    with closing(pipe):
        assert pipe.read(60.0) == b"up\n"
        code, said = pipe.ending(30.0)
    assert (code, len(said), said[-11:]) == (0, 16_384, "xlast words")


@pytest.mark.slow
@pytest.mark.parametrize("errors", ["os.write(2, b'x' * 60_000)", "os.write(2, b'x')", "pass"])
@pytest.mark.parametrize(
    "drips",
    ["os.write(1, b'x')", "os.write(1, b'x' * 9)\n    time.sleep(0.01)", "time.sleep(0.01)"],
    ids=["all the time", "now and then", "never"],
)
@pytest.mark.timeout(60)  # it would never end
def test_an_answer_that_drips_does_not_outlive_its_time(drips: str, errors: str) -> None:
    connection = Connection("broker 1", lambda: flooding(f"while True:\n    {drips}\n    {errors}"))
    with pytest.raises(TimedOut), closing(connection):
        connection.ask("go_on", 0.5)


def test_what_closes_its_output_and_stays_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    pipe = FakePipe()
    monkeypatch.setattr(pipe, "ending", lambda timeout: given.append(timeout) or (None, ""))
    connection, _ = behind(pipe)
    with pytest.raises(Unreachable):
        connection.ask("go_on", 1.0)
    assert 0.5 <= given[0] <= 1.0, "of a program that lives, no exit code is waited for beyond the request's time"


def behind(*pipes: FakePipe) -> tuple[agent.Connection, list[FakePipe]]:
    """A connection that opens one pipe after another, and the pipes that are left."""
    left = list(pipes)
    return agent.Connection("broker 1", lambda: left.pop(0)), left


class Dripping(FakePipe):
    """A pipe that always has one more byte."""

    def read(self, timeout: float) -> bytes:
        return b"x"


def test_an_answer_that_always_has_one_more_byte_has_no_more_time_than_another() -> None:
    connection, _ = behind(Dripping())
    with pytest.raises(TimedOut):
        connection.ask("go_on", 0.1)


def test_an_answer_may_come_in_pieces() -> None:
    connection, _ = behind(FakePipe(b'{"id": 1, ', b'"ok": {"log": "a"}}\n', b'{"id": 2, "ok": {}}\n'))
    assert connection.ask("read_log") == {"log": "a"}
    assert connection.ask("go_on") == {}


def facts(**file: Any) -> bytes:
    """The answer of an agent, with this file."""
    process = {"state": "running", "pid": 7, "since": 1.0, "birth": "b"}
    ok = {"process": process, "unit": {}, "boot_enabled": None, "file": file, "log_dirs": {}, "kept_in": "/k"}
    return json.dumps({"id": 1, "ok": ok}).encode() + b"\n"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (facts(sha256="0" * 64, text=None), "facts miss the text of a file that is new"),
        (facts(sha256="0" * 64, text=OLD), "facts have a text of another hash than they say"),
    ],
)
def test_a_text_that_is_not_the_files_is_not_taken_for_it(answer: bytes, text: str) -> None:
    connection, _ = behind(FakePipe(answer))
    with pytest.raises(Failed, match=rf"M09.*{text}"):
        connection.facts("broker 1", "broker")


def test_an_answer_without_end_is_no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LARGEST", 100)
    connection, _ = behind(FakePipe(b"x" * 101, b'\n{"id": 1, "ok": {}}\n'))
    with pytest.raises(Failed, match="it said more than 100 bytes"):
        connection.ask("go_on")


@pytest.mark.parametrize(
    ("verb", "answer", "text"),
    [
        ("stop", {"id": "s1", "done": []}, "a job has a state and acts that are done"),
        ("stop", {"id": "s1", "state": "done"}, "a job has a state and acts that are done"),
        ("job", {"id": "s1", "state": "failed", "done": [], "busy": False}, "a job that failed has an error"),
        ("job", {"id": "s1", "state": "failed", "done": [], "busy": False, "error": None}, "a job that failed has an error"),
        ("job", {"id": "s1", "state": "done", "done": []}, "whether the job is busy is missing"),
        ("facts", json.loads(facts(sha256="0" * 64, text=OLD))["ok"] | {"unit": {"NRestarts": "many"}}, "NRestarts is no number"),
        (
            "facts",
            json.loads(facts(sha256="0" * 64, text=OLD))["ok"] | {"unit": {"NRestarts": "1" * 11}},
            "NRestarts is no number",
        ),
    ],
)
def test_an_answer_that_says_less_than_a_decision_needs_is_none(verb: str, answer: dict[str, Any], text: str) -> None:
    with pytest.raises(Failed, match=rf"M09.*{text}"):
        answers.check_answer("broker 1", verb, answer)


def test_a_pipe_that_broke_is_opened_again_by_the_next_request_only() -> None:
    first, second = FakePipe(b"half of an ans"), FakePipe(b'{"id": 2, "ok": {}}\n')
    connection, left = behind(first, second)
    with pytest.raises(Unreachable, match="ended: nothing on stderr"):
        connection.ask("go_on")
    assert (first.open, left) == (False, [second])
    assert connection.ask("go_on") == {}
    second.open = False
    with pytest.raises(IndexError):
        connection.ask("go_on")


def test_a_request_that_was_interrupted_ends_its_pipe() -> None:
    first, second = FakePipe(KeyboardInterrupt()), FakePipe(b'{"id": 2, "ok": {}}\n')
    connection, _ = behind(first, second)
    with pytest.raises(KeyboardInterrupt):
        connection.ask("go_on")
    assert not first.open
    assert connection.ask("go_on") == {}


def test_a_late_answer_is_never_taken_for_the_next_one() -> None:
    first, second = FakePipe(TimeoutError(), b'{"id": 1, "ok": {}}\n'), FakePipe(b'{"id": 2, "ok": {"log": "new"}}\n')
    connection, _ = behind(first, second)
    with pytest.raises(TimedOut):
        connection.ask("go_on")
    assert not first.open
    assert connection.ask("read_log") == {"log": "new"}


@pytest.mark.parametrize("code", ["failed", "protocol"])
def test_an_error_names_the_node_that_was_asked_for(code: str) -> None:
    connection, _ = behind(FakePipe(b'{"id": 1, "error": {"code": "%s"}}\n' % code.encode()))
    with pytest.raises((Failed, Refused), match="broker 7: "):
        connection.ask("facts", who="broker 7")


def test_nodes_of_one_machine_share_its_ssh_connection_and_each_machine_has_its_own() -> None:
    hosts = HostSpec("agent", properties="/p", ssh_conn_id="prod_ssh")
    broker, controller = (
        NodeSpec(1, NodeRole.BROKER, "kafka1", 9092, hosts),
        NodeSpec(7, NodeRole.CONTROLLER, "kafka1", 9093, hosts),
    )
    other = NodeSpec(2, NodeRole.BROKER, "kafka2", 9092, hosts)
    opened: list[str] = []

    def ssh(node: NodeSpec) -> FakePipe:
        opened.append(node.host)
        return FakePipe(b'{"id": 1, "ok": {}}\n', b'{"id": 2, "ok": {}}\n')

    agents = Agents(ssh)
    for node in (broker, controller, other):
        agents(node, None).ask("go_on")
    assert opened == ["kafka1", "kafka2"]
    agents.close()


def test_without_airflow_a_node_behind_its_ssh_connection_is_refused() -> None:
    node = NodeSpec(1, NodeRole.BROKER, "kafka1", 9092, HostSpec("agent", properties="/p", ssh_conn_id="prod_ssh"))
    with pytest.raises(Refused, match=r"N03.*prod_ssh.*without Airflow.*Run the DAG"):
        Agents()(node, None)
    settings = ClusterSettings(
        ZooKeeperSettings("zk:1"),
        KafkaSettings({}),
        WireSecurity(),
        WireSecurity(),
        ssh={"prod_ssh": SshSettings("prod_ssh", {})},
    )
    with pytest.raises(Refused, match=r"N03.*prod_ssh"), open_tools(settings):
        pytest.fail("one refusal for the cluster, not one a node")


def test_a_node_that_its_machine_started_meanwhile_is_observed_again_and_is_no_other_nodes() -> None:
    error = agent._error_of("controller 3002", {"code": "restarted", "text": "others restarted the controller"})
    assert isinstance(error, Unreachable), "a step decides again, without a try of its task"
    assert not error.reasons
