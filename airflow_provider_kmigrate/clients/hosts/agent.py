"""Driver `agent`: `kmigrate-node` on each machine, reached over a pipe.

The pipe is any program's, or a channel of an Airflow SSH connection. One connection a machine serves many requests; it is opened
on first use and again after it broke. The agent knows the paths, units and commands of its machine and keeps the fence
(`node/kmigrate-node` describes the protocol). A stop, a start and a restart are jobs of the agent: they continue if the
connection or the worker ends, and the same id finds them again. An id names the process that is to be stopped, so that one
process is never stopped twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import IO, Any, Protocol, cast

from airflow_provider_kmigrate.clients.commands import BROKEN_CONNECTION, command_environment, connect_command
from airflow_provider_kmigrate.clients.hosts import answers, files
from airflow_provider_kmigrate.clients.znodes import outdated_token
from airflow_provider_kmigrate.core.cluster_state.model import (
    NodeFiles,
    PartitionIds,
    Process,
    ProcessState,
    Reason,
    ServiceUnit,
    Software,
    TopicMetadata,
)
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec, Served, UnitSpec
from airflow_provider_kmigrate.core.node_files import properties
from airflow_provider_kmigrate.core.node_files.service_unit import systemd_seconds
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import Failed, Fenced, KMigrateError, Refused, TimedOut, Unavailable, Unreachable
from airflow_provider_kmigrate.masking import mask_words

PROTOCOL = 1
_TIMEOUT = 30.0  # seconds for an answer; the agent's own programs end within that time
_JOB_WAIT = 1.0  # seconds for which one request waits for a job
_JOB_ANSWER = 5.0  # seconds beyond that for the answer: the agent only reads a file and tries a lock
_UNRESPONSIVE_AFTER = (
    10.0  # seconds without an answer after which a stop or a start is given up: its machine is dead, or isolated
)
_PAUSE = 30.0  # seconds for which a stopped node waits for its worker
_SAY_EVERY = 20.0
_TRIES = 3  # of a job that was killed on its machine
_BEGINS = (
    10.0  # seconds in which a job's first act begins: systemd starts its process, and on a busy machine Python takes seconds
)
_CONTINUES = "the job continues on its machine"
_CHUNK = 65_536
_END = 5.0  # seconds from the end of a program's output to its exit code
_LATE = 0.5  # of these at most beyond a request's time
_STEP = 0.05
_SAID = 16_384  # bytes of a program's error output that are kept, its end
_FLOOD = 64  # chunks of error output that are read after its end: what it left behind may write on for ever
_SHOWN = 1_000
_LOG_LINES, _LAST = 40, 3  # lines of a log: for a failure message, of a unit that starts again and again
_RESTARTS, _YOUNG = 3, 60.0  # starts by systemd alone, and seconds since the last one, from which a unit is in a loop
PATH = "/usr/local/sbin/kmigrate-node"
SUDOERS = f"kmigrate ALL=(root) NOPASSWD: {PATH} serve"
INSTALL = "kmigrate node install CLUSTER.yaml"

_NOT_OURS = frozenset({"other_cluster", "holds_data", "path", "running"})
_UNKNOWN = frozenset({"busy", "unknown"})
_KILLED = frozenset({"timeout", "signal", "core-dump", "watchdog", "oom-kill"})  # SERVICE_RESULT in systemd.exec(5)
_WRONG_SETUP = frozenset({"attributes", "config", "link", "owner", "permission", "role", "state", "unit", "verb"})


MetaTexts = Mapping[str, str]  # log directory -> the text of its meta.properties


@dataclass(frozen=True, slots=True)
class Restart:
    """What happens to a node between its stop and its start.

    `metas` are written. `while_down` is called with the seconds of the stop; the node starts even if it fails. Only after a stop of
    `slow` seconds or more does the node wait for it: a worker that died must not keep it down. `say` is called every 20 s with what is
    waited for and for how much longer, and when the machine stops answering.
    """

    metas: MetaTexts = field(default_factory=dict)
    while_down: Callable[[float], object] = float
    say: Callable[[str], object] = str
    slow: float = 0.0


class Pipe(Protocol):
    """Standard input and output of a program on a node's machine. `command`: what it runs, for messages."""

    command: str

    def is_open(self) -> bool:
        """Whether the program still seems to run."""

    def write(self, data: bytes, timeout: float) -> None:
        """Raises OSError if the program takes no more, or not within `timeout` seconds."""

    def read(self, timeout: float) -> bytes:
        """What it printed since, empty at its end. Raises TimeoutError after `timeout` seconds without a byte."""

    def ending(self, timeout: float = _END) -> tuple[int | None, str]:
        """Its exit code and the end of its stderr, at most `timeout` seconds after the end of its output; None: the connection was lost."""

    def close(self) -> None:
        """End the pipe alone: jobs are processes of the machine."""


