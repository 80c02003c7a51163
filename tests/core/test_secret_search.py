"""A secret is found in whatever spelling a file has it, and words are none."""

from __future__ import annotations

import html
import json
import textwrap
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from airflow_provider_kmigrate.core.monitoring.secret_search import find_secrets

SECRETS = (
    "hunter22-canary",
    'pa"ss\\word',
    "p\u00e4ssw\u00f6rt",
    "pass&word<1>",
    "with space+plus/%41",
    "a\\nb\U0001f511c",
    "ends+==",
)
SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": json.dumps,
    "JSON with letters": lambda secret: json.dumps(secret, ensure_ascii=False),
    "JSON in JSON": lambda secret: json.dumps(json.dumps({"x": secret})),
    "a page": html.escape,
    "numbered signs": lambda secret: "".join(f"&#{ord(sign)};" for sign in secret),
    "numbered in hex": lambda secret: "".join(f"&#x{ord(sign):X};" for sign in secret),
    "a URL": lambda secret: quote(secret, safe=""),
    "a form": quote_plus,
    "all of it as in a URL": lambda secret: "".join(f"%{byte:02x}" for byte in secret.encode()),
    "a URL in JSON on a page": lambda secret: html.escape(json.dumps(quote(secret))),
    "repr": repr,
    "\\u": lambda secret: json.dumps("".join(secret)).strip('"').replace("h", "\\u0068"),
    "hex": lambda secret: secret.encode().hex(),
    "HEX": lambda secret: secret.encode().hex().upper(),
    "hex with colons": lambda secret: secret.encode().hex(":"),
    "base64": lambda secret: b64encode(secret.encode()).decode(),
    "base64 for URLs": lambda secret: urlsafe_b64encode(secret.encode()).decode().rstrip("="),
    "a header for basic authentication": lambda secret: "Basic " + b64encode(f"kmigrate:{secret}".encode()).decode(),
    "base64 one byte later": lambda secret: b64encode(f"x{secret}y".encode()).decode(),
    "base64 two bytes later": lambda secret: b64encode(f"xx{secret}yy".encode()).decode(),
    "base64 in lines": lambda secret: "\n".join(textwrap.wrap(b64encode(f"kmigrate:{secret}".encode()).decode(), 7)),
    "base64 in lines of JSON": lambda secret: json.dumps("\r\n".join(textwrap.wrap(b64encode(secret.encode()).decode(), 5))),
    "cut over two lines": lambda secret: f"{secret[:4]}\n    {secret[4:]}" if len(secret) > 10 else secret,
    "a continued line of a properties file": lambda secret: f"{secret[:4]}\\\n  {secret[4:]}" if len(secret) > 10 else secret,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_found_in_each_spelling(secret: str, spelling: str) -> None:
    text = f'{{"text": "before {SPELLINGS[spelling](secret)} after"}}'
    leaks = find_secrets({"a.txt": text.encode(), "b.txt": b""}, {"connection prod_kafka": (secret,)})
    assert leaks == ["File a.txt holds a secret of connection prod_kafka."], text


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("abc", "abc"),  # a word
        ("other-secret", "password hunter22"),
        ("admin", "it had minutes, and read\nminutes"),  # cut words are looked for in long secrets alone
        ("&#1;&#2;", "none of this is one"),  # without escapes nothing is left of it
        ("?~?~?", "broker-9P34"),  # a part of its base64 is `9+P34/`, of which four letters are left without its signs
        ("kafka0", '{"hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}'),
    ],
)
def test_what_is_no_secret_is_not_found(secret: str, text: str) -> None:
    assert find_secrets({"a.txt": text.encode()}, {"connection kafka": (secret,)}) == []


@pytest.mark.parametrize("kind", ["", "RSA ", "ENCRYPTED "])
def test_a_private_key_that_no_connection_names_is_found(kind: str) -> None:
    text = json.dumps(f"-----BEGIN {kind}PRIVATE KEY-----\nMII")
    assert find_secrets({"a.json": text.encode()}, {}) == ["File a.json holds a private key."]
    assert find_secrets({"a.json": b"-----BEGIN CERTIFICATE-----"}, {}) == []
