"""Znodes: parses what Kafka writes into them, without trust, and lists the writes that a run may make.

Sources: ZkData.scala and ZkMigrationLeadershipState, Kafka 3.9. Unexpected content, and a version that is not in
`core.cluster_state.znode_formats`, becomes `Malformed`, or `None` in a list of many, never an exception: a broken znode is a finding.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from airflow_provider_kmigrate.core.cluster_state.model import (
    Age,
    BrokerMode,
    Expansion,
    ExpansionStage,
    Malformed,
    Migration,
    PartitionMetadata,
    Reason,
    TopicMetadata,
    ZkController,
)
from airflow_provider_kmigrate.core.cluster_state.znode_formats import (
    CLUSTER_ID,
    CONFIG,
    CONTROLLER,
    MIGRATION,
    STATE,
    TOPIC,
    UnknownVersion,
    require_known_version,
)
from airflow_provider_kmigrate.core.member.registration import is_number
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import Failed, Forbidden

Parsed = TypeVar("Parsed")

_SHOWN = 200  # characters of a malformed znode that a message may carry


def parse_cluster_id(data: bytes) -> str | Malformed:
    """/cluster/id: {"version":"1","id":"..."}"""
    return parse_znode("/cluster/id", data, lambda fields: _require_text(fields["id"]), CLUSTER_ID)


def parse_controller(data: bytes, *, ephemeral: bool) -> ZkController | Malformed:
    """/controller; version 1 (before KIP-866) has no kraftControllerEpoch, which means -1."""
    return parse_znode(
        "/controller",
        data,
        lambda fields: ZkController(
            _require_int(fields["brokerid"]), _require_int(fields.get("kraftControllerEpoch", -1)), ephemeral
        ),
        CONTROLLER,
    )


def parse_controller_epoch(data: bytes) -> int | None:
    """/controller_epoch is bare decimal text; None if it is anything else."""
    return int(data) if re.fullmatch(rb"-?[0-9]{1,10}", data) else None


def parse_migration(data: bytes, version: int, created_at: float = 0.0, age: Age | None = None) -> Migration | Malformed:
    """/migration; null data, which blocks the migration driver forever (KAFKA-19480), is malformed too."""
    return parse_znode(
        "/migration",
        data,
        lambda fields: Migration(
            kraft_controller_id=_require_int(fields["kraft_controller_id"]),
            kraft_controller_epoch=_require_int(fields["kraft_controller_epoch"]),
            metadata_offset=_require_int(fields["kraft_metadata_offset"]),
            metadata_epoch=_require_int(fields["kraft_metadata_epoch"]),
            version=version,
            created_at=created_at,
            age=age,
        ),
        MIGRATION,
    )


def parse_topic(name: str, data: bytes) -> TopicMetadata | Malformed:
    """/brokers/topics/<topic>: replicas of each partition; leader -1 and no ISR until the states are read too."""

    def build_topic(fields: Mapping[str, Any]) -> TopicMetadata:
        partitions = {
            _parse_index(index): PartitionMetadata(_require_ints(ids), leader=-1) for index, ids in fields["partitions"].items()
        }
        return TopicMetadata(name, fields.get("topic_id"), partitions)

    return parse_znode(f"/brokers/topics/{name}", data, build_topic, TOPIC)


def parse_partition_state(path: str, data: bytes) -> tuple[int, tuple[int, ...], int | None] | Malformed:
    """/brokers/topics/<topic>/partitions/<n>/state: leader (-1: none), ISR, and the epoch of the controller that wrote it."""

    def build_state(fields: Mapping[str, Any]) -> tuple[int, tuple[int, ...], int | None]:
        epoch = fields.get("controller_epoch")
        return _require_int(fields["leader"]), _require_ints(fields["isr"]), None if epoch is None else _require_int(epoch)

    return parse_znode(path, data, build_state, STATE)


def parse_state_epoch(path: str, data: bytes) -> int | Malformed:
    """The same znode's controller_epoch: a controller with a lower epoch can change nothing about this partition (KAFKA-20488)."""
    return parse_znode(path, data, lambda fields: _require_int(fields["controller_epoch"]), STATE)


def parse_configs(path: str, data: bytes) -> Mapping[str, str] | Malformed:
    """/config/<kind>/<name>: the overrides; KRaft's dual-write leaves empty ones behind, which mean none."""
    return parse_znode(
        path, data, lambda fields: {_require_text(key): str(value) for key, value in fields["config"].items()}, CONFIG
    )


