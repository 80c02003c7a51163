"""What a node's properties file must hold in each stage of a migration, and the checks of it.

A stage is what a file *says*, not what its process does: a broker has its file's stage only after a restart. `STAGE_RULES` are those of
KIP-866 as Kafka validates them (`KafkaConfig.validateValues`). Of everything else Kafka's own definitions say what controllers inherit
(`kafka_keys`).

A broker's file of stage ZOOKEEPER is its *original*. kmigrate never changes it: all other stages are rendered from it
(`core.node_files.properties`), and a rollback puts it in place again. So an original needs no mark: `stage_of` recognizes it.

A node's directories say whose they are (meta.properties; MetaProperties of Kafka 3.9): those of another node are never formatted
or moved.

A run that died may have left another stage's file for the node's next restart (`misfiled`). A broker would be left behind, a
controller with final properties could be elected and finalize, and one with the migration's needs a ZooKeeper that may be gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
    Controller,
    NodeFiles,
    Process,
    ProcessState,
    Reason,
    could_not_read,
    level_of,
    same_version,
)
from airflow_provider_kmigrate.core.node_files.kafka_keys import is_inheritable


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


STAGE_RULES: Mapping[str, str] = {
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
    "password.encoder.*": "SS-SS",
}
"""Key or prefix -> one letter of `Rule` for each `FileStage`, of the keys that KIP-866's stages change.

Keys without a row: SAME on brokers; controllers inherit what Kafka defines, less `NOT_INHERITED`.
"""

NOT_INHERITED: Mapping[str, str] = {
    "broker.id.generation.enable": "a node's identity",
    "reserved.broker.max.id": "a node's identity",
    "broker.rack": "the place of one broker",
    "advertised.listeners": "brokers' listeners; Kafka before 3.9 refuses it on controllers",
    "early.start.listeners": "brokers' listeners; Kafka refuses it without them",
    "security.inter.broker.protocol": "Kafka refuses it beside inter.broker.listener.name, which controllers have",
    "log.dir": "directories",
    "authorizer.zookeeper.*": "ZooKeeper",
    "replica.selector.class": "a class that only brokers load",
    "group.consumer.assignors": "classes that only brokers load",
    "remote.log.storage.manager.*": "a class that only brokers load",
    "remote.log.metadata.manager.*": "a class that only brokers load",
}
"""Keys or prefixes of Kafka's keys that controllers do not get from a broker's file, each with the reason."""

_OF_BROKERS_LISTENERS = frozenset({"advertised.listeners", "early.start.listeners", "security.inter.broker.protocol"})
"""What Kafka refuses on controllers beside their own listener (`NOT_INHERITED`): no cluster file may add it there."""

AUTHORIZER = "authorizer.class.name"
AUTHORIZERS = {
    "kafka.security.authorizer.AclAuthorizer": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}
"""ZooKeeper's authorizers and what KRaft nodes use in their place."""

STAGE_SECTIONS: Mapping[str, FileStage] = {
    "broker_migration": FileStage.MIGRATION,
    "broker_kraft": FileStage.KRAFT,
    "controller_migration": FileStage.CONTROLLER_MIGRATION,
    "controller_final": FileStage.CONTROLLER_FINAL,
}
"""The cluster file's keys of `stage_properties`, and the stage of each."""

_REFERENCE = re.compile(r"\$\{([^}:]*):[^}]*\}")  # ${provider:path:key}, as ConfigTransformer reads it
IDLE = "metadata.max.idle.interval.ms"
_MOST_IDLE_MS = (
    1_000  # below `core.migration.gates.STILL`, so that an idle but living dual-write is never taken for a stalled one
)
_OF_ONE_LISTENER = "listener.name."
_SYNONYMS = {"broker.id": "node.id", "log.dirs": "log.dir"}
_DEFAULT_RESERVED_MAX_ID = 1000


def find_rule(key: str, stage: FileStage, inter_broker: str = "") -> Rule:
    """What a stage demands of a key; `inter_broker` is the name of the inter-broker listener."""
    row = _find_row(STAGE_RULES, key)
    if row is not None:
        return _rule_in_row(row, stage)
    return Rule.SAME if not stage.of_controller or _is_inherited(key, inter_broker) else Rule.ABSENT


def _is_inherited(key: str, inter_broker: str) -> bool:
    """Of keys of one listener controllers get those of the inter-broker listener."""
    if key.startswith(_OF_ONE_LISTENER):
        return bool(inter_broker) and key.startswith(listener_key_prefix(inter_broker))
    return is_inheritable(key) and _find_row(NOT_INHERITED, key) is None


def is_forbidden(key: str, stage: FileStage) -> bool:
    """Whether the stage excludes the key; keys without a row are left to the user."""
    row = _find_row(STAGE_RULES, key)
    return row is not None and _rule_in_row(row, stage) is Rule.ABSENT


