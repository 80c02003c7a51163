"""Files that kmigrate renders, judged by the real KafkaConfig of each release; a file that Kafka refuses as it is counts for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_kmigrate.core.cluster_state.spec import HostSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import STAGE_SECTIONS, FileStage, inter_broker_listener, read_setting
from airflow_provider_kmigrate.core.node_files.kafka_keys import DYNAMIC_ONLY, KafkaKey, kafka_rules
from airflow_provider_kmigrate.core.node_files.properties import (
    RenderFacts,
    edit_properties,
    parse_properties,
    render_broker_file,
    render_controller_file,
)
from airflow_provider_kmigrate.core.preflight.controllers import security_of
from airflow_provider_kmigrate.exceptions import Refused
from tests.kit.releases import refusals

METADATA_VERSIONS = {"3.6": "3.6-IV2", "3.7": "3.7-IV4", "3.8": "3.8-IV0", "3.9": "3.9-IV0"}
BASE = "broker.id=1\nzookeeper.connect=zk1:2181/kafka\nlog.dirs=/data\n"

_CONTROLLER = NodeSpec(
    3000, NodeRole.CONTROLLER, "ctl0", 9093, HostSpec("agent", "/etc/kafka/controller.properties"), log_dir="/kraft"
)


@dataclass(frozen=True, slots=True)
class Rendering:
    """One rendered file: `source` names the original, `security` the protocol of the controllers' listener."""

    source: str
    stage: FileStage
    security: str
    text: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one release says: originals that it takes, and those of them that kmigrate renders; renderings that it refuses, and why."""

    release: str
    taken: tuple[str, ...]
    rendered: tuple[Rendering, ...]
    unrendered: Mapping[str, str]
    refused: Mapping[Rendering, str]


def judge(
    release: str,
    originals: Mapping[str, str],
    by_stage: Mapping[str, Mapping[str, str]] | None = None,
    sections: Mapping[FileStage, Mapping[str, str]] | None = None,
) -> Judgement:
    """Render every stage of each original (name -> text) that this release takes, and ask it what it refuses.

    `by_stage`: the original's name -> keys that its cluster file sets below `stage_properties`, the same for every stage; the release must
    take the original with them. `sections`: those of all cluster files, each stage with its own.
    """
    readable = {name: parse_properties(text) | dict((by_stage or {}).get(name, {})) for name, text in originals.items()}
    answers = dict(zip(readable, refusals(release, readable.values()), strict=True))
    taken = [name for name, refusal in answers.items() if not refusal]
    rendered, unrendered = list[Rendering](), dict[str, str]()
    for name in taken:
        if release.startswith("3.6.") and "," in (read_setting(readable[name], "log.dirs") or ""):
            unrendered[name] = (
                "B1b: preflight blocks several log directories below 3.7-IV2, which this release refuses in a migration"
            )
            continue
        try:
            stage_keys = sections or dict.fromkeys(STAGE_SECTIONS.values(), (by_stage or {}).get(name, {}))
            rendered += _render(name, originals[name], release, stage_keys)
        except Refused as error:
            unrendered[name] = str(error)
    said = refusals(release, (parse_properties(rendering.text) for rendering in rendered))
    refused = {rendering: refusal for rendering, refusal in zip(rendered, said, strict=True) if refusal}
    return Judgement(release, tuple(taken), tuple(rendered), unrendered, refused)


def _render(name: str, original: str, release: str, by_stage: Mapping[FileStage, Mapping[str, str]]) -> Iterator[Rendering]:
    properties = parse_properties(original)
    version = read_setting(properties, "inter.broker.protocol.version") or METADATA_VERSIONS[release.rpartition(".")[0]]
    securities = sorted({"PLAINTEXT", security_of(properties, inter_broker_listener(properties))})
    for security in securities:
        facts = RenderFacts("3000@ctl0:9093", version, controller_security=security, stage_properties=by_stage)
        for stage in FileStage:
            text = (
                render_controller_file(original, _CONTROLLER, stage, facts)
                if stage.of_controller
                else render_broker_file(original, stage, facts)
            )
            yield Rendering(name, stage, security, text)


def one_key_each() -> dict[str, str]:
    """Name `<key> <value>` -> a broker's file with that key: of each key that a release with ZooKeeper defines another value, and the default."""
    rules = kafka_rules()
    keys = [key for key in rules.keys.values() if key.mode != DYNAMIC_ONLY and not key.releases.isdisjoint(rules.with_zookeeper)]
    rows = {(key.name, value) for key in keys for value in (_choose_value(key), key.default or "")}
    return {f"{name} {value}": edit_properties(BASE, {name: value, **_BESIDE.get(name, {})}) for name, value in sorted(rows)}


def one_key_by_stage() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """As `one_key_each`, but the key is in the cluster file for every stage, over an original with the default: originals, keys by stage."""
    rules = kafka_rules()
    names = [key for key in rules.keys.values() if key.mode != DYNAMIC_ONLY and not key.releases.isdisjoint(rules.with_zookeeper)]
    keys = {key.name: {key.name: _choose_value(key), **_BESIDE.get(key.name, {})} for key in names}
    return dict.fromkeys(keys, BASE), keys


def _choose_value(key: KafkaKey) -> str:
    """Not the default: a number one higher, the other truth value, any word."""
    default = key.default or ""
    if key.name in _VALUES:
        return _VALUES[key.name]
    match key.kind:
        case "int" | "long" | "short":
            return str(int(default or 0) + 1) if int(default or 0) < _LARGE else "1000"
        case "boolean":
            return "false" if default == "true" else "true"
        case "double":
            return default or "0.5"
        case "class":
            return "org.apache.kafka.common.metrics.JmxReporter"  # KafkaConfig loads it, and asks no more
        case _:
            return default or "word"


_LARGE = 2**31 - 1
#: Of keys whose meaning no type shows.
_VALUES = {
    "node.id": "1",
    "advertised.listeners": "PLAINTEXT://kafka1:9092",
    "listeners": "PLAINTEXT://kafka1:9092",
    "early.start.listeners": "PLAINTEXT",
    "control.plane.listener.name": "CP",
    "compression.gzip.level": "3",
    "inter.broker.listener.name": "PLAINTEXT",
    "inter.broker.protocol.version": "3.6",
    "log.message.format.version": "3.0",
    "security.inter.broker.protocol": "PLAINTEXT",
    "process.roles": "",
    "metric.reporters": "org.apache.kafka.common.metrics.JmxReporter",
    "controller.quorum.voters": "3000@ctl0:9093",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
    "zookeeper.metadata.migration.enable": "false",
    "max.connections.per.ip.overrides": "127.0.0.1:5",
    "log.message.timestamp.type": "LogAppendTime",
    "compression.type": "lz4",
    "log.cleanup.policy": "compact",
}
#: What a key needs beside it.
_BESIDE = {
    "control.plane.listener.name": {
        "listeners": "PLAINTEXT://kafka1:9092,CP://kafka1:9095",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CP:PLAINTEXT",
    },
}
