"""What no text of kmigrate shows: the secrets of all connections that this process has read, and what others' words call a secret.

Airflow masks its logs. An error's text also goes into journals, XComs, ZooKeeper and the terminal of a command, and may quote others: a
command's last words, the answer of a webhook or of a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_SHORTEST: Final = 8  # a shorter one is a part of other words
_MASK: Final = "***"
_hidden: dict[
    str, None
] = {}  # of the process, as Airflow's own masks; only grows, so that no thread undoes what another one adds


def hide_values(values: Iterable[str]) -> None:
    """Mask these from now on."""
    for value in values:
        if len(value) >= _SHORTEST:
            _hidden[value] = None


def mask(text: str) -> str:
    """The text with each hidden value masked."""
    return _mask(text, _list_hidden())


def mask_all(value: Any) -> Any:
    """A JSON value with each of its texts masked; keys stay."""
    return _mask_all(value, _list_hidden())


def _list_hidden() -> list[str]:
    """Longest first: one may be a part of another."""
    return sorted([*_hidden], key=lambda value: (-len(value), value))


def _mask(text: str, hidden: Sequence[str]) -> str:
    for value in hidden:
        if value in text:
            text = text.replace(value, _MASK)
    return text


def _mask_all(value: Any, hidden: Sequence[str]) -> Any:
    if isinstance(value, str):
        return _mask(value, hidden)
    if isinstance(value, Mapping):
        return {key: _mask_all(inner, hidden) for key, inner in value.items()}
    return [_mask_all(inner, hidden) for inner in value] if isinstance(value, list | tuple) else value


_SECRET: Final = re.compile(
    r"""(?P<name>(?<![\w.\-])(?=[\w.\-]*?(?:password|passwd|passphrase|secret|token|jaas\.config|\.key\b|credential|(?:api|access|account)[-_.]?key))[\w.\-]+["']?\s*[=:]\s*)(?P<value>"[^"]*"|'[^']*'|[^\s,;}\]]+)""",
    re.IGNORECASE,
)
_AUTHORIZATION: Final = re.compile(
    r"""(\bauthorization["']?\s*[=:]\s*["']?(?:(?:basic|bearer|digest|negotiate|token)\s+)?)[^\s"',;}\]]+""", re.IGNORECASE
)
_PEM: Final = re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|$)", re.DOTALL)
_LOGIN: Final = re.compile(r"""(://)[^/\s:@"']*:[^/\s"']+@""")
_OPTION: Final = re.compile(  # of a command that a shell has repeated
    r"""(\s(?:--[\w-]*(?:passw|passphrase|secret|token|api-?key)[\w-]*\s+|(?:-u|--user)\s+[^\s:]+:))(?:"[^"]*"|'[^']*'|\S+)""",
    re.IGNORECASE,
)


def mask_words(text: str) -> str:
    """Words of others without what looks like a secret, and without the secrets of connections.

    To be cut only then: of a secret that is cut in the middle a piece would stay.
    """
    return mask_secrets(mask(text))


def mask_secrets(text: str) -> str:
    """The text without what looks like a secret: values of passwords, keys and logins, what is in PEM, users of URLs."""
    text = _OPTION.sub(r"\1***", _AUTHORIZATION.sub(r"\1***", _PEM.sub("***", text)))
    return _LOGIN.sub(r"\1***@", _SECRET.sub(r"\g<name>***", text))
