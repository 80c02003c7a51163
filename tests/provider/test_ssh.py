"""Nodes behind an Airflow SSH connection, over a real sshd and the real `SSHHook`: what is verified, what is refused, what is found again."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.models.connection import Connection
from airflow.sdk._shared.secrets_masker import redact
from airflow.utils.session import create_session

from airflow_provider_kmigrate.clients.connections import ssh_settings
from airflow_provider_kmigrate.clients.hosts import AgentHost, Agents, Restart
from airflow_provider_kmigrate.clients.tools import open_tools
from airflow_provider_kmigrate.core.cluster_state.model import Cause, Fields, ProcessState, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.monitoring.causes import errors_behind
from airflow_provider_kmigrate.exceptions import Refused, TimedOut, Unreachable
from airflow_provider_kmigrate.hooks import ssh
from airflow_provider_kmigrate.hooks.connections import ClusterHooks, open_ssh
from airflow_provider_kmigrate.hooks.ssh import SshPipe
from airflow_provider_kmigrate.observe import Observer, ObserverTimeouts
from airflow_provider_kmigrate.spec import loads
from tests.kit.sshd import HOST, Sshd, missing, running
from tests.node.machine import AGENT, CLUSTER, NEW, Node
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")

ECHO = ("cat",)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server that the test may stop."""
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def pipe_to(server: Sshd, argv: tuple[str, ...] = ECHO, **extra: Any) -> SshPipe:
    return SshPipe(ssh_settings("prod_ssh", server.fields(**extra)), HOST, argv)


