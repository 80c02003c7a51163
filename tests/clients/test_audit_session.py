"""A gate and an audit session through their folder: only a live session of the same run is asked, and only its own whole answer is used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.clients.audit_session import (
    BeatWatch,
    SessionFolder,
    SessionLimits,
    answer_folder,
    ask_session,
    hash_content,
    new_key,
    read_answer_file,
)
from airflow_provider_kmigrate.core.audit.session_messages import (
    ANSWERED,
    SessionAnswer,
    SessionLease,
    SessionPulse,
    SessionRequest,
    encode_message,
)
from airflow_provider_kmigrate.exceptions import Failed, TimedOut

KEY = new_key("cluster", "run")
LIMITS = SessionLimits(start=2.0, beat=0.6, answer=3.0, poll=0.02)
Act = Callable[[SessionFolder, SessionRequest], None]


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    return SessionFolder(tmp_path / "session")


@contextmanager
def serving(folder: SessionFolder, act: Act | None, *, beats: int = 10_000) -> Iterator[None]:
    """A session that beats, and acts on each request; after so many beats it is gone."""
    done = threading.Event()

    def serve() -> None:
        seen: set[str] = set()
        for beat in range(1, beats):
            folder.write("lease.json", SessionLease(KEY, beat))
            folder.write("pulse.json", SessionPulse(KEY, beat))
            for request_id in folder.list_requests():
                asked = folder.read_or_none(f"requests/{request_id}.json", SessionRequest)
                if act and asked and request_id not in seen:
                    seen.add(request_id)
                    act(folder, asked)
            if done.wait(0.05):
                return

    folder.write("lease.json", SessionLease(KEY, 0))
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(5)


def ask(folder: SessionFolder, tmp_path: Path, said: list[str], of_run: tuple[str, str] = ("cluster", "run")) -> bytes | None:
    """The verdict that the session's answer has; None where the gate does the work itself."""
    request = {"program": "job", "document": {}, "folder": str(tmp_path / "result")}
    with ask_session(folder, of_run, request, LIMITS, said.append) as answer:
        return None if answer is None else read_answer_file(tmp_path / "result", answer, "verdict.json")


def leave(asked: SessionRequest, content: bytes = b"{}") -> None:
    answer_folder(asked).mkdir(parents=True, exist_ok=True)
    (answer_folder(asked) / "verdict.json").write_bytes(content)


def answered(asked: SessionRequest) -> SessionAnswer:
    return SessionAnswer(asked.key, asked.id, ANSWERED, "PASS", {"verdict.json": hash_content(b"{}")})


def answer(folder: SessionFolder, asked: SessionRequest) -> None:
    leave(asked)
    folder.write(f"answers/{asked.id}.json", answered(asked))


def test_an_answer_and_nothing_of_it_stays(folder: SessionFolder, tmp_path: Path) -> None:
    said: list[str] = []
    with serving(folder, answer):
        assert ask(folder, tmp_path, said) == b"{}"
    assert said == []
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["lease.json", "pulse.json"]


def test_without_a_session_nothing_is_said_and_nothing_waited_for(folder: SessionFolder, tmp_path: Path) -> None:
    said: list[str] = []
    began = time.monotonic()
    assert ask(folder, tmp_path, said) is None
    assert (said, time.monotonic() - began < LIMITS.beat) == ([], True)


@pytest.mark.parametrize("of_run", [("other", "run"), ("cluster", "earlier")])
def test_the_session_of_another_run_or_cluster_is_not_asked(
    folder: SessionFolder, tmp_path: Path, of_run: tuple[str, str]
) -> None:
    said: list[str] = []
    with serving(folder, answer):
        assert ask(folder, tmp_path, said, of_run) is None
    assert "another run or cluster" in said[0]


def test_documents_of_an_ended_session_are_no_session(folder: SessionFolder, tmp_path: Path) -> None:
    """They look as those of a live one; no beat goes up."""
    said: list[str] = []
    folder.write("lease.json", SessionLease(KEY, 7))
    folder.write("pulse.json", SessionPulse(KEY, 7))
    assert ask(folder, tmp_path, said) is None
    assert "does not serve" in said[0]
    folder.write("lease.json", SessionLease(KEY, 8, ended=True))
    assert ask(folder, tmp_path, said) is None
    assert "has ended" in said[1]


