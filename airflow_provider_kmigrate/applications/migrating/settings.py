"""A migrating consumer's settings: librdkafka's properties, the ZooKeeper consumer's and KIP-125's, separated and checked.

Pure, but for log lines. Times in the properties are milliseconds, as everywhere in Kafka; in here they are seconds.

ZooKeeper's properties have Kafka's names if Kafka has one (KIP-515). A Java client's security settings are refused; names known
to have no effect are ignored; any other name that begins with `zookeeper.` is refused: it may be misspelt. `zookeeper.sasl.*` and
`zookeeper.digest` are ours: Kafka takes these from a JAAS file only.

The ZooKeeper consumer's names are those of `kafka.consumer.ConsumerConfig` and `kafka.utils.ZKConfig` of Kafka 0.8.2 to 1.1.1. A
name in none of the tables is kept: it is this consumer's, or librdkafka's, which has the old `fetch.message.max.bytes`,
`socket.receive.buffer.bytes`, and `smallest` and `largest` of `auto.offset.reset`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from airflow_provider_kmigrate.clients.settings import KerberosLogin, ZooKeeperSettings
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.member.assignors import Strategy
from airflow_provider_kmigrate.core.member.registration import (
    STATIC,
    WHITE_LIST,
    Registration,
    compile_wildcard,
    consumer_id,
    is_same_in_librdkafka,
)
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Refused

_TRUE: Final = frozenset({"true", "1", "t"})
_FALSE: Final = frozenset({"false", "0", "f"})


def unsupported_setting(text: str, why: str, remedy: str) -> Refused:
    """The refusal (Y06) of a setting that this consumer cannot honour."""
    return Refused.because(Reason("Y06", f"{text} {why} {remedy}"))


def read_boolean(properties: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """A setting as librdkafka reads a boolean. Raises `Refused` for any other word: `no` would be true to some, false to others."""
    given = properties.get(name)
    value = str(default if given is None else given).strip().lower()
    if value not in _TRUE | _FALSE:
        raise unsupported_setting(f"{name} is {value or 'empty'}.", "It is true or false.", "Write one of the two.")
    return value in _TRUE


def read_milliseconds(properties: Mapping[str, Any], name: str, default: int) -> int:
    """A setting in milliseconds. Raises `Refused` unless it is a whole number."""
    value = str(properties.get(name, default)).strip()
    if not (value.isascii() and value.isdigit()):
        why = "It is a time in milliseconds."
        raise unsupported_setting(f"{name} is {value or 'empty'}.", why, f"Write a whole number, such as {default}.")
    return int(value)


_ALL: Final = "zookeeper."
_SSL: Final = f"{_ALL}ssl."
_SASL: Final = f"{_ALL}sasl."
_TAKEN: Final = frozenset(
    {
        f"{_ALL}connect",
        f"{_ALL}session.timeout.ms",
        f"{_ALL}digest",
        f"{_ALL}set.acl",
        f"{_SSL}client.enable",
        f"{_SSL}keystore.location",
        f"{_SSL}keystore.password",
        f"{_SSL}keystore.type",
        f"{_SSL}truststore.location",
        f"{_SSL}truststore.type",
        f"{_SSL}endpoint.identification.algorithm",
        f"{_SASL}mechanism",
        f"{_SASL}username",
        f"{_SASL}password",
        f"{_SASL}principal",
        f"{_SASL}keytab",
    }
)
_MECHANISMS: Final = ("DIGEST-MD5", "GSSAPI")


def read_zookeeper_settings(own_settings: Mapping[str, Any]) -> ZooKeeperSettings:
    """ZooKeeper's settings. Raises `Refused` for what is not supported, without any value in the text."""
    _check_zookeeper_settings(own_settings)
    listed, slash, chroot = str(own_settings["zookeeper.connect"]).strip().partition("/")
    keys, mechanism = _read_text(own_settings, f"{_SSL}keystore.location"), _read_text(own_settings, f"{_SASL}mechanism")
    return ZooKeeperSettings(
        ",".join(server.strip() for server in listed.split(",") if server.strip()),  # as ZooKeeper's own client
        f"{slash}{chroot}".rstrip("/"),
        session_timeout=read_milliseconds(own_settings, "zookeeper.session.timeout.ms", 6000) / 1000.0,
        use_tls=read_boolean(own_settings, f"{_SSL}client.enable"),
        ca_file=_read_text(own_settings, f"{_SSL}truststore.location"),
        cert_file=keys,
        key_file=keys,
        key_password=_read_text(own_settings, f"{_SSL}keystore.password"),
        verify_hostname=_read_identification(own_settings) == "https",
        digest=_read_text(own_settings, "zookeeper.digest"),
        sasl_mechanism=None if mechanism is None else mechanism.upper(),
        sasl_user=_read_text(own_settings, f"{_SASL}username"),
        sasl_password=_read_text(own_settings, f"{_SASL}password"),
        kerberos=_read_kerberos(own_settings, mechanism),
        set_acl=read_boolean(own_settings, "zookeeper.set.acl"),
    )


