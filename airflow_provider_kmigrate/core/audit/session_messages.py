"""The messages between a run's audit session and its gates, as documents in files.

::

    lease.json             of the task that keeps the session: the session ends when it is no longer renewed
    pulse.json             of the session: it serves, and what it is working on
    requests/<id>.json     of a gate
    answers/<id>.json      of the session, with the hashes of the files that it left

Each carries the session's key. An answer counts only with the key and the id that its gate has given: an older session's, another run's or
another cluster's is refused, and so is one that is no whole document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final, TypeVar

from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import printable

ID: Final = re.compile(r"[0-9a-f]{32}")
ANSWERED, NO_RESULT, REFUSED = 0, 2, 3  # as the programs' exit codes; the last one: the request is none of this session's
#: The files that a session may leave for a gate; the verdict is moved last. A report comes after the answer, beside the verdict.
RESULT_FILES: Final = ("refused.jsonl", "facts.json", "fingerprint.json", "verdict.json")


class SessionProgram(StrEnum):
    """What a gate asks for; the names of the programs that a submit of its own would run."""

    AUDIT = "job"
    FINGERPRINT = "fingerprint"


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Which session: the cluster's id, the run, and a random `token` of this start of it."""

    cluster_id: str
    run: str
    token: str


LAST_REPORTS_S: Final = 300.0  # a session that is to end still makes the reports of answered gates, for so long


@dataclass(frozen=True, slots=True)
class SessionLease:
    """The session's task still keeps it: `beat` goes up. `ended`: the session is to end now."""

    key: SessionKey
    beat: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class SessionPulse:
    """The session serves: `beat` goes up. `working_on`: the id of a request, or empty."""

    key: SessionKey
    beat: int
    working_on: str = ""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A gate's request: the document of `audit.request`, and the folder below which the result goes, into `answer-<id>`."""

    key: SessionKey
    id: str
    program: str
    document: Mapping[str, Any]
    folder: str


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """The end of a request: `code` as above, `text` for its task's log, `files` by name with their SHA-256."""

    key: SessionKey
    id: str
    code: int
    text: str
    files: Mapping[str, str]


SessionMessage = SessionLease | SessionPulse | SessionRequest | SessionAnswer
_Message = TypeVar("_Message", SessionLease, SessionPulse, SessionRequest, SessionAnswer)
_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("id", "program", "folder", "text", "working_on", "cluster_id", "run", "token"), str),
    **dict.fromkeys(("key", "document", "files"), dict),
    **dict.fromkeys(("beat", "code"), int),
    "ended": bool,
}


def encode_message(message: SessionMessage) -> bytes:
    """The message as a JSON document."""
    return json.dumps(asdict(message)).encode()


def decode_message(kind: type[_Message], text: bytes) -> _Message:
    """The message of this kind in a document. Raises `ValueError` for anything else, with a text that quotes little of it."""
    values = read_json(text)
    _check_fields(kind, values)
    _check_fields(SessionKey, values["key"])
    return kind(**{**values, "key": SessionKey(**values["key"])})


def _check_fields(kind: type[Any], values: object) -> None:
    names = {item.name for item in fields(kind)}
    if not isinstance(values, dict) or values.keys() != names:
        raise ValueError(f"it is no {kind.__name__}")
    if wrong := sorted(name for name in names if type(values[name]) is not _TYPES[name]):
        raise ValueError(f"{', '.join(wrong)} of a {kind.__name__} have another type")


def find_difference(mine: SessionKey, other: SessionKey) -> str:
    """Why a message with the `other` key is none of this session's; empty if it is."""
    if other.cluster_id != mine.cluster_id:
        return f"it is about cluster {printable(other.cluster_id)}, and the session audits {mine.cluster_id}"
    if other.run != mine.run:
        return f"it is of run {printable(other.run)}, and the session is of {mine.run}"
    return "" if other.token == mine.token else "it is for an earlier session of the run"


def find_answer_fault(request: SessionRequest, answer: SessionAnswer) -> str:
    """Why an answer is not the one to this request; empty if it is."""
    if difference := find_difference(request.key, answer.key):
        return difference
    if answer.id != request.id:
        return "it answers another request"
    if strange := sorted(answer.files.keys() - {*RESULT_FILES}):
        return f"it has files that no audit leaves: {printable(strange[0])}"
    if any(type(digest) is not str for digest in answer.files.values()):
        return "it names a file without its hash"
    required = {SessionProgram.AUDIT: "verdict.json", SessionProgram.FINGERPRINT: "fingerprint.json"}[
        SessionProgram(request.program)
    ]
    return f"it has no {required}" if answer.code == ANSWERED and required not in answer.files else ""
