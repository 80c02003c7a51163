"""`kmigrate node known-hosts`: collect the host keys of all machines, show their fingerprints, and write those that were compared.

A key is never trusted because a machine sent it: the operator compares the fingerprints and agrees, or a file of fingerprints that came
another way decides. A machine that has another key than the file says is named, and nothing of it is written.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.shared.text import count_of, printable
from airflow_provider_kmigrate.exceptions import Failed, Refused
from airflow_provider_kmigrate.node.inventory import SSH_PORT, SshAccess

_TIMEOUT = 30.0  # seconds for a machine
_TYPES = "ed25519,ecdsa,rsa"
_KEY = re.compile(r"(?:ssh-|ecdsa-sha2-|sk-)[\w@.-]+")
_MOST = 100  # lines that are read of one machine
_COMPARE = "On each machine, by another way: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
Keys = Mapping[str, str]  # type -> key, in base64


@dataclass(frozen=True, slots=True)
class HostKeys:
    """What one machine sends, beside what is known of it. `problem`: why nothing of it is written."""

    host: str
    name: str  # in the file: with its port if that is not 22
    keys: Keys = field(default_factory=dict)
    known: Keys = field(default_factory=dict)
    problem: str = ""

    @property
    def new(self) -> Keys:
        """The keys that the file does not have."""
        return {} if self.problem else {kind: key for kind, key in self.keys.items() if kind not in self.known}


def fingerprint(key: str) -> str:
    """`SHA256:...` of a key, as ssh prints it. Raises `Failed` for a text that is no key."""
    try:
        return "SHA256:" + base64.b64encode(hashlib.sha256(base64.b64decode(key, validate=True)).digest()).decode().rstrip("=")
    except (binascii.Error, ValueError) as error:
        raise Failed(f"a machine sent a host key that is none: {printable(key[:80])}") from error


def name_in_file(access: SshAccess) -> str:
    """How known_hosts names a machine."""
    return access.address if access.port == SSH_PORT else f"[{access.address}]:{access.port}"


def read_fingerprints(path: Path) -> Mapping[str, frozenset[str]]:
    """Host -> its fingerprints, of lines `HOST ... SHA256:...`. Raises `Refused` (M06) for a file without any."""
    expected: dict[str, frozenset[str]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused.because(Reason("M06", f"{path} cannot be read: {error}.")) from error
    for words in map(str.split, lines):
        prints = frozenset(word for word in words[1:] if word.startswith("SHA256:"))
        if prints:
            expected[words[0]] = expected.get(words[0], frozenset()) | prints
    if not expected:
        raise Refused.because(Reason("M06", f"{path} has no line `HOST SHA256:...`."))
    return expected


def collect_keys(accesses: Mapping[str, SshAccess], file: Path, at_once: int) -> list[HostKeys]:
    """Ask each machine for its keys and the file for what it knows, `at_once` machines at a time."""
    revoked = read_revoked(_read_file(file).decode(errors="replace"))

    def collect(host: str) -> HostKeys:
        access = accesses[host]
        name = name_in_file(access)
        try:
            keys = read_keys(_run(["ssh-keyscan", "-T", "10", "-t", _TYPES, "-p", str(access.port), access.address]))
            known_lines = _run(["ssh-keygen", "-F", name, "-f", str(file)]) if file.exists() else ""
            return compare_keys(host, name, keys, known_lines, revoked)
        except Failed as error:
            return HostKeys(host, name, problem=str(error))

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(collect, accesses))


def _run(argv: Sequence[str]) -> str:
    """What a program of OpenSSH prints. Raises `Failed`. Its exit code is no answer: ssh-keygen ends with 1 for an unknown host."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{argv[0]} failed: {error}") from error
    return done.stdout.decode(errors="replace")


def read_keys(text: str) -> Keys:
    """Type -> key of lines `NAME TYPE KEY`, comments left out."""
    return dict(_list_keys(text))


def _list_keys(text: str) -> list[tuple[str, str]]:
    rows = [row for row in _split_lines(text)[:_MOST] if row[0][0] not in "#@"]
    return [(row[1], row[2]) for row in rows if len(row) >= 3 and _KEY.fullmatch(row[1]) and fingerprint(row[2])]


def _split_lines(text: str) -> list[list[str]]:
    """The words of each line; a banner may have what Python takes for the end of one."""
    return [words for line in text.split("\n") if (words := line.split())]


