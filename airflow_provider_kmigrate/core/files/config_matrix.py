"""What a node's properties file must hold in each stage of a migration: one table, and the checks that read it.

A stage is what a file *says*, not what its process does: a broker has its file's stage only after a restart. The table is that of
KIP-866 as Kafka 3.9 validates it (`KafkaConfig.validateValues`), with the keys of a SASL cluster as measured.

A broker's file of stage ZOOKEEPER is its *original*. kmigrate never changes it: all other stages are rendered from it
(`core.files.properties`), and a rollback puts it in place again. So an original needs no mark: `stage_of` recognizes it.

A node's directories say whose they are (meta.properties; MetaProperties of Kafka 3.9): those of another node are never formatted
or moved.

A run that died may have left another stage's file for the node's next restart (`misfiled`). A broker would be left behind, a
controller with final properties could be elected and finalize, and one with the migration's needs a ZooKeeper that may be gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

from airflow_provider_kmigrate.core.decision import Act, Decision, Verb, Wait
from airflow_provider_kmigrate.core.model import (
    Controller,
    NodeFiles,
    Process,
    ProcessState,
    Reason,
    could_not_read,
    same_version,
)


class FileStage(StrEnum):
    """The role and mode that a properties file gives its node, in the order of the table's columns."""

    ZOOKEEPER = "zookeeper"
    MIGRATION = "migration"
    KRAFT = "kraft"
    CONTROLLER_MIGRATION = "controller in migration"
    CONTROLLER_FINAL = "controller"

    @property
    def of_controller(self) -> bool:
        """Whether it is a controller's file."""
        return self in {FileStage.CONTROLLER_MIGRATION, FileStage.CONTROLLER_FINAL}

    @property
    def reads_zookeeper(self) -> bool:
        """Whether a node with this file connects to ZooKeeper."""
        return self not in {FileStage.KRAFT, FileStage.CONTROLLER_FINAL}


class Rule(StrEnum):
    """What a stage demands of a key; SAME: as in the broker's original, present or not."""

    REQUIRED = "R"
    SAME = "S"
    ABSENT = "-"


INTER_BROKER_LISTENER = "listener.name.<inter-broker>.*"
"""The row for the keys of the inter-broker listener, whatever its name."""

MATRIX: Mapping[str, str] = {
    #                                       broker:    zookeeper migration kraft | controller: migration final
    "process.roles": "--RRR",
    "broker.id": "RR---",
    "node.id": "SSRRR",
    "zookeeper.connect": "RR-R-",
    "zookeeper.metadata.migration.enable": "-R-R-",
    "zookeeper.*": "SS-S-",
    "controller.quorum.voters": "SRRRR",  # a broker in ZooKeeper mode ignores it
    "controller.quorum.bootstrap.servers": "-----",  # dynamic quorums pass the readiness check with voters missing
    "controller.listener.names": "-RRRR",
    "listener.security.protocol.map": "SRRRR",
    "listeners": "SSSRR",
    "inter.broker.listener.name": "SSSRR",  # controllers send LeaderAndIsr there (KAFKA-15670)
    "inter.broker.protocol.version": "SR---",
    "control.plane.listener.name": "SS---",
    "log.dirs": "SSSRR",
    "metadata.log.dir": "SSSRR",
    "authorizer.class.name": "SSSSS",  # its class changes with KRaft: AUTHORIZERS
    "allow.everyone.if.no.acl.found": "SSSSS",
    "super.users": "SSSSS",
    "principal.builder.class": "SSSSS",
    "connections.max.reauth.ms": "SSSSS",
    "password.encoder.*": "SS-SS",
    "delegation.token.*": "SSSSS",
    "sasl.*": "SSSSS",  # sasl.mechanism.inter.broker.protocol too: a final controller exits without it (measured)
    "ssl.*": "SSSSS",
    "config.providers": "SSSSS",  # resolves the references in inherited values (KIP-421)
    "config.providers.*": "SSSSS",
    INTER_BROKER_LISTENER: "SSSSS",
    # What controllers decide with once they own the cluster: CreateTopics without counts, leader balancing, policies.
    "num.partitions": "SSSSS",
    "default.replication.factor": "SSSSS",
    "min.insync.replicas": "SSSSS",
    "unclean.leader.election.enable": "SSSSS",
    "auto.leader.rebalance.enable": "SSSSS",
    "leader.imbalance.*": "SSSSS",
    "delete.topic.enable": "SSSSS",
    "create.topic.policy.class.name": "SSSSS",
    "alter.config.policy.class.name": "SSSSS",
    "remote.log.storage.system.enable": "SSSSS",  # controllers validate topics' settings: without it remote.storage.enable is refused
    "controller.quota.window.num": "SSSSS",
    "controller.quota.window.size.seconds": "SSSSS",
    # Defaults of topics' settings (ServerTopicConfigSynonyms): controllers validate changes with them, and report them for new topics.
    "compression.*": "SSSSS",
    "log.cleaner.delete.retention.ms": "SSSSS",
    "log.cleaner.max.compaction.lag.ms": "SSSSS",
    "log.cleaner.min.cleanable.ratio": "SSSSS",
    "log.cleaner.min.compaction.lag.ms": "SSSSS",
    "log.cleanup.policy": "SSSSS",
    "log.flush.*": "SSSSS",
    "log.index.*": "SSSSS",
    "log.local.retention.*": "SSSSS",
    "log.message.*": "SSSSS",
    "log.preallocate": "SSSSS",
    "log.retention.*": "SSSSS",
    "log.roll.*": "SSSSS",
    "log.segment.*": "SSSSS",
    "message.max.bytes": "SSSSS",
}
"""Key or prefix -> one letter of `Rule` for each `FileStage`. Keys without a row: SAME on brokers, ABSENT on controllers."""

