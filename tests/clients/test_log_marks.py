"""What is read of logs, as far as no broker is needed; the rest is in tests/audit/test_fingerprint_real.py."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.clients.admin import known_id


@pytest.mark.parametrize("message", ["", "None", "AAAAAAAAAAAAAAAAAAAAAA"])
def test_a_topic_that_has_no_id_yet_is_not_another_topic(message: str) -> None:
    assert known_id(message) is None


def test_an_id_is_one() -> None:
    assert known_id("Z7GS0b0QTJ2J4tLkGGVZ8w") == "Z7GS0b0QTJ2J4tLkGGVZ8w"