def read_revoked(text: str) -> frozenset[str]:
    """The keys of lines `@revoked NAMES TYPE KEY`, whatever they name: a key that is no more trusted for one machine is for none."""
    return frozenset(words[3] for words in _split_lines(text) if words[0] == "@revoked" and len(words) > 3)


def compare_keys(host: str, name: str, keys: Keys, known_lines: str, revoked: frozenset[str] = frozenset()) -> HostKeys:
    """What the machine sends beside what `ssh-keygen -F` printed of it. `revoked`: keys that the file trusts for no machine."""
    rows = _list_keys(known_lines)
    # a file may have several keys of one type for a name: ssh takes each
    known = dict(rows) | {kind: key for kind, key in keys.items() if (kind, key) in rows}
    revoked |= read_revoked(known_lines)
    changed = sorted(kind for kind in keys.keys() & known.keys() if keys[kind] != known[kind])
    problem = ""
    if not keys:
        problem = "it sends no host key: is its sshd up, and this the right port?"
    elif revoked & {*keys.values()}:
        problem = "it sends a key that the file has as @revoked"
    elif changed:
        sent = ", ".join(f"{kind} {fingerprint(keys[kind])}, the file has {fingerprint(known[kind])}" for kind in changed)
        problem = f"its key CHANGED: {sent}. Another machine answers, or it was installed again: ask its administrator. Then: ssh-keygen -R '{name}'"
    return HostKeys(host, name, keys, known, problem)


def judge_keys(machine: HostKeys, expected: Mapping[str, frozenset[str]]) -> tuple[Keys, str]:
    """The new keys of a machine that the fingerprints of another way name, and the problem if none of what it sends is named."""
    prints = expected.get(machine.host, frozenset()) | expected.get(machine.name, frozenset())
    trusted = {kind: key for kind, key in machine.keys.items() if fingerprint(key) in prints}
    if machine.problem or trusted:
        return {kind: key for kind, key in trusted.items() if kind in machine.new}, machine.problem
    sent = ", ".join(f"{kind} {fingerprint(key)}" for kind, key in machine.keys.items())
    return {}, f"none of its keys has a fingerprint that was given for it: it sends {sent}"


def collect_known_hosts(
    accesses: Mapping[str, SshAccess],
    file: Path,
    expected: Mapping[str, frozenset[str]] | None,
    at_once: int,
    *,
    say: Callable[[str], object],
    confirm: Callable[[], bool],
) -> int:
    """Show each machine's keys and write the new ones into `file`, once they were compared. The exit code: 1 if a machine has a problem.

    `expected`: fingerprints that came another way; None: the operator is asked, with all fingerprints before the eyes.
    """
    lines, has_problem = list[str](), False
    for machine in collect_keys(accesses, file, at_once):
        chosen, problem = (machine.new, machine.problem) if expected is None else judge_keys(machine, expected)
        has_problem |= bool(problem)
        if problem:
            say(printable(f"FAIL  {machine.host}: {problem}"))
        elif not chosen:
            say(
                printable(
                    f"ok    {machine.host}: {count_of(len(machine.keys.keys() & machine.known.keys()), 'key is', 'keys are')} known"
                )
            )
        for kind, key in chosen.items():
            say(printable(f"new   {machine.host}: {kind} {fingerprint(key)}"))
            lines.append(f"{machine.name} {kind} {key}\n")
    if not lines:
        return int(has_problem)
    if expected is None:
        say(f"Compare each new fingerprint before you agree. {_COMPARE}")
        if not confirm():
            return 1
    _append(file, lines)
    say(f"{file}: {count_of(len(lines), 'key was', 'keys were')} written.")
    return int(has_problem)


def _read_file(file: Path) -> bytes:
    """Empty without a file. Raises `Failed`."""
    try:
        return file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise Failed(f"cannot read {file}: {error}") from error


def _append(file: Path, lines: Sequence[str]) -> None:
    """Raises `Failed`."""
    atomic.make_folder(file.parent, 0o700)
    present = _read_file(file)
    separator = b"\n" if present and not present.endswith(b"\n") else b""
    mode = file.stat().st_mode & 0o777 if file.exists() else atomic.OWNER
    atomic.replace(file, present + separator + "".join(lines).encode(), mode)
