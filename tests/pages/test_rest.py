"""Answers of Airflow's API that have no end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import httpx
import pytest

from airflow_provider_kmigrate import masking
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.pages import rest


class Trickle(httpx.SyncByteStream):
    """A byte again and again, each in time."""

    def __iter__(self) -> Iterator[bytes]:
        return itertools.repeat(b" ", 1_000)


@pytest.mark.parametrize(("encoding", "said"), [("identity", "has no end after"), ("gzip", "is compressed")])
def test_an_answer_that_comes_byte_by_byte_ends(monkeypatch: pytest.MonkeyPatch, encoding: str, said: str) -> None:
    """httpx's own time is that of each part, and of compressed bytes there may be none."""
    monkeypatch.setenv(rest.TOKEN, "canary-token")
    monkeypatch.setattr(rest, "_WHOLE", -1.0)
    monkeypatch.setattr(masking, "_hidden", {})
    answer = httpx.Response(200, headers={"Content-Encoding": encoding}, stream=Trickle())
    asked: list[httpx.Request] = []
    with pytest.raises(Unavailable, match=said):
        rest.read_statuses("https://airflow.example", (), httpx.MockTransport(lambda request: asked.append(request) or answer))
    assert asked[0].headers["Accept-Encoding"] == "identity"
    assert masking.mask("canary-token") == "***"


def test_headers_without_an_end_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of which nothing has come for the caller to count."""
    monkeypatch.setenv(rest.TOKEN, "canary-token")
    monkeypatch.setattr(rest, "_WHOLE", 0.05)
    monkeypatch.setattr(rest, "_TIMEOUT", 0.05)
    released = threading.Event()

    def answer(_: httpx.Request) -> httpx.Response:
        released.wait(60)
        return httpx.Response(200)

    try:
        with pytest.raises(Unavailable, match="has no end after"):
            rest.read_statuses("https://airflow.example", (), httpx.MockTransport(answer))
    finally:
        released.set()
