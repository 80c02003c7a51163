"""The folder in which a run's audit session and its gates leave each other documents; see `core.audit.session_messages`.

Nothing in it is believed for being there: a side lives while its beat changes, by the reader's own clock, because machines' clocks differ.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.foreign_files import NotRead, open_regular_file
from airflow_provider_kmigrate.core.audit.session_messages import (
    ID,
    SessionAnswer,
    SessionKey,
    SessionLease,
    SessionMessage,
    SessionPulse,
    SessionRequest,
    decode_message,
    encode_message,
    find_answer_fault,
)
from airflow_provider_kmigrate.exceptions import Failed, TimedOut

_LARGEST_MESSAGE: Final = 4 << 20
_LARGEST_FILE: Final = 256 << 20
_Message = TypeVar("_Message", SessionLease, SessionPulse, SessionRequest, SessionAnswer)


class BeatWatch:
    """Whether another process's beat goes on. `limit`: after so many seconds without a change it is lost."""

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._beat: object = None
        self._changed_at = clock()
        self.has_changed = False

    def note(self, beat: object) -> None:
        """Take the beat as it is now; None: there is none."""
        if beat is None or beat == self._beat:
            return
        self.has_changed = self._beat is not None  # the first one may be years old
        self._beat, self._changed_at = beat, self._clock()

    @property
    def is_lost(self) -> bool:
        """No change for too long."""
        return self._clock() - self._changed_at > self._limit


class SessionFolder:
    """The documents of one run's session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, message: SessionMessage) -> None:
        """Replace a document; readers see it whole. Raises `Failed`."""
        path = self.folder / name
        atomic.make_folder(path.parent)
        atomic.replace(path, encode_message(message), mode=atomic.ALL_USERS, durable=False)

    def read(self, name: str, kind: type[_Message]) -> _Message | None:
        """A document; None if there is none. Raises `ValueError` if it is something else, or `NotRead` if it is no plain file."""
        if not (self.folder / name).is_file():
            return None
        with open_regular_file(self.folder, name, _LARGEST_MESSAGE) as opened:
            return decode_message(kind, opened.file.read())

    def read_or_none(self, name: str, kind: type[_Message]) -> _Message | None:
        """As `read`, and None for what is no such document."""
        with suppress(ValueError, NotRead, OSError):
            return self.read(name, kind)
        return None

    def list_requests(self) -> list[str]:
        """The ids of requests, in the order of their names; other files are ignored."""
        with suppress(OSError):
            return sorted(path.stem for path in (self.folder / "requests").glob("*.json") if ID.fullmatch(path.stem))
        return []

    def withdraw(self, request_id: str) -> None:
        """Remove a request and its answer."""
        for name in ("requests", "answers"):
            with suppress(OSError):
                (self.folder / name / f"{request_id}.json").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Seconds: `start`, until a session that is being started serves; `beat`, without a sign of life; `answer`, until there is one."""

    start: float = 180.0
    beat: float = 20.0
    answer: float = 3_600.0
    poll: float = 0.1


@contextmanager
def ask_session(
    session: SessionFolder,
    of_run: tuple[str, str],
    request: Mapping[str, Any],
    limits: SessionLimits,
    say: Callable[[str], None],
) -> Iterator[SessionAnswer | None]:
    """The answer of a run's session; None where the caller must do the work itself, and why is said if there was a session.

    `of_run`: the cluster's id and the run. `request`: `program`, `document` and `folder` of a `SessionRequest`. The files of the answer are
    in its folder only inside the block. Raises `TimedOut` if the session serves and gives no answer.
    """
    lease = _wait_until_serving(session, of_run, limits, say)
    if lease is None:
        yield None
        return
    asked = SessionRequest(lease.key, secrets.token_hex(16), **request)
    session.write(f"requests/{asked.id}.json", asked)
    try:
        yield _wait_for_answer(session, asked, limits, say)
    finally:
        session.withdraw(asked.id)
        _remove_folder(answer_folder(asked))


def _wait_until_serving(
    session: SessionFolder, of_run: tuple[str, str], limits: SessionLimits, say: Callable[[str], None]
) -> SessionLease | None:
    """The lease of a session that serves; it may still be starting."""
    deadline = time.monotonic() + limits.start
    lease_watch, pulse_watch = BeatWatch(limits.beat), BeatWatch(limits.beat)
    while True:
        lease, pulse = session.read_or_none("lease.json", SessionLease), session.read_or_none("pulse.json", SessionPulse)
        if lease is None:
            return None
        if lease.ended or (lease.key.cluster_id, lease.key.run) != of_run:
            say(
                "The audit session of this run has ended."
                if lease.ended
                else "The audit session there is of another run or cluster."
            )
            return None
        lease_watch.note((lease.key, lease.beat))
        has_served = pulse is not None and pulse.key == lease.key
        pulse_watch.note(pulse.beat if pulse and has_served else None)
        if pulse_watch.has_changed:
            return lease
        if lease_watch.is_lost or (has_served and pulse_watch.is_lost) or time.monotonic() > deadline:
            say("The audit session of this run does not serve: its task has ended, or Spark has not started.")
            return None
        time.sleep(limits.poll)


def _wait_for_answer(
    session: SessionFolder, asked: SessionRequest, limits: SessionLimits, say: Callable[[str], None]
) -> SessionAnswer | None:
    deadline = time.monotonic() + limits.answer
    pulse_watch = BeatWatch(limits.beat)
    while True:
        try:
            answer = session.read(f"answers/{asked.id}.json", SessionAnswer)
            fault = find_answer_fault(asked, answer) if answer else ""
        except (ValueError, NotRead, OSError) as error:
            answer, fault = None, f"it is no whole document ({type(error).__name__})"
        if fault:
            say(f"The audit session's answer is not used: {fault}.")
            return None
        if answer is not None:
            return answer
        pulse = session.read_or_none("pulse.json", SessionPulse)
        if pulse is not None and pulse.key != asked.key:
            say("The audit session was started again, and has lost the request.")
            return None
        pulse_watch.note(pulse.beat if pulse else None)
        if pulse_watch.is_lost:
            say("The audit session ended before it answered.")
            return None
        if time.monotonic() > deadline:
            raise TimedOut(f"the audit session did not answer within {limits.answer:g} s")
        time.sleep(limits.poll)


def answer_folder(asked: SessionRequest) -> Path:
    """Where the session leaves the files of its answer: a late one then changes nothing that anybody reads."""
    return Path(asked.folder) / f"answer-{asked.id}"


def read_answer_file(folder: Path, answer: SessionAnswer, name: str) -> bytes:
    """A file of an answer. Raises `Failed` if it is not the one that the session wrote."""
    try:
        with open_regular_file(folder / f"answer-{answer.id}", name, _LARGEST_FILE) as opened:
            content = opened.file.read()
    except (NotRead, OSError) as error:
        raise Failed(f"the audit session's {name} cannot be read: {error}") from error
    if hash_content(content) != answer.files[name]:
        raise Failed(f"the audit session's {name} is not what the session wrote")
    return content


def hash_content(content: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def new_key(cluster_id: str, run: str) -> SessionKey:
    """The key of a session that starts now."""
    return SessionKey(cluster_id, run, secrets.token_hex(16))


def _remove_folder(folder: Path) -> None:
    """Of what a session left; it holds files only."""
    with suppress(OSError):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