AUTHORIZER = "authorizer.class.name"
AUTHORIZERS = {
    "kafka.security.authorizer.AclAuthorizer": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}
"""ZooKeeper's authorizers and what KRaft nodes use in their place."""

_REFERENCE = re.compile(r"\$\{([^}:]*):[^}]*\}")  # ${provider:path:key}, as ConfigTransformer reads it
_IDLE = "metadata.max.idle.interval.ms"
_MOST_IDLE_MS = 1_000  # below `core.gates.STILL`, so that an idle but living dual-write is never taken for a stalled one
_SYNONYMS = {"broker.id": "node.id", "log.dirs": "log.dir"}
_DEFAULT_RESERVED_MAX_ID = 1000


def rule(key: str, stage: FileStage, inter_broker: str = "") -> Rule:
    """The table's answer for a key; `inter_broker` is the name of the inter-broker listener."""
    row = MATRIX.get(key) or _prefix_row(key, inter_broker)
    if row is None:
        return Rule.ABSENT if stage.of_controller else Rule.SAME
    return _cell(row, stage)


def forbidden(key: str, stage: FileStage) -> bool:
    """Whether the table excludes the key from the stage; keys without a row are left to the user."""
    row = MATRIX.get(key) or _prefix_row(key)
    return row is not None and _cell(row, stage) is Rule.ABSENT


def may_be_added(key: str, stage: FileStage) -> bool:
    """Whether `quorum.properties` may have the key: it is neither excluded from the stage nor decided by kmigrate."""
    return rule(key, stage) is not Rule.REQUIRED and not forbidden(key, stage)


def _cell(row: str, stage: FileStage) -> Rule:
    return Rule(row[list(FileStage).index(stage)])


def _prefix_row(key: str, inter_broker: str = "") -> str | None:
    if inter_broker and key.startswith(listener_prefix(inter_broker)):
        return MATRIX[INTER_BROKER_LISTENER]
    return next((row for prefix, row in MATRIX.items() if prefix.endswith(".*") and key.startswith(prefix[:-1])), None)


def setting(properties: Mapping[str, str], key: str) -> str | None:
    """A value as Kafka reads it: without blanks around; None if absent or empty."""
    return properties.get(key, "").strip() or None


def listener_prefix(listener: str) -> str:
    """With which the keys of one listener alone begin."""
    return f"listener.name.{listener.lower()}."


def listener_setting(properties: Mapping[str, str], listener: str, key: str) -> str | None:
    """A listener's value for a key: its own, or the one for all listeners."""
    return setting(properties, listener_prefix(listener) + key) or setting(properties, key)