def may_be_added(key: str, stage: FileStage) -> bool:
    """Whether the cluster file may have the key for a stage: it is neither excluded from it nor decided by kmigrate, by any of its names.

    A broker keeps whatever the stages have a rule for: its listeners and its directories, too.
    """
    if not stage.of_controller:
        return _find_row(STAGE_RULES, key) is None and key not in _SYNONYMS.values()
    decided = find_rule(key, stage) is Rule.REQUIRED or key in _SYNONYMS.values() or key in _OF_BROKERS_LISTENERS
    return not decided and not is_forbidden(key, stage)


_COLUMNS = {stage: column for column, stage in enumerate(FileStage)}
_RULES = {rule.value: rule for rule in Rule}


def _rule_in_row(row: str, stage: FileStage) -> Rule:
    return _RULES[row[_COLUMNS[stage]]]


def _find_row(table: Mapping[str, str], key: str) -> str | None:
    """The row of a key, or of the prefix with which it begins."""
    by_prefix = (row for prefix, row in table.items() if prefix.endswith(".*") and key.startswith(prefix[:-1]))
    return table.get(key) or next(by_prefix, None)


def read_setting(properties: Mapping[str, str], key: str) -> str | None:
    """A value as Kafka reads it: without blanks around; None if absent or empty."""
    return properties.get(key, "").strip() or None


def listener_key_prefix(listener: str) -> str:
    """With which the keys of one listener alone begin."""
    return f"listener.name.{listener.lower()}."


def read_listener_setting(properties: Mapping[str, str], listener: str, key: str) -> str | None:
    """A listener's value for a key: its own, or the one for all listeners."""
    return read_setting(properties, listener_key_prefix(listener) + key) or read_setting(properties, key)


def is_true(properties: Mapping[str, str], key: str) -> bool:
    """Whether a setting is there, and is true."""
    return (read_setting(properties, key) or "").lower() == "true"


def find_references(value: str) -> tuple[str, ...]:
    """The providers of the references in a value, such as `${file:/etc/secrets:key}`, which only the node itself resolves (KIP-421)."""
    return tuple(match.strip() for match in _REFERENCE.findall(value))


def stage_of(properties: Mapping[str, str]) -> FileStage | None:
    """The stage that a file puts its node in; None for a combined node and for a file with which no node could start."""
    flagged = is_true(properties, "zookeeper.metadata.migration.enable")
    match read_setting(properties, "process.roles"):
        case None if read_setting(properties, "zookeeper.connect"):
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


def read_node_id(properties: Mapping[str, str]) -> int | None:
    """The node's id, under either name; None if it is absent, generated (-1) or no number."""
    value = read_setting(properties, "broker.id") or read_setting(properties, "node.id") or ""
    return int(value) if value.isdecimal() else None


def chroot_of(connect: str) -> str:
    """The chroot in a zookeeper.connect string: empty, or a path that begins with a slash."""
    _, slash, path = connect.strip().partition("/")
    return (slash + path).rstrip("/")


def inter_broker_listener(properties: Mapping[str, str]) -> str:
    """The listener on which brokers reach each other; Kafka's default is the listener named after its protocol."""
    listener = read_setting(properties, "inter.broker.listener.name")
    return listener or read_setting(properties, "security.inter.broker.protocol") or "PLAINTEXT"


