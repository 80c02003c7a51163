"""The librdkafka client for whole-cluster reads and elections, and the meaning of Kafka's error codes for every client.

Retriable codes become `Unavailable`, refused identities and rights `AuthenticationFailed`, all others `Failed`. The text always
has Kafka's name of the error, which its logs and documentation use.

Defects of confluent-kafka 2.16.1 that shape this file (measured): `elect_leaders` with any keyword argument raises SystemError;
`list_topics` answers `_PARTIAL` during the handover of a migration; topic ids come in another base64 alphabet than Kafka's own.
Reads that must be quick, or must ask a chosen node, use `wire` instead.

The end of a log is its high watermark: records behind it were not acknowledged to a producer with acks=all. A new leader reports
no end until it knows one that is not too low (KIP-207), so an end that moved back really did.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import ElectionType, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewPartitions, OffsetSpec, ResourceType
from kafka.errors import AuthorizationError, NoError, RetriableError, for_code
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed, wait_random_exponential

from airflow_provider_kmigrate.clients.holding import UNFENCED_GAP, Holding
from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.events import LogMark, TopicPartition
from airflow_provider_kmigrate.core.model import Partition, PartitionMetadata, Reason, TopicMetadata
from airflow_provider_kmigrate.core.text import printable
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
_NOT_CONTROLLER = 41
_INCONSISTENT_CLUSTER_ID = 104
#: Transient, though kafka-python does not class them so: BROKER_NOT_AVAILABLE, STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH.
_TRANSIENT = frozenset({8, 11, 77})
#: Identity and rights beyond the *_AUTHORIZATION_FAILED family: SASL mechanism, SASL state, security off, SASL failure, tokens.
_IDENTITY = frozenset({33, 34, 54, 58, 61, 62, 63, 64, 66, 67, 97})


def name_of(code: int) -> str:
    """Kafka's name of an error code; `ERROR_<code>` if this version of the library does not know it."""
    message: str | None = for_code(code).message
    return message if message and (code == -1 or message != "UNKNOWN") else f"ERROR_{code}"


def error_for(code: int, where: str, detail: str | None = None) -> KMigrateError:
    """The exception for a non-zero code; `where` names the node and the request, `detail` is the broker's own sentence."""
    text = f"{where}: {name_of(code)}" + (f" ({printable(detail)})" if detail else "")
    if code == _INCONSISTENT_CLUSTER_ID:
        return WrongCluster.because(Reason("I01", f"{text}."))
    return _class_of(code)(text)


def check(code: int, where: str, detail: str | None = None) -> None:
    """Raise what `error_for` returns, unless the code means success."""
    if code != NoError.errno:
        raise error_for(code, where, detail)


def _class_of(code: int) -> type[KMigrateError]:
    if code == _REQUEST_TIMED_OUT:
        return TimedOut
    kind = for_code(code)
    if code in _IDENTITY or issubclass(kind, AuthorizationError):
        return AuthenticationFailed
    if code in _TRANSIENT or issubclass(kind, RetriableError):
        return Unavailable
    return Failed


_TOPICS = 200  # a request
_ELECTIONS = 500  # partitions a request
_URL_SAFE = str.maketrans("+/", "-_", "=")  # as Kafka writes ids, in ZooKeeper and everywhere else
_NOTHING_TO_DO = frozenset({ELECTION_NOT_NEEDED, UNKNOWN_TOPIC_OR_PARTITION})  # has a leader already; deleted meanwhile

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

_again = retry(
    retry=retry_if_exception_type(Unavailable),  # the next try may choose another broker than a hanging one
    stop=stop_after_attempt(4),
    wait=wait_random_exponential(multiplier=0.1, max=1.0),
    reraise=True,
)


class _ControllerMovedError(Unavailable):
    """A request met a broker that is not the controller any more."""


_again_elsewhere = retry(
    retry=retry_if_exception_type(_ControllerMovedError), stop=stop_after_attempt(6), wait=wait_fixed(0.5), reraise=True
)