def refused(server: Sshd, **extra: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        pipe_to(server, **extra)
    assert "Next: " in str(caught.value)
    return caught.value


def known_hosts(folder: Path, monkeypatch: pytest.MonkeyPatch, server: Sshd, key: str) -> None:
    """Airflow's user has this known_hosts."""
    (folder / ".ssh").mkdir(mode=0o700)
    (folder / ".ssh" / "known_hosts").write_text(f"[{HOST}]:{server.port} {key}")
    monkeypatch.setenv("HOME", str(folder))


def host_behind(server: Sshd, machine: Node) -> tuple[AgentHost, NodeSpec, Agents]:
    """A node whose agent is reached through the server."""
    argv = (sys.executable, "-I", str(AGENT), "serve", "--config", str(machine.config))
    hosts = HostSpec("agent", properties=str(machine.properties), ssh_conn_id="prod_ssh", stop_timeout=10.0)
    node = NodeSpec(1, NodeRole.BROKER, HOST, 9092, hosts)
    agents = Agents(lambda node: open_ssh(ssh_settings("prod_ssh", server.fields()), node.host, argv))
    return AgentHost(agents(node, None), CLUSTER), node, agents


@pytest.mark.slow
def test_a_node_is_read_changed_and_restarted(shared: Sshd, machine: Node) -> None:
    host, node, agents = host_behind(shared, machine)
    host.put_properties(node, NEW, 7)
    host.start(node, 7)
    first = host.observe(node).process().pid
    seen = []
    host.restart(node, Restart(while_down=lambda _: seen.append(host.observe(node).process().state)), 7)
    assert seen == [ProcessState.STOPPED]
    assert host.observe(node).process().pid not in (None, first)
    assert host.read_properties(node) == NEW
    agents.close()


@pytest.mark.slow
def test_a_connection_that_ends_is_opened_again(own: Sshd, machine: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    host, node, agents = host_behind(own, machine)
    assert host.observe(node).process().state is ProcessState.STOPPED
    own.cut()
    wait_until(
        lambda: host.observe(node).process().state is ProcessState.STOPPED, "the next request opens it", despite=(Unreachable,)
    )
    own.stop()
    wait_until(lambda: isinstance(_error(lambda: host.observe(node).process()), Unreachable), "the machine is away")
    tries = []
    connect = ssh.paramiko.SSHClient.connect
    monkeypatch.setattr(ssh.paramiko.SSHClient, "connect", lambda self, **named: tries.append(1) or connect(self, **named))
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1: no SSH connection: .*Unable to connect"):
        host.observe(node).process()
    assert len(tries) == 1, "it tries once: the caller decides whether to try again"
    own.start()
    assert host.observe(node).process().state is ProcessState.STOPPED
    agents.close()


def _error(act: Callable[[], object]) -> Exception | None:
    try:
        act()
    except Exception as error:  # noqa: BLE001  # of whatever kind
        return error
    return None


def test_the_kernel_ends_the_connection_of_a_machine_that_died(shared: Sshd) -> None:
    pipe = pipe_to(shared)
    sock = pipe._client.get_transport().sock
    limits = [
        sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}")) for name in ("KEEPIDLE", "KEEPINTVL", "KEEPCNT")
    ]
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert limits[0] + limits[1] * limits[2] <= 10, "while it waits for an answer"
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000, "while a request is not acknowledged"
    pipe.close()


def test_large_answers_and_requests_pass(shared: Sshd) -> None:
    pipe, size = pipe_to(shared), 3_000_000
    pipe.write(b"x" * size, 10)
    seen = 0
    while seen < size:
        seen += len(pipe.read(10))
    with pytest.raises(TimeoutError):
        pipe.read(0.1)
    assert pipe.is_open()
    pipe.close()
    assert (pipe.is_open(), pipe.read(1), pipe.ending()) == (False, b"", (None, ""))
    with pytest.raises(OSError, match="closed"):
        pipe.write(b"x", 1)


@pytest.mark.parametrize(
    ("script", "ending"),
    [("echo no >&2; exit 3", (3, "no\n")), ("exit 0", (0, "")), ("kill -9 $$", (None, ""))],
)
def test_how_the_program_ended(shared: Sshd, script: str, ending: tuple[int | None, str]) -> None:
    pipe = pipe_to(shared, ("sh", "-c", script))
    assert (pipe.read(5), pipe.ending(), pipe.is_open()) == (b"", ending, False)
    pipe.close()


def test_a_key_of_known_hosts_is_enough(shared: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known_hosts(tmp_path, monkeypatch, shared, shared.host_key)
    pipe = pipe_to(shared, host_key=None)
    assert pipe.is_open()
    pipe.close()


def test_an_unknown_host_key_is_refused(shared: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "[M06] 127.0.0.1 through connection prod_ssh: its host key is not known" in str(refused(shared, host_key=None))


def test_a_changed_host_key_is_refused_whatever_the_hook_would_do(
    shared: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = Path(shared.other_key_file + ".pub").read_text()
    assert "Another machine may answer in its place" in str(refused(shared, host_key=changed))
    known_hosts(tmp_path, monkeypatch, shared, changed)
    assert "[M06]" in str(refused(shared, host_key=None))
    settings = ssh_settings("prod_ssh", shared.fields(host_key=None))
    unverified = settings.fields | {
        "extra": settings.fields["extra"] | {"no_host_key_check": True, "allow_host_key_change": True}
    }
    with pytest.raises(Refused, match="M06"):  # had the connection's own check been left out
        SshPipe(type(settings)("prod_ssh", unverified), HOST, ECHO)


def test_a_key_that_the_machine_does_not_know_is_refused(shared: Sshd) -> None:
    said = str(refused(shared, key_file=shared.other_key_file))
    assert "[M06] 127.0.0.1 through connection prod_ssh: it does not accept the login: Authentication failed" in said
    assert "authorized_keys" in said


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"key_file": "/no/such/key"}, "M06.*No such file.*each worker"),
        ({"key_file": "/etc/hostname"}, "M06.*Correct the connection's key"),
        ({"key_file": None, "private_key": "-----BEGIN-----\nx\n-----END-----"}, "N03.*cannot be read"),
        ({"private_key": "-----BEGIN-----\nx\n-----END-----"}, "N03"),
        ({"host_key": "ssh-dss AAAA"}, "N03.*not supported"),
        ({"conn_timeout": "soon"}, "N03.*soon"),
    ],
)
def test_a_connection_that_cannot_be_used_is_refused(shared: Sshd, extra: dict[str, Any], text: str) -> None:
    assert re.search(text, str(refused(shared, **extra)))


def test_a_login_that_broke_is_no_refused_login(shared: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: object) -> None:
        raise ssh.paramiko.AuthenticationException("Authentication failed: transport shut down or saw EOF")

    monkeypatch.setattr(ssh.SSHHook, "get_conn", breaks)
    with pytest.raises(Unreachable, match="shut down"):
        pipe_to(shared)


def test_a_machine_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_CONNECT", 1)
    monkeypatch.setattr(ssh, "_LOGIN", 1)
    with socket.create_server((HOST, 0)) as listener:
        fields = {"conn_type": "ssh", "login": "u", "password": "p", "port": listener.getsockname()[1]}
        began = time.monotonic()
        with pytest.raises(Unreachable):
            SshPipe(ssh_settings("prod_ssh", fields), HOST, ECHO)
    assert time.monotonic() - began < 60, "SSHHook would wait without end"


