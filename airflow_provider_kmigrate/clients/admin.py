"""The librdkafka client for reads of whole logs, and the meaning of Kafka's error codes for every client.

Retriable codes become `Unavailable`, refused identities and rights `AuthenticationFailed`, all others `Failed`. The text always
has Kafka's name of the error, which its logs and documentation use.

A defect of confluent-kafka 2.16.1 (measured): `list_topics` answers `_PARTIAL` during the handover of a migration. Reads that must
be quick, or must ask a chosen node, use `wire` instead; elections are in `brokers_admin`.

The end of a log is its high watermark: records behind it were not acknowledged to a producer with acks=all. A new leader reports
no end until it knows one that is not too low (KIP-207), so an end that moved back really did.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from functools import partial
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType
from kafka.errors import AuthorizationError, NoError, RetriableError, for_code

from airflow_provider_kmigrate.clients.identity import librdkafka_properties
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import (
    AuthenticationFailed,
    Failed,
    KMigrateError,
    TimedOut,
    Unavailable,
    Unreachable,
    WrongCluster,
)

NOT_LEADER_OR_FOLLOWER: Final = 6
NOT_COORDINATOR: Final = 16
GROUP_ID_NOT_FOUND: Final = 69
UNSTABLE_OFFSET_COMMIT: Final = 88
UNSUPPORTED_VERSION: Final = 35
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
ELECTION_NOT_NEEDED: Final = 84

_REQUEST_TIMED_OUT = 7
_INCONSISTENT_CLUSTER_ID = 104
#: Transient, though kafka-python does not class them so: BROKER_NOT_AVAILABLE, STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH.
_TRANSIENT = frozenset({8, 11, 77})
#: Identity and rights beyond the *_AUTHORIZATION_FAILED family: SASL mechanism, SASL state, security off, SASL failure, tokens.
_IDENTITY = frozenset({33, 34, 54, 58, 61, 62, 63, 64, 66, 67, 97})


def error_name(code: int) -> str:
    """Kafka's name of an error code; `ERROR_<code>` if this version of the library does not know it."""
    message: str | None = for_code(code).message
    return message if message and (code == -1 or message != "UNKNOWN") else f"ERROR_{code}"


def error_for(code: int, request_label: str, detail: str | None = None) -> KMigrateError:
    """The exception for a non-zero code; `request_label` names the node and the request, `detail` is the broker's own sentence."""
    text = f"{request_label}: {error_name(code)}" + (f" ({printable(detail)})" if detail else "")
    if code == _INCONSISTENT_CLUSTER_ID:
        return WrongCluster.because(Reason("I01", f"{text}."))
    return _exception_class(code)(text)


def check(code: int, request_label: str, detail: str | None = None) -> None:
    """Raise what `error_for` returns, unless the code means success."""
    if code != NoError.errno:
        raise error_for(code, request_label, detail)


def _exception_class(code: int) -> type[KMigrateError]:
    if code == _REQUEST_TIMED_OUT:
        return TimedOut
    kind = for_code(code)
    if code in _IDENTITY or issubclass(kind, AuthorizationError):
        return AuthenticationFailed
    if code in _TRANSIENT or issubclass(kind, RetriableError):
        return Unavailable
    return Failed