def client_of(kind: Callable[..., Any], properties: Mapping[str, Any]) -> Any:
    """A client of librdkafka. Raises ours for properties that it does not take.

    It logs nothing: without a logger librdkafka writes to standard error. Our exceptions carry what matters of it.
    """
    logger = logging.Logger("librdkafka")  # noqa: LOG001 - apart from the tree: a task's log is for operators
    logger.addHandler(logging.NullHandler())
    try:
        return kind(dict(properties), logger=logger)
    except KafkaException as error:
        raise error_of(error, "the properties of a Kafka connection") from error
    except (TypeError, ValueError) as error:
        raise Failed(f"the properties of a Kafka connection: {error}") from error


def connect(properties: Mapping[str, Any]) -> AdminClient:
    """A client for a few requests; it ends, with its requests, once nothing refers to it. Raises ours."""
    client: AdminClient = client_of(AdminClient, properties)
    return client


def asked(what: str, future: Future[Any], timeout: float) -> Any:
    """The result of a librdkafka future within `timeout` seconds; its exceptions become kmigrate's, with the original as cause."""
    try:
        return future.result(timeout + 1.0)  # librdkafka's own limit comes first, with a better reason
    except FutureTimeoutError as error:
        raise TimedOut(f"{what}: no answer within {timeout:g} s") from error
    except KafkaException as error:
        raise error_of(error, what) from error


def error_of(refused: KafkaError | KafkaException, where: str) -> KMigrateError:
    """Our exception for librdkafka's error, local or a broker's; confluent-kafka raises either the error or its exception."""
    error = _error(refused)
    if error.code() >= 0:
        return error_for(error.code(), where, error.str())
    return LOCAL_ERRORS.get(error.code(), Failed)(f"{where}: {error.name()} ({error.str()})")


class Admin:
    """One librdkafka client, made by `connect` at the first call. Every read is tried four times, each for at most `timeout` seconds."""

    def __init__(
        self,
        settings: KafkaSettings,
        timeout: float = UNFENCED_GAP,
        connect: Callable[[Mapping[str, Any]], AdminClient] = connect,
    ) -> None:
        self._settings = settings
        self._timeout = timeout
        self._connect = connect
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._refused: KafkaError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Drop the client and its threads; a later call makes a new one."""
        with self._lock:
            self._client = None

    @_again
    def topics(self) -> dict[str, TopicMetadata]:
        """Every topic with its id, partitions and overrides; topics deleted meanwhile are left out."""
        overrides: dict[str, Mapping[str, Any]] = {}
        described: dict[str, Any] = {}
        for batch in batches(self._names(), _TOPICS):
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in batch]
            overrides |= self._ask_each("DescribeConfigs", AdminClient.describe_configs, resources)
            described |= self._ask_each("DescribeTopics", AdminClient.describe_topics, TopicCollection(list(batch)))
        return {name: _topic(found, overrides.get(name, {})) for name, found in described.items()}

    def add_partitions(self, topic: str, replicas: Sequence[Sequence[int]], before: int, holding: Holding) -> None:
        """Add a partition for each list of replicas, its preferred leader first, to a topic that has `before`. Not retried."""
        holding.check()
        wanted = NewPartitions(topic, before + len(replicas), [list(row) for row in replicas])
        self._ask_each("CreatePartitions", AdminClient.create_partitions, [wanted])

    @_again_elsewhere
    def elect_preferred(self, partitions: Collection[Partition], holding: Holding) -> None:
        """Elect each partition's preferred leader; those that have it already stay.

        Tried again only if the controller has moved. Raises `Unavailable` if a preferred leader is not in the ISR; the other partitions
        are elected.
        """
        failures = []
        for batch in batches(partitions, _ELECTIONS):
            wanted = [KafkaPartition(partition.topic, partition.index) for partition in batch]
            holding.check()
            with self._errors("ElectLeaders") as what:
                outcomes = asked(what, self._admin().elect_leaders(ElectionType.PREFERRED, wanted), self._timeout)
            failures += [(where, _error(refused)) for where, refused in outcomes.items() if refused is not None]
        failures = [(where, refused) for where, refused in failures if refused.code() not in _NOTHING_TO_DO]
        if failures:
            where, refused = failures[0]
            text = f"{len(failures)} partitions were not elected, such as {where.topic}-{where.partition}"
            if refused.code() == _NOT_CONTROLLER:
                self.close()  # librdkafka keeps asking the controller that it knew first (measured); a new client asks who it is
                raise _ControllerMovedError(f"{text}: {refused.name()}")
            raise error_of(refused, text)

    def _admin(self) -> AdminClient:
        with self._lock, self._errors("configuration"):
            self._client = self._client or self._connect(self._properties())
            return self._client

    def _properties(self) -> dict[str, Any]:
        own = {"client.id": "kmigrate", "socket.timeout.ms": int(self._timeout * 1000), "error_cb": self._remember}
        return {**self._settings.properties, **own}

    def _remember(self, error: KafkaError) -> None:
        """Only this callback learns that credentials were refused; the call itself just times out."""
        if LOCAL_ERRORS.get(error.code()) is AuthenticationFailed:
            self._refused = error

    def _names(self) -> list[str]:
        with self._errors("Metadata") as where:
            topics = self._admin().list_topics(timeout=self._timeout).topics
            for topic in topics.values():
                if topic.error is not None:
                    raise error_of(topic.error, f"{where} of {topic.topic}")
        return sorted(topics)

    def _ask_each(self, what: str, ask: Callable[..., Mapping[Any, Future[Any]]], wanted: Any) -> dict[str, Any]:
        with self._errors(what) as named:
            return _each(named, ask(self._admin(), wanted, request_timeout=self._timeout), self._timeout)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[str]:
        """The boundary: librdkafka's exceptions become ours, with where and what was asked. A refused identity is the reason of any."""
        where = f"{self._settings.bootstrap} {what}"
        try:
            yield where
        except (KafkaException, KMigrateError) as error:
            if self._client is not None:
                self._client.poll(0)  # runs the callback that remembers errors
            refused, self._refused = self._refused, None
            if refused is not None:
                raise error_of(refused, where) from error
            if isinstance(error, KafkaException):
                raise error_of(error, where) from error
            raise


