"""What Kafka itself knows of the keys of a server's file: `kafka_keys.json`, generated from the ConfigDef of each release.

A key that no release defines is read by a plug-in, or by nothing: its value may be a secret. Keys may be of one listener, and of one of
its SASL mechanisms: `listener.name.<listener>.<mechanism>.sasl.jaas.config`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

HIDDEN = "(not shown)"
DYNAMIC_ONLY = "dynamic-only"

_LISTENER = re.compile(r"listener\.name\.[^.]+\.")
_CLASS = re.compile(r"(?:[a-z_]\w*\.)+[A-Z][\w$]*")
_LOGIN_MODULE = re.compile(r"(?:^|;)\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b", re.IGNORECASE)
_WITH_USER, _WITH_PASSWORD = re.compile(r"://[^/\s]*@"), re.compile(r"://[^/\s:@]*:([^/\s]+)@")
_SHIPPED = (
    "org.apache.kafka.",
    "org.apache.zookeeper.",
    "kafka.",
    "java.",
    "javax.",
    "sun.",
    "com.sun.",
)  # Kafka's jars, and Java's own
_ENDING_PACKAGE = "org.apache.kafka.common.security.oauthbearer.secured."  # in 3.9 its public classes are one higher, too
_PLUGIN_PREFIXES = ("remote.log.storage.manager.impl.prefix", "remote.log.metadata.manager.impl.prefix")
_LOGIN = "sasl.jaas.config"


@dataclass(frozen=True, slots=True)
class KafkaKey:
    """A key as Kafka's releases define it; a fact that differs is that of the last release with ZooKeeper which has the key.

    `synonyms`: every name of the setting, the strongest first; empty if there is one name. `mode`: Kafka's word for who may set it
    dynamically, `read-only`, `per-broker` or `cluster-wide`; `dynamic-only`: no file may. `is_secret`: in any release.
    """

    name: str
    kind: str
    default: str | None
    mode: str
    is_secret: bool
    synonyms: tuple[str, ...]
    releases: frozenset[str]


@dataclass(frozen=True, slots=True)
class KafkaRules:
    """Kafka's own rules: its keys, the releases that were asked, topic settings with the servers' keys for their defaults.

    `topics`: setting -> (key, milliseconds or other units that 1 of it stands for), the strongest first. `prefixes`: of keys that Kafka
    reads and can't list.
    """

    keys: Mapping[str, KafkaKey]
    with_zookeeper: tuple[str, ...]
    later: tuple[str, ...]
    topics: Mapping[str, tuple[tuple[str, int], ...]]
    prefixes: tuple[str, ...]


@cache
def kafka_rules() -> KafkaRules:
    """The rules from the package's data; read once, when they are first asked for."""
    data = json.loads(files(__package__).joinpath("kafka_keys.json").read_text(encoding="utf-8"))
    with_zookeeper, later = tuple(data["with_zookeeper"]), tuple(data["later"])
    return KafkaRules(
        {name: _parse_key(name, variants, with_zookeeper, later) for name, variants in data["keys"].items()},
        with_zookeeper,
        later,
        {topic: tuple((key, factor) for key, factor in keys) for topic, keys in data["topics"].items()},
        tuple(data["prefixes"]),
    )


def _parse_key(name: str, variants: list[Mapping[str, Any]], with_zookeeper: tuple[str, ...], later: tuple[str, ...]) -> KafkaKey:
    releases = [(variant, set(variant.get("in", (*with_zookeeper, *later)))) for variant in variants]
    facts = next((variant for variant, found in reversed(releases) if found & {*with_zookeeper}), variants[0])
    return KafkaKey(
        name,
        facts["type"],
        facts.get("default"),
        facts.get("mode", "read-only"),
        any(variant.get("secret", False) for variant in variants),
        tuple(facts.get("synonyms", ())),
        frozenset().union(*(found for _, found in releases)),
    )


def find_key(key: str) -> KafkaKey | None:
    """Kafka's definition of a key, that of one listener or mechanism included; None if no release has one."""
    keys = kafka_rules().keys
    if (definition := keys.get(key)) is not None:
        return definition
    rest = _LISTENER.sub("", key, count=1) if _LISTENER.match(key) else ""
    return keys.get(rest) or keys.get(rest.partition(".")[2])


