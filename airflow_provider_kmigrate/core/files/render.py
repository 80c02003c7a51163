"""Properties files of every stage, always rendered from a broker's original file, so that each can be made again at any time.

Rendered files are never a source. What a stage adds, such as the policy's faster failover, is gone in the next one, and a
rollback restores the original, byte for byte. Controllers inherit from a broker's original what the table of
`core.files.config_matrix` says: the inter-broker listener with its security, ZooKeeper's address and identity, the authorizer,
shared secrets, and the defaults for new topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.files.config_matrix import (
    AUTHORIZERS,
    FileStage,
    Rule,
    forbidden,
    inter_broker_listener,
    is_original,
    node_id,
    problems,
    references,
    rule,
    setting,
)
from airflow_provider_kmigrate.core.files.properties import edit, parse
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused

FAST_FAILOVER: Mapping[FileStage, Mapping[str, str]] = {
    FileStage.MIGRATION: {
        "replica.fetch.backoff.ms": "50",
        "replica.fetch.wait.max.ms": "50",
        "broker.heartbeat.interval.ms": "250",
        "auto.leader.rebalance.enable": "false",
    },
    # Kept in the KRaft file: the second roll's stops need it too. To restore the defaults, remove them in any later roll.
    FileStage.KRAFT: {
        "replica.fetch.backoff.ms": "50",
        "replica.fetch.wait.max.ms": "50",
        "broker.heartbeat.interval.ms": "250",
    },
    FileStage.CONTROLLER_MIGRATION: {"auto.leader.rebalance.enable": "false"},
}
"""What policy `fast_failover` adds in which stage (measured). Controllers balance leaders themselves once they own the cluster."""

_HEADER = "# Rendered by kmigrate from a broker's server.properties.\n"
_DEFAULT_PROTOCOLS = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"


@dataclass(frozen=True, slots=True)
class RenderFacts:
    """What rendering needs beside the original: from the cluster file, and the metadata version that brokers and controllers share.

    A broker whose file names no inter.broker.protocol.version runs with its software's latest: read that from the running broker.
    """

    voters: str
    metadata_version: str
    controller_listener: str = "CONTROLLER"
    controller_security: str = "PLAINTEXT"
    controller_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    fast_failover: bool = False

    @property
    def listener(self) -> str:
        """The controllers' listener in upper case: Kafka does that to `listeners`, but not to `controller.listener.names`."""
        return self.controller_listener.upper()

    @classmethod
    def of(cls, spec: ClusterSpec, metadata_version: str) -> Self:
        """The facts from the cluster file and the metadata version that the brokers run."""
        return cls(
            spec.voters,
            metadata_version,
            spec.controller_listener,
            spec.controller_security,
            spec.controller_properties,
            spec.policy.fast_failover,
        )


def broker_properties(original: str, stage: FileStage, facts: RenderFacts) -> str:
    """A broker's file for a stage; for ZOOKEEPER the original itself. Other keys, comments and order stay as they are.

    Raises `Refused` if `original` is not one or cannot become another stage (`config_matrix.problems`), ValueError for a
    controller's stage. ZOOKEEPER, the rollback, is possible for every original, whatever else is wrong with it.
    """
    if stage.of_controller:
        raise ValueError(f"{stage} is no stage of a broker")
    properties = parse(original)
    if stage is FileStage.ZOOKEEPER and is_original(properties):
        return original
    _check(properties, facts)
    assign = {**_of_broker(properties, stage, facts), **_shared(properties, stage, facts)}
    text = edit(original, assign, [key for key in properties if forbidden(key, stage) and key not in assign])
    _refuse(problems(parse(text), stage, controller_listener=facts.listener))
    return text


def controller_properties(original: str, node: NodeSpec, stage: FileStage, facts: RenderFacts) -> str:
    """A controller's file, from the original of any broker. `controller_properties` of the cluster file add to it.

    Those replace what is inherited, and `listeners` and the directories, but no other key that the table requires or excludes: a
    migration flag of false would finalize. Raises as `broker_properties`, and `Refused` if the cluster file names no directory.
    """
    if not stage.of_controller:
        raise ValueError(f"{stage} is no stage of a controller")
    properties = parse(original)
    _check(properties, facts)
    text = edit(_HEADER, controller_keys(properties, node, stage, facts))
    _refuse(problems(parse(text), stage, controller_listener=facts.listener))
    return text