def _topic(found: Any, entries: Mapping[str, Any]) -> TopicMetadata:
    overrides = {name: entry.value for name, entry in entries.items() if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}
    partitions = {each.id: _partition(each) for each in found.partitions}
    identity = str(found.topic_id).translate(_URL_SAFE)
    return TopicMetadata(found.name, identity, partitions, {key: value for key, value in overrides.items() if value is not None})


def _partition(found: Any) -> PartitionMetadata:
    replicas, isr = (tuple(node.id for node in nodes) for nodes in (found.replicas, found.isr))
    return PartitionMetadata(replicas, found.leader.id if found.leader else -1, isr)


@contextlib.contextmanager
def _unless_deleted() -> Iterator[None]:
    try:
        yield
    except KMigrateError as error:
        if not _is_missing(error):
            raise


def _is_missing(error: KMigrateError) -> bool:
    """True if the topic or partition does not exist, by the librdkafka exception that `asked` made ours of."""
    theirs = error.__cause__
    return isinstance(theirs, KafkaException) and theirs.args[0].code() == UNKNOWN_TOPIC_OR_PARTITION


def _error(refused: Any) -> KafkaError:
    error: KafkaError = refused.args[0] if isinstance(refused, KafkaException) else refused
    return error


_BATCH: Final = 500  # partitions, or topics, of a request
REQUEST_TIMEOUT: Final = 30.0  # seconds for each request of the functions below


def cluster_id(properties: Mapping[str, Any]) -> str:
    """The id of the cluster that these properties reach. Raises ours."""
    admin = connect(properties)
    return str(asked("DescribeCluster", admin.describe_cluster(request_timeout=REQUEST_TIMEOUT), REQUEST_TIMEOUT).cluster_id)


def topic_names(properties: Mapping[str, Any]) -> list[str]:
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
    for some in batches(sorted(set(topics)), _BATCH):
        described = _each("DescribeTopics", admin.describe_topics(TopicCollection(list(some)), request_timeout=REQUEST_TIMEOUT))
        policies = _policies(admin, described)
        for name, topic in described.items():
            pattern = replace(policies.get(name, LogMark()), topic_id=known_id(str(topic.topic_id)))
            where = [TopicPartition(name, partition.id) for partition in topic.partitions]
            for part in batches(where, _BATCH):
                marks |= _marks(admin, part, pattern, isolation, ages=ages and pattern.retention_ms not in {None, -1})
    return marks