def test_a_program_whose_start_is_not_answered_is_given_up(shared: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """paramiko waits for that answer without end."""
    monkeypatch.setattr(ssh, "_LOGIN", 1)
    success = ssh.paramiko.common.MSG_CHANNEL_SUCCESS
    monkeypatch.setitem(ssh.paramiko.Transport._channel_handler_table, success, lambda *_: None)
    began = time.monotonic()
    with pytest.raises(Unreachable):
        pipe_to(shared)
    assert time.monotonic() - began < 60


def test_an_agent_that_hangs_is_given_up(shared: Sshd) -> None:
    settings = ssh_settings("prod_ssh", shared.fields())
    node = NodeSpec(1, NodeRole.BROKER, HOST, 9092, HostSpec("agent", properties="/p", ssh_conn_id="prod_ssh"))
    agents = Agents(lambda _: open_ssh(settings, HOST, ("sleep", "60")))
    with pytest.raises(TimedOut):
        agents(node, None).ask("hello", 0.5)


CLUSTER_FILE = """\
name: prod
cluster_id: q1Sh-9_ISia_zwGINzRvyQ
zookeeper: {conn_id: zk}
kafka: {conn_id: kf}
hosts: {driver: agent, properties: /p, ssh_conn_id: prod_ssh}
brokers: [{id: 0, host: 127.0.0.1}]
controllers: [{id: 3000, host: c, log_dir: /l}]
"""


def test_the_connection_that_a_cluster_file_names_is_used(shared: Sshd, connection: Callable[..., str]) -> None:
    connection("zk", "kmigrate_zookeeper", host="zk1")
    connection("kf", "kafka", extra={"bootstrap.servers": "k:9092"})
    connection("prod_ssh", **shared.fields())
    spec = loads(CLUSTER_FILE)
    with (
        open_tools(
            ClusterHooks(spec).settings(),
            spec.name,
            lambda settings, host: open_ssh(settings, host, ("sh", "-c", "echo up to here >&2; exit 7")),
        ) as tools,
        pytest.raises(Refused, match=r"M03.*exit code 7: up to here"),
    ):
        tools.host(spec.brokers[0]).observe(spec.brokers[0]).process()


SAYS = "read -r _; echo '{}'; sleep 60"
SUDO = "echo 'sudo: a password is required' >&2; exit 1"
OLD_AGENT = '{"v": 0, "id": null, "error": {"code": "protocol", "text": "the agent speaks protocol 0"}}'
FULL = '{"v": 1, "id": 1, "error": {"code": "disk_full", "text": "/etc/kafka: no space left"}}'
CUT = '{"v": 1, "id": 1, "error": {"code": "busy", "text": "another request acts on this broker"}}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "program", "found"),
    [
        ({"host_key": "other"}, ECHO, ("M06", "its host key is .* the known one is", True)),
        ({"key_file": "other"}, ECHO, ("M06", "it does not accept the login", True)),
        ({"key_file": "/no/such/key"}, ECHO, ("M06", "No such file", True)),
        ({"private_key": "-----BEGIN-----"}, ECHO, ("N03", "cannot be used", True)),
        ({"port": 1}, ECHO, ("U04", "127.0.0.1: no SSH connection: .*Unable to connect", False)),
        ({"host": "no-such-host.invalid"}, ECHO, ("U04", "no-such-host.invalid: no SSH connection: .*not known", False)),
        ({}, ("sh", "-c", SUDO), ("M03", "a password is required; sudo needs this line", True)),
        ({}, ("sh", "-c", "echo 'kmigrate-node: not found' >&2; exit 127"), ("M03", "install the agent there", True)),
        ({}, ("sh", "-c", SAYS.format(OLD_AGENT)), ("M03", "older than this kmigrate. Update the agent", True)),
        ({}, ("sh", "-c", SAYS.format(FULL)), ("U04", "no space left", True)),
        ({}, ("sh", "-c", SAYS.format(CUT)), ("U04", "another request acts on this broker", False)),
        ({}, ("sh", "-c", SAYS.format("Welcome!")), ("M09", "what answers is no kmigrate-node", True)),
        ({}, ("sleep", "60"), ("U04", "no answer within 1 s", False)),
    ],
)
def test_an_observation_has_the_error_of_each_machine_that_was_not_read(
    shared: Sshd,
    connection: Callable[..., str],
    fields: dict[str, Any],
    program: tuple[str, ...],
    found: tuple[str, str, bool],
) -> None:
    """The code is the error's own, so that whoever waits reads its remedy; causes and nodes are as for any unread machine."""
    code, text, certain = found
    known = {"host_key": Path(shared.other_key_file + ".pub").read_text(), "key_file": shared.other_key_file}
    extra = {name: known.get(name, value) if value == "other" else value for name, value in fields.items()}
    port, host = extra.pop("port", shared.port), extra.pop("host", HOST)
    extra |= {"key_file": None} if "private_key" in extra else {}
    connection("zk", "kmigrate_zookeeper", host="zk1")
    connection("kf", "kafka", extra={"bootstrap.servers": "k:9092"})
    connection("prod_ssh", **shared.fields(**extra) | {"port": port})
    spec = loads(CLUSTER_FILE.replace("host: 127.0.0.1", f"host: {host}"))
    with open_tools(ClusterHooks(spec).settings(), spec.name, lambda settings, host: open_ssh(settings, host, program)) as tools:
        observer = Observer(spec, tools, ObserverTimeouts(hosts=1.0 if program[0] == "sleep" else 60.0))
        view = observer.observe(Fields.PROCESSES | Fields.FILES, spec.brokers)
    assert {(reason.code, reason.node, reason.certain) for reason in view.unknowns} == {(code, "broker 0", certain)}
    assert {reason.cause for reason in view.unknowns} == {Cause.UNREAD_PROCESS, Cause.UNREAD_FILES}
    assert all(re.search(f"The host of broker 0 did not answer: .*{text}", reason.text) for reason in view.unknowns)
    [shown] = errors_behind(view, (Reason("U04", "The host of node 0 does not report its process as running."),))
    assert (shown.code, shown.next_step) == (code, view.unknowns[0].next_step)


