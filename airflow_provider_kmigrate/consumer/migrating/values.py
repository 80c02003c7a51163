"""What the text of a property says, and the refusal of one that cannot be honoured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused

_FALSE: Final = frozenset({"false", "0", "f"})


def flag(value: object) -> bool:
    """A setting as librdkafka reads a boolean."""
    return str(value).lower() not in _FALSE


def cannot(text: str, why: str, remedy: str) -> Refused:
    """The refusal (Y06) of a setting that this consumer cannot honour."""
    return Refused.because(Reason("Y06", text, why, remedy))


def milliseconds(given: Mapping[str, Any], name: str, default: int) -> int:
    """Raises `Refused` for what is no whole number."""
    value = str(given.get(name, default)).strip()
    if not (value.isascii() and value.isdigit()):
        raise cannot(f"{name} is {value or 'empty'}.", "It is a time in milliseconds.", f"Write a whole number, as {default}.")
    return int(value)