def ends_at(properties: Mapping[str, Any], wheres: Iterable[TopicPartition], t_ms: int) -> dict[TopicPartition, int]:
    """Where each log ended at that time (ms since the epoch), by its records' timestamps.

    Leaves out partitions whose records are all older, and unreported ones. Raises ours if the cluster does not answer at all.
    """
    admin, found = connect(properties), dict[TopicPartition, Any]()
    for some in batches(sorted(wheres), _BATCH):
        found |= _offsets(admin, some, partial(OffsetSpec.for_timestamp, t_ms))
    answered = {where: answer.offset for where, answer in found.items() if not isinstance(answer, KMigrateError)}
    return {where: offset for where, offset in answered.items() if offset >= 0}  # -1: all records are older


def _each(what: str, futures: Mapping[Any, Future[Any]], timeout: float = REQUEST_TIMEOUT) -> dict[str, Any]:
    """The answer for each topic by name, without topics that do not exist."""
    found = {}
    for key, future in futures.items():
        name = key.name if isinstance(key, ConfigResource) else key
        with _unless_deleted():
            found[name] = asked(f"{what} of {name}", future, timeout)
    return found


def known_id(topic_id: str) -> str | None:
    """The topic's id, None if it has none.

    A topic of a controller before 2.8 has none until a newer one assigns it; it was not recreated.
    """
    return None if topic_id in {"", "None", "A" * 22} else topic_id


def _policies(admin: AdminClient, topics: Iterable[str]) -> dict[str, LogMark]:
    """For each topic, a mark with its clean-up settings. Without the clean-up policy `delete` there is no retention."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    futures = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT) if resources else {}
    found = {}
    for name, entries in _each("DescribeConfigs", futures).items():
        policy = entries["cleanup.policy"].value or ""
        limits = [int(entries[key].value) if "delete" in policy else -1 for key in ("retention.ms", "retention.bytes")]
        found[name] = LogMark(compacted="compact" in policy, retention_ms=limits[0], retention_bytes=limits[1])
    return found


def _marks(
    admin: AdminClient,
    wheres: Sequence[TopicPartition],
    pattern: LogMark,
    isolation: IsolationLevel,
    *,
    ages: bool,
) -> dict[TopicPartition, LogMark]:
    first = _offsets(admin, wheres, OffsetSpec.earliest)
    last = _offsets(admin, wheres, OffsetSpec.latest, isolation)
    newest = _offsets(admin, wheres, OffsetSpec.max_timestamp) if ages else {}
    return {where: _mark(first[where], last[where], newest.get(where), pattern) for where in wheres}


def _offsets(
    admin: AdminClient,
    wheres: Sequence[TopicPartition],
    spec: Callable[[], Any],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, Any]:
    """For each partition the answer, or our exception."""
    wanted = {KafkaPartition(*where): spec() for where in wheres}
    futures = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT)
    return {TopicPartition(key.topic, key.partition): _or_error(future) for key, future in futures.items()}


def _or_error(future: Future[Any]) -> Any:
    try:
        return asked("ListOffsets", future, REQUEST_TIMEOUT)
    except KMigrateError as error:
        return Failed("ListOffsets: no such partition") if _is_missing(error) else error


def _mark(first: Any, last: Any, newest: Any, pattern: LogMark) -> LogMark:
    """The mark of one partition. `newest` may be missing: brokers before 3.0 do not report it, and an empty log has none."""
    for answer in (first, last):
        if isinstance(answer, KMigrateError):
            return replace(pattern, unread=str(answer))
    newest_ms = getattr(newest, "timestamp", -1)
    pattern = replace(pattern, newest_ms=newest_ms if newest_ms >= 0 else None)
    return replace(pattern, start=first.offset, end=last.offset, leader_epoch=last.leader_epoch)