class Program:
    """A pipe to a program of this machine, such as ssh, `kubectl exec` or `docker exec`. Raises `Failed` if it cannot be run.

    The end of its error output is kept in memory, however much it is: the machine behind it chooses that.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.command = " ".join(argv)
        self._said, self._speaks = b"", True
        pipe = subprocess.PIPE
        try:
            self._child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(env), start_new_session=True)
        except (OSError, ValueError) as error:
            raise Failed(f"cannot run {argv[0]!r}: {error}") from error
        for end in (self._child.stdin, self._child.stderr):  # a pipe holds 64 kB: a connection that hangs would block for ever
            os.set_blocking(cast(IO[bytes], end).fileno(), False)

    def is_open(self) -> bool:
        """True while the program runs."""
        return self._child.poll() is None

    def write(self, data: bytes, timeout: float) -> None:
        """Write to the program's input. Raises `OSError` if it has ended, or does not take all within `timeout` seconds."""
        stdin, deadline = cast(IO[bytes], self._child.stdin), time.monotonic() + timeout
        while data:
            self._wait_for(stdin, selectors.EVENT_WRITE, deadline)
            data = data[os.write(stdin.fileno(), data) :]

    def read(self, timeout: float) -> bytes:
        """What the program printed; empty at its end. Raises `TimeoutError` after `timeout` seconds of silence."""
        out = cast(IO[bytes], self._child.stdout)
        self._wait_for(out, selectors.EVENT_READ, time.monotonic() + timeout)
        return os.read(out.fileno(), _CHUNK)

    def ending(self, timeout: float = _END) -> tuple[int | None, str]:
        """The program's exit code and the end of its error output; the code is None if the connection was lost."""
        deadline = time.monotonic() + timeout
        while self._child.poll() is None and time.monotonic() < deadline:  # it may wait until its errors are read
            self._read_stderr()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(min(_STEP, max(0.0, deadline - time.monotonic())))
        for _ in range(_FLOOD):
            if not self._read_stderr():
                break
        code = self._child.returncode
        lost = code is None or code < 0 or code == BROKEN_CONNECTION
        return None if lost else code, self._said.decode(errors="replace")

    def close(self) -> None:
        """Kill the program."""
        with self._child:  # its output is not read to the end: what the program left behind may keep it open
            self._child.kill()

    def _read_stderr(self) -> bool:
        """Read a part of its error output, and keep its end; false if there is none now."""
        try:
            chunk = os.read(cast(IO[bytes], self._child.stderr).fileno(), _CHUNK)
        except BlockingIOError:
            return False
        self._said, self._speaks = (self._said + chunk)[-_SAID:], bool(chunk)
        return self._speaks

    def _wait_for(self, pipe: IO[bytes], event: int, deadline: float) -> None:
        """Wait for a pipe, and read error output meanwhile. Raises `TimeoutError` at the deadline."""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, event)
            errors = cast(IO[bytes], self._child.stderr)
            if self._speaks:
                selector.register(errors, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]
                if errors in ready and not self._read_stderr() and not self._speaks:
                    selector.unregister(errors)
                if pipe in ready:
                    return
                if not ready or time.monotonic() >= deadline:
                    raise TimeoutError