def is_inheritable(key: str) -> bool:
    """Whether a release with ZooKeeper defines the key, or Kafka's own code reads what has its prefix."""
    rules = kafka_rules()
    definition = find_key(key)
    if definition is None:
        return key.startswith(rules.prefixes)
    return definition.mode != DYNAMIC_ONLY and not definition.releases.isdisjoint(rules.with_zookeeper)


def find_unknown_keys(properties: Mapping[str, str]) -> list[str]:
    """The keys of a file that no code of Kafka's reads, sorted; those of a remote storage's plug-in have a prefix of their own."""
    of_plugins = tuple(properties.get(name, "").strip() or kafka_rules().keys[name].default or "" for name in _PLUGIN_PREFIXES)
    return sorted(
        key
        for key in properties
        if not is_inheritable(key) and not any(prefix and key.startswith(prefix) for prefix in of_plugins)
    )


def find_ending_keys(properties: Mapping[str, str]) -> list[str]:
    """The keys of a file that releases with ZooKeeper have and the newest release has no more, sorted."""
    newest = kafka_rules().later[-1]
    definitions = {key: find_key(key) for key in properties}
    return sorted(key for key, definition in definitions.items() if definition is not None and newest not in definition.releases)


def find_ending_topic_settings(names: Iterable[str]) -> list[str]:
    """The settings of a topic that releases with ZooKeeper have and the newest release has no more, sorted."""
    rules = kafka_rules()
    newest = rules.later[-1]
    defaults = {name: [rules.keys[key] for key, _ in rules.topics.get(name, ())] for name in names}
    return sorted(name for name, keys in defaults.items() if keys and all(newest not in key.releases for key in keys))


def find_ending_classes(properties: Mapping[str, str]) -> dict[str, str]:
    """Key -> a class of Kafka's that releases with ZooKeeper have and the newest one has no more."""
    named = {key: name for key, value in properties.items() for name in _list_classes(key, value)}
    return {key: name for key, name in sorted(named.items()) if name.startswith(_ENDING_PACKAGE)}


def find_strongest_name(key: str) -> tuple[str, int]:
    """The name that wins over a key and its synonyms, with the factor between their units: `log.roll.hours` is 3,600,000 `log.roll.ms`."""
    definition = kafka_rules().keys.get(key)
    if definition is None or not definition.synonyms:
        return key, 1
    factors = {name: factor for keys in kafka_rules().topics.values() for name, factor in keys}
    strongest = definition.synonyms[0]
    return strongest, factors.get(key, 1) // factors.get(strongest, 1)


def is_secret(key: str) -> bool:
    """Whether the value of a key may be a secret: a password to any release, or a key that no release defines."""
    definition = find_key(key)
    return definition is None or definition.is_secret


def visible_value(key: str, value: str) -> str:
    """The value, if it may be shown; `HIDDEN` in place of a secret, and of a URL with a user in it."""
    return HIDDEN if is_secret(key) or has_url_user(value) else value


def has_url_user(text: str) -> bool:
    """Whether there is a user, perhaps with a password, in a URL."""
    return _WITH_USER.search(text) is not None


def list_url_passwords(text: str) -> list[str]:
    """The password of each user in a URL."""
    return _WITH_PASSWORD.findall(text)


def list_foreign_classes(properties: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Key -> classes that neither Kafka's jars nor Java have, as far as the values name them; login modules of JAAS too."""
    foreign = {
        key: tuple(name for name in _list_classes(key, value) if not name.startswith(_SHIPPED))
        for key, value in properties.items()
    }
    return {key: names for key, names in sorted(foreign.items()) if names}


def _list_classes(key: str, value: str) -> Iterator[str]:
    definition = find_key(key)
    if key.endswith(_LOGIN):
        yield from filter(_CLASS.fullmatch, _LOGIN_MODULE.findall(value))
    elif definition is not None and definition.kind == "class" and value.strip():
        yield value.strip()
    elif definition is None or not definition.is_secret:
        yield from (name for name in (part.strip() for part in value.split(",")) if _CLASS.fullmatch(name))
