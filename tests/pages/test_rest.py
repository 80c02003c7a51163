"""Answers of Airflow's API that have no end."""

from __future__ import annotations

import itertools
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


def test_an_answer_that_comes_byte_by_byte_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """httpx's own time is that of each part."""
    monkeypatch.setenv(rest.TOKEN, "canary-token")
    monkeypatch.setattr(rest, "_WHOLE", -1.0)
    monkeypatch.setattr(masking, "_hidden", {})
    with pytest.raises(Unavailable, match="has no end after"):
        rest.read_statuses("https://airflow.example", (), httpx.MockTransport(lambda _: httpx.Response(200, stream=Trickle())))
    assert masking.mask("canary-token") == "***"