class Connection:
    """One agent behind a pipe that is opened on first use, and again after it broke. Thread-safe: one request after another.

    `name`: of its machine, for messages; nodes of one machine share it, and `who` asks is named. A properties file's text crosses it once,
    as long as it stays the same.
    """

    def __init__(self, name: str, opens: Callable[[], Pipe]) -> None:
        self._host, self._opens = name, opens
        self._lock = threading.Lock()
        self._pipe: Pipe | None = None
        self._number = 0
        self._texts: dict[str, Mapping[str, Any]] = {}  # role -> the file as it was last seen

    def facts(self, who: str, role: str) -> dict[str, Any]:
        """The agent's facts of a role, with its file's text; as `ask`. Raises `Failed` if they are not those of this protocol."""
        known_file = self._texts.get(role, {})
        facts = self.ask("facts", who=who, role=role, known=known_file.get("sha256"))
        file = facts["file"]
        if file is not None and file["text"] is None:
            if file["sha256"] != known_file.get("sha256"):
                answers.refuse(f"{who}: kmigrate-node's facts miss the text of a file that is new")
            file["text"] = known_file["text"]
        elif file is not None and files.sha256(file["text"]) != file["sha256"]:
            answers.refuse(f"{who}: kmigrate-node's facts have a text of another hash than they say")
        self._texts[role] = file or {}
        return facts

    def ask(self, verb: str, timeout: float = _TIMEOUT, who: str = "", **fields: object) -> dict[str, Any]:
        """The agent's answer, as `answers` declares it. Raises what its error means (`_error_of`), `Failed` (M09), `Unreachable` or `TimedOut`."""
        name = who or self._host
        with self._lock:
            self._number += 1
            request = json.dumps({"v": PROTOCOL, "id": self._number, "verb": verb, **fields}).encode() + b"\n"
            try:
                answer = self._exchange(name, request, timeout)
            except BaseException:
                self._close_pipe()  # the next answer would be the one to this request
                raise
        if "error" in answer:
            error = answer["error"]
            raise self._protocol_mismatch(name, answer, error) if error["code"] == "protocol" else _error_of(name, error)
        return answers.check_answer(name, verb, answer.get("ok"))

    def _protocol_mismatch(self, name: str, answer: Mapping[str, Any], error: Mapping[str, str]) -> Refused:
        """M03: the agent is of another kmigrate. The older of the two is to be updated."""
        newer = answer.get("v", 0) > PROTOCOL
        update = "`pip install --upgrade airflow-provider-kmigrate` on each worker and the triggerer" if newer else f"`{INSTALL}`"
        what = "newer than this kmigrate. Update kmigrate" if newer else "older than this kmigrate. Update the agent"
        text = f"{name}: kmigrate-node on {self._host} is {what}: {update}. It said: {answers.text_of(error)}"
        return Refused.because(Reason("M03", text))

    def _exchange(self, name: str, request: bytes, timeout: float) -> dict[str, Any]:
        pipe = self._ensure_pipe()
        deadline = time.monotonic() + timeout  # opening it has time limits of its own
        with contextlib.suppress(OSError):  # the agent may have refused its configuration: read why
            pipe.write(request, timeout)
        line = _read_line(name, pipe, deadline)
        answer = answers.read(name, line)
        if answer["id"] not in (self._number, None):
            answers.refuse(f"{name}: kmigrate-node answered another request: {line[:200]!r}")
        return answer

    def _ensure_pipe(self) -> Pipe:
        if self._pipe is None or not self._pipe.is_open():
            self._close_pipe()
            self._pipe = self._opens()
        return self._pipe

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()

    def close(self) -> None:
        """End the pipe."""
        with self._lock:
            self._close_pipe()


def _read_line(name: str, pipe: Pipe, deadline: float) -> bytes:
    """One line, whole before the deadline: an answer that comes byte by byte has no more time than another."""
    data = bytearray()
    while not data.endswith(b"\n"):
        seconds_left = deadline - time.monotonic()
        try:
            chunk = pipe.read(seconds_left) if seconds_left > 0 else None
        except TimeoutError:
            chunk = None
        if chunk is None:
            raise TimedOut(f"{name}: kmigrate-node did not answer in time")
        data += chunk
        if not chunk:
            raise _error_of_ended_pipe(name, pipe, min(_END, max(_LATE, deadline - time.monotonic())))
        if len(data) > answers.LARGEST:
            answers.refuse(f"{name}: what answers is no kmigrate-node: it said more than {answers.LARGEST} bytes")
    return bytes(data)


def _error_of_ended_pipe(name: str, pipe: Pipe, timeout: float) -> KMigrateError:
    code, text = pipe.ending(timeout)
    stderr = printable(mask_words(text.strip())[-_SHOWN:], "\n\t") or "nothing on stderr"
    if not code:
        return Unreachable(f"{name}: the connection to kmigrate-node ended: {stderr}")
    text = f"{name}: `{pipe.command}` ended with exit code {code}: {stderr}{_remedy_for_stderr(stderr)}"
    return Refused.because(Reason("M03", text))


def _remedy_for_stderr(stderr: str) -> str:
    """What to do about a program that ended before it answered; empty if its words are not known."""
    if "not found" in stderr or "No such file" in stderr:
        return f"; install the agent there: `{INSTALL}`."
    if "sudo: " in stderr:
        return f"; sudo needs this line, with the user of the connection: `{SUDOERS}`."
    return ""