def controller_keys(properties: Mapping[str, str], node: NodeSpec, stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    """What a controller's file would hold: `controller_properties` without its checks."""
    keys = {
        **_of_controller(properties, node, stage, facts),
        **_inherited(properties, stage, facts),
        **_shared(properties, stage, facts),
        **_extra(stage, facts),
    }
    return {**keys, **_enabled(keys, facts)}


def with_controllers(properties: Mapping[str, str], stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    """A broker's original with a stage's keys about the controllers, without checks; no key is removed."""
    return {**properties, **_shared(properties, stage, facts)}


def _check(properties: Mapping[str, str], facts: RenderFacts) -> None:
    version, listener = facts.metadata_version, facts.listener
    _refuse(problems(properties, FileStage.ZOOKEEPER, metadata_version=version, controller_listener=listener))


def _refuse(reasons: tuple[Reason, ...]) -> None:
    if reasons:
        raise Refused("; ".join(map(str, reasons)), reasons)


def _shared(properties: Mapping[str, str], stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    """The keys that brokers and controllers share once there are controllers."""
    return {
        "controller.quorum.voters": facts.voters,
        "controller.listener.names": facts.listener,
        "listener.security.protocol.map": _protocol_map(properties, facts),
        **_controller_security(properties, facts),
        **_authorizer(properties, stage),
        **(FAST_FAILOVER.get(stage, {}) if facts.fast_failover else {}),
    }


def _of_broker(properties: Mapping[str, str], stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    if stage is FileStage.KRAFT:
        return {"process.roles": "broker", "node.id": str(node_id(properties))}
    protocol = setting(properties, "inter.broker.protocol.version") or facts.metadata_version
    return {"zookeeper.metadata.migration.enable": "true", "inter.broker.protocol.version": protocol}


def _of_controller(properties: Mapping[str, str], node: NodeSpec, stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    extra = facts.controller_properties
    directory = extra.get("metadata.log.dir") or node.log_dir or ""
    keys = {
        "process.roles": "controller",
        "node.id": str(node.id),
        "listeners": extra.get("listeners") or f"{facts.listener}://{node.endpoint}",
        "inter.broker.listener.name": inter_broker_listener(properties),
        "metadata.log.dir": directory,
        "log.dirs": extra.get("log.dirs") or directory,  # its default, /tmp/kafka-logs, would be formatted too
    }
    if stage is FileStage.CONTROLLER_MIGRATION:
        keys["zookeeper.connect"] = properties["zookeeper.connect"]
        keys["zookeeper.metadata.migration.enable"] = "true"
    return keys


def _inherited(properties: Mapping[str, str], stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    """What a controller inherits; also a broker's keys for the controllers' listener, which the controllers open."""
    inter_broker, own = inter_broker_listener(properties), _prefix(facts.listener)
    return {key: value for key, value in properties.items() if key.startswith(own) or rule(key, stage, inter_broker) is Rule.SAME}


def _extra(stage: FileStage, facts: RenderFacts) -> dict[str, str]:
    return {
        key: value
        for key, value in facts.controller_properties.items()
        if rule(key, stage) is not Rule.REQUIRED and not forbidden(key, stage)
    }


def _protocol_map(properties: Mapping[str, str], facts: RenderFacts) -> str:
    """The broker's map, or Kafka's default, with the controllers' listener; Kafka compares that name in upper case."""
    entries = (setting(properties, "listener.security.protocol.map") or _DEFAULT_PROTOCOLS).split(",")
    names = {"", facts.listener}  # Java drops what a comma at the end leaves over; in the middle no broker starts with it
    others = [entry.strip() for entry in entries if entry.split(":")[0].strip().upper() not in names]
    return ",".join([*others, f"{facts.listener}:{facts.controller_security}"])


def _controller_security(properties: Mapping[str, str], facts: RenderFacts) -> dict[str, str]:
    """The controllers' listener has the identity and trust of the inter-broker one, unless the file says otherwise already."""
    if facts.controller_security == "PLAINTEXT":
        return {}
    theirs, ours = _prefix(inter_broker_listener(properties)), _prefix(facts.listener)
    keys = {ours + key.removeprefix(theirs): value for key, value in properties.items() if key.startswith(theirs)}
    if facts.controller_security.startswith("SASL"):
        mechanism = setting(facts.controller_properties, "sasl.mechanism.controller.protocol")
        inter_broker = setting(properties, "sasl.mechanism.inter.broker.protocol")
        keys["sasl.mechanism.controller.protocol"] = mechanism or inter_broker or "GSSAPI"
    return {key: value for key, value in keys.items() if key not in properties}


def _enabled(keys: Mapping[str, str], facts: RenderFacts) -> dict[str, str]:
    """The mechanism by which nodes log in on the controllers' listener, if that does not have it enabled."""
    own = f"{_prefix(facts.listener)}sasl.enabled.mechanisms"
    if not facts.controller_security.startswith("SASL") or own in facts.controller_properties:
        return {}
    enabled = setting(keys, own) or setting(keys, "sasl.enabled.mechanisms") or "GSSAPI"
    mechanism = keys["sasl.mechanism.controller.protocol"]
    taken = references(enabled) or mechanism in {name.strip() for name in enabled.split(",")}
    return {} if taken else {own: mechanism}


def _prefix(listener: str) -> str:
    return f"listener.name.{listener.lower()}."


def _authorizer(properties: Mapping[str, str], stage: FileStage) -> dict[str, str]:
    name = setting(properties, "authorizer.class.name")
    if name not in AUTHORIZERS or stage in {FileStage.ZOOKEEPER, FileStage.MIGRATION}:
        return {}
    return {"authorizer.class.name": AUTHORIZERS[name]}
