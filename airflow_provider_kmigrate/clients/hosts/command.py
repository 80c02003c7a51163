"""Driver `command`: nodes that the user's own commands start, stop and report on (systemctl, ssh, kubectl, a script).

`LocalRunner` runs a program on this machine to its end; only there does the driver meet a machine.

Commands are argument lists with placeholders, never run through a shell: `{id}`, `{host}`, `{properties}` and others for nodes,
`{instance}` and others for consumers (`fill`). What each command must do:

| field | does | exit code |
| --- | --- | --- |
| status | reports if the process exists | 0 running; 3 with a line `inactive` or `failed`: stopped (as `systemctl is-active`); other: unknown |
| start | starts it and returns | 0 |
| stop | asks it to stop; may return before it has stopped; must not escalate to SIGKILL within `stop_timeout` | 0 |
| read | prints the file `{path}` (none: the file is on this machine) | 0; other and `{path}: No such file or directory` on stderr: absent |
| write | replaces the file `{path}` with its standard input, atomically (none: as read) | 0 |
| format | kafka-storage format, with `--cluster-id={cluster_id}` as one word: an id may begin with a dash | 0 |
| wipe | moves the controller's directory `{path}` away, or empties it; only a rollback does that | 0 |

Unknown is not healthy: an unclear answer counts as unknown. A unit in transition (`deactivating`) ends with 3 too, so 3 without a word
is refused (U04). The words are English: LC_ALL=C is set here, but ssh need not pass it on. `kmigrate-node` beside the package does
read, write, format and wipe as required.

255 is ssh's exit code for a broken connection and raises `Unreachable`. systemd's own stop timeout (`TimeoutStopSec`, 90 s by default)
ends in SIGKILL and must be raised above `stop_timeout`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.clients.hosts.files import admitted, must_format, must_wipe, refuse_data
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import NodeFiles, Process, ProcessState, Reason
from airflow_provider_kmigrate.exceptions import Failed, Refused, TimedOut, Unavailable, Unreachable

_SHOWN = 2000  # characters of a failed program's last output


def java() -> str | None:
    """The Java program: JAVA_HOME's, else the PATH's; None if neither has one."""
    home = os.environ.get("JAVA_HOME")
    return (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")


def run(argv: Sequence[str], timeout: float, what: str, late: str = "") -> None:
    """Run a program to its end.

    Raises `Failed` with the end of its output, or `TimedOut` after `timeout` seconds with `late` as the advice.
    """
    try:
        subprocess.run(argv, check=True, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise TimedOut(f"{what} did not end within {timeout:.0f} s{late and f'; {late}'}") from error
    except subprocess.CalledProcessError as error:
        said = (error.stdout + error.stderr).strip()[-_SHOWN:]
        raise Failed(f"{what} ended with {error.returncode}: {said}") from error


_TAIL = 1_000
_ENCODING = "iso-8859-1"  # as properties files are read: any byte survives the round trip


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended, and what it printed; not in `repr`, because a properties file holds passwords."""

    code: int
    out: str = field(repr=False, default="")
    err: str = field(repr=False, default="")

    @property
    def err_tail(self) -> str:
        """The end of stderr, for a message."""
        return self.err.strip()[-_TAIL:] or "nothing on stderr"


class Runner(Protocol):
    """Runs an argument list with a text as its standard input, for at most `timeout` seconds.

    Raises `TimedOut` (what the command did is unknown), `Unreachable` if the machine cannot be reached, `Failed` if there is no
    such program. An exit code is an answer, not an error.
    """

    def __call__(self, argv: Sequence[str], stdin: str, timeout: float) -> Answer: ...


