"""What preflight asks of one broker beside its mode: its release, its disks, and the reassignments that it knows. All only read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest, DescribeLogDirsRequest, ListPartitionReassignmentsRequest

from airflow_provider_kmigrate.clients.admin import check, name_of
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.preflight.environment import LogDir, Taken
from airflow_provider_kmigrate.exceptions import Failed

_BROKER = 4  # ConfigResource.Type of a broker
_STATIC = 4  # ConfigSource of what it read when it started
_DEFAULT = 5  # ConfigSource of what Kafka has when nobody says anything
_PROTOCOL = "inter.broker.protocol.version"
_LIST_MS = 10_000


def release(wire: Wire, broker: int) -> str:
    """The line of releases that a broker's software is of, such as `3.9-IV0`: the protocol version that is its default.

    Nothing tells the patch level. Raises `Failed` where the broker does not tell the default.
    """
    for entry in _configs(wire, broker, [_PROTOCOL]):
        found = [synonym.value for synonym in entry.synonyms if synonym.source == _DEFAULT and synonym.value]
        if entry.name == _PROTOCOL and found:
            return str(found[0])
    raise Failed(f"{wire.endpoint} does not tell the default of {_PROTOCOL}")


def taken(wire: Wire, broker: int) -> Taken:
    """What the broker read when it started, key by key, whatever was set dynamically since. Secrets are without their values."""
    synonyms = [synonym for entry in _configs(wire, broker, None) for synonym in entry.synonyms]
    values = {each.name: each.value for each in synonyms if each.source == _STATIC}
    if not values:
        raise Failed(f"{wire.endpoint} tells nothing of its own file")
    return Taken(values, {each.name: each.value for each in synonyms if each.source == _DEFAULT and each.value is not None})


def _configs(wire: Wire, broker: int, keys: list[str] | None) -> Iterator[Any]:
    """Each setting with everything that it may come from (KIP-226); all of them where no `keys` are named."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(broker), configuration_keys=keys
    )
    for result in _ask(wire, DescribeConfigsRequest, 1, 4, resources=[resource], include_synonyms=True).results:
        check(result.error_code, f"{wire.endpoint} DescribeConfigs", result.error_message)
        yield from result.configs


def log_dirs(wire: Wire) -> tuple[LogDir, ...]:
    """Every log directory of the broker, and what is wrong with it; without its replicas, which may be many."""
    answer = _ask(wire, DescribeLogDirsRequest, 1, 4, topics=[])
    check(getattr(answer, "error_code", None) or 0, f"{wire.endpoint} DescribeLogDirs")
    found = tuple(LogDir(each.log_dir, name_of(each.error_code) if each.error_code else "") for each in answer.results)
    if not found:  # what a broker answers whom it does not let DESCRIBE the cluster, before version 3
        raise Failed(f"{wire.endpoint} names no log directory: our user may not DESCRIBE the cluster")
    return found


def reassignments(wire: Wire) -> tuple[str, ...]:
    """Partitions that are being reassigned; only the controller knows them, others raise `Unavailable` (KRaft brokers ask it)."""
    answer = _ask(wire, ListPartitionReassignmentsRequest, 0, 0, timeout_ms=_LIST_MS, topics=None)
    check(answer.error_code, f"{wire.endpoint} ListPartitionReassignments", answer.error_message)
    return tuple(sorted(f"{topic.name}-{partition.partition_index}" for topic in answer.topics for partition in topic.partitions))


def _ask(wire: Wire, request: Any, lowest: int, highest: int, **fields: Any) -> Any:
    return wire.ask(request, lowest, highest, **fields)  # the same connection, in a file of its own
