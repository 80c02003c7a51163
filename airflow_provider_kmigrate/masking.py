"""Values that no text of kmigrate shows: the secrets of all connections that this process has read.

Airflow masks its logs. An error's text also goes into journals, XComs, ZooKeeper and the terminal of a command, and may quote others: a
command's last words, the answer of a webhook or of a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_SHORTEST: Final = 8  # a shorter one is a part of other words
_MASK: Final = "***"
_hidden: tuple[str, ...] = ()  # longest first; replaced as a whole, so that a thread reads a whole one


def hide_values(values: Iterable[str]) -> None:
    """Mask these from now on."""
    global _hidden  # noqa: PLW0603  # of the process, as Airflow's own masks
    new = {value for value in values if len(value) >= _SHORTEST} - {*_hidden}
    if new:
        _hidden = tuple(sorted({*_hidden, *new}, key=lambda value: (-len(value), value)))


def mask(text: str) -> str:
    """The text with each hidden value masked."""
    for value in _hidden:
        if value in text:
            text = text.replace(value, _MASK)
    return text


def mask_all(value: Any) -> Any:
    """A JSON value with each of its texts masked; keys stay."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {key: mask_all(inner) for key, inner in value.items()}
    return [mask_all(inner) for inner in value] if isinstance(value, list | tuple) else value
