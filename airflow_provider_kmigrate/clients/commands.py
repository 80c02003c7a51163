"""Programs that run on this machine to their end, and the placeholders of commands from the cluster file.

Commands are argument lists with placeholders, never run through a shell: `{id}`, `{host}` and `{properties}` for nodes,
`{group}`, `{instance}`, `{host}` and `{kind}` for consumers (`fill`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec, Served
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import Failed, TimedOut
from airflow_provider_kmigrate.masking import mask_words

BROKEN_CONNECTION = 255  # ssh's exit code for it
_SHOWN, _READ = 2000, 65_536  # characters of a program's last output, and bytes in which a secret must begin to be known as one
_LOOK, _MUCH = 0.2, 8 << 20  # seconds between two reads of the size of an error output, and the bytes of it that a disk keeps


def find_java() -> str | None:
    """The Java program: JAVA_HOME's, else the PATH's; None if neither has one."""
    home = os.environ.get("JAVA_HOME")
    return (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")


#: Where programs, their settings and ssh's agent are found. No variable that may hold a secret.
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "JAVA_HOME", "LD_LIBRARY_PATH"),
    *("SSH_AUTH_SOCK", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "DOCKER_HOST"),
)


def program_environment(extra: Mapping[str, str]) -> dict[str, str]:
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
        output = mask_words((error.stdout + error.stderr).strip())[-_SHOWN:]
        raise Failed(f"{what} ended with {error.returncode}: {output}") from error


def command_environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """As `environment`, for a command of the cluster file; its messages are in English."""
    return program_environment({"LC_ALL": "C"} | dict(extra or {}))


def run_command(argv: Sequence[str], env: Mapping[str, str], timeout: float) -> tuple[int, str]:
    """Run a command in exactly this environment; returns its exit code and the end of its stderr, without what looks like a secret.

    Raises `TimedOut` after `timeout` seconds (what the command did is unknown), and `Failed` if there is no such program.
    """
    with tempfile.TemporaryFile() as errors:  # not a pipe: a start command may leave a child that keeps it open forever
        code = _run_and_wait(argv, env, timeout, errors)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _READ))
        said = mask_words(errors.read().decode(errors="replace").strip())[-_SHOWN:]
        return code, printable(said, "\n\t") or "nothing on stderr"


def _run_and_wait(argv: Sequence[str], env: Mapping[str, str], timeout: float, errors: IO[bytes]) -> int:
    null = subprocess.DEVNULL
    try:
        child = subprocess.Popen(argv, stdin=null, stdout=null, stderr=errors, env=env, start_new_session=True)
    except (OSError, ValueError) as error:
        raise Failed(f"cannot run {argv[0]!r}: {error}") from error
    deadline = time.monotonic() + timeout
    with child:
        while True:
            try:
                return child.wait(min(_LOOK, max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired as error:
                _truncate_output(errors)
                if time.monotonic() >= deadline:
                    child.kill()  # the command alone; a node that it started must survive
                    raise TimedOut(f"{argv[0]!r} did not end within {timeout:.0f} s") from error


def _truncate_output(errors: IO[bytes]) -> None:
    """Free the disk of what was written, if that is much. The writer goes on behind it, so that the end stays where it is."""
    if os.fstat(errors.fileno()).st_blocks * 512 > _MUCH:
        os.ftruncate(errors.fileno(), 0)


def fill_placeholders(template: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Fill the placeholders of a command; each word stays one word, whatever the values hold.

    Other braces stay: Java and JSON arguments have their own. The cluster file has no placeholder without a value.
    """
    return tuple(re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), word) for word in template)


def connect_command(node: Served) -> tuple[str, ...]:
    """The command of the cluster file that reaches the agent of a node or a unit, filled in."""
    own = {"id": str(node.id), "properties": node.hosts.properties} if isinstance(node, NodeSpec) else {}
    return fill_placeholders(node.hosts.connect, {"host": node.host} | own)