def is_true(properties: Mapping[str, str], key: str) -> bool:
    """Whether a setting is there, and is true."""
    return (setting(properties, key) or "").lower() == "true"


def references(value: str) -> tuple[str, ...]:
    """The providers of the references in a value, such as `${file:/etc/secrets:key}`, which only the node itself resolves (KIP-421)."""
    return tuple(match.strip() for match in _REFERENCE.findall(value))


def stage_of(properties: Mapping[str, str]) -> FileStage | None:
    """The stage that a file puts its node in; None for a combined node and for a file with which no node could start."""
    flagged = is_true(properties, "zookeeper.metadata.migration.enable")
    match setting(properties, "process.roles"):
        case None if setting(properties, "zookeeper.connect"):
            return FileStage.MIGRATION if flagged else FileStage.ZOOKEEPER
        case "broker":
            return FileStage.KRAFT
        case "controller":
            return FileStage.CONTROLLER_MIGRATION if flagged else FileStage.CONTROLLER_FINAL
        case _:
            return None


def stage_on_disk(files: NodeFiles) -> FileStage | None:
    """The stage of a node's file as observed; None if it was not read, or is of no stage."""
    return stage_of(files.properties) if files.properties is not None else None


def node_id(properties: Mapping[str, str]) -> int | None:
    """The node's id, under either name; None if it is absent, generated (-1) or no number."""
    value = setting(properties, "broker.id") or setting(properties, "node.id") or ""
    return int(value) if value.isdecimal() else None


def chroot_of(connect: str) -> str:
    """The chroot in a zookeeper.connect string: empty, or a path that begins with a slash."""
    _, slash, path = connect.strip().partition("/")
    return (slash + path).rstrip("/")


def inter_broker_listener(properties: Mapping[str, str]) -> str:
    """The listener on which brokers reach each other; Kafka's default is the listener named after its protocol."""
    named = setting(properties, "inter.broker.listener.name")
    return named or setting(properties, "security.inter.broker.protocol") or "PLAINTEXT"