def _read_identification(own_settings: Mapping[str, Any]) -> str:
    """`https`, or empty or `none` for no verification of host names; raises `Refused` for another word, which Kafka would take for none."""
    name = f"{_SSL}endpoint.identification.algorithm"
    algorithm = str(own_settings.get(name, "https")).strip().lower()
    if algorithm not in {"https", "none", ""}:
        raise unsupported_setting(f"{name} is {algorithm}.", "Any server could then pretend to be ZooKeeper.", "Write https.")
    return algorithm


def _read_kerberos(own_settings: Mapping[str, Any], mechanism: str | None) -> KerberosLogin | None:
    if mechanism is None or mechanism.upper() != "GSSAPI":
        return None
    return KerberosLogin("zookeeper", *(_read_text(own_settings, f"{_SASL}{name}") for name in ("principal", "keytab")))


def _read_text(own_settings: Mapping[str, Any], name: str) -> str | None:
    value = own_settings.get(name)
    return None if value is None else str(value)


def _check_zookeeper_settings(own_settings: Mapping[str, Any]) -> None:
    for name in sorted(own_settings):
        if name.startswith((_SSL, _SASL)) and name not in _TAKEN:
            why = "It would have no effect, and the connection would be less secure than requested."
            raise unsupported_setting(f"{name} is set.", why, f"Leave {name} out.")
        if name.startswith(_ALL) and name not in _TAKEN | NO_EFFECT.keys():
            remedy = f"Remove it, or write one of: {', '.join(sorted(_TAKEN))}."
            raise unsupported_setting(f"{name} is set.", "There is no such setting; it would have no effect.", remedy)
    for store in ("keystore", "truststore"):
        kind = str(own_settings.get(f"{_SSL}{store}.type", "PEM")).upper()
        if kind != "PEM" or str(own_settings.get(f"{_SSL}{store}.location", "")).endswith((".jks", ".p12", ".pfx")):
            raise unsupported_setting(
                f"zookeeper.ssl.{store} is not PEM.", "Python reads no Java key store.", "Export it as PEM."
            )
    _check_identity(own_settings)