def parse_rolled_back(data: bytes) -> Mapping[int, BrokerMode]:
    """Our own note {"0": "zookeeper"}: the brokers rolled back alone, and their mode. Raises `Failed` if it is unreadable."""
    why = "a roll may let the takeover isolate a broker that was rolled back"
    return _parse_own_note(
        ROLLED_BACK, data, lambda fields: {int(key): BrokerMode(mode) for key, mode in fields.items()}, why, '{"0": "zookeeper"}'
    )


def parse_node_ids(path: str, data: bytes) -> frozenset[int]:
    """Our own note of nodes, such as [0, 1]. Raises `Failed` if it is unreadable."""
    why = "the takeover may isolate a broker, or a lost migration flag may look like a finalization"
    return _parse_own_note(path, data, lambda ids: frozenset(map(_require_int, ids)), why, "[0, 1]")


def parse_expansion(data: bytes) -> Expansion:
    """Our own note {"from": [10], "to": 20, "stage": "deleting"}. Raises `Failed` if it is unreadable."""

    def build_expansion(fields: Mapping[str, Any]) -> Expansion:
        return Expansion(_require_ints(fields["from"]), _require_int(fields["to"]), ExpansionStage(fields["stage"]))

    why = "the offsets of groups that were deleted may never be imported"
    return _parse_own_note(EXPANSION, data, build_expansion, why, '{"from": [10], "to": 20, "stage": "deleting"}')


def parse_partition_counts(data: bytes) -> Mapping[str, int]:
    """Our own note {"__consumer_offsets": 50}. Raises `Failed` if it is unreadable."""
    why = "an expansion that no broker has noticed may not be seen, and the next restart loses positions of groups"
    example = '{"__consumer_offsets": 50}'
    return _parse_own_note(
        COUNTS, data, lambda fields: {_require_text(topic): _require_int(count) for topic, count in fields.items()}, why, example
    )


def _parse_own_note(path: str, data: bytes, build: Callable[[Any], Parsed], why: str, example: str) -> Parsed:
    note = parse_znode(path, data, build)
    if isinstance(note, Malformed):
        raise Failed(f"kmigrate's note {path} holds {note.content}: without it {why}; correct it, such as {example}")
    return note


def expansion_note(noted_expansion: Expansion) -> dict[str, Any]:
    """The JSON values that `expansion` reads."""
    return {"from": list(noted_expansion.old), "to": noted_expansion.new, "stage": str(noted_expansion.stage)}


def printable_content(data: bytes | None) -> str:
    """A znode's content for a message: text as it is, bytes as base64, both cut."""
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError:
        text = base64.b64encode(data or b"").decode()
    return printable(text[:_SHOWN])


def parse_znode(path: str, data: bytes, build: Callable[[Mapping[str, Any]], Parsed], kind: str = "") -> Parsed | Malformed:
    """What `build` makes of the JSON in a znode; `Malformed` if it cannot, or its `kind` has no such version (our own notes have no kind)."""
    try:
        fields = read_json(data)
        if kind:
            require_known_version(kind, fields)
        return build(fields)
    except UnknownVersion as unknown:
        return Malformed(path, str(unknown), unknown_version=True)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError):
        return Malformed(path, printable_content(data))


def raise_if_malformed(value_or_malformed: Parsed | Malformed) -> Parsed:
    """What was parsed. Raises `Failed` if the znode is malformed."""
    if isinstance(value_or_malformed, Malformed):
        what = "has" if value_or_malformed.unknown_version else "does not have Kafka's format:"
        raise Failed(f"{value_or_malformed.path} {what} {value_or_malformed.content}")
    return value_or_malformed


def _require_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return value


def _require_ints(values: object) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise TypeError(values)
    return tuple(_require_int(value) for value in values)


def _parse_index(text: str) -> int:
    if not is_number(text):
        raise ValueError(text)
    return int(text)


def _require_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(value)
    return value


Item = TypeVar("Item")


def batches(items: Iterable[Item], size: int) -> Iterator[tuple[Item, ...]]:
    """Tuples of `size` items in the given order, the last one shorter."""
    rest = iter(items)
    while batch := tuple(islice(rest, size)):
        yield batch


def outdated_token(text: str) -> Reason:
    """The reason of a `Fenced`; `text` says which token is older."""
    return Reason("H03", f"{text}.")