def listener_names(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the listeners that the node opens, in upper case, as Kafka takes them."""
    entries = (setting(properties, "listeners") or "PLAINTEXT://:9092").split(",")
    return tuple(entry.split(":", 1)[0].strip().upper() for entry in entries)


def listener_ports(properties: Mapping[str, str]) -> dict[int, str]:
    """The ports that the node opens, each with its listener's name; without those that only a reference names, and 0 (any)."""
    entries = (entry.strip() for entry in (setting(properties, "listeners") or "PLAINTEXT://:9092").split(","))
    found = ((entry.rpartition(":")[2], entry.partition(":")[0].upper()) for entry in entries)
    return {int(port): name for port, name in found if port.isdecimal() and int(port)}


def problems(
    properties: Mapping[str, str],
    stage: FileStage,
    *,
    chroot: str | None = None,
    metadata_version: str | None = None,
    controller_listener: str = "CONTROLLER",
) -> tuple[Reason, ...]:
    """Why a node could not, or must not, run with this file in this stage; empty if it may.

    `chroot` (empty: none) and `metadata_version` are compared if given. Values that may be secrets are never in the texts.
    """
    found = stage_of(properties)
    if found is not stage:
        return (Reason("O06", f"the file is of stage {found or 'unknown'}, not {stage}"),)
    texts = (
        *_id_problems(properties, stage),
        *_matrix_problems(properties, stage),
        *_zookeeper_problems(properties, stage, chroot),
        *_version_problems(properties, stage, metadata_version),
        *_listener_problems(properties, stage, controller_listener),
        *_authorizer_problems(properties, stage),
        *_idle_problems(properties, stage),
    )
    return (*(Reason("C04", text) for text in texts), *(Reason("C10", text) for text in _unresolved(properties, stage)))


def _id_problems(properties: Mapping[str, str], stage: FileStage) -> Iterator[str]:
    broker, node = (setting(properties, key) for key in ("broker.id", "node.id"))
    identity = node_id(properties)
    if identity is None:
        yield "broker.id is missing" if broker is None and node is None else "broker.id is not an explicit number from 0"
    elif broker and node and broker != node:
        yield f"broker.id={broker} but node.id={node}"
    elif stage in {FileStage.ZOOKEEPER, FileStage.MIGRATION} and _generated(properties) and identity > _reserved(properties):
        yield f"broker.id={identity} is above reserved.broker.max.id={_reserved(properties)} while ids are generated"


def _generated(properties: Mapping[str, str]) -> bool:
    return (setting(properties, "broker.id.generation.enable") or "true").lower() == "true"


def _reserved(properties: Mapping[str, str]) -> int:
    value = setting(properties, "reserved.broker.max.id") or ""
    return int(value) if value.isdecimal() else _DEFAULT_RESERVED_MAX_ID


def _matrix_problems(properties: Mapping[str, str], stage: FileStage) -> Iterator[str]:
    for key, row in MATRIX.items():
        there = setting(properties, key) or setting(properties, _SYNONYMS.get(key, key))
        if _cell(row, stage) is Rule.REQUIRED and not there and key not in {"broker.id", "node.id"}:
            yield f"{key} is missing"
    for key, value in properties.items():
        if forbidden(key, stage) and value.strip().lower() not in {"", "false"}:
            yield f"{key} must not be set"


def _zookeeper_problems(properties: Mapping[str, str], stage: FileStage, chroot: str | None) -> Iterator[str]:
    connect = setting(properties, "zookeeper.connect")
    if not stage.reads_zookeeper or not connect or chroot is None or references(connect):
        return
    if chroot_of(connect) != chroot:
        yield f"zookeeper.connect has the chroot {chroot_of(connect) or '/'}, the cluster is under {chroot or '/'}"


def _version_problems(properties: Mapping[str, str], stage: FileStage, metadata_version: str | None) -> Iterator[str]:
    protocol = setting(properties, "inter.broker.protocol.version")
    if stage.of_controller or stage is FileStage.KRAFT or not protocol or not metadata_version:
        return
    if not references(protocol) and not same_version(protocol, metadata_version):
        yield f"inter.broker.protocol.version={protocol}, the controllers' metadata.version is {metadata_version}"


def _listener_problems(properties: Mapping[str, str], stage: FileStage, controller_listener: str) -> Iterator[str]:
    names, controller_listener = listener_names(properties), controller_listener.upper()
    if stage.of_controller and controller_listener not in names:
        yield f"the listener {controller_listener} is not among listeners"
    if not stage.of_controller and controller_listener in names:
        yield f"the broker has a listener of its own named {controller_listener}"


def _authorizer_problems(properties: Mapping[str, str], stage: FileStage) -> Iterator[str]:
    name = setting(properties, AUTHORIZER)
    if name in AUTHORIZERS and stage not in {FileStage.ZOOKEEPER, FileStage.MIGRATION}:
        yield f"authorizer.class.name is {name}, which reads ZooKeeper; a KRaft node needs {AUTHORIZERS[name]}"


def _idle_problems(properties: Mapping[str, str], stage: FileStage) -> Iterator[str]:
    """The record that an idle controller writes is what moves /migration (default 500 ms; 0: none)."""
    value = setting(properties, _IDLE)
    if stage is not FileStage.CONTROLLER_MIGRATION or value is None:
        return
    if not (value.isdecimal() and 1 <= int(value) <= _MOST_IDLE_MS):
        yield f"{_IDLE} is {value}, which is not between 1 and {_MOST_IDLE_MS}"


def _unresolved(properties: Mapping[str, str], stage: FileStage) -> Iterator[str]:
    """Controllers only: a broker that runs with such a value uses it as written."""
    known = [name.strip() for name in (setting(properties, "config.providers") or "").split(",")]
    missing = {key: sorted(set(references(value)) - {*known}) for key, value in properties.items() if stage.of_controller}
    needed = ",".join(filter(None, [*known, *sorted({name for names in missing.values() for name in names})]))
    for key, names in missing.items():
        if names:
            yield f"{key} refers to {', '.join(names)}, which config.providers does not name; write `config.providers={needed}`"


Metas = Mapping[str, Mapping[str, str]]  # directory -> the keys of its meta.properties, none if it is not formatted


def owner(meta: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Cluster and node that a meta.properties names; a broker's of version 0 has `broker.id`."""
    return meta.get("cluster.id"), meta.get("node.id", meta.get("broker.id"))


def foreign_owners(node_id: int, metas: Metas | None) -> dict[str, str]:
    """The directories that another node owns, each with that node's id."""
    owners = {path: owner(meta)[1] for path, meta in (metas or {}).items()}
    return {path: found for path, found in owners.items() if found not in {None, str(node_id)}}


def in_use(controller: Controller) -> tuple[str, ...]:
    """The directories of its own that hold a format or, as far as known, a metadata log."""
    metas, theirs = controller.files.meta or {}, foreign_owners(controller.id, controller.files.meta)
    return tuple(path for path, meta in metas.items() if path not in theirs and (meta or controller.files.has_metadata_log))


def not_its_own(controller: Controller) -> Reason | None:
    """M01: a directory that the cluster file gives to this controller is another node's."""
    theirs = foreign_owners(controller.id, controller.files.meta)
    if not theirs:
        return None
    return Reason("M01", f"{foreign_directories(theirs)}, not of controller {controller.id}.")


def unreadable_stores(name: str, files: NodeFiles) -> Reason | None:
    """C11: key or trust stores that the file of the node `name` names, and that Kafka's user cannot read there."""
    if not files.unreadable:
        return None
    return Reason("C11", f"Kafka's user cannot read these key or trust stores of {name}: {', '.join(files.unreadable)}")


def in_restart_loop(name: str, process: Process) -> Reason | None:
    """M08: the unit of the node `name` ends and is started again; nothing runs as this node, although something is started."""
    if process.restart_loop is None:
        return None
    said = f"; the end of its log: {process.restart_loop}" if process.restart_loop else ""
    return Reason("M08", f"the unit of {name} ends again and again, and the service manager starts it again{said}")


def not_its_process(controller: Controller) -> Reason | None:
    """M01: a process runs as this controller, but its directory is not formatted: most likely its unit is a broker's.

    M08 if that unit only starts and ends.
    """
    files, running = controller.files, controller.process.state is ProcessState.RUNNING
    if controller.answers or not running or not files.meta or any(files.meta.values()) or files.has_metadata_log is not False:
        return None
    if (loop := in_restart_loop(f"controller {controller.id}", controller.process)) is not None:
        return loop
    text = (
        f"a process runs as controller {controller.id}, but its directory is empty and it does not answer: it is another node's"
    )
    return Reason("M01", text)


def foreign_directories(theirs: Mapping[str, str]) -> str:
    """Other nodes' directories, for a message."""
    return "; ".join(f"{path} is the directory of node {node}" for path, node in theirs.items())


def needs_version_0(files: NodeFiles) -> tuple[str, ...]:
    """The log directories whose file has version 1, with which a ZooKeeper broker exits (G10, measured)."""
    return tuple(folder for folder, keys in (files.meta or {}).items() if keys.get("version") == "1")


def version_0(keys: Mapping[str, str]) -> str:
    """The same identity as ZooKeeper brokers write it: `broker.id` for `node.id`; the directory id stays (harmless, measured)."""
    broker = keys.get("broker.id") or keys.get("node.id", "")
    rest = {key: value for key, value in keys.items() if key not in {"version", "broker.id", "node.id"}}
    lines = {"version": "0", "broker.id": broker, **rest}
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def misfiled(name: str, files: NodeFiles, stage: FileStage) -> Decision | None:
    """What is left to do about the file of the node `name`, such as "broker 3"; None if it is of `stage`.

    Waits for a file that was not read.
    """
    if files.properties is None:
        return Wait((could_not_read(f"the properties of {name}"),))
    found = stage_of(files.properties)
    if found is stage:
        return None
    return Act(
        Verb.REWRITE,
        f"{name.capitalize()} runs in the right mode, but its file is of stage {found}: writing the right file again.",
    )


def foreign_file(controller_id: int, properties: Mapping[str, str] | None) -> str | None:
    """What the file at a controller's place is, such as "the file of broker 1"; None if it is its own, or there is none."""
    if properties is None:
        return None
    stage, found = stage_of(properties), node_id(properties)
    if stage is not None and stage.of_controller and found == controller_id:
        return None
    kind = "controller" if stage is not None and stage.of_controller else "broker"
    return "not a controller's file" if found is None else f"the file of {kind} {found}"