def _error_of(name: str, error: Mapping[str, str]) -> KMigrateError:
    code, text = error["code"], f"{name}: {answers.text_of(error)}"
    if code == "fenced":
        return Fenced.because(outdated_token(text))
    if code in _UNKNOWN:
        return Unavailable(text)
    if code == "restarted":  # most likely with its machine: as if that had not answered, a new observation decides
        return Unreachable(text)
    if code == "timed_out":
        return TimedOut(text)
    if code in _NOT_OURS:
        return Refused.because(Reason("M01", text))
    return Refused.because(Reason("M03", text)) if code in _WRONG_SETUP else Failed(f"{text} ({printable(code)})")


def ssh_needs_airflow(conn_id: str) -> Refused:
    """The refusal of a program without Airflow, which alone reads its connections."""
    text = f"The nodes are reached through Airflow's connection {conn_id}, and this program runs without Airflow."
    return Refused.because(Reason("N03", f"{text} Run the DAG that does the same, or write `connect` in the cluster file."))


class Agents:
    """One kept connection to each machine, made on first use. `ssh` opens the pipe of a node that has an `ssh_conn_id`."""

    def __init__(self, ssh: Callable[[Served], Pipe] | None = None) -> None:
        self._ssh = ssh
        self._connections: dict[tuple[str, ...], Connection] = {}

    def __call__(self, node: Served, env: Mapping[str, str] | None) -> Connection:
        """Raises `Refused` for a node behind an SSH connection if there is no `ssh`."""
        key, opens = self._plan_connection(node, env)
        return self._connections.get(key) or self._connections.setdefault(key, Connection(node.host, opens))

    def _plan_connection(self, node: Served, env: Mapping[str, str] | None) -> tuple[tuple[str, ...], Callable[[], Pipe]]:
        if node.hosts.ssh_conn_id and self._ssh is None:
            raise ssh_needs_airflow(node.hosts.ssh_conn_id)
        if node.hosts.ssh_conn_id and self._ssh is not None:
            return (node.hosts.ssh_conn_id, node.host), partial(self._ssh, node)
        argv = connect_command(node)
        return argv, partial(Program, argv, command_environment(env))

    def close(self) -> None:
        """Close every connection."""
        for connection in tuple(self._connections.values()):
            connection.close()


class AgentObservation:
    """`hosts.HostObservation` by the facts that an agent reports."""

    def __init__(self, node: NodeSpec, facts: Mapping[str, Any], clock_ahead: float | None = None) -> None:
        self._node, self.facts, self.clock_ahead = node, facts, clock_ahead

    def process(self) -> Process:
        """The service manager's process, and what it would do with it."""
        process_facts = self.facts["process"]
        return Process(
            ProcessState(process_facts["state"]),
            process_facts["pid"] or None,
            process_facts["since"] or None,
            systemd_seconds(self.facts["unit"].get("TimeoutStopUSec", "")),
            self.facts["boot_enabled"],
            _restart_loop_log(self.facts),
            tuple(map(printable, process_facts.get("named", ()))),
            bool(self.facts["unit"].get("ExecStartPre")),
            self.clock_ahead,
            self._unit(),
            self._software(),
        )

    def _unit(self) -> ServiceUnit | None:
        """None if the agent starts and stops the node without systemd, or is of an older kmigrate."""
        if "Id" not in self.facts["unit"]:
            return None
        shown = {name: printable(value, "\n") for name, value in self.facts["unit"].items()}
        starts = tuple(map(printable, self.facts.get("starts", ())))
        return ServiceUnit(shown, starts, self.facts.get("beside", 0), self.facts.get("behind", False))

    def _software(self) -> Software | None:
        """None if the agent is of an older kmigrate."""
        software = self.facts.get("software")
        return software and Software.from_agent(software)

    def text(self) -> str | None:
        """The properties file, None if there is none."""
        return None if self.facts["file"] is None else str(self.facts["file"]["text"])

    def files(self) -> NodeFiles:
        """Raises `Refused` (M03) for a directory that the properties file names and node.json does not."""
        text = self.text()
        keys = None if text is None else properties.parse_properties(text)
        folders = [(path, self._folder_facts(path)) for path in files.log_dirs(self._node, keys)]
        return NodeFiles(
            properties=keys,
            sha256=None if text is None else self.facts["file"]["sha256"],
            meta={path: properties.parse_properties(folder["meta"] or "") for path, folder in folders} if folders else None,
            kept_by=None if text is None else properties.find_managing_tool(text),
            has_metadata_log=any(folder["has_metadata_log"] for _, folder in folders) if folders else None,
            written_at=None if text is None else self.facts["file"].get("written"),
            unreadable=tuple(map(printable, self.facts.get("unreadable") or ())),
            exposed=tuple(map(printable, self.facts.get("exposed", ()))),
            free=self._fewest_free_bytes([folder for _, folder in folders]),
        )

    def _fewest_free_bytes(self, folders: Sequence[Mapping[str, Any]]) -> int | None:
        """The fewest free bytes beside the properties file and in these directories; None if one is not known."""
        free_bytes = [file_or_folder.get("free") if file_or_folder else None for file_or_folder in (self.facts["file"], *folders)]
        known_free_bytes = [free for free in free_bytes if free is not None]
        return min(known_free_bytes) if len(known_free_bytes) == len(free_bytes) else None

    def _folder_facts(self, path: str) -> Mapping[str, Any]:
        node = self._node
        if path not in self.facts["log_dirs"]:
            text = f"{node.name}: its properties name the directory {path}, /etc/kmigrate/node.json on {node.host} does not."
            raise Refused.because(Reason("M03", text))
        return cast(Mapping[str, Any], self.facts["log_dirs"][path])