def _check_identity(own_settings: Mapping[str, Any]) -> None:
    mechanism, digest, keys = (
        _read_text(own_settings, f"{_SASL}mechanism"),
        own_settings.get("zookeeper.digest"),
        own_settings.get(f"{_SSL}keystore.location"),
    )
    if mechanism is not None and mechanism.upper() not in _MECHANISMS:
        raise unsupported_setting(
            "zookeeper.sasl.mechanism is unknown.", "ZooKeeper supports two.", f"One of {', '.join(_MECHANISMS)}."
        )
    credentials = own_settings.get(f"{_SASL}username") and own_settings.get(f"{_SASL}password")
    if mechanism is not None and mechanism.upper() == "DIGEST-MD5" and not credentials:
        why = "DIGEST-MD5 needs a user and a password."
        raise unsupported_setting("zookeeper.sasl has no user.", why, "Set zookeeper.sasl.username and .password.")
    unused = ("principal", "keytab") if mechanism is None or mechanism.upper() != "GSSAPI" else ("username", "password")
    for name in (f"{_SASL}{part}" for part in unused if own_settings.get(f"{_SASL}{part}")):
        remedy = "GSSAPI takes zookeeper.sasl.principal and .keytab, DIGEST-MD5 .username and .password."
        raise unsupported_setting(f"{name} is set.", f"It has no effect with mechanism {mechanism}.", remedy)
    if ":" not in str(digest or ":"):
        raise unsupported_setting(
            "zookeeper.digest has no colon.", "It is user:password.", "Write the user, a colon, the password."
        )
    if keys and not read_boolean(own_settings, f"{_SSL}client.enable"):
        raise unsupported_setting(
            "zookeeper.ssl.client.enable is not set.", "A key store is set.", "Set zookeeper.ssl.client.enable to true."
        )
    if read_boolean(own_settings, "zookeeper.set.acl") and not (mechanism or digest or keys):
        why = "Only its creator may access such a znode, so the client needs an identity."
        remedy = "Set zookeeper.sasl.*, zookeeper.digest or a key store, or leave it out."
        raise unsupported_setting("zookeeper.set.acl without an identity.", why, remedy)


RENAMED: Final = {"auto.commit.enable": "enable.auto.commit"}

_WAITS: Final = "a member that waits for a partition watches its owner znode"
_RDKAFKA: Final = "librdkafka handles this itself"
NO_EFFECT: Final = {
    "rebalance.max.retries": _WAITS,
    "rebalance.backoff.ms": _WAITS,
    "zookeeper.sync.time.ms": "every read of the group begins with a sync",
    "zookeeper.connection.timeout.ms": "an unreachable server is retried until it answers",
    "zookeeper.clientCnxnSocket": "only the Java client has it",
    "num.consumer.fetchers": _RDKAFKA,
    "queued.max.message.chunks": "queued.max.messages.kbytes bounds what is fetched ahead",
    "refresh.leader.backoff.ms": _RDKAFKA,
    "offsets.channel.backoff.ms": _RDKAFKA,
    "offsets.channel.socket.timeout.ms": _RDKAFKA,
    "offsets.commit.max.retries": "a failed commit is retried while the partition is owned",
    "coordination.migration.poll.interval.ms": "the embedded consumer is polled every 20 ms, since each poll also sends commits",
    "dual.commit.enabled": "the stage decides which stores are written",
}
"""Name -> why it has no effect."""


_ONLY: Final = {
    "offsets.storage": (
        "zookeeper",
        "A migrating consumer writes both stores. Kafka refuses commits of a ZooKeeper consumer as soon as this one has joined.",
        "Give the group's ZooKeeper consumers offsets.storage=zookeeper (dual.commit.enabled for one restart), then remove it here.",
    ),
    "consumer.timeout.ms": (
        "-1",
        "A poll without a record raises no exception here.",
        "Remove it; pass the timeout to poll, which returns None.",
    ),
}
"""Name -> the only value that means what this consumer does anyway, why, and what to do."""
_BLACK: Final = (
    "A member registers topic names, or one white list.",
    "Remove it, and subscribe to topic names or to a white list.",
)
_REFUSED: Final = {
    "group.instance.id": (
        "A migrating consumer cannot do that: a dead static member keeps its partitions for its whole session.",
        "Leave group.instance.id out.",
    ),
    "topic.blacklist": _BLACK,
    "mirror.topics.blacklist": _BLACK,
    "mirror.topics.whitelist": (
        "A member registers its subscription.",
        "Remove it, and subscribe to '^<the white list>'.",
    ),
    "mirror.consumer.numthreads": ("A member has one stream.", "Remove it, and create as many consumers."),
}
"""Name -> why, and what to do. `topic.blacklist` is librdkafka's: it would hide topics of which the member still gets its share."""