class LocalRunner:
    """Runs commands here, with `env` added to an environment without Airflow's own settings and connections."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.lstrip("_").startswith("AIRFLOW")}
        self.env = kept | {"LC_ALL": "C"} | dict(env or {})  # C: messages in the words that the driver knows

    def __call__(self, argv: Sequence[str], stdin: str, timeout: float) -> Answer:
        # Files, not pipes: a start command may leave a child that keeps them open forever.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin.encode(_ENCODING))
            given.seek(0)
            code = self._wait(argv, timeout, given, out, err)
            return Answer(code, _text(out), _text(err))

    def _wait(self, argv: Sequence[str], timeout: float, given: IO[bytes], out: IO[bytes], err: IO[bytes]) -> int:
        try:
            child = subprocess.Popen(argv, stdin=given, stdout=out, stderr=err, env=self.env, start_new_session=True)
        except (OSError, ValueError) as error:
            raise Failed(f"cannot run {argv[0]!r}: {error}") from error
        with child:
            try:
                return child.wait(timeout)
            except subprocess.TimeoutExpired as error:
                child.kill()  # the command alone; a node that it started must survive
                raise TimedOut(f"{argv[0]!r} did not end within {timeout:.0f} s") from error


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(_ENCODING)


_PLACE = re.compile(r"\{(id|host|properties|path|cluster_id|release|group|instance|kind)\}")


def fill(template: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Fill the placeholders of `template`; each word stays one word, whatever the values hold.

    Other braces stay: Java and JSON arguments have their own. Raises `Refused` for a placeholder without a value in this command
    (`{cluster_id}` in a start command, say).
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise no_command(
                f"the command {' '.join(template)!r} has the unknown placeholder {match[0]}; known: {sorted(values)}"
            )
        return values[match[1]]

    template = tuple(template)
    return tuple(_PLACE.sub(value, word) for word in template)


def no_command(text: str) -> Refused:
    """The refusal if the cluster file has no command for an act."""
    return Refused.because(Reason("M02", f"{text}."))


def node_values(node: NodeSpec) -> dict[str, str]:
    """The values that every command of a node may use."""
    return {"id": str(node.id), "host": node.host, "properties": node.hosts.properties}


STOPPED = 3  # as `systemctl is-active`, which ends so for a unit in transition, too; such a unit still has a process
_ON_ITS_WAY = frozenset({"activating", "deactivating", "reloading", "refreshing"})
_GONE = frozenset({"inactive", "failed"})
_NO_SUCH_FILE = "No such file or directory"


def is_quiet(command: Sequence[str]) -> bool:
    """True if a status command hides the word that distinguishes a stopped unit from a stopping one.

    Options before `systemctl`, such as those of `ssh -q`, do not count.
    """
    words = " ".join(command).split()
    if "is-active" not in words:
        return False
    first = next((place for place, word in enumerate(words) if word.endswith("systemctl")), words.index("is-active"))
    return any(re.fullmatch(r"--quiet|-[a-z]*q[a-z]*", word) for word in words[first:])


def state_of(answer: Answer) -> ProcessState | None:
    """The state that a status command reports; None for the exit code of a stopped node without the word for it.

    The word is on a line of its own, as `systemctl is-active` prints it, or after `Active:`, as `systemctl status` does; a login
    shell may print other lines before it.
    """
    if answer.code == 0:
        return ProcessState.RUNNING
    if answer.code != STOPPED:
        return ProcessState.UNKNOWN
    words = set(_words(answer.out))
    if words & _ON_ITS_WAY:
        return ProcessState.RUNNING
    return ProcessState.STOPPED if words & _GONE else None


def _words(out: str) -> Iterator[str]:
    for line in out.splitlines():
        before, _, after = line.strip().partition("Active:")
        words = after.split() if not before else line.split()
        if words and (not before or len(words) == 1):
            yield words[0]


def is_absent(answer: Answer, path: str) -> bool:
    """True if a failed read command says that the file does not exist: of this very path, in one line, in English.

    ssh says "No such file or directory" of its own keys, and a file without read permission is not absent.
    """
    named = rf"(?:^|[\s'\"`]){re.escape(path)}['\"]?: {_NO_SUCH_FILE}\.?\s*$"
    return any(re.search(named, line) for line in answer.err.splitlines())


_BROKEN_CONNECTION = 255
_AT_ONCE = 4  # files of a node: a broker has one on each disk, and reads end after 15 s; sshd allows ten logins at a time


class CommandHost:
    """`hosts.base.Host` over commands; another `runner` (an SSH connection, say) runs the same ones elsewhere.

    Fencing tokens lie in `<properties>.kmigrate/` if the file is on this machine, else in this machine's
    `$XDG_STATE_HOME/kmigrate` (`~/.local/state/kmigrate`). There they fence the runs of this machine only; ZooKeeper alone fences
    runs on other workers.
    """

    def __init__(self, runner: Runner | None = None, *, timeout: float = 30.0, poll: float = 0.2) -> None:
        """`timeout`: seconds for a command (stop has its node's `stop_timeout`); `poll`: seconds between two status commands."""
        self._run_at = runner or LocalRunner()
        self._timeout = timeout
        self._poll = poll

    def status(self, node: NodeSpec) -> Process:
        """The node's process now. Raises `Refused` if the command cannot distinguish a stopped node from a stopping one."""
        if is_quiet(node.hosts.status):
            raise _wordless(node, "prints nothing (--quiet)")
        state = state_of(self._run(node, "status", node.hosts.status))
        if state is None:
            raise _wordless(node, f"ended with exit code {STOPPED} and printed neither `inactive` nor `failed`")
        return Process(state)

    def start(self, node: NodeSpec, token: int) -> None:
        with admitted(_token_folder(node), token):
            if self._known(node) is ProcessState.STOPPED:
                self._succeed(node, "start", node.hosts.start)
        self._wait(node, ProcessState.RUNNING, self._timeout)

    def stop(self, node: NodeSpec, token: int) -> float:
        began = time.monotonic()
        with admitted(_token_folder(node), token):
            if self._known(node) is ProcessState.RUNNING:
                self._succeed(node, "stop", node.hosts.stop, timeout=node.stop_timeout)
        self._wait(node, ProcessState.STOPPED, began + node.stop_timeout - time.monotonic())
        return time.monotonic() - began

    def read_properties(self, node: NodeSpec) -> str:
        text = self._reader(node)(node.hosts.properties)
        if text is None:
            raise Failed(f"{node.name} has no properties file at {node.hosts.properties}")
        return text

    def put_properties(self, node: NodeSpec, text: str, token: int) -> str:
        with admitted(_token_folder(node), token):
            if not node.hosts.write:
                return files.put(Path(node.hosts.properties), text)
            return self._put_elsewhere(node, text)

    def _put_elsewhere(self, node: NodeSpec, text: str) -> str:
        path, read = node.hosts.properties, self._reader(node)
        old = read(path)
        if old not in (None, text):
            self._write(node, files.backup_name(path, str(old)), str(old))
        if old != text:
            self._write(node, path, text)
        if read(path) != text:
            raise Failed(
                f"{node.name}: {path} differs from what was just written; check that its `write` command replaces the whole file"
            )
        return files.sha256(text)

    def files(self, node: NodeSpec) -> NodeFiles:
        return files.read_files(node, self._reader(node), _AT_ONCE if node.hosts.read else 1)

    def format_storage(self, node: NodeSpec, cluster_id: str, release: str, token: int) -> None:
        values = {"cluster_id": cluster_id, "release": release}
        with admitted(_token_folder(node), token):
            seen = self.files(node)
            if must_format(node, seen, cluster_id):
                if not node.hosts.read:
                    refuse_data(node, seen)
                self._succeed(node, "format", node.hosts.format, values)

    def put_meta(self, node: NodeSpec, folder: str, text: str, token: int) -> None:
        path = f"{folder}/{files.META}"
        with admitted(_token_folder(node), token):
            if not node.hosts.write:
                files.put(Path(path), text)
            else:
                self._write(node, path, text)

    def wipe_storage(self, node: NodeSpec, cluster_id: str, token: int) -> None:
        with admitted(_token_folder(node), token):
            for folder in must_wipe(node, self.files(node), self.status(node), cluster_id):
                self._succeed(node, "wipe", node.hosts.wipe, {"path": folder})

    def log_tail(self, node: NodeSpec, lines: int = 40) -> str:  # noqa: ARG002  # part of the interface
        return ""

    def _known(self, node: NodeSpec) -> ProcessState:
        state = self.status(node).state
        if state is ProcessState.UNKNOWN:
            raise Unreachable(f"{node.name}: its status command does not report whether it runs; nothing was changed")
        return state

    def _wait(self, node: NodeSpec, wanted: ProcessState, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self._state(node) is not wanted:
            if time.monotonic() > deadline:
                raise TimedOut(f"{node.name} is not {wanted} {timeout:.0f} s after its command ran")
            time.sleep(self._poll)

    def _state(self, node: NodeSpec) -> ProcessState:
        """Unknown if the connection breaks while a node stops; the next poll may succeed."""
        try:
            return self.status(node).state
        except Unavailable:
            return ProcessState.UNKNOWN

    def _reader(self, node: NodeSpec) -> Callable[[str], str | None]:
        return (lambda path: self._read(node, path)) if node.hosts.read else files.read

    def _read(self, node: NodeSpec, path: str) -> str | None:
        answer = self._run(node, "read", node.hosts.read, {"path": path})
        if answer.code == 0:
            return answer.out
        if is_absent(answer, path):
            return None
        hint = f"(for a missing file it must print '{path}: No such file or directory', in English)"
        raise Failed(f"{node.name}: cannot read {path}: exit code {answer.code}: {answer.err_tail} {hint}")

    def _write(self, node: NodeSpec, path: str, text: str) -> None:
        self._succeed(node, "write", node.hosts.write, {"path": path}, stdin=text)

    def _succeed(
        self,
        node: NodeSpec,
        field: str,
        template: Sequence[str],
        values: Mapping[str, str] | None = None,
        *,
        stdin: str = "",
        timeout: float | None = None,
    ) -> None:
        answer = self._run(node, field, template, values, stdin=stdin, timeout=timeout)
        if answer.code != 0:
            raise Failed(f"{node.name}: its {field} command ended with exit code {answer.code}: {answer.err_tail}")

    def _run(
        self,
        node: NodeSpec,
        field: str,
        template: Sequence[str],
        values: Mapping[str, str] | None = None,
        *,
        stdin: str = "",
        timeout: float | None = None,
    ) -> Answer:
        if not template:
            raise no_command(f"{node.name}: the cluster file has no {field} command for it (hosts: {{{field}: [...]}})")
        argv = fill(template, node_values(node) | dict(values or {}))
        answer = self._run_at(argv, stdin, self._timeout if timeout is None else timeout)
        if answer.code == _BROKEN_CONNECTION:
            raise Unreachable(f"{node.name}: its {field} command found no connection: {answer.err_tail}")
        return answer


def _wordless(node: NodeSpec, what: str) -> Refused:
    text = f"{node.name}: its status command {what}."
    return Refused.because(Reason("U04", text))


def _token_folder(node: NodeSpec) -> Path:
    if not node.hosts.write:
        return Path(f"{node.hosts.properties}.kmigrate")
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    digest = hashlib.sha256(f"{node.host}\0{node.hosts.properties}".encode()).hexdigest()[:12]
    return home / "kmigrate" / f"{node.role}-{node.id}-{digest}"