def test_a_session_whose_spark_does_not_start_is_not_waited_for_for_ever(folder: SessionFolder, tmp_path: Path) -> None:
    said: list[str] = []
    done = threading.Event()

    def renew() -> None:
        beat = 0
        while not done.wait(0.05):
            beat += 1
            folder.write("lease.json", SessionLease(KEY, beat))

    folder.write("lease.json", SessionLease(KEY, 0))
    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    began = time.monotonic()
    assert ask(folder, tmp_path, said) is None
    assert time.monotonic() - began < LIMITS.start + 1
    done.set()
    thread.join(5)


def _stale(folder: SessionFolder, asked: SessionRequest) -> None:
    leave(asked)
    folder.write(f"answers/{asked.id}.json", replace(answered(asked), key=replace(asked.key, run="earlier")))


def _of_other_request(folder: SessionFolder, asked: SessionRequest) -> None:
    leave(asked)
    folder.write(f"answers/{asked.id}.json", replace(answered(asked), id="0" * 32))


def _half(folder: SessionFolder, asked: SessionRequest) -> None:
    leave(asked)
    (folder.folder / "answers").mkdir(exist_ok=True)
    (folder.folder / "answers" / f"{asked.id}.json").write_bytes(encode_message(answered(asked))[:-5])


def _link(folder: SessionFolder, asked: SessionRequest) -> None:
    leave(asked)
    folder.write("elsewhere.json", answered(asked))
    (folder.folder / "answers").mkdir(exist_ok=True)
    (folder.folder / "answers" / f"{asked.id}.json").symlink_to(folder.folder / "elsewhere.json")


@pytest.mark.parametrize("act", [_stale, _of_other_request, _half, _link])
def test_another_answer_is_not_used(folder: SessionFolder, tmp_path: Path, act: Act) -> None:
    said: list[str] = []
    with serving(folder, act):
        assert ask(folder, tmp_path, said) is None
    assert "is not used" in said[0]


def test_a_verdict_that_the_session_did_not_write_is_not_used(folder: SessionFolder, tmp_path: Path) -> None:
    def tampered(folder: SessionFolder, asked: SessionRequest) -> None:
        leave(asked, b'{"outcome":"PASS"}')
        folder.write(f"answers/{asked.id}.json", answered(asked))

    def gone(folder: SessionFolder, asked: SessionRequest) -> None:
        folder.write(f"answers/{asked.id}.json", answered(asked))

    for act in (gone, tampered):
        with serving(folder, act), pytest.raises(Failed, match=r"verdict\.json"):
            ask(folder, tmp_path, [])


def test_a_session_that_ends_in_the_middle_is_noticed(folder: SessionFolder, tmp_path: Path) -> None:
    said: list[str] = []
    with serving(folder, None, beats=20):
        began = time.monotonic()
        assert ask(folder, tmp_path, said) is None
    assert "ended before it answered" in said[0]
    assert time.monotonic() - began < LIMITS.answer


def test_a_session_that_was_started_again_lost_the_request(folder: SessionFolder, tmp_path: Path) -> None:
    said: list[str] = []

    def again(folder: SessionFolder, asked: SessionRequest) -> None:
        del asked
        folder.write("pulse.json", SessionPulse(new_key("cluster", "run"), 0))
        time.sleep(0.2)

    with serving(folder, again):
        assert ask(folder, tmp_path, said) is None
    assert "started again" in said[0]


@pytest.mark.slow
def test_no_answer_in_time_is_said_as_such(folder: SessionFolder, tmp_path: Path) -> None:
    with serving(folder, None), pytest.raises(TimedOut, match="did not answer within 3 s"):
        ask(folder, tmp_path, [])
    assert folder.list_requests() == [], "it is withdrawn"


def test_a_beat_is_measured_by_the_readers_clock() -> None:
    now = [100.0]
    watch = BeatWatch(5.0, lambda: now[0])
    watch.note(None)
    watch.note(3)
    assert (watch.has_changed, watch.is_lost) == (False, False), "the first one may be years old"
    now[0] += 4
    watch.note(4)
    assert watch.has_changed
    now[0] += 5.1
    watch.note(4)
    assert watch.is_lost