def with_current_names(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties under today's names. Raises `Refused` if both names are given and disagree."""
    for old, new in RENAMED.items():
        if old in properties and new in properties and read_boolean(properties, old) != read_boolean(properties, new):
            text = f"{old} is {properties[old]}, and {new} {properties[new]}."
            raise unsupported_setting(text, "Both are names of one setting.", f"Leave {old} out.")
    return {RENAMED.get(name, name): value for name, value in properties.items()}


def _check_legacy_settings(properties: Mapping[str, Any]) -> None:
    """Refuse settings that would not be obeyed and matter."""
    for name, (why, remedy) in _REFUSED.items():
        if name in properties:
            raise unsupported_setting(f"{name} is set.", why, remedy)
    for name, (only, why, remedy) in _ONLY.items():
        if str(properties.get(name, only)).lower() != only:
            raise unsupported_setting(f"{name} is {properties[name]}.", why, remedy)


_log = logging.getLogger(__name__)
MIGRATION: Final = "coordination.migration."
_HEARTBEAT_MS: Final = 500
_BACKOFF_MS: Final = 50  # librdkafka's own 1000 makes a consumer that catches up wait most of the time: a third of the rate
_LIMITS_MS: Final = {"session.timeout.ms": 45_000, "fetch.wait.max.ms": 500, "socket.timeout.ms": 60_000}  # librdkafka's own
_POLL_MARGIN: Final = 0.8  # of max.poll.interval.ms: delivery stops before Kafka gives the partitions to others

_STRATEGIES: Final = {
    "range": Strategy.RANGE,
    "roundrobin": Strategy.ROUND_ROBIN,
    "roundrobin-0.10": Strategy.ROUND_ROBIN_0_10,  # a group with members of Kafka 0.10.2 or 0.11
}
_FETCHING: Final = {"stats_cb", "statistics.interval.ms"}  # of the consumer that fetches only: callbacks are for its thread
_OURS: Final = {"consumer.id", "exclude.internal.topics", "partition.assignment.strategy", *NO_EFFECT, *_ONLY}


class ClientStage(StrEnum):
    """The stage of an application, `coordination.migration.stage`: each restart leads to the next."""

    ZOOKEEPER = "zookeeper"  # a ZooKeeper (legacy) consumer
    MIGRATING = "migrating"  # follows the group's mode
    KAFKA = "kafka"  # a Kafka consumer


@dataclass(frozen=True, slots=True)
class MigratingSettings:
    """A migrating consumer's settings. `migrates`: it registers as migration-aware and has an embedded Kafka consumer.

    Otherwise ZooKeeper alone coordinates and keeps offsets.
    """

    group: str
    consumer: str | None  # consumer.id; None: a new name
    zookeeper: ZooKeeperSettings = field(repr=False)
    strategy: Strategy
    internal_too: bool
    migrates: bool
    auto_commit: bool
    commit_every: float
    poll_limit: float
    data: Mapping[str, Any] = field(repr=False)  # properties of the consumer that fetches
    embedded: Mapping[str, Any] = field(repr=False)  # and of the one that is a member

    @property
    def kafka_session(self) -> float:
        """Seconds without a heartbeat after which the Kafka group removes the member."""
        return _read_seconds(self.embedded, "session.timeout.ms", _LIMITS_MS["session.timeout.ms"])

    @property
    def reset(self) -> str:
        """`auto.offset.reset`, by default `latest`."""
        return str(self.data.get("auto.offset.reset", "latest"))

    def consumer_id(self, host: str, now_ms: int, number: int) -> str:
        """A consumer id as the ZooKeeper consumer makes it; `number` is random."""
        configured_id = f"{self.group}_{self.consumer}"
        return configured_id if self.consumer else consumer_id(self.group, host, now_ms, number)


def parse_settings(properties: Mapping[str, Any]) -> MigratingSettings:
    """Parse the properties, with one log line about every setting that has no effect.

    Raises `Refused` for what this consumer cannot do; an unknown property is librdkafka's to refuse.
    """
    client_properties = with_current_names(properties)
    own_settings = {name: client_properties.pop(name) for name in list(client_properties) if is_own_setting(name)}
    migrates = _is_migrating(own_settings)
    _check_group(client_properties, own_settings)
    _check_legacy_settings(client_properties | own_settings)
    embedded = _embedded_properties(client_properties, own_settings)
    settings = MigratingSettings(
        group=str(client_properties["group.id"]),
        consumer=str(own_settings["consumer.id"]) if own_settings.get("consumer.id") else None,
        zookeeper=read_zookeeper_settings(own_settings),
        strategy=_parse_strategy(str(own_settings.get("partition.assignment.strategy", "range"))),
        internal_too=not read_boolean(own_settings, "exclude.internal.topics", default=True),
        migrates=migrates,
        auto_commit=read_boolean(client_properties, "enable.auto.commit", default=True),
        commit_every=_read_seconds(client_properties, "auto.commit.interval.ms", 5000),
        poll_limit=_POLL_MARGIN * _read_seconds(embedded, "max.poll.interval.ms", 300_000),
        data={
            "fetch.queue.backoff.ms": _BACKOFF_MS,
            **client_properties,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        },
        embedded=embedded,
    )
    if ineffective := "; ".join(f"{name}: {NO_EFFECT[name]}" for name in sorted(properties) if name in NO_EFFECT):
        _log.warning("settings without any effect here: %s", ineffective)
    return settings


def stage_of(properties: Mapping[str, Any]) -> ClientStage:
    """The stage by `coordination.migration.stage`, or KIP-125's `coordination.migration.enabled`.

    Raises `Refused` if they disagree.
    """
    stage, switch = properties.get(f"{MIGRATION}stage"), f"{MIGRATION}enabled"
    if stage is None:
        return ClientStage.MIGRATING if read_boolean(properties, switch) else ClientStage.ZOOKEEPER
    if str(stage) not in set(ClientStage):
        raise unsupported_setting(f"{MIGRATION}stage is {stage}.", "There are three stages.", f"One of {', '.join(ClientStage)}.")
    client_stage = ClientStage(str(stage))
    if properties.get(switch) is not None and read_boolean(properties, switch) != (client_stage is ClientStage.MIGRATING):
        text = f"{MIGRATION}stage is {stage}, and {switch} {properties[switch]}."
        raise unsupported_setting(text, "They contradict each other.", f"Leave {switch} out.")
    return client_stage


def _is_migrating(own_settings: Mapping[str, Any]) -> bool:
    stage = stage_of(own_settings)
    if stage is ClientStage.KAFKA:
        why = "Then no migrating consumer is needed."
        raise unsupported_setting(f"{MIGRATION}stage is kafka.", why, "Create the consumer with consumer_of, or a Consumer.")
    return stage is ClientStage.MIGRATING


def is_own_setting(name: str) -> bool:
    """True for a migrating consumer's own setting, unknown to librdkafka."""
    return name.startswith((MIGRATION, _ALL)) or name in _OURS


def _check_group(client_properties: Mapping[str, Any], own_settings: Mapping[str, Any]) -> None:
    servers = str(own_settings.get("zookeeper.connect") or "").partition("/")[0]
    for name, value in (("group.id", client_properties.get("group.id")), ("zookeeper.connect", servers.strip(" ,"))):
        if not value:
            raise unsupported_setting(
                f"{name} is missing.", "Without it a migrating consumer belongs to no group.", f"Set {name}."
            )
    if str(client_properties.get("group.protocol", "classic")).lower() != "classic":
        why = "Brokers in ZooKeeper mode support no other protocol."
        raise unsupported_setting("group.protocol is not classic.", why, "Leave group.protocol out.")
    for name, source in (("group.id", client_properties), ("consumer.id", own_settings)):
        text = str(source.get(name) or "unset")
        if "/" in text or text in {".", ".."} or not text.isprintable():
            why = "It becomes a znode below /consumers; with a slash it would lie in another group's."
            raise unsupported_setting(f"{name} is no name of a znode.", why, "Write letters, digits, -, _ and . only.")


def _ambiguous_subscription(text: str, remedy: str) -> Refused:
    return unsupported_setting(text, "Members that select different topics compute different assignments.", remedy)


def _embedded_properties(client_properties: Mapping[str, Any], own_settings: Mapping[str, Any]) -> dict[str, Any]:
    """The application's properties, overridden by the KIP's prefix.

    It learns of a rebalance soon: every member waits for the last one.
    """
    own_names = {"enabled", "stage", "poll.interval.ms"}
    prefixed = {name.removeprefix(MIGRATION): value for name, value in own_settings.items() if name.startswith(MIGRATION)}
    migration = {name: value for name, value in prefixed.items() if name not in own_names}
    if "partition.assignment.strategy" in migration:
        why = "Its list of assignors keeps Kafka consumers out of the group."
        name = f"{MIGRATION}partition.assignment.strategy"
        raise unsupported_setting(f"{name} is set.", why, f"Leave {name} out.")
    socket_timeout = {"socket.timeout.ms": _answer_timeout_ms({**client_properties, **migration})}
    member_properties = {name: value for name, value in client_properties.items() if name not in _FETCHING}
    return {
        "heartbeat.interval.ms": _HEARTBEAT_MS,
        **member_properties,
        **socket_timeout,
        **migration,
        "enable.auto.commit": False,
    }


def _answer_timeout_ms(properties: Mapping[str, Any]) -> int:
    """The time that the embedded consumer waits for one answer, in ms.

    A commit keeps it from learning that it was removed, and is tried three times: all within one session, or an isolated member
    keeps what it owns (librdkafka's own limit is a minute).
    """
    session, fetch, limit = (read_milliseconds(properties, name, default) for name, default in _LIMITS_MS.items())
    return min(limit, max(session // 3, fetch + 1500))


def _parse_strategy(name: str) -> Strategy:
    if name not in _STRATEGIES:
        why = "A member with another strategy than the others waits for them forever."
        raise unsupported_setting(
            f"partition.assignment.strategy is {name}.", why, f"One of {', '.join(_STRATEGIES)}, as the group has it."
        )
    return _STRATEGIES[name]


def _read_seconds(properties: Mapping[str, Any], name: str, default_ms: int) -> float:
    return read_milliseconds(properties, name, default_ms) / 1000.0


def registration_of(topics: Sequence[str], now_ms: int) -> Registration:
    """The registration of `subscribe`: topics with one stream each, or, for one entry that begins with `^`, a white list.

    A white list must match a topic's whole name, as in the ZooKeeper consumer. Raises `Refused` for one that Java may read
    otherwise, and for what is no list of names.
    """
    _check_topic_names(topics)
    wildcards = [topic for topic in topics if topic.startswith("^")]
    if not wildcards:
        return Registration(STATIC, dict.fromkeys(topics, 1), str(now_ms))
    if len(topics) != 1:
        raise _ambiguous_subscription(
            f"{count_of(len(topics), 'entry', 'entries')}, one a wildcard.", "Join them into one expression with |."
        )
    expression = wildcards[0].removeprefix("^").removesuffix("$")
    if compile_wildcard(expression) is None:
        text = f"Python and Java may read {expression} differently."
        raise _ambiguous_subscription(text, "Write it without syntax that only one of them supports.")
    if not is_same_in_librdkafka(wildcards[0]):
        text = "a Kafka consumer may select other topics by %s: change it for stage kafka, or name the topics"
        _log.warning(text, wildcards[0])
    return Registration(WHITE_LIST, {expression: 1}, str(now_ms))


def _check_topic_names(topics: object) -> None:
    """Refuse other types: Python would read the ZooKeeper consumer's `{topic: streams}` as topics, and a string as letters."""
    names = topics if isinstance(topics, list | tuple) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        why = "A member registers names of topics, with one stream each."
        remedy = "Give a list of names, ['orders']. For several streams create several consumers."
        raise unsupported_setting(f"subscribe was given {topics!r}.", why, remedy)
