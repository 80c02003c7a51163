"""One connection's fields, read strictly: unknown extras, wrong types and missing values are all listed in one `Refused`.

A connection is a mapping as Airflow has it: `conn_type`, `host`, `port`, `login`, `password`, `schema` and `extra` (a mapping or its
JSON text). Codes: N01 missing connection, N03 unknown extra, N03 wrong value, N03 missing value, N03 another type of connection,
N03 fields that contradict each other, N03 what kmigrate cannot use.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused

Connection = Mapping[str, Any]

_SECRET_NAME = re.compile(r"passw|passphrase|secret|token|jaas|key\.pem|digest|auth_data|credential|private", re.IGNORECASE)
_INSTEAD = dict.fromkeys(("digest", "auth_data", "zk_digest"), "Write the user into login and its password into password.")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)+)"')
_SHORTEST_LINE = 8  # a shorter line of a secret is no secret of its own, and hiding it would hide half the log


class Fields:
    """Reads fields and collects what is wrong with them; `check` raises it all at once."""

    def __init__(self, conn_id: str, connection: Connection, conn_type: str, extras: Iterable[str] | None) -> None:
        """`extras`: the names that `extra` may have; None: any. Raises `Refused` at once for another type of connection."""
        self.conn_id = conn_id
        self._connection = connection
        self._reasons: list[Reason] = []
        self._check_type(conn_type)
        self.extra = self._parsed_extra()
        if extras is not None:
            self._check_names(tuple(extras))

    def field(self, name: str) -> str | None:
        """A field of the connection itself as text; None where it is empty."""
        value = self._connection.get(name)
        return None if value in (None, "") else str(value)

    def text(self, name: str) -> str | None:
        """An extra that is text."""
        value = self._extra(name)
        if value is None or isinstance(value, str):
            return value
        self._wrong(name, "text")
        return None

    def flag(self, name: str, *, default: bool) -> bool:
        """An extra that is true or false; connection URIs carry them as text."""
        value = self._extra(name)
        flag = {"true": True, "false": False, "none": default}.get(str(value).lower())
        if flag is None:
            self._wrong(name, "true or false")
        return bool(flag)

    def seconds(self, name: str, *, default: float) -> float:
        """An extra that is a time in seconds, above 0."""
        value = self._extra(name)
        try:
            seconds = default if value is None else float("nan" if isinstance(value, bool) else value)
        except (TypeError, ValueError):
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            self._wrong(name, "seconds above 0")
        return seconds

    def choice(self, name: str, known: tuple[str, ...]) -> str | None:
        """An extra that is one of `known`, in any case."""
        value = (self.text(name) or "").upper()
        if value in known:
            return value
        if value:
            self._wrong(name, f"one of {', '.join(known)}")
        return None

    def mapping(self, name: str) -> dict[str, str]:
        """An extra that maps names of environment variables to text; may be given as JSON text."""
        value = _from_json(self._extra(name) or {})
        if isinstance(value, Mapping) and all(_is_variable(key) and isinstance(text, str) for key, text in value.items()):
            return dict(value)
        self._wrong(name, "a mapping of environment variables to text")
        return {}

    def refuse(self, text: str, why: str, remedy: str) -> None:
        """Note one more thing that is wrong; `text` must not contain a secret."""
        self._reasons.append(Reason("N03", f"connection {self.conn_id}: {text}.", why, remedy))

    def check(self) -> None:
        """Raise `Refused` with everything that was found."""
        if self._reasons:
            raise Refused("\n  ".join(str(reason) for reason in self._reasons), self._reasons)

    def _extra(self, name: str) -> Any:
        """Forms leave fields that nobody filled in empty."""
        value = self.extra.get(name)
        return None if value == "" else value

    def _wrong(self, name: str, expected: str) -> None:
        self.refuse(f"{name} has a wrong value", f"Expected {expected}.", f"Correct {name} in the connection's extra.")

    def _parsed_extra(self) -> Mapping[str, Any]:
        extra = _from_json(self._connection.get("extra") or {})
        if isinstance(extra, Mapping):
            return extra
        self.refuse("extra is no JSON object", "kmigrate reads its settings from it.", "Write extra as a JSON object.")
        return {}

    def _check_type(self, wanted: str) -> None:
        found = (self.field("conn_type") or "").replace("-", "_")
        if found != wanted:
            text = f"its type is {found or 'empty'}, not {wanted}"
            self.refuse(text, "Its fields mean something else.", f"Name a connection of type {wanted}.")
            self.check()

    def _check_names(self, known: tuple[str, ...]) -> None:
        for name in self.extra:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                remedy = f"Write {near[0]}." if near else f"Remove it; known are {', '.join(known)}."
                remedy = _INSTEAD.get(name, remedy)
                self.refuse(f"extra has the unknown key {name}", "A setting with a typo would silently not apply.", remedy)


def secrets_of(connection: Connection) -> tuple[str, ...]:
    """Everything in a connection that must never be shown, longest first, in each form in which a log could have it.

    Airflow masks extras by their names and knows neither `ssl.key.pem` nor `sasl.jaas.config`, nor the lines of a PEM text.
    """
    found: set[str] = set()
    password = connection.get("password")
    if isinstance(password, str) and password:
        found |= {*_forms(password), f"{connection.get('login') or ''}:{password}"}
    for value in _secret_values(_from_json(connection.get("extra") or {}), secret=False):
        found.update(_forms(value))
    return tuple(sorted(found, key=lambda secret: (-len(secret), secret)))


def _secret_values(value: object, *, secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _secret_values(inner, secret=secret or bool(_SECRET_NAME.search(str(key))))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _secret_values(inner, secret=secret)
    elif secret and isinstance(value, str | int) and not isinstance(value, bool):
        yield str(value)
        inner = _from_json(value)
        if isinstance(inner, Mapping | list):
            yield from _secret_values(inner, secret=True)


def _forms(secret: str) -> Iterator[str]:
    """A secret as it is, as JSON or repr would escape it, line by line, and the quoted parts of a JAAS line."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield from _QUOTED.findall(secret)
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _SHORTEST_LINE and not line.startswith("-----"))


def _from_json(value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _is_variable(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None
