"""Programs that run on this machine to their end, and the placeholders of commands from the cluster file.

Commands are argument lists with placeholders, never run through a shell: `{id}`, `{host}`, `{properties}` and others for nodes,
`{instance}` and others for consumers (`fill`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.text import printable
from airflow_provider_kmigrate.exceptions import Failed, Refused, TimedOut

_SHOWN = 2000  # characters of a failed program's last output


def java() -> str | None:
    """The Java program: JAVA_HOME's, else the PATH's; None if neither has one."""
    home = os.environ.get("JAVA_HOME")
    return (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")


#: Where programs, their settings and ssh's agent are found. No variable that may hold a secret.
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "JAVA_HOME", "LD_LIBRARY_PATH"),
    *("SSH_AUTH_SOCK", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "DOCKER_HOST"),
)


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """A program's environment: a few of our own variables and `extra`. Not all of ours: a worker's hold secrets of Airflow and others."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(extra)


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
_ENCODING = "iso-8859-1"  # any byte survives the round trip


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """How a command ended, and what it printed; not in `repr`, because it may hold passwords."""

    code: int
    out: str = field(repr=False, default="")
    err: str = field(repr=False, default="")

    @property
    def err_tail(self) -> str:
        """The end of stderr, for a message."""
        return printable(self.err.strip()[-_TAIL:], "\n\t") or "nothing on stderr"


class LocalRunner:
    """Runs commands here, in the `environment` of this machine and `env`.

    A call runs an argument list with a text as its standard input, for at most `timeout` seconds. Raises `TimedOut` (what the command
    did is unknown), and `Failed` if there is no such program. An exit code is an answer, not an error.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self.env = environment({"LC_ALL": "C"} | dict(env or {}))  # C: messages in English

    def __call__(self, argv: Sequence[str], stdin: str, timeout: float) -> CommandAnswer:
        # Files, not pipes: a start command may leave a child that keeps them open forever.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin.encode(_ENCODING))
            given.seek(0)
            code = self._wait(argv, timeout, given, out, err)
            return CommandAnswer(code, _text(out), _text(err))

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


_PLACE = re.compile(r"\{(id|host|properties|cluster_id|release|group|instance|kind)\}")


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
    """The refusal if there is no usable command for an act."""
    return Refused.because(Reason("M02", f"{text}."))


def node_values(node: NodeSpec) -> dict[str, str]:
    """The values that every command of a node may use."""
    return {"id": str(node.id), "host": node.host, "properties": node.hosts.properties}
