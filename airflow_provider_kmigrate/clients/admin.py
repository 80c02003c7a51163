"""The librdkafka client for whole-cluster reads and elections, and the meaning of Kafka's error codes for every client.

Retriable codes become `Unavailable`, refused identities and rights `AuthenticationFailed`, all others `Failed`. The text always
has Kafka's name of the error, which its logs and documentation use.

Defects of confluent-kafka 2.16.1 that shape this file (measured): `elect_leaders` with any keyword argument raises SystemError;
`list_topics` answers `_PARTIAL` during the handover of a migration; topic ids come in another base64 alphabet than Kafka's own.
Reads that must be quick, or must ask a chosen node, use `wire` instead.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType
from kafka.errors import AuthorizationError, NoError, RetriableError, for_code
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.model import Partition, PartitionMetadata, Reason, TopicMetadata
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


def name_of(code: int) -> str:
    """Kafka's name of an error code; `ERROR_<code>` if this version of the library does not know it."""
    message: str | None = for_code(code).message
    return message if message and (code == -1 or message != "UNKNOWN") else f"ERROR_{code}"


def error_for(code: int, where: str, detail: str | None = None) -> KMigrateError:
    """The exception for a non-zero code; `where` names the node and the request, `detail` is the broker's own sentence."""
    text = f"{where}: {name_of(code)}" + (f" ({detail})" if detail else "")
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
_MIN_INSYNC = "min.insync.replicas"
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


def connect(properties: Mapping[str, Any]) -> AdminClient:
    """A client for a few requests; it ends, with its requests, once nothing refers to it. Raises ours."""
    try:
        return AdminClient(dict(properties), logger=_silent())
    except KafkaException as error:
        raise error_of(error.args[0], "the properties of a Kafka connection") from error


def asked(what: str, future: Future[Any], timeout: float) -> Any:
    """The result of a librdkafka future within `timeout` seconds; its exceptions become ours, with theirs as the cause."""
    try:
        return future.result(timeout + 1.0)  # librdkafka's own limit comes first, with a better reason
    except FutureTimeoutError as error:
        raise TimedOut(f"{what}: no answer within {timeout:g} s") from error
    except KafkaException as error:
        raise error_of(error.args[0], what) from error


def error_of(refused: KafkaError | KafkaException, where: str) -> KMigrateError:
    """Our exception for librdkafka's error, local or a broker's; confluent-kafka raises either the error or its exception."""
    error = _error(refused)
    if error.code() >= 0:
        return error_for(error.code(), where, error.str())
    return LOCAL_ERRORS.get(error.code(), Failed)(f"{where}: {error.name()} ({error.str()})")