ROOT: Final = "/_kmigrate"
#: Our own note of brokers that were rolled back alone. Their registration with the controllers stays (measured), and no node
#: reports it.
ROLLED_BACK: Final = f"{ROOT}/rolled-back"
#: Our own note of brokers that a roll moved into migration mode; their registration stays, too, even if they return to ZooKeeper
#: mode.
REGISTERED: Final = f"{ROOT}/registered"
#: Our own note of controllers whose flag a finalization removes: a flag that is missing on any other was lost.
UNFLAGGED: Final = f"{ROOT}/unflagged"
NOTES: Final = (ROLLED_BACK, REGISTERED, UNFLAGGED)
#: Our own note of the last expansion of `__consumer_offsets`: no node reports the count before it once all have restarted. It is
#: no note about nodes: a handover leaves it.
EXPANSION: Final = f"{ROOT}/offsets-topic"
#: Our own note of the partition counts of the coordinator topics, as brokers use them: no broker reports its count, and regular
#: leaders hide that a topic has more partitions since. A rollback needs it to its end.
COUNTS: Final = f"{ROOT}/partition-counts"
#: The znodes of Kafka that a rollback writes or deletes. It also rewrites the partitions' states unchanged and creates those that
#: Kafka has left out (`find_missing_states`); everything else of Kafka's tree is only read.
WRITABLE: Final = frozenset({"/controller", "/controller_epoch", "/migration"})

_OWN = re.compile(rf"{ROOT}(/[A-Za-z0-9_-]+)*")
_ANY_VERSION = -1
CONSUMERS: Final = "/consumers"
_NAME: Final = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]{1,255}"  # of a group or a topic, as Kafka allows them
_GROUP: Final = rf"{CONSUMERS}/{_NAME}"
_STATE: Final = rf"/brokers/topics/{_NAME}/partitions/[0-9]{{1,10}}/state"


class Znode(NamedTuple):
    """A znode: its data, their version, and the zxid and time (seconds since the epoch) of their last change.

    `children_zxid`: of the last child that was created or deleted; `session`: whose end deletes the znode, 0 for none.
    """

    data: bytes
    version: int
    zxid: int
    changed_at: float
    children_zxid: int = 0
    session: int = 0


@dataclass(frozen=True, slots=True)
class Set:
    """Replace a znode's data if its version is still `version`."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a znode if its version is still `version`."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a znode that must not exist; an ephemeral one ends with this client's session. It gets the ACL of `like`, if given."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    like: str = ""


Operation = Set | Delete | Create

#: What may be done to a consumer group: its mode, our hold and the note of its cutover, an operator's resets, its offsets with their persistent parents, and
#: the folders that it leaves empty (ZooKeeper deletes no other). Never a member's registration or an owner: only its own session
#: may write those.
OF_GROUPS: Final[Mapping[type[Operation], re.Pattern[str]]] = {
    Create: re.compile(
        rf"{CONSUMERS}|{_GROUP}(?:/migration(?:/mode|/hold|/cutover)?|/(?:offsets|migration/reset)(?:/{_NAME}(?:/[0-9]{{1,10}})?)?)?"
    ),
    Set: re.compile(rf"{_GROUP}/(?:migration/(?:mode|hold|cutover)|(?:offsets|migration/reset)/{_NAME}/[0-9]{{1,10}})"),
    Delete: re.compile(
        rf"{_GROUP}/(?:migration(?:/mode|/hold|/cutover|/ids|/reset(?:/{_NAME}(?:/[0-9]{{1,10}})?)?)?|ids|owners(?:/{_NAME})?)"
    ),
}
_OF_PARTITIONS: Final[Mapping[type[Operation], re.Pattern[str]]] = {
    Create: re.compile(rf"{_STATE}|/brokers/topics/{_NAME}/partitions(?:/[0-9]{{1,10}})?"),
    Set: re.compile(_STATE),
}


def check_allowed(operation: Operation, *, is_fenced: bool) -> None:
    """Raise `Forbidden` (Z04) for a write that is on no list; `is_fenced`: whether it is fenced."""
    if _OWN.fullmatch(operation.path):
        return
    of_group = OF_GROUPS[type(operation)].fullmatch(operation.path) is not None
    of_partition = type(operation) in _OF_PARTITIONS and _OF_PARTITIONS[type(operation)].fullmatch(operation.path) is not None
    if not of_group and not of_partition and operation.path not in WRITABLE:
        raise _forbidden(f"{operation.path} is not on the list of writable znodes")
    if not is_fenced:
        raise _forbidden(f"{operation.path} may only be written by the run that holds the fence")
    if isinstance(operation, Create):
        if operation.ephemeral or not (of_group or (of_partition and operation.like)):
            raise _forbidden(f"{operation.path} may not be created" + (" for a session" if operation.ephemeral else ""))
    elif operation.version == _ANY_VERSION:
        raise _forbidden(f"{operation.path} may only be changed from a version that was read")


def _forbidden(text: str) -> Forbidden:
    return Forbidden.because(Reason("Z04", f"{text}."))