def _clock_ahead(facts: Mapping[str, Any], asked_at: float, answered_at: float) -> float | None:
    """The seconds by which the machine's clock is surely ahead, as near to 0 as the time of the answer allows; None: it does not say."""
    now = facts.get("clock")
    if not isinstance(now, int | float):
        return None
    ahead, behind = now - answered_at, now - asked_at
    return ahead if ahead > 0 else min(behind, 0.0)


def _restart_loop_log(facts: Mapping[str, Any]) -> str | None:
    """The last lines of the log of a unit that systemd starts again and again; None for one that it does not.

    Between two starts systemd says so; right after one, the number of restarts and the young process do.
    """
    unit, since = facts["unit"], facts["process"]["since"]
    is_young = 0 <= facts.get("clock", 0.0) - since < _YOUNG
    is_restarting = is_young and int(unit.get("NRestarts") or 0) >= _RESTARTS
    if not is_restarting and not unit.get("SubState", "").startswith("auto-restart"):
        return None
    lines = [line for line in (facts.get("failing") or "").splitlines() if line.strip() and " systemd[1]: " not in line]
    return printable(mask_words(" / ".join(lines[-_LAST:]))[-_SHOWN:])


class _Jobs:
    """Changes that one cluster asks of an agent, and the jobs by which it carries them out."""

    def __init__(self, connection: Connection, cluster_id: str) -> None:
        self._connection, self._cluster_id = connection, cluster_id

    def _request_change(
        self, node: Served, verb: str, token: int, fields: Mapping[str, object], within: float = 3 * _TIMEOUT
    ) -> dict[str, Any]:
        common_fields = {"cluster": self._cluster_id, "role": node.role, "token": token}
        return self._connection.ask(verb, within, node.name, **(common_fields | dict(fields)))

    def _carry_out(
        self,
        node: Served,
        verb: str,
        job: str,
        token: int,
        *,
        say: Callable[[str], object] = str,
        unresponsive_after: float = _UNRESPONSIVE_AFTER,
        **inputs: object,
    ) -> dict[str, Any]:
        """The record of a job that is done. Raises what its error means, or `TimedOut` if it was killed again and again."""
        for _ in range(_TRIES):
            self._request_change(node, verb, token, {"job": job} | inputs)
            record = self._wait_for_job(node, job, say=say, unresponsive_after=unresponsive_after)
            if record.get("state") == "done":
                return record
            if record.get("state") == "failed":
                raise _error_of(node.name, record["error"])
        raise TimedOut(
            f"{node.name}: its {verb} was begun {_TRIES} times, and each time it was killed or slow to begin; it may still go on"
        )

    def _wait_for_job(
        self, node: Served, job: str, until: str = "", say: Callable[[str], object] = str, unresponsive_after: float = inf
    ) -> dict[str, Any]:
        """The record of a job that nothing carries out any more, or that does the act `until`. A lost connection is opened again.

        Raises `Unreachable` once the machine has not answered for `unresponsive_after` seconds. A restart, which ends what it began, waits longer.
        """
        waiting = _JobWait(node, unresponsive_after, say)
        while waiting.goes_on():
            try:
                record = self._connection.ask("job", waiting.timeout(), node.name, role=node.role, wait=_JOB_WAIT, until=until)
            except Unavailable as error:
                waiting.note_lost_connection(error)
                continue
            if record.get("id") != job:
                raise Unavailable(f"{node.name}: another job began on its machine: {record.get('id')}")
            if _has_begun(record, until) or not (record["busy"] or waiting.may_yet_begin(record)):
                return record
            waiting.note_record(record)
        if waiting.lost is not None:
            raise TimedOut(f"{waiting.describe_silence()}; {_CONTINUES} {waiting.lost}") from waiting.lost
        raise TimedOut(f"{node.name} did not stop within {node.stop_timeout:.0f} s; {_CONTINUES}")


