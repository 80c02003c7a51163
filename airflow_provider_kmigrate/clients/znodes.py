"""Parse what Kafka writes into its znodes, without trust; sources: ZkData.scala and ZkMigrationLeadershipState, Kafka 3.9.

Unexpected content becomes `Malformed`, or `None` in a list of many, never an exception: a broken znode is a finding. `batches`
cuts long lists into requests of a bounded size.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from airflow_provider_kmigrate.core.model import (
    Age,
    BrokerMode,
    Malformed,
    Migration,
    PartitionMetadata,
    TopicMetadata,
    ZkController,
)
from airflow_provider_kmigrate.exceptions import Failed

Parsed = TypeVar("Parsed")

_SHOWN = 200  # characters of a malformed znode that a message may carry


def cluster_id(data: bytes) -> str | Malformed:
    """/cluster/id: {"version":"1","id":"..."}"""
    return _parse("/cluster/id", data, lambda fields: _text(fields["id"]))


def controller(data: bytes, *, ephemeral: bool) -> ZkController | Malformed:
    """/controller; version 1 (before KIP-866) has no kraftControllerEpoch, which means -1."""
    return _parse(
        "/controller",
        data,
        lambda fields: ZkController(_int(fields["brokerid"]), _int(fields.get("kraftControllerEpoch", -1)), ephemeral),
    )


def controller_epoch(data: bytes) -> int | None:
    """/controller_epoch is bare decimal text."""
    try:
        return int(data)
    except ValueError:
        return None


def migration(data: bytes, version: int, created_at: float = 0.0, age: Age | None = None) -> Migration | Malformed:
    """/migration; null data, which blocks the migration driver forever (KAFKA-19480), is malformed too."""
    return _parse(
        "/migration",
        data,
        lambda fields: Migration(
            kraft_controller_id=_int(fields["kraft_controller_id"]),
            kraft_controller_epoch=_int(fields["kraft_controller_epoch"]),
            metadata_offset=_int(fields["kraft_metadata_offset"]),
            metadata_epoch=_int(fields["kraft_metadata_epoch"]),
            version=version,
            created_at=created_at,
            age=age,
        ),
    )


def topic(name: str, data: bytes) -> TopicMetadata | Malformed:
    """/brokers/topics/<topic>: replicas of each partition; leader -1 and no ISR until the states are read too."""

    def assignment(fields: Mapping[str, Any]) -> TopicMetadata:
        partitions = {int(index): PartitionMetadata(_ints(ids), leader=-1) for index, ids in fields["partitions"].items()}
        return TopicMetadata(name, fields.get("topic_id"), partitions)

    return _parse(f"/brokers/topics/{name}", data, assignment)


def partition_state(path: str, data: bytes) -> tuple[int, tuple[int, ...], int | None] | Malformed:
    """/brokers/topics/<topic>/partitions/<n>/state: leader (-1: none), ISR, and the epoch of the controller that wrote it."""

    def state(fields: Mapping[str, Any]) -> tuple[int, tuple[int, ...], int | None]:
        epoch = fields.get("controller_epoch")
        return _int(fields["leader"]), _ints(fields["isr"]), None if epoch is None else _int(epoch)

    return _parse(path, data, state)


def state_epoch(path: str, data: bytes) -> int | Malformed:
    """The same znode's controller_epoch: a controller with a lower epoch can change nothing about this partition (KAFKA-20488)."""
    return _parse(path, data, lambda fields: _int(fields["controller_epoch"]))


def configs(path: str, data: bytes) -> Mapping[str, str] | Malformed:
    """/config/<kind>/<name>: the overrides; KRaft's dual-write leaves empty ones behind, which mean none."""
    return _parse(path, data, lambda fields: {_text(key): str(value) for key, value in fields["config"].items()})


def rolled_back(data: bytes) -> Mapping[int, BrokerMode]:
    """Our own note {"0": "zookeeper"}: the brokers rolled back alone, and their mode. Raises `Failed` if it is unreadable."""
    found = _parse("rolled back", data, lambda fields: {int(broker): BrokerMode(mode) for broker, mode in fields.items()})
    if isinstance(found, Malformed):
        why = "without it a roll may let the takeover isolate a broker that was rolled back"
        raise Failed(
            f'kmigrate\'s note of brokers that were rolled back holds {found.content}: {why}; correct it, such as {{"0": "zookeeper"}}'
        )
    return found


def node_ids(path: str, data: bytes) -> frozenset[int]:
    """Our own note of nodes, such as [0, 1]. Raises `Failed` if it is unreadable."""
    try:
        return frozenset(map(_int, json.loads(data)))
    except (ValueError, TypeError) as error:
        why = "without it the takeover may isolate a broker, or a lost migration flag may look like a finalization"
        raise Failed(f"kmigrate's note {path} holds {readable(data)}: {why}; correct it, such as [0, 1]") from error


def readable(data: bytes | None) -> str:
    """A znode's content for a message: text as it is, bytes as base64, both cut."""
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError:
        text = base64.b64encode(data or b"").decode()
    return text[:_SHOWN]


def _parse(path: str, data: bytes, build: Callable[[Mapping[str, Any]], Parsed]) -> Parsed | Malformed:
    try:
        return build(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return Malformed(path, readable(data))


def _int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return value


def _ints(values: object) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise TypeError(values)
    return tuple(_int(value) for value in values)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(value)
    return value


Item = TypeVar("Item")


def batches(items: Iterable[Item], size: int) -> Iterator[tuple[Item, ...]]:
    """Tuples of `size` items in the given order, the last one shorter."""
    rest = iter(items)
    while batch := tuple(islice(rest, size)):
        yield batch
