"""Reads JSON that others wrote: a znode that any client may write, an event of an application, a file, a node's answer.

The standard decoder alone trusts its input: ten thousand brackets end it with a RecursionError, a lone surrogate breaks the next
`encode()`, and a number of thirty digits breaks the next column of 64 bits, each far from the line that read it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from airflow_provider_kmigrate.core.shared.text import count_of

INT64: Final = 2**63 - 1
#: Numbers that every JSON reader keeps exactly (RFC 7493, 2.2); sums of thousands of them still fit 64 bits.
EXACT: Final = 2**53 - 1
_BLANKS: Final = " \t\r\n"
_DIGITS: Final = 20  # of the longest 64-bit number with its sign; Python's own limit is 4,300
_DEEP: Final = 500  # nested values; `repr` of deeper ones may reach Python's recursion limit of 1,000 frames


def read_json(text: bytes | str, largest: int = INT64, *, rest: bool = False, most: int = 0) -> Any:
    """The JSON value in a text. Raises `ValueError`, and nothing else, for a text that is not plain JSON.

    Refused too: text that is not UTF-8, lone surrogates, whole numbers beyond `largest`, NaN, infinite numbers, more than 500
    nested values. `rest`: what follows the first value is ignored. `most`: more values than that are refused before they take memory,
    a comma or a bracket in a text counted as one; 0: any number.
    """
    if isinstance(text, bytes):
        text = text.decode()
    text = text.rstrip(_BLANKS)
    if most and sum(map(text.count, ",[{")) > most:
        raise ValueError(f"it has more than {most} values")
    try:
        value, end = _build_decoder(largest).raw_decode(
            text, len(text) - len(text.lstrip(_BLANKS))
        )  # not cut off: a fault is named by its line
    except RecursionError:
        raise ValueError("its values are nested too deep") from None
    if end < len(text) and not rest:
        raise ValueError(f"more text follows the first value, which ends at character {end}")
    if text.count("[") + text.count("{") > _DEEP:
        _check_depth(value)
    if "\\ud" in text or "\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()  # raises UnicodeEncodeError, a ValueError
    return value


@cache
def _build_decoder(largest: int) -> json.JSONDecoder:
    return json.JSONDecoder(parse_int=_bounded_int_parser(largest), parse_float=_parse_finite, parse_constant=_refuse_constant)


def _bounded_int_parser(largest: int) -> Callable[[str], int]:
    def parse_bounded(digits: str) -> int:
        if len(digits) > _DIGITS or not -largest <= (parsed := int(digits)) <= largest:
            raise ValueError(f"a number of {count_of(len(digits), 'digit')} is too large")
        return parsed

    return parse_bounded


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"a number of {count_of(len(digits), 'character')} is too large")
    return number


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _check_depth(value: object) -> None:
    level, depth = [value], 0
    while level:
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
            if isinstance(inner, dict | list)
        ]
        depth += 1
        if depth > _DEEP:
            raise ValueError("its values are nested too deep")