class AgentUnits(_Jobs):
    """Units of consuming applications. Raises as `hosts.Host`."""

    def require(self, unit: UnitSpec) -> None:
        """Raises `Refused` (M03) if the agent does not serve this unit; nothing is changed."""
        self._connection.ask("job", who=unit.name, role=unit.role)

    def stop(self, unit: UnitSpec, token: int) -> None:
        """Keep the unit from its start at boot, stop it, and return once its process is gone; systemd then restarts none, whatever `Restart=` says."""
        self._request_change(unit, "boot", token, {"enabled": False})
        self._carry_out(unit, "stop", f"stop-{uuid.uuid4()}", token)

    def start(self, unit: UnitSpec, token: int) -> None:
        """Start the unit unless it runs, at each boot too; returns once its process exists, which does not mean that it consumes."""
        self._carry_out(unit, "start", f"start-{uuid.uuid4()}", token)
        self._request_change(unit, "boot", token, {"enabled": True})


class AgentHost(_Jobs):
    """`hosts.Host` over an agent."""

    def __init__(self, connection: Connection, cluster_id: str, clock: Callable[[], float] = time.time) -> None:
        super().__init__(connection, cluster_id)
        self._clock = clock

    def observe(self, node: NodeSpec) -> AgentObservation:
        """The node's process and files, by one request to the agent, and its machine's clock."""
        asked_at = self._clock()
        facts = self._connection.facts(node.name, node.role)
        return AgentObservation(node, facts, _clock_ahead(facts, asked_at, self._clock()))

    def files(self, node: NodeSpec) -> NodeFiles:
        """The node's files."""
        return self.observe(node).files()

    def start(self, node: NodeSpec, token: int) -> None:
        """As `Host.start`; lets a restart continue that waits for a worker which died."""
        unfinished_job = self.observe(node).facts.get("job", {})
        if (
            unfinished_job.get("state") == "running" and _last_act(unfinished_job) == "pause"
        ):  # of a worker that died: nothing else ends it
            self._connection.ask("go_on", who=node.name, role=node.role, job=unfinished_job["id"])
        with self._start_at_boot(node, token, enabled=True):
            self._carry_out(node, "start", f"start-{uuid.uuid4()}", token)

    def stop(self, node: NodeSpec, token: int, say: Callable[[str], object] = str, unresponsive_after: float = inf) -> float:
        """As `Host.stop`; seconds by the machine's clock. A controller will not start at boot afterwards."""
        within = (
            3 * _TIMEOUT if unresponsive_after == inf else _UNRESPONSIVE_AFTER
        )  # a machine that is unresponsive already does not answer this either
        with self._start_at_boot(node, token, enabled=False, within=within):
            return _seconds_of_act(
                self._carry_out(
                    node,
                    "stop",
                    f"stop-{self._process_id(node)}",
                    token,
                    say=say,
                    unresponsive_after=min(unresponsive_after, _UNRESPONSIVE_AFTER),
                ),
                "stop",
            )

    def restart(self, node: NodeSpec, how: Restart, token: int) -> float:
        """As `Host.restart`; by the machine's clock. After a slow stop the node waits for `how.while_down`, for `_PAUSE` seconds at most.

        A node that was killed in its stop is named (R14) and started anyway.
        """
        inputs = {
            "metas": {folder: _content_with_hash(text) for folder, text in how.metas.items()},
            "pause": _PAUSE,
            "pause_after": how.slow,
        }
        job, record = f"restart-{self._process_id(node)}", dict[str, Any]()
        if how.metas:  # a job that is continued keeps the ones that it began with
            job += f"-{files.sha256(json.dumps(sorted(how.metas.items())))[:16]}"
        for _ in range(_TRIES):  # a job that was killed before its pause has not stopped the node yet
            self._request_change(node, "restart", token, {"job": job} | inputs)
            record = self._wait_for_job(node, job, until="pause", say=how.say)
            if record["state"] == "failed":  # asked for once more, it would stop the node once more
                raise _error_of(node.name, record["error"])
            if record["state"] == "done" or _has_begun(record, "pause"):
                break
        if (result := _act_entry(record, "stop").get("result")) in _KILLED:
            text = f"{node.name} did not stop by itself: it was killed after {_seconds_of_act(record, 'stop'):.0f} s (systemd's result: {result})."
            how.say(f"ATTENTION: {Reason('R14', text)}")
        try:
            paused = record["state"] == "running" and _last_act(record) == "pause"
            if paused or _seconds_of_act(record, "stop") < how.slow:
                how.while_down(_seconds_of_act(record, "stop"))
        finally:
            with contextlib.suppress(Unavailable):  # the job continues by itself after the pause
                self._connection.ask("go_on", who=node.name, role=node.role, job=job)
        record = self._wait_for_job(node, job, say=how.say)  # a start may take longer than a request waits for the job's lock
        if record["state"] != "done":
            record = self._carry_out(node, "restart", job, token, say=how.say, unresponsive_after=inf, **inputs)
        return _seconds_of_act(record, "stop")

    def read_properties(self, node: NodeSpec) -> str:
        """As `Host.read_properties`, from one observation."""
        text = self.observe(node).text()
        if text is None:
            raise Failed(f"{node.name} has no properties file at {node.hosts.properties}")
        return text

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        """As `Host.put_properties`; the agent checks length and SHA-256 of what arrived."""
        digest = files.sha256(text)
        self._request_change(node, "install_file", token, _content_with_hash(text))
        return digest

    def kept_as(self, node: NodeSpec, text: str) -> str:
        """As `Host.kept_as`; the name contains the text's SHA-256."""
        return f"{self.observe(node).facts['kept_in']}/kept-{files.sha256(text)[:16]}.properties"

    def format_storage(self, node: NodeSpec, cluster_id: str, release: str, token: int) -> None:
        """Format the node's directories by the agent."""
        self._request_change(node, "format", token, {"cluster": cluster_id, "release": release, "node": node.id})

    def try_tool(self, node: NodeSpec) -> list[str]:
        """Run a controller's storage tool without any effect, and return what systemd says of its unit. Raises `Failed` with what the tool said."""
        return list(self._connection.ask("try_tool", 3 * _TIMEOUT, node.name, role=node.role)["verified"])

    def put_meta(self, node: NodeSpec, folder: str, text: str, token: int) -> None:
        """Replace the meta.properties of one log directory by the agent."""
        self._request_change(node, "write_meta", token, {"folder": folder} | _content_with_hash(text))

    def wipe_storage(self, node: NodeSpec, cluster_id: str, token: int) -> None:
        """As `Host.wipe_storage`; the controller will not start at boot afterwards."""
        with self._start_at_boot(node, token, enabled=False):  # one that was down when the others were stopped
            self._request_change(node, "set_aside", token, {"cluster": cluster_id, "node": node.id})

    def leftovers(self, node: NodeSpec) -> Sequence[tuple[str, str]]:
        """What migrations and rollbacks have left on the machine: (kind, path)."""
        answer = self._connection.ask("leftovers", who=node.name, role=node.role)
        return [(str(kind), str(path)) for kind, path in answer["left"]]

    def compare_topic_ids(self, node: NodeSpec, topics: Iterable[TopicMetadata]) -> PartitionIds:
        """As `Host.compare_topic_ids`, by one request; it changes nothing. An older agent does not compare the assignment."""
        listed = {topic.name: topic for topic in topics}
        ids = {name: topic.topic_id or "" for name, topic in listed.items()}
        # in the topics' order: with their names again 50,000 of them would be more than an agent takes
        assigned = [
            [number for number, partition in topic.partitions.items() if node.id in partition.replicas]
            for topic in listed.values()
        ]
        answer = self._connection.ask("topic_ids", who=node.name, role=node.role, topics=ids, assigned=assigned)
        found = {
            printable(what): (entry["count"], tuple((printable(path), printable(on_disk)) for path, on_disk in entry["some"]))
            for what, entry in answer["found"].items()
        }
        sizes = {printable(what): entry["bytes"] for what, entry in answer["found"].items() if "bytes" in entry}
        return PartitionIds(answer["read"], found, sizes)

    def find_addresses(self, node: NodeSpec) -> tuple[str, ...]:
        """As `Host.find_addresses`, by one request."""
        answer = self._connection.ask("addresses", who=node.name, role=node.role, host=node.host)
        return tuple(map(printable, answer["addresses"]))

    def remove(self, node: NodeSpec, left: Sequence[tuple[str, str]], kinds: Sequence[str], token: int) -> None:
        """As `Host.remove`."""
        self._request_change(node, "remove", token, {"kinds": list(kinds), "listed": files.sha256(json.dumps(left))})

    def log_tail(self, node: NodeSpec) -> str:
        """The last lines of the node's log."""
        return mask_words(self._connection.ask("read_log", who=node.name, role=node.role, lines=_LOG_LINES)["log"])

    @contextlib.contextmanager
    def _start_at_boot(self, node: NodeSpec, token: int, *, enabled: bool, within: float = 3 * _TIMEOUT) -> Iterator[None]:
        """A controller starts at boot as long as kmigrate wants it to run; the unit of a broker is its administrator's.

        If the machine cannot switch it, that keeps no controller down, and none up: the error is raised at the end.
        """
        failed: Failed | None = None
        try:
            if node.role is NodeRole.CONTROLLER:
                self._request_change(node, "boot", token, {"enabled": enabled}, within)
        except Failed as error:
            failed = error
        yield
        if failed is not None:
            raise failed

    def _process_id(self, node: NodeSpec) -> str:
        """What identifies the process that is to be stopped; a stopped node has none, and each attempt is one of its own."""
        birth = self.observe(node).facts["process"]["birth"]
        return files.sha256(birth)[:16] if birth else str(uuid.uuid4())