_KINDS: Mapping[type[KMigrateError], tuple[str, ...]] = {
    AuthenticationFailed: ("_AUTHENTICATION", "_SSL"),
    TimedOut: ("_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT"),
    Unreachable: ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_DESTROY"),
    Unavailable: (
        *("_PARTIAL", "_RETRY", "_IN_PROGRESS", "_PREV_IN_PROGRESS", "_WAIT_COORD", "_WAIT_CACHE", "_NODE_UPDATE"),
        *("_UNKNOWN_BROKER", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"),
    ),
}
#: librdkafka's own, negative codes; `error_for` has those of brokers. All others are `Failed`.
LOCAL_ERRORS: Final = {getattr(KafkaError, name): kind for kind, names in _KINDS.items() for name in names}


def make_client(kind: Callable[..., Any], properties: Mapping[str, Any]) -> Any:
    """A client of librdkafka. Raises ours for properties that it does not take.

    It logs nothing: without a logger librdkafka writes to standard error. Our exceptions carry what matters of it.
    """
    logger = logging.Logger("librdkafka")  # noqa: LOG001 - apart from the tree: a task's log is for operators
    logger.addHandler(logging.NullHandler())
    try:
        return kind(librdkafka_properties(properties), logger=logger)
    except KafkaException as error:
        raise error_of(error, "the properties of a Kafka connection") from error
    except (TypeError, ValueError) as error:
        raise Failed(f"the properties of a Kafka connection: {error}") from error


def connect(properties: Mapping[str, Any]) -> AdminClient:
    """A client for a few requests; it ends, with its requests, once nothing refers to it. Raises ours."""
    client: AdminClient = make_client(AdminClient, properties)
    return client


def wait_for_answer(what: str, future: Future[Any], timeout: float) -> Any:
    """The result of a librdkafka future within `timeout` seconds; its exceptions become kmigrate's, with the original as cause."""
    try:
        return future.result(timeout + 1.0)  # librdkafka's own limit comes first, with a better reason
    except FutureTimeoutError as error:
        raise TimedOut(f"{what}: no answer within {timeout:g} s") from error
    except KafkaException as error:
        raise error_of(error, what) from error


def error_of(refused: KafkaError | KafkaException, request_label: str) -> KMigrateError:
    """Our exception for librdkafka's error, local or a broker's; confluent-kafka raises either the error or its exception."""
    error = _kafka_error(refused)
    if error.code() >= 0:
        return error_for(error.code(), request_label, error.str())
    return LOCAL_ERRORS.get(error.code(), Failed)(f"{request_label}: {error.name()} ({error.str()})")


@contextlib.contextmanager
def _ignore_deleted() -> Iterator[None]:
    try:
        yield
    except KMigrateError as error:
        if not _is_missing(error):
            raise


def _is_missing(error: KMigrateError) -> bool:
    """True if the topic or partition does not exist, by the librdkafka exception that `wait_for_answer` made ours of."""
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() == UNKNOWN_TOPIC_OR_PARTITION


def _kafka_error(refused: Any) -> KafkaError:
    error: KafkaError = refused.args[0] if isinstance(refused, KafkaException) else refused
    return error


_BATCH: Final = 500  # partitions, or topics, of a request
REQUEST_TIMEOUT: Final = 30.0  # seconds for each request of the functions below


def read_cluster_id(properties: Mapping[str, Any]) -> str:
    """The id of the cluster that these properties reach. Raises ours."""
    admin = connect(properties)
    return str(
        wait_for_answer("DescribeCluster", admin.describe_cluster(request_timeout=REQUEST_TIMEOUT), REQUEST_TIMEOUT).cluster_id
    )


def list_topics(properties: Mapping[str, Any]) -> list[str]:
    """All topics of the cluster, internal ones too. Raises ours."""
    try:
        return sorted(connect(properties).list_topics(timeout=REQUEST_TIMEOUT).topics)
    except KafkaException as error:
        raise error_of(error, "Metadata") from error


def read_marks(
    properties: Mapping[str, Any],
    topics: Iterable[str],
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ages: bool = False,
) -> dict[TopicPartition, LogMark]:
    """The logs of all partitions of these topics now; with READ_COMMITTED one ends before its first open transaction.

    A topic that does not exist is left out; a partition that is not reported has the reason in `unread`. Raises ours if the
    cluster does not answer at all. `ages`: also how old the newest record is if retention is by time, which costs one more request
    that searches the logs' time indexes.
    """
    admin, marks = connect(properties), dict[TopicPartition, LogMark]()
    for batch in batches(sorted(set(topics)), _BATCH):
        described = _collect_answers(
            "DescribeTopics", admin.describe_topics(TopicCollection(list(batch)), request_timeout=REQUEST_TIMEOUT)
        )
        policies = _read_policies(admin, described)
        for name, topic in described.items():
            pattern = replace(policies.get(name, LogMark()), topic_id=topic_id_or_none(str(topic.topic_id)))
            topic_partitions = [TopicPartition(name, partition.id) for partition in topic.partitions]
            for partition_batch in batches(topic_partitions, _BATCH):
                marks |= _read_partition_marks(
                    admin, partition_batch, pattern, isolation, ages=ages and pattern.retention_ms not in {None, -1}
                )
    return marks


def log_ends_at(
    properties: Mapping[str, Any], topic_partitions: Iterable[TopicPartition], t_ms: int
) -> dict[TopicPartition, int]:
    """Where each log ended at that time (ms since the epoch), by its records' timestamps.

    Leaves out partitions whose records are all older, and unreported ones. Raises ours if the cluster does not answer at all.
    """
    admin, answers = connect(properties), dict[TopicPartition, Any]()
    for batch in batches(sorted(topic_partitions), _BATCH):
        answers |= _list_offsets(admin, batch, partial(OffsetSpec.for_timestamp, t_ms))
    answered = {
        topic_partition: answer.offset for topic_partition, answer in answers.items() if not isinstance(answer, KMigrateError)
    }
    return {topic_partition: offset for topic_partition, offset in answered.items() if offset >= 0}  # -1: all records are older


def _collect_answers(what: str, futures: Mapping[Any, Future[Any]]) -> dict[str, Any]:
    """The answer for each topic by name, without topics that do not exist."""
    answers = {}
    for key, future in futures.items():
        name = key.name if isinstance(key, ConfigResource) else key
        with _ignore_deleted():
            answers[name] = wait_for_answer(f"{what} of {name}", future, REQUEST_TIMEOUT)
    return answers


def topic_id_or_none(topic_id: str) -> str | None:
    """The topic's id, None if it has none.

    A topic of a controller before 2.8 has none until a newer one assigns it; it was not recreated.
    """
    return None if topic_id in {"", "None", "A" * 22} else topic_id


def _read_policies(admin: AdminClient, topics: Iterable[str]) -> dict[str, LogMark]:
    """For each topic, a mark with its clean-up settings. Without the clean-up policy `delete` there is no retention."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    futures = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT) if resources else {}
    marks = {}
    for name, entries in _collect_answers("DescribeConfigs", futures).items():
        policy = entries["cleanup.policy"].value or ""
        limits = [int(entries[key].value) if "delete" in policy else -1 for key in ("retention.ms", "retention.bytes")]
        marks[name] = LogMark(compacted="compact" in policy, retention_ms=limits[0], retention_bytes=limits[1])
    return marks


def _read_partition_marks(
    admin: AdminClient,
    topic_partitions: Sequence[TopicPartition],
    pattern: LogMark,
    isolation: IsolationLevel,
    *,
    ages: bool,
) -> dict[TopicPartition, LogMark]:
    first = _list_offsets(admin, topic_partitions, OffsetSpec.earliest)
    last = _list_offsets(admin, topic_partitions, OffsetSpec.latest, isolation)
    newest = _list_offsets(admin, topic_partitions, OffsetSpec.max_timestamp) if ages else {}
    return {
        topic_partition: _make_mark(first[topic_partition], last[topic_partition], newest.get(topic_partition), pattern)
        for topic_partition in topic_partitions
    }


def _list_offsets(
    admin: AdminClient,
    topic_partitions: Sequence[TopicPartition],
    spec: Callable[[], Any],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, Any]:
    """For each partition the answer, or our exception."""
    requests = {KafkaPartition(*topic_partition): spec() for topic_partition in topic_partitions}
    futures = admin.list_offsets(requests, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT)
    return {TopicPartition(key.topic, key.partition): _answer_or_error(future) for key, future in futures.items()}


def _answer_or_error(future: Future[Any]) -> Any:
    try:
        return wait_for_answer("ListOffsets", future, REQUEST_TIMEOUT)
    except KMigrateError as error:
        return Failed("ListOffsets: no such partition") if _is_missing(error) else error


def _make_mark(first: Any, last: Any, newest: Any, pattern: LogMark) -> LogMark:
    """The mark of one partition. `newest` may be missing: brokers before 3.0 do not report it, and an empty log has none."""
    for answer in (first, last):
        if isinstance(answer, KMigrateError):
            return replace(pattern, unread=str(answer))
    newest_ms = getattr(newest, "timestamp", -1)
    pattern = replace(pattern, newest_ms=newest_ms if newest_ms >= 0 else None)
    return replace(pattern, start=first.offset, end=last.offset, leader_epoch=last.leader_epoch)
