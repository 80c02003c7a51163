"""Search files for secrets, also as JSON, a page, a URL, `repr`, hex or base64 spell them, and over the end of a line.

Not found: what is compressed, encrypted or in another charset than UTF-8, and a secret in pieces with other text between them.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from functools import lru_cache
from html import unescape
from typing import Final

_SHORTEST: Final = 4
_SHORTEST_CUT: Final = 8
"""Of a secret that is looked for without spaces and ends of lines: `admin` is in `read minutes`."""
_SHORTEST_BASE64: Final = 6
_MOST_LAYERS: Final = 6
_ESCAPED: Final = re.compile(r"""(?:\\(?:u[0-9A-Fa-f]{4}|["\\/bfnrt]))+""")
_ESCAPED_BYTE: Final = re.compile(r"\\x([0-9A-Fa-f]{2})")
_ESCAPED_SIGN: Final = re.compile(r"\\([^\w\s])")
_PERCENT: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_BETWEEN: Final = b" \t\r\n\\+/_:-"  # with what base64 and hex write for signs and between bytes
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")


def find_secrets(files: Mapping[str, bytes], secrets: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Which files hold a secret of what, a sentence each. `secrets`: what they are of -> its values; those of fewer than four signs are words."""
    wanted = {owner: [_Secret(value) for value in values if len(value) >= _SHORTEST] for owner, values in sorted(secrets.items())}
    found = []
    for path, content in sorted(files.items()):
        decoded = _decode(content.decode(errors="replace"))
        texts = content, decoded.encode(errors="replace"), _join(decoded)
        if _PRIVATE_KEY.search(decoded):
            found.append(f"File {path} holds a private key.")
        found += [
            f"File {path} holds a secret of {owner}."
            for owner, values in wanted.items()
            if any(secret.is_in(*texts) for secret in values)
        ]
    return found


class _Secret:
    """One value, in the forms in which it is looked for: as it is, without escapes, and also without spaces and ends of lines."""

    def __init__(self, value: str) -> None:
        decoded = _decode(value)
        decoded = decoded if len(decoded) >= _SHORTEST else value
        self._plain, self._decoded = value.encode(errors="replace"), decoded.encode(errors="replace")
        joined = _join(decoded)
        self._joined = {joined} if len(joined) >= _SHORTEST_CUT else set()
        encoded = (_join(form) for form in _list_encoded(self._plain))
        self._joined |= {
            form for form in encoded if len(form) >= _SHORTEST_BASE64
        }  # its signs are gone: few letters are in every text

    def is_in(self, plain: bytes, decoded: bytes, joined: bytes) -> bool:
        """Whether a text contains the secret: as it is, with its escapes decoded, or without spaces and ends of lines."""
        return self._plain in plain or self._decoded in decoded or any(form in joined for form in self._joined)


def _join(text: str) -> bytes:
    return text.encode(errors="replace").translate(None, _BETWEEN)


def _list_encoded(value: bytes) -> Iterator[str]:
    """As hex, and as base64 of it alone or within more: there it stands in one of three ways, each without its ends."""
    yield value.hex()
    yield value.hex().upper()
    for before in range(3):
        bits_before, bits = 8 * before, 8 * (before + len(value))
        text = b64encode(bytes(before) + value + bytes(2)).decode()
        yield text[-(-bits_before // 6) : bits // 6]


@lru_cache(1024)
def _read_escapes(escapes: str) -> str:
    return str(json.loads(f'"{escapes}"'))


def _decode(text: str) -> str:
    """Without the escapes of JSON, `repr`, HTML and URLs, one within another too."""
    for _ in range(_MOST_LAYERS):
        once = _ESCAPED.sub(lambda match: _read_escapes(match[0]), text)
        once = _ESCAPED_BYTE.sub(lambda match: chr(int(match[1], 16)), once)
        once = _PERCENT.sub(lambda match: bytes.fromhex(match[0].replace("%", "")).decode(errors="replace"), once)
        once = unescape(_ESCAPED_SIGN.sub(r"\1", once))
        if once == text:
            break
        text = once
    return text
