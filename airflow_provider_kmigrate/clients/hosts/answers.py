"""What the answers of status and read commands mean. Unknown is not healthy: what they do not clearly say, they do not say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from airflow_provider_kmigrate.clients.hosts.runner import Answer
from airflow_provider_kmigrate.core.model import ProcessState

STOPPED = 3  # as `systemctl is-active`, which says it for a unit that is on its way, too; such a unit still has a process
_ON_ITS_WAY = frozenset({"activating", "deactivating", "reloading", "refreshing"})
_GONE = frozenset({"inactive", "failed"})
_NO_SUCH_FILE = "No such file or directory"


def is_quiet(command: Sequence[str]) -> bool:
    """Whether a status command keeps the word to itself that tells a stopped unit from one that still stops.

    Options of what runs `systemctl is-active`, such as those of `ssh -q`, do not count.
    """
    words = " ".join(command).split()
    if "is-active" not in words:
        return False
    first = next((place for place, word in enumerate(words) if word.endswith("systemctl")), words.index("is-active"))
    return any(re.fullmatch(r"--quiet|-[a-z]*q[a-z]*", word) for word in words[first:])


def state_of(answer: Answer) -> ProcessState | None:
    """What a status command says; None for the code of a stopped node without the word for it.

    The word stands on a line of its own, as `systemctl is-active` prints it, or behind `Active:`, as `systemctl status` does; a login
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
    """Whether a read command that failed says that there is no such file: of this very path, in one line, in English.

    ssh says "No such file or directory" of its own keys, and a file that may not be read is not absent.
    """
    named = rf"(?:^|[\s'\"`]){re.escape(path)}['\"]?: {_NO_SUCH_FILE}\.?\s*$"
    return any(re.search(named, line) for line in answer.err.splitlines())
