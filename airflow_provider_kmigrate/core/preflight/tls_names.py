"""The name of a broker at a TLS listener that asks for certificates: its certificate's subject, by the listener's rules.

A broker shows the certificate of its own key store both as a server and as a client. What it shows kmigrate is what it shows other nodes
if the two listeners have the same key store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import (
    inter_broker_listener,
    read_listener_setting,
    read_setting,
)
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts

Keys = Mapping[str, str]

_STORE: Final = ("ssl.keystore.location", "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.engine.factory.class")
_DYNAMIC: Final = re.compile(r"(?:^|\.)ssl\.keystore\.")
#: As SslPrincipalMapper takes a rule, and where one ends.
_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_OF_JAVA: Final = re.compile(
    r"\\[pPQEXRhHvVGzk]|\(\?<[^=!]|&&|\(\?[a-zA-Z-]+|\[[^\]]*\["
)  # what Python's expressions read otherwise, or not at all
_GROUP: Final = re.compile(r"\\(.)|\$(\d)")


def find_subject(facts: PreflightFacts, node: NodeSpec, file: Keys, keys: Keys, listener: str) -> str | None:
    """The subject of the certificate that a broker with the keys `keys` shows as a client of others at `listener`; None if it is not known.

    `file`: the broker's present one.
    """
    certificate, asked = facts.environment.certificates.get(node.id), _find_listener(file, node.port)
    settings = facts.broker_settings
    dynamic = any(
        _DYNAMIC.search(key) for entity, names in settings.items() if entity in {str(node.id), "<default>"} for key in names
    )
    if certificate is None or asked is None or dynamic:
        return None
    same = all(read_listener_setting(file, asked, key) == read_listener_setting(keys, listener, key) for key in _STORE)
    return certificate.name if same else None


def _find_listener(file: Keys, port: int) -> str | None:
    """The listener that clients reach at this port; None if the file does not show one alone."""
    for key in ("advertised.listeners", "listeners"):
        entries = (entry.strip().partition("://") for entry in (read_setting(file, key) or "").split(","))
        found = [name.upper() for name, _, address in entries if address.rpartition(":")[2] == str(port)]
        if len(found) == 1:
            return found[0]
    has_none = read_setting(file, "listeners") is None and read_setting(file, "advertised.listeners") is None
    return inter_broker_listener(file) if has_none else None  # Kafka's default: one listener


def map_subject(subject: str, rules: str | None) -> str | None:
    """The name that `ssl.principal.mapping.rules` make of a subject; None if no rule takes it, or if it is not certain here what Kafka does."""
    for rule in _list_rules((rules or "DEFAULT").strip()):
        if rule is None:
            return None
        if rule[1]:
            return subject
        pattern = _compile(rule[2])
        if pattern is None or pattern.fullmatch(subject):
            return None if pattern is None else _replace(pattern, rule[3], subject, rule[4])
    return None


def _list_rules(text: str) -> Iterator[re.Match[str] | None]:
    """Each rule; None for what is no rule, and nothing after it."""
    place = 0
    while place < len(text):
        yield (rule := _RULE.match(text, place))
        place = rule.end() if rule else len(text)


def _compile(expression: str) -> re.Pattern[str] | None:
    """An expression that Java and Python read alike; None for any other."""
    try:
        return None if _OF_JAVA.search(expression) else re.compile(expression)
    except re.error:
        return None


def _replace(pattern: re.Pattern[str], replacement: str, subject: str, case: str) -> str | None:
    found = [int(number) for _, number in _GROUP.findall(replacement) if number]
    if any(number > pattern.groups for number in found):
        return None
    template = "".join(
        (f"\\g<{piece}>" if place % 3 == 2 else re.sub(r"\\", r"\\\\", piece))
        for place, piece in enumerate(_GROUP.split(replacement))
        if piece
    )
    name = pattern.sub(template, subject)
    return {"L": name.lower(), "U": name.upper()}.get(case, name)
