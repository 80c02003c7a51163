"""JAAS files, as an agent shows them: without comments, and without the values of options that may be secret."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Each begins where a name does, and a section ends before the next brace: a file of any shape is read in linear time.
_SECTION = re.compile(r"""(?<![\w.$-])([\w.$-]+)"?\s*\{((?:"(?:\\.|[^"\\])*"|'[^'\n]*'|[^{}"'])*)\}\s*;""")
_MODULE = re.compile(r"(?<![\w.$-])([\w.$-]+)\s+(?:required|requisite|sufficient|optional)\b", re.IGNORECASE)
#: SASL mechanism -> the last part of its login module's name: Kafka's own (`ScramLoginModule`), and those of a Java for Kerberos.
_MODULES: Mapping[str, str] = {
    "GSSAPI": "Krb5LoginModule",
    "PLAIN": "PlainLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
}


def read_login_modules(text: str) -> dict[str, tuple[str, ...]]:
    """Section of a JAAS file -> the classes of its login modules."""
    return {name: tuple(_MODULE.findall(body)) for name, body in _SECTION.findall(text)}


def find_login_section(sections: Mapping[str, tuple[str, ...]], listener: str) -> str | None:
    """The section that a server takes for its listener; None if there is none (JaasContext.loadServerContext)."""
    return next((name for name in (f"{listener.lower()}.KafkaServer", "KafkaServer") if name in sections), None)


def may_serve(modules: tuple[str, ...], mechanism: str) -> bool:
    """False if none of a section's login modules is this mechanism's, and all are known ones of others."""
    needed, names = _MODULES.get(mechanism.upper()), [module.rpartition(".")[2] for module in modules]
    return needed is None or needed in names or not set(names) <= set(_MODULES.values())
