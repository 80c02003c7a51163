"""What an audit session and its gates tell each other: only a whole document with the right key and id counts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.audit.session_messages import (
    ANSWERED,
    NO_RESULT,
    SessionAnswer,
    SessionKey,
    SessionLease,
    SessionPulse,
    SessionRequest,
    decode_message,
    encode_message,
    find_answer_fault,
    find_difference,
)

KEY = SessionKey("cluster", "run", "a" * 32)
ASKED = SessionRequest(KEY, "b" * 32, "job", {"sources": []}, "/results/x")
ANSWER = SessionAnswer(KEY, ASKED.id, ANSWERED, "PASS", {"verdict.json": "0" * 64})


@pytest.mark.parametrize(
    "message", [SessionLease(KEY, 3), SessionLease(KEY, 3, ended=True), SessionPulse(KEY, 1, "x"), ASKED, ANSWER]
)
def test_a_message_is_read_as_it_was_written(message: Any) -> None:
    assert decode_message(type(message), encode_message(message)) == message


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        encode_message(ANSWER)[:-9],
        b"\xff\xfe",
        b"[" * 9_000,
        encode_message(ASKED),
        json.dumps({**json.loads(encode_message(ANSWER)), "more": 1}).encode(),
        json.dumps({**json.loads(encode_message(ANSWER)), "code": True}).encode(),
        json.dumps({**json.loads(encode_message(ANSWER)), "files": []}).encode(),
        json.dumps({**json.loads(encode_message(ANSWER)), "key": {}}).encode(),
        json.dumps({**json.loads(encode_message(ANSWER)), "key": {"cluster_id": "c", "run": "r", "token": 5}}).encode(),
    ],
)
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_message(SessionAnswer, text)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (KEY, ""),
        (replace(KEY, cluster_id="other"), "about cluster other"),
        (replace(KEY, run="earlier"), "of run earlier"),
        (replace(KEY, token="c" * 32), "earlier session"),
    ],
)
def test_a_message_is_of_one_start_of_one_runs_session(other: SessionKey, said: str) -> None:
    difference = find_difference(KEY, other)
    assert said in difference
    assert bool(difference) == bool(said)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ANSWER, ""),
        (replace(ANSWER, key=replace(KEY, run="earlier")), "of run earlier"),
        (replace(ANSWER, key=replace(KEY, token="c" * 32)), "earlier session"),
        (replace(ANSWER, id="d" * 32), "another request"),
        (replace(ANSWER, files={}), "no verdict.json"),
        (replace(ANSWER, files={**ANSWER.files, "../verdict.json": "0"}), "no audit leaves"),
        (replace(ANSWER, files={"verdict.json": 5}), "without its hash"),  # type: ignore[dict-item]
        (replace(ANSWER, code=NO_RESULT, files={}), ""),
    ],
)
def test_only_the_answer_to_the_request_counts(answer: SessionAnswer, said: str) -> None:
    fault = find_answer_fault(ASKED, answer)
    assert said in fault
    assert bool(fault) == bool(said)


def test_a_fingerprint_needs_its_file() -> None:
    assert "fingerprint.json" in find_answer_fault(replace(ASKED, program="fingerprint"), ANSWER)
