"""Read each partition's log from its leader: begin and end, newest leader epoch, its topic's id and clean-up.

The end is the high watermark: records behind it were not acknowledged to a producer with acks=all. A new leader reports no end
until it knows one that is not too low (KIP-207), so an end that moved back really did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from airflow_provider_kmigrate.clients.admin import asked, connect, error_of
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.events import LogMark, TopicPartition
from airflow_provider_kmigrate.exceptions import KMigrateError

_BATCH: Final = 500  # partitions, or topics, of a request


def cluster_id(properties: Mapping[str, Any], timeout: float = 30.0) -> str:
    """The id of the cluster that these properties reach. Raises ours."""
    admin = connect(properties)
    return str(_asked("DescribeCluster", admin.describe_cluster(request_timeout=timeout), timeout).cluster_id)


def topic_names(properties: Mapping[str, Any], timeout: float = 30.0) -> list[str]:
    """All topics of the cluster, internal ones too. Raises ours."""
    return sorted(_topics(connect(properties), timeout))


def read_marks(
    properties: Mapping[str, Any],
    topics: Iterable[str],
    timeout: float = 30.0,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ages: bool = False,
) -> dict[TopicPartition, LogMark]:
    """The logs of all partitions of these topics now; with READ_COMMITTED one ends before its first open transaction.

    A topic that does not exist is left out; a partition that is not reported has the reason in `unread`. Raises ours if the
    cluster does not answer at all. `timeout`: seconds for each request. `ages`: also how old the newest record is if retention is
    by time, which costs one more request that searches the logs' time indexes.
    """
    admin, marks = connect(properties), dict[TopicPartition, LogMark]()
    for some in batches(sorted(set(topics)), _BATCH):
        described = _describe(admin, some, timeout)
        policies = _policies(admin, described, timeout)
        for name, topic in described.items():
            pattern = replace(policies.get(name, LogMark()), topic_id=known_id(str(topic.topic_id)))
            where = [TopicPartition(name, partition.id) for partition in topic.partitions]
            for part in batches(where, _BATCH):
                marks |= _marks(admin, part, pattern, isolation, timeout, ages=ages and pattern.retention_ms not in {None, -1})
    return marks


def log_ends(admin: AdminClient, wheres: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
    """The next offset of each log; partitions that do not exist, have no leader or are not reported are left out."""
    return _led(admin, wheres, OffsetSpec.latest, timeout)


def log_starts(admin: AdminClient, wheres: Iterable[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
    """The first offset of each log; the same partitions are left out as by `log_ends`."""
    return _led(admin, wheres, OffsetSpec.earliest, timeout)


def _led(
    admin: AdminClient, wheres: Iterable[TopicPartition], spec: Callable[[], Any], timeout: float
) -> dict[TopicPartition, int]:
    wanted = set(wheres)
    if not wanted:
        return {}
    led = {
        TopicPartition(name, index)
        for name, topic in _topics(admin, timeout).items()
        for index, one in topic.partitions.items()
        if one.leader >= 0
    }
    found = dict[TopicPartition, int]()
    for some in batches(sorted(led & wanted), _BATCH):
        answers = _offsets(admin, some, spec, timeout)
        found |= {where: answer.offset for where, answer in answers.items() if not isinstance(answer, KMigrateError | str)}
    return found


def _topics(admin: AdminClient, timeout: float) -> dict[str, Any]:
    try:
        found: dict[str, Any] = admin.list_topics(timeout=timeout).topics
    except KafkaException as error:
        raise error_of(error.args[0], "Metadata") from error
    return found


def ends_at(
    properties: Mapping[str, Any], wheres: Iterable[TopicPartition], t_ms: int, timeout: float = 30.0
) -> dict[TopicPartition, int]:
    """Where each log ended at that time (ms since the epoch), by its records' timestamps.

    Leaves out partitions whose records are all older, and unreported ones. Raises ours if the cluster does not answer at all.
    """
    admin, found = connect(properties), dict[TopicPartition, int]()
    for some in batches(sorted(set(wheres)), _BATCH):
        later = _offsets(admin, some, partial(OffsetSpec.for_timestamp, t_ms), timeout)
        found_at = {where: answer.offset for where, answer in later.items() if not isinstance(answer, KMigrateError | str)}
        found |= {where: offset for where, offset in found_at.items() if offset >= 0}
    return found


def _describe(admin: AdminClient, topics: Sequence[str], timeout: float) -> dict[str, Any]:
    found = {}
    for name, future in admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout).items():
        with suppress(_Missing):
            found[name] = _asked(f"DescribeTopics of {name}", future, timeout)
    return found


class _Missing(Exception):
    """The topic does not exist."""


def _asked(what: str, future: Future[Any], timeout: float) -> Any:
    try:
        return asked(what, future, timeout)
    except KMigrateError as error:
        cause = error.__cause__
        if isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise _Missing from error
        raise


def known_id(topic_id: str) -> str | None:
    """The topic's id, None if it has none.

    A topic of a controller before 2.8 has none until a newer one assigns it; it was not recreated.
    """
    return None if topic_id in {"", "None", "A" * 22} else topic_id


def _policies(admin: AdminClient, topics: Iterable[str], timeout: float) -> dict[str, LogMark]:
    """For each topic, a mark with its clean-up settings. Without the clean-up policy `delete` there is no retention."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    futures = admin.describe_configs(resources, request_timeout=timeout) if resources else {}
    found = {}
    for key, future in futures.items():
        with suppress(_Missing):
            entries = _asked(f"DescribeConfigs of {key.name}", future, timeout)
            policy = entries["cleanup.policy"].value or ""
            limits = [int(entries[name].value) if "delete" in policy else -1 for name in ("retention.ms", "retention.bytes")]
            found[key.name] = LogMark(compacted="compact" in policy, retention_ms=limits[0], retention_bytes=limits[1])
    return found


def _marks(
    admin: AdminClient,
    wheres: Sequence[TopicPartition],
    pattern: LogMark,
    isolation: IsolationLevel,
    timeout: float,
    *,
    ages: bool,
) -> dict[TopicPartition, LogMark]:
    first = _offsets(admin, wheres, OffsetSpec.earliest, timeout)
    last = _offsets(admin, wheres, OffsetSpec.latest, timeout, isolation)
    newest = _offsets(admin, wheres, OffsetSpec.max_timestamp, timeout) if ages else {}
    return {where: _mark(first[where], last[where], newest.get(where), pattern) for where in wheres}


def _offsets(
    admin: AdminClient,
    wheres: Sequence[TopicPartition],
    spec: Callable[[], Any],
    timeout: float,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, Any]:
    """For each partition the answer, or our exception."""
    wanted = {KafkaPartition(*where): spec() for where in wheres}
    futures = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=timeout)
    return {TopicPartition(key.topic, key.partition): _or_error(future, timeout) for key, future in futures.items()}


def _or_error(future: Future[Any], timeout: float) -> Any:
    try:
        return _asked("ListOffsets", future, timeout)
    except KMigrateError as error:
        return error
    except _Missing:
        return "ListOffsets: no such partition"


def _mark(first: Any, last: Any, newest: Any, pattern: LogMark) -> LogMark:
    """The mark of one partition. `newest` may be missing: brokers before 3.0 do not report it, and an empty log has none."""
    for answer in (first, last):
        if isinstance(answer, KMigrateError | str):
            return replace(pattern, unread=str(answer))
    newest_ms = getattr(newest, "timestamp", -1)
    pattern = replace(pattern, newest_ms=newest_ms if newest_ms >= 0 else None)
    return replace(pattern, start=first.offset, end=last.offset, leader_epoch=last.leader_epoch)
