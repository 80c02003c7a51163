"""What preflight reads of one broker beside its mode: release, static settings, disks and reassignments. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest, DescribeLogDirsRequest, ListPartitionReassignmentsRequest

from airflow_provider_kmigrate.clients.admin import check, name_of
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.core.preflight.environment import LogDir, Taken
from airflow_provider_kmigrate.exceptions import Failed

_BROKER = 4  # ConfigResource.Type of a broker
_STATIC = 4  # ConfigSource of the settings it read when it started
_DEFAULT = 5  # ConfigSource of Kafka's defaults
_PROTOCOL = "inter.broker.protocol.version"
_LIST_MS = 10_000


def release(wire: Wire, broker: int) -> str:
    """The release line of a broker's software, such as `3.9-IV0`: the default of its protocol version.

    No request returns the patch level. Raises `Failed` if the broker does not report the default.
    """
    for entry in _configs(wire, broker, [_PROTOCOL]):
        found = [synonym.value for synonym in entry.synonyms if synonym.source == _DEFAULT and synonym.value]
        if entry.name == _PROTOCOL and found:
            return str(found[0])
    raise Failed(f"{wire.endpoint} does not report the default of {_PROTOCOL}")


def taken(wire: Wire, broker: int) -> Taken:
    """The settings that the broker read when it started, whatever was set dynamically since. Secrets are without their values."""
    synonyms = [synonym for entry in _configs(wire, broker, None) for synonym in entry.synonyms]
    values = {each.name: each.value for each in synonyms if each.source == _STATIC}
    if not values:
        raise Failed(f"{wire.endpoint} reports nothing of its own file")
    return Taken(values, {each.name: each.value for each in synonyms if each.source == _DEFAULT and each.value is not None})


def _configs(wire: Wire, broker: int, keys: list[str] | None) -> Iterator[Any]:
    """Each setting with all its sources (KIP-226); every setting if `keys` is None."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(broker), configuration_keys=keys
    )
    for result in _ask(wire, DescribeConfigsRequest, 1, 4, resources=[resource], include_synonyms=True).results:
        check(result.error_code, f"{wire.endpoint} DescribeConfigs", result.error_message)
        yield from result.configs


def log_dirs(wire: Wire) -> tuple[LogDir, ...]:
    """Every log directory of the broker and its error; without its replicas, which may be many."""
    answer = _ask(wire, DescribeLogDirsRequest, 1, 4, topics=[])
    check(getattr(answer, "error_code", None) or 0, f"{wire.endpoint} DescribeLogDirs")
    found = tuple(LogDir(each.log_dir, name_of(each.error_code) if each.error_code else "") for each in answer.results)
    if not found:  # before version 3 this is the answer if DESCRIBE of the cluster is not allowed
        raise Failed(f"{wire.endpoint} names no log directory: our user may not DESCRIBE the cluster")
    return found


def reassignments(wire: Wire) -> tuple[str, ...]:
    """Partitions that are being reassigned; only the controller knows them, others raise `Unavailable` (KRaft brokers ask it)."""
    answer = _ask(wire, ListPartitionReassignmentsRequest, 0, 0, timeout_ms=_LIST_MS, topics=None)
    check(answer.error_code, f"{wire.endpoint} ListPartitionReassignments", answer.error_message)
    return tuple(sorted(f"{topic.name}-{partition.partition_index}" for topic in answer.topics for partition in topic.partitions))


def _ask(wire: Wire, request: Any, lowest: int, highest: int, **fields: Any) -> Any:
    return wire.ask(request, lowest, highest, **fields)
