"""What preflight, or a scan of groups, found: one finding a line, with its severity; `core.reasons` explains the codes.

What other steps check too has the same code here, such as G21. W codes never block; B codes block, warn or are not known.

`PreflightFacts` is what preflight is given; the functions are what its checks share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerMode,
    ClusterEnvironment,
    ClusterView,
    ConnectionFacts,
    Partition,
    Reason,
    TopicMetadata,
    level_of,
)
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, read_setting, stage_of
from airflow_provider_kmigrate.core.reasons import ENTRIES
from airflow_provider_kmigrate.core.shared.text import count_of, summarize

PROTOCOL = "inter.broker.protocol.version"


class Severity(StrEnum):
    """Whether a migration may start in spite of a finding; the gravest first."""

    BLOCK = "block"
    UNKNOWN = "not known"  # cannot be seen from here; the operator should find it out before the migration
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """One finding; `source` is where the rule comes from: a KIP, a ticket, Kafka's code, a measurement."""

    reason: Reason
    severity: Severity
    source: str

    @property
    def code(self) -> str:
        """The reason's code."""
        return self.reason.code

    def __str__(self) -> str:
        return f"{self.severity}: {self.reason} (source: {self.source})"


def blocks(code: str, observed: str) -> PreflightFinding:
    """A finding that stops the migration; `observed` is what was observed."""
    return _build_finding(code, observed, Severity.BLOCK)


def warns(code: str, observed: str) -> PreflightFinding:
    """A finding that the operator should know of."""
    return _build_finding(code, observed, Severity.WARN)


def unknown(code: str, observed: str) -> PreflightFinding:
    """A possible problem that could not be seen; the remedy is how to find it out."""
    entry = ENTRIES[code]
    return PreflightFinding(Reason(code, observed, remedy=entry.ask), Severity.UNKNOWN, entry.source)


def _build_finding(code: str, observed: str, severity: Severity) -> PreflightFinding:
    return PreflightFinding(Reason(code, observed), severity, ENTRIES[code].source)


@dataclass(frozen=True, slots=True)
class PreflightFacts:
    """What preflight needs beside a view.

    `configs` is each broker's running configuration (DescribeConfigs), None if it could not be read. `metadata_version` is that
    of running controllers; `chroot` that of the ZooKeeper connection, empty for none. `own_acts`: from when to when kmigrate itself
    acted on the cluster, by its journals, in seconds since the epoch.
    """

    spec: ClusterSpec
    chroot: str = ""
    configs: Mapping[int, Mapping[str, str] | None] = field(default_factory=dict)
    metadata_version: str | None = None
    environment: ClusterEnvironment = field(default_factory=ClusterEnvironment)
    connections: ConnectionFacts = field(default_factory=ConnectionFacts)
    own_acts: tuple[tuple[float, float], ...] = ()

    @property
    def broker_settings(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the dynamic settings of each broker, or of all (`DEFAULT`); none if ZooKeeper's tree was not read."""
        return self.environment.tree.broker_settings if self.environment.tree else {}


Check = Callable[[ClusterView, PreflightFacts], Iterator[PreflightFinding]]


def blockers_from_reasons(reasons: Iterable[Reason], source: str) -> Iterator[PreflightFinding]:
    """Reasons that are not preflight's own; each stops the migration."""
    return (PreflightFinding(reason, Severity.BLOCK, source) for reason in reasons)


def file_findings(owner: str, reasons: Iterable[Reason]) -> Iterator[PreflightFinding]:
    """What is wrong with a node's file (`config_matrix.find_problems`), with its owner."""
    return blockers_from_reasons(
        (replace(reason, text=f"{owner}: {reason.text}") for reason in reasons), "KIP-866; KafkaConfig.validateValues"
    )


def has_migration_begun(view: ClusterView) -> bool:
    """Whether any broker has left ZooKeeper mode."""
    return any(broker.mode in {BrokerMode.MIGRATION, BrokerMode.KRAFT} for broker in view.brokers.values())


def answering_brokers(view: ClusterView, facts: PreflightFacts) -> list[int]:
    """The listed brokers that answered; about the others only the missing answer is reported."""
    return [node.id for node in facts.spec.brokers if view.has_answered(node.id)]


def configured_protocol(config: Mapping[str, str] | None) -> str | None:
    """The brokers' protocol version in a configuration, if any."""
    return read_setting(config or {}, PROTOCOL)


def feature_level(version: str | None) -> int:
    """The feature level of a protocol version; 0 if it is unknown, or of a release before the bridge releases."""
    return level_of(version or "") or 0


def topics_in_zookeeper(view: ClusterView) -> Mapping[str, TopicMetadata]:
    """The topics by name; none if they were not read."""
    return view.topics[0] if view.topics else {}


def is_kraft(config: Mapping[str, str]) -> bool:
    """Whether this configuration is of a node in KRaft mode."""
    return read_setting(config, "process.roles") is not None


def zookeeper_configs(facts: PreflightFacts) -> dict[int, Mapping[str, str]]:
    """The running configurations of ZooKeeper-mode brokers, by id."""
    return {broker: config for broker, config in sorted(facts.configs.items()) if config is not None and not is_kraft(config)}


def zookeeper_broker_files(view: ClusterView) -> dict[int, Mapping[str, str]]:
    """The properties files of brokers that are not rendered for KRaft yet, by id: what controllers inherit from."""
    files = {broker.id: broker.files.properties for broker in view.brokers.values()}
    stages = {FileStage.ZOOKEEPER, FileStage.MIGRATION}
    return {broker: keys for broker, keys in sorted(files.items()) if keys is not None and stage_of(keys) in stages}


def values_by_broker(configs: Mapping[int, Mapping[str, str]], key: str) -> dict[int, str]:
    """The value of each broker that has the key."""
    return {broker: value for broker, config in configs.items() if (value := read_setting(config, key))}


def describe_partitions(partitions: Iterable[Partition]) -> str:
    """How many partitions of which topics."""
    partition_list = list(partitions)
    topics = sorted({partition.topic for partition in partition_list})
    return f"{count_of(len(partition_list), 'partition')} of {count_of(len(topics), 'topic')} ({summarize(topics)})"


def format_broker_values(broker_values: Mapping[int, object]) -> str:
    """Brokers with each one's value, a few of them by name."""
    return summarize(f"broker {broker} {value}" for broker, value in broker_values.items())