def listener_names(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the listeners that the node opens, in upper case, as Kafka takes them."""
    entries = (read_setting(properties, "listeners") or "PLAINTEXT://:9092").split(",")
    return tuple(entry.split(":", 1)[0].strip().upper() for entry in entries)


def listener_ports(properties: Mapping[str, str]) -> dict[int, str]:
    """The ports that the node opens, each with its listener's name; without those that only a reference names, and 0 (any)."""
    entries = (entry.strip() for entry in (read_setting(properties, "listeners") or "PLAINTEXT://:9092").split(","))
    ports = ((entry.rpartition(":")[2], entry.partition(":")[0].upper()) for entry in entries)
    return {int(port): name for port, name in ports if port.isdecimal() and int(port)}


def find_problems(
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
    actual_stage = stage_of(properties)
    if actual_stage is not stage:
        return (Reason("O06", f"the file is of stage {actual_stage or 'unknown'}, not {stage}"),)
    texts = (
        *_find_id_problems(properties, stage),
        *_find_matrix_problems(properties, stage),
        *_find_zookeeper_problems(properties, stage, chroot),
        *_find_version_problems(properties, stage, metadata_version),
        *_find_listener_problems(properties, stage, controller_listener),
        *_find_authorizer_problems(properties, stage),
        *_find_idle_problems(properties, stage),
    )
    return (
        *(Reason("C04", text) for text in texts),
        *(Reason("C10", text) for text in _find_unresolved_references(properties, stage)),
    )


def _find_id_problems(properties: Mapping[str, str], stage: FileStage) -> Iterator[str]:
    broker, node = (read_setting(properties, key) for key in ("broker.id", "node.id"))
    identity = read_node_id(properties)
    if identity is None:
        yield "broker.id is missing" if broker is None and node is None else "broker.id is not an explicit number from 0"
    elif broker and node and broker != node:
        yield f"broker.id={broker} but node.id={node}"
    elif stage in {FileStage.ZOOKEEPER, FileStage.MIGRATION}:
        generates_ids = (read_setting(properties, "broker.id.generation.enable") or "true").lower() == "true"
        reserved = read_setting(properties, "reserved.broker.max.id") or ""
        max_reserved_id = int(reserved) if reserved.isdecimal() else _DEFAULT_RESERVED_MAX_ID
        if generates_ids and identity > max_reserved_id:
            yield f"broker.id={identity} is above reserved.broker.max.id={max_reserved_id} while ids are generated"


def _find_matrix_problems(properties: Mapping[str, str], stage: FileStage) -> Iterator[str]:
    for key, row in STAGE_RULES.items():
        is_set = read_setting(properties, key) or read_setting(properties, _SYNONYMS.get(key, key))
        if _rule_in_row(row, stage) is Rule.REQUIRED and not is_set and key not in {"broker.id", "node.id"}:
            yield f"{key} is missing"
    for key, value in properties.items():
        if is_forbidden(key, stage) and value.strip().lower() not in {"", "false"}:
            yield f"{key} must not be set"


def _find_zookeeper_problems(properties: Mapping[str, str], stage: FileStage, chroot: str | None) -> Iterator[str]:
    connect = read_setting(properties, "zookeeper.connect")
    if not stage.reads_zookeeper or not connect or chroot is None or find_references(connect):
        return
    if chroot_of(connect) != chroot:
        yield f"zookeeper.connect has the chroot {chroot_of(connect) or '/'}, the cluster is under {chroot or '/'}"


def _find_version_problems(properties: Mapping[str, str], stage: FileStage, metadata_version: str | None) -> Iterator[str]:
    protocol = read_setting(properties, "inter.broker.protocol.version")
    if stage.of_controller or stage is FileStage.KRAFT or not protocol or find_references(protocol):
        return
    if stage is FileStage.MIGRATION and level_of(protocol) is None:
        yield f"inter.broker.protocol.version={protocol}, below 3.4: no broker migrates with it"
    elif metadata_version and not same_version(protocol, metadata_version):
        yield f"inter.broker.protocol.version={protocol}, the controllers' metadata.version is {metadata_version}"


def _find_listener_problems(properties: Mapping[str, str], stage: FileStage, controller_listener: str) -> Iterator[str]:
    names, controller_listener = listener_names(properties), controller_listener.upper()
    if stage.of_controller and controller_listener not in names:
        yield f"the listener {controller_listener} is not among listeners"
    if not stage.of_controller and controller_listener in names:
        yield f"the broker has a listener of its own named {controller_listener}: give `quorum.listener` in the cluster file another name"


def _find_authorizer_problems(properties: Mapping[str, str], stage: FileStage) -> Iterator[str]:
    name = read_setting(properties, AUTHORIZER)
    if name in AUTHORIZERS and stage not in {FileStage.ZOOKEEPER, FileStage.MIGRATION}:
        yield f"authorizer.class.name is {name}, which reads ZooKeeper; a KRaft node needs {AUTHORIZERS[name]}"


def may_stay_idle(value: str) -> bool:
    """Whether a migration's controllers may have this value of `IDLE`: a longer one looks like a stalled dual-write."""
    return value.strip().isdecimal() and 1 <= int(value) <= _MOST_IDLE_MS


def _find_idle_problems(properties: Mapping[str, str], stage: FileStage) -> Iterator[str]:
    """The record that an idle controller writes is what moves /migration (default 500 ms; 0: none)."""
    value = read_setting(properties, IDLE)
    if stage is not FileStage.CONTROLLER_MIGRATION or value is None:
        return
    if not may_stay_idle(value):
        yield f"{IDLE} is {value}, which is not between 1 and {_MOST_IDLE_MS}"


def _find_unresolved_references(properties: Mapping[str, str], stage: FileStage) -> Iterator[str]:
    """Controllers only: a broker that runs with such a value uses it as written."""
    providers = [name.strip() for name in (read_setting(properties, "config.providers") or "").split(",")]
    missing = {
        key: sorted(set(find_references(value)) - {*providers}) for key, value in properties.items() if stage.of_controller
    }
    needed = ",".join(filter(None, [*providers, *sorted({name for names in missing.values() for name in names})]))
    for key, names in missing.items():
        if names:
            yield f"{key} refers to {', '.join(names)}, which config.providers does not name; write `config.providers={needed}`"


Metas = Mapping[str, Mapping[str, str]]  # directory -> the keys of its meta.properties, none if it is not formatted


def read_owner(meta: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Cluster and node that a meta.properties names; a broker's of version 0 has `broker.id`."""
    return meta.get("cluster.id"), meta.get("node.id", meta.get("broker.id"))


def find_foreign_owners(node_id: int, metas: Metas | None) -> dict[str, str]:
    """The directories that another node owns, each with that node's id."""
    owners = {path: read_owner(meta)[1] for path, meta in (metas or {}).items()}
    return {path: node for path, node in owners.items() if node not in {None, str(node_id)}}


def directories_in_use(controller: Controller) -> tuple[str, ...]:
    """The directories of its own that hold a format or, as far as known, a metadata log."""
    metas, foreign = controller.files.meta or {}, find_foreign_owners(controller.id, controller.files.meta)
    return tuple(path for path, meta in metas.items() if path not in foreign and (meta or controller.files.has_metadata_log))


def foreign_directory_reason(controller: Controller) -> Reason | None:
    """M01: a directory that the cluster file gives to this controller is another node's."""
    owners = find_foreign_owners(controller.id, controller.files.meta)
    if not owners:
        return None
    return Reason("M01", f"{describe_foreign_directories(owners)}, not of controller {controller.id}.")


def unreadable_store_reason(name: str, files: NodeFiles) -> Reason | None:
    """C11: key stores, trust stores or keytabs that files of the node `name` name, and that Kafka's user cannot read there."""
    if not files.unreadable:
        return None
    return Reason(
        "C11", f"Kafka's user cannot read these key stores, trust stores or keytabs of {name}: {', '.join(files.unreadable)}"
    )


def restart_loop_reason(name: str, process: Process) -> Reason | None:
    """M08: the unit of the node `name` ends and is started again; nothing runs as this node, although something is started."""
    if process.restart_loop is None:
        return None
    log_end = f"; the end of its log: {process.restart_loop}" if process.restart_loop else ""
    return Reason("M08", f"the unit of {name} ends again and again, and the service manager starts it again{log_end}")


def foreign_process_reason(controller: Controller) -> Reason | None:
    """M01: a process runs as this controller, but its directory is not formatted: most likely its unit is a broker's.

    M08 if that unit only starts and ends.
    """
    files, running = controller.files, controller.process.state is ProcessState.RUNNING
    if controller.answers or not running or not files.meta or any(files.meta.values()) or files.has_metadata_log is not False:
        return None
    if (loop := restart_loop_reason(f"controller {controller.id}", controller.process)) is not None:
        return loop
    text = (
        f"a process runs as controller {controller.id}, but its directory is empty and it does not answer: it is another node's"
    )
    return Reason("M01", text)


def describe_foreign_directories(owners: Mapping[str, str]) -> str:
    """Other nodes' directories, for a message."""
    return "; ".join(f"{path} is the directory of node {node}" for path, node in owners.items())


def version_1_directories(files: NodeFiles) -> tuple[str, ...]:
    """The log directories whose file has version 1, with which a ZooKeeper broker exits (G10, measured)."""
    return tuple(folder for folder, keys in (files.meta or {}).items() if keys.get("version") == "1")


def render_version_0(keys: Mapping[str, str]) -> str:
    """The same identity as ZooKeeper brokers write it: `broker.id` for `node.id`; the directory id stays (harmless, measured)."""
    broker = keys.get("broker.id") or keys.get("node.id", "")
    rest = {key: value for key, value in keys.items() if key not in {"version", "broker.id", "node.id"}}
    lines = {"version": "0", "broker.id": broker, **rest}
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def decide_file_rewrite(name: str, files: NodeFiles, stage: FileStage) -> Decision | None:
    """What is left to do about the file of the node `name`, such as "broker 3"; None if it is of `stage`.

    Waits for a file that was not read.
    """
    if files.properties is None:
        return Wait((could_not_read(f"the properties of {name}"),))
    actual_stage = stage_of(files.properties)
    if actual_stage is stage:
        return None
    return Act(
        Verb.REWRITE,
        f"{name.capitalize()} runs in the right mode, but its file is of stage {actual_stage}: writing the right file again.",
    )


def describe_foreign_file(controller_id: int, properties: Mapping[str, str] | None) -> str | None:
    """What the file at a controller's place is, such as "the file of broker 1"; None if it is its own, or there is none."""
    if properties is None:
        return None
    stage, owner_id = stage_of(properties), read_node_id(properties)
    if stage is not None and stage.of_controller and owner_id == controller_id:
        return None
    kind = "controller" if stage is not None and stage.of_controller else "broker"
    return "not a controller's file" if owner_id is None else f"the file of {kind} {owner_id}"
