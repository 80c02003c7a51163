"""Preflight's checks of what must be one thing in the whole cluster: in all brokers' settings, and in files and dynamic settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from airflow_provider_kmigrate.core.files.config_matrix import inter_broker_listener, setting
from airflow_provider_kmigrate.core.findings.finding import PreflightFinding, blocks, warns
from airflow_provider_kmigrate.core.listing import summarize
from airflow_provider_kmigrate.core.model import ClusterView
from airflow_provider_kmigrate.core.preflight.facts import Check, PreflightFacts, zookeeper_configs, zookeeper_files
from airflow_provider_kmigrate.core.preflight.principals import security_of
from airflow_provider_kmigrate.core.preflight.surroundings import DEFAULT

#: How nodes reach each other, and whether records may be given up.
_MECHANISM = "sasl.mechanism.inter.broker.protocol"
_SAME = ("principal.builder.class", "unclean.leader.election.enable")
#: Who may do what: no broker tells it, since Kafka leaves these keys to its authorizer.
_AUTHORIZER = "authorizer.class.name"
_SAME_IN_FILES = {
    "super.users": "",
    "allow.everyone.if.no.acl.found": "false",
}  # with what the authorizer takes where there is none
#: What a controller decides with.
_SAME_AT_BEST = (
    "num.partitions",
    "default.replication.factor",
    "min.insync.replicas",
    "auto.leader.rebalance.enable",
    "leader.imbalance.check.interval.seconds",
    "leader.imbalance.per.broker.percentage",
    "delete.topic.enable",
    "remote.log.storage.system.enable",
    "controller.quota.window.num",
    "controller.quota.window.size.seconds",
)
#: Settings of listeners with which a process must begin: in KRaft mode dynamic ones come from the log, after the sockets are there.
_MAP = "listener.security.protocol.map"
_LISTENERS = ("listeners", "advertised.listeners", _MAP)
_LISTENER = re.compile(r"(?:listener\.name\.[^.]+\.)?(?:.+\.)?(?:ssl\.(?:keystore|truststore)\..*|ssl\.key\.password|sasl\..*)")

_OF_ONE_LISTENER = re.compile(r"^listener\.name\.[^.]+\.(?=ssl\.)")


def must_be_static(key: str) -> bool:
    """Whether a listener must have this setting when its node starts."""
    return key in _LISTENERS or _LISTENER.fullmatch(key) is not None


def _agree(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    configs, ours = zookeeper_configs(facts), facts.spec.controller_properties
    listeners = {inter_broker_listener(config).upper() for config in configs.values()}
    differ = ["inter.broker.listener.name"] if len(listeners) > 1 else []
    secured = any(security_of(config, inter_broker_listener(config)).startswith("SASL") for config in configs.values())
    differ += [key for key in (*_SAME, *([_MECHANISM] if secured else [])) if len(_told(configs, key)) > 1]
    files = [file for file in zookeeper_files(view).values() if setting(file, _AUTHORIZER)]
    differ += [
        key for key, default in _SAME_IN_FILES.items() if len({_spelled(setting(file, key) or default) for file in files}) > 1
    ]
    if differ:
        yield blocks("B18", f"brokers differ in {summarize(differ)}")
    lesser = {key: _told(configs, key) for key in _SAME_AT_BEST if key not in ours}
    if differing := [f"{key} ({' and '.join(sorted(found))})" for key, found in lesser.items() if len(found) > 1]:
        yield warns("B18", f"brokers differ in {summarize(differing)}")


def _told(configs: Mapping[int, Mapping[str, str]], key: str) -> set[str]:
    """What brokers have for a key, in one spelling; those that do not tell it do not count."""
    return {_spelled(config[key]) for config in configs.values() if key in config}


def _spelled(value: str) -> str:
    text = ";".join(sorted(part.strip() for part in value.split(";") if part.strip()))
    return text.lower() if text.lower() in {"true", "false"} else text


def _dynamic(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Where the file has a key too, the node starts with that, and the dynamic value comes as any change of it would."""
    tree = facts.around.tree
    only: list[str] = []
    for entity, keys in sorted((tree.broker_settings if tree else {}).items()):
        concerned = {broker: file for broker, file in zookeeper_files(view).items() if entity in {DEFAULT, str(broker)}}
        for broker, file in concerned.items():
            lacking = [
                key for key in keys if must_be_static(key) and not _starts_with(file, key, facts.configs.get(broker) or {})
            ]
            only += [f"broker {broker} {key}" for key in lacking]
    if only:
        yield blocks("B16", f"settings of listeners that brokers have only dynamically: {summarize(only)}")


def _starts_with(file: Mapping[str, str], key: str, in_force: Mapping[str, str]) -> bool:
    """Whether a listener is there with this file alone; a dynamic map of protocols hides the controllers' listener from it.

    Kafka takes the key without the listener's name where there is no other. For keystores that is enough, they are exchanged while the
    listener runs; logins and mechanisms are not, and a login without the name does not count.
    """
    if key in _LISTENERS:
        return key != _MAP and setting(file, key) == setting(in_force, key)
    return any(setting(file, name) is not None for name in (key, _OF_ONE_LISTENER.sub("", key)))


SAME_VALUE_CHECKS: tuple[Check, ...] = (_agree, _dynamic)