def test_the_connection_chooses_neither_machine_nor_program(shared: Sshd) -> None:
    other = shared.fields(remote_host="elsewhere.invalid", host="elsewhere.invalid", command="reboot", host_proxy_cmd="touch x")
    pipe = SshPipe(ssh_settings("prod_ssh", other | {"host": "elsewhere.invalid", "schema": "x"}), HOST, ECHO)
    pipe.write(b"it is here\n", 5)
    assert (pipe.read(5), pipe.command) == (b"it is here\n", "cat")
    pipe.close()


def test_what_a_node_answers_is_not_logged(
    shared: Sshd, machine: Node, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """`SSHHook.exec_ssh_client_command` would log each line of it."""
    caplog.set_level(logging.DEBUG)
    host, node, agents = host_behind(shared, machine)
    host.put_properties(node, "ssl.key.password=canary-5e1f0c\n", 7)
    assert "canary" in host.read_properties(node)
    agents.close()
    captured = capfd.readouterr()
    assert "canary" not in f"{caplog.text}{captured.out}{captured.err}"


def test_without_airflows_ssh_provider_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow_provider_kmigrate.hooks.ssh", None)
    with pytest.raises(Refused, match=r"N03.*prod_ssh.*not installed.*pip install 'airflow-provider-kmigrate\[ssh\]'"):
        open_ssh(ssh_settings("prod_ssh", {"conn_type": "ssh"}), HOST)


def test_no_key_in_logs_errors_reprs_or_output(
    shared: Sshd, connection: Callable[..., str], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("paramiko").setLevel(logging.DEBUG)
    connection("zk", "kmigrate_zookeeper", host="zk1")
    connection("kf", "kafka", extra={"bootstrap.servers": "k:9092"})
    private, password = Path(shared.key_file).read_text(), "canary-5e1f0c"
    fields = shared.fields(key_file=None, private_key=private, private_key_passphrase=password) | {"password": password}
    connection("prod_ssh", **fields)
    settings = ClusterHooks(loads(CLUSTER_FILE)).settings().ssh["prod_ssh"]
    pipe = open_ssh(settings, HOST, ECHO)
    seen = [repr(settings), repr(pipe), str(vars(pipe))]
    pipe.close()
    wrong = settings.fields | {"extra": json.dumps({"private_key": "\n".join(private.splitlines()[:-2])})}
    with pytest.raises(Refused) as caught:
        open_ssh(type(settings)("prod_ssh", wrong), HOST, ECHO)
    captured = capfd.readouterr()
    seen += [str(caught.value), caplog.text, captured.out, captured.err]
    lines = [line for line in private.splitlines() if not line.startswith("-----")]
    assert [text for text in seen if any(secret in text for secret in [*lines, password])] == []
    assert [line for line in [*lines, password] if line in str(redact(f"careless: {line}"))] == []
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)


@pytest.mark.slow
def test_the_commands_ask_airflow_for_the_connection(
    shared: Sshd, airflow_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of tasks Airflow reads its database only if it is configured to."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with create_session() as session:
        session.add(Connection(conn_id="in_the_database", conn_type="ssh", login=shared.login, port=shared.port))
    (tmp_path / "prod.yaml").write_text(CLUSTER_FILE.replace("prod_ssh", "in_the_database"))
    argv = [str(Path(sys.executable).with_name("kmigrate")), "node", "check", str(tmp_path / "prod.yaml"), "--host", HOST]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    expected = f"FAIL  broker 0 on {HOST}\n      [M06] {HOST} through connection in_the_database: its host key is not known."
    assert (done.returncode, expected in done.stdout) == (1, True), done