class _JobWait:
    """The times of one wait for a job: until when, since when its machine has not answered, what was said when.

    `lost`: why the last request got no answer; None if it got one. `say` hears at once that an answer is missing, else every `_SAY_EVERY` s.
    """

    def __init__(self, node: Served, unresponsive_after: float, say: Callable[[str], object]) -> None:
        self._node, self._unresponsive_after, self._say = node, unresponsive_after, say
        self._began = self._said_at = self._answered_at = time.monotonic()
        self._deadline = self._began + node.stop_timeout + 2 * _TIMEOUT
        self.lost: Unavailable | None = None

    def goes_on(self) -> bool:
        """Whether the job may still end in time."""
        return time.monotonic() < self._deadline

    def timeout(self) -> float:
        """Seconds for the next answer; a connection that is opened again needs longer."""
        answer_timeout = min(_JOB_ANSWER, self._unresponsive_after)
        if self.lost is None:
            return _JOB_WAIT + answer_timeout
        return _JOB_WAIT + max(answer_timeout, min(_TIMEOUT, self._unresponsive_after) - self._silent_seconds())

    def describe_silence(self) -> str:
        """For how long the machine has not answered."""
        return f"{self._node.name}: its machine has not answered for {self._silent_seconds():.0f} s"

    def may_yet_begin(self, record: Mapping[str, Any]) -> bool:
        """Whether the process of this job, which nothing carries out, may still be starting: it was not killed."""
        has_begun = bool(record["done"]) or record.get("state") != "running"
        return not has_begun and time.monotonic() - self._began < _BEGINS

    def note_lost_connection(self, error: Unavailable) -> None:
        """Pause before the next request. Raises `Unreachable` once the machine has not answered for too long."""
        now, silence = time.monotonic(), self.describe_silence()
        seconds_left = self._answered_at + self._unresponsive_after - now
        if seconds_left <= 0:
            text = f"{silence}: it is dead or isolated. If it lives, the job that was begun there goes on. {error}"
            raise Unreachable(text, error.reasons) from error
        if self.lost is None or now - self._said_at >= _SAY_EVERY:
            self._said_at = now
            waits_for = f"its answer is waited for, {min(self._deadline - now, seconds_left):.0f} s more"
            self._say(f"{silence}. What was begun continues there; {waits_for}. {error}")
        self.lost = error
        time.sleep(min(1.0, seconds_left))

    def note_record(self, record: Mapping[str, Any]) -> None:
        """The machine answered that the job is not over."""
        self.lost, self._answered_at = None, time.monotonic()
        if self._answered_at - self._said_at >= _SAY_EVERY:
            self._said_at = self._answered_at
            so_far, seconds_left = self._said_at - self._began, self._deadline - self._said_at
            doing = _last_act(record) or "begins"
            self._say(f"{self._node.name}: {doing}, {so_far:.0f} s so far; it is waited for, {seconds_left:.0f} s more.")

    def _silent_seconds(self) -> float:
        return time.monotonic() - self._answered_at


def _last_act(record: Mapping[str, Any]) -> str:
    """The last act that a job began, empty if it has begun none."""
    return str(record["done"][-1]["act"]) if record["done"] else ""


def _has_begun(record: Mapping[str, Any], act: str) -> bool:
    return bool(_act_entry(record, act))


def _act_entry(record: Mapping[str, Any], act: str) -> Mapping[str, Any]:
    """The entry of an act, empty if it has not begun."""
    return next((entry for entry in record["done"] if entry["act"] == act), {})


def _seconds_of_act(record: Mapping[str, Any], act: str) -> float:
    entry = _act_entry(record, act)
    return float(entry["ended"] - entry["began"]) if "ended" in entry else 0.0


def _content_with_hash(text: str) -> dict[str, object]:
    return {"content": text, "length": len(text), "sha256": files.sha256(text)}