class Admin:
    """One librdkafka client; connects at the first call. Every read is tried four times, each for at most `timeout` seconds."""

    def __init__(self, settings: KafkaSettings, timeout: float = 10.0) -> None:
        self._settings = settings
        self._timeout = timeout
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
    def cluster_id(self) -> str:
        """The cluster's id as its brokers report it."""
        found = self._ask("DescribeCluster", lambda admin: admin.describe_cluster(request_timeout=self._timeout)).cluster_id
        if not found:
            raise Unavailable(f"{self._settings.bootstrap}: the brokers do not know their cluster's id yet")
        return str(found)

    @_again
    def partitions(self) -> tuple[Partition, ...]:
        """Every partition, from one broker's metadata."""
        return tuple(
            Partition(name, index, found.leader, tuple(found.replicas), tuple(found.isrs))
            for name, topic in sorted(self._metadata().items())
            for index, found in sorted(topic.partitions.items())
        )

    @_again
    def topics(self) -> dict[str, TopicMetadata]:
        """Every topic with its id, partitions and overrides; topics deleted meanwhile are left out."""
        names = sorted(self._metadata())
        overrides = self._topic_configs(names)
        described = (found for batch in batches(names, _TOPICS) for found in self._described(batch))
        return {found.name: _topic(found, overrides.get(found.name, {})) for found in described}

    @_again
    def min_insync(self) -> dict[str, int]:
        """min.insync.replicas in force, per topic."""
        configs = self._topic_configs(sorted(self._metadata()))
        return {name: int(entries[_MIN_INSYNC].value) for name, entries in configs.items()}

    def broker_config(self, broker_id: int) -> dict[str, str]:
        """A running broker's configuration, static and dynamic; without sensitive values, which brokers never send.

        Tried once: only this broker can answer.
        """
        resource = ConfigResource(ResourceType.BROKER, str(broker_id))
        found = self._configs([resource])[str(broker_id)]
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    def elect_preferred(self, partitions: Iterable[Partition]) -> None:
        """Elect each partition's preferred leader; those that have it already stay.

        Not retried. Raises `Unavailable` if a preferred leader is not in the ISR; the other partitions are elected.
        """
        failures = []
        for batch in batches(partitions, _ELECTIONS):
            outcomes = self._elect([KafkaPartition(partition.topic, partition.index) for partition in batch])
            failures += [(where, refused) for where, refused in outcomes.items() if not _is_fine(refused)]
        if failures:
            where, refused = failures[0]
            raise error_of(
                _error(refused), f"{len(failures)} partitions were not elected, such as {where.topic}-{where.partition}"
            )

    def _admin(self) -> AdminClient:
        with self._lock, self._errors("configuration"):
            self._client = self._client or AdminClient(self._properties(), logger=_silent())
            return self._client

    def _properties(self) -> dict[str, Any]:
        own = {"client.id": "kmigrate", "socket.timeout.ms": int(self._timeout * 1000), "error_cb": self._remember}
        return {**self._settings.properties, **own}

    def _remember(self, error: KafkaError) -> None:
        """Only this callback learns that credentials were refused; the call itself just times out."""
        if LOCAL_ERRORS.get(error.code()) is AuthenticationFailed:
            self._refused = error

    def _metadata(self) -> Mapping[str, Any]:
        with self._errors("Metadata"):
            topics = self._admin().list_topics(timeout=self._timeout).topics
        for topic in topics.values():
            if topic.error is not None:
                raise error_of(topic.error, f"{self._settings.bootstrap} Metadata of {topic.topic}")
        return dict(topics)

    def _elect(self, wanted: list[KafkaPartition]) -> Mapping[KafkaPartition, Any]:
        elected = self._ask("ElectLeaders", lambda admin: admin.elect_leaders(ElectionType.PREFERRED, wanted))
        return dict(elected)

    def _described(self, names: Iterable[str]) -> Iterator[Any]:
        wanted = TopicCollection(list(names))
        return iter(
            self._ask_each("DescribeTopics", lambda admin: admin.describe_topics(wanted, request_timeout=self._timeout)).values()
        )

    def _topic_configs(self, names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for batch in batches(names, _TOPICS):
            found.update(self._configs([ConfigResource(ResourceType.TOPIC, name) for name in batch]))
        return found

    def _configs(self, resources: list[ConfigResource]) -> dict[str, Mapping[str, Any]]:
        found = self._ask_each("DescribeConfigs", lambda admin: admin.describe_configs(resources, request_timeout=self._timeout))
        return {resource.name: entries for resource, entries in found.items()}

    def _ask(self, what: str, start: Callable[[AdminClient], Future[Any]]) -> Any:
        with self._errors(what):
            return self._wait(start(self._admin()))

    def _ask_each(self, what: str, start: Callable[[AdminClient], Mapping[Any, Future[Any]]]) -> dict[Any, Any]:
        """The answer for each resource; topics deleted meanwhile are left out."""
        answers = {}
        with self._errors(what):
            for key, future in start(self._admin()).items():
                with _unless_deleted():
                    answers[key] = self._wait(future)
        return answers

    def _wait(self, future: Future[Any]) -> Any:
        return future.result(timeout=self._timeout + 1.0)  # librdkafka's own limit comes first, with a better reason

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """The boundary: librdkafka's exceptions become ours."""
        where = f"{self._settings.bootstrap} {what}"
        try:
            yield
        except FutureTimeoutError as error:
            raise TimedOut(f"{where}: no answer within {self._timeout:g} s") from error
        except KafkaException as error:
            raise self._blame(error.args[0], where) from error
        except (TypeError, ValueError) as error:  # a property that librdkafka does not take
            raise Failed(f"{where}: {error}") from error

    def _blame(self, error: KafkaError, where: str) -> KMigrateError:
        if self._client is not None:
            self._client.poll(0)  # runs the callback that remembers errors
        refused, self._refused = self._refused, None
        return error_of(refused or error, where)


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
    except KafkaException as error:
        if error.args[0].code() != UNKNOWN_TOPIC_OR_PARTITION:
            raise


def _is_fine(refused: Any) -> bool:
    return refused is None or _error(refused).code() in _NOTHING_TO_DO


def _error(refused: Any) -> KafkaError:
    error: KafkaError = refused.args[0] if isinstance(refused, KafkaException) else refused
    return error


def _silent() -> logging.Logger:
    """A logger, without which librdkafka writes to standard error; our exceptions carry what matters of it."""
    logger = logging.Logger("librdkafka")  # noqa: LOG001 - apart from the tree: a task's log is for operators
    logger.addHandler(logging.NullHandler())
    return logger
