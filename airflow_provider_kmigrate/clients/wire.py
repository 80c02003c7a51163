"""Ask one broker or controller about itself, over one reusable connection to exactly that node.

Neither Python client can address a chosen broker or a controller's listener. Only these answers show a broker's mode and a
controller's migration flag without JMX (KIP-866: api key 55 served = KRaft; not served but tag 3 set = migration mode). Reads
only. A node that does not answer within `timeout` seconds, connecting and authenticating included, ends a call and those that wait behind it.

Requests, answers and SASL mechanisms are kafka-python's protocol classes; nothing else of that library runs. Certificates are
always verified; `verify_hostname` only decides whether the name must match too. SASL runs inside SaslHandshake v1 and
SaslAuthenticate, KIP-43 and KIP-152; `sasl` has the mechanisms.
"""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import re
import socket
import ssl
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar, cast

from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    ListConfigResourcesRequest,
    ListGroupsRequest,
    ListPartitionReassignmentsRequest,
)
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.consumer import ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from airflow_provider_kmigrate.clients.admin import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
    check,
    error_name,
    topic_id_or_none,
)
from airflow_provider_kmigrate.clients.deadline import Deadline
from airflow_provider_kmigrate.clients.sasl import forget_token, make_mechanism
from airflow_provider_kmigrate.clients.settings import WireSecurity
from airflow_provider_kmigrate.clients.tls import explain_failure, read_certificate, tls_context
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.cluster_state.model import (
    BrokerMode,
    Certificate,
    LogDir,
    Partition,
    PartitionMetadata,
    Quorum,
    Reason,
    Taken,
    TopicMetadata,
)
from airflow_provider_kmigrate.core.shared.text import printable
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, TimedOut, Unavailable, Unreachable

Call = Callable[[Any], Any]

_MAX_ROUNDS = 3  # PLAIN and OAUTHBEARER need one, SCRAM two, GSSAPI three
_ROUNDS = re.compile(rb"\Ar=.*,i=([^,]*)")  # of SCRAM's first answer (RFC 5802)
_FEWEST = 4096  # iterations: Kafka's own minimum (ScramMechanism)
_DIGITS = 7  # of their number: more iterations would take minutes


def authenticate(call: Call, security: WireSecurity, host: str, port: int, deadline: Deadline) -> None:
    """Run the SASL exchange over `call`, which sends one request and returns its answer; nothing to do without SASL.

    A refusal on either side has U09, and names node and mechanism.
    """
    if not security.protocol.startswith("SASL_"):
        return
    try:
        _log_in(call, security, host, port, deadline)
    except AuthenticationFailed as error:
        raise AuthenticationFailed(str(error), error.reasons or (Reason("U09", str(error)),)) from error


def _log_in(call: Call, security: WireSecurity, host: str, port: int, deadline: Deadline) -> None:
    endpoint, name = f"{host}:{port}", f"SASL {security.sasl_mechanism}"
    mechanism = make_mechanism(security, host, f"{endpoint} {name}", deadline)
    answer = call(SaslHandshakeRequest(mechanism=security.sasl_mechanism, version=1))
    check(answer.error_code, f"{endpoint} SaslHandshake, {name}", f"it offers {', '.join(answer.mechanisms)}")
    for _ in range(_MAX_ROUNDS):
        answer = call(SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes(), version=1))
        if answer.error_code:
            forget_token(security)
            check(answer.error_code, f"{endpoint} SaslAuthenticate, {name}", answer.error_message)
        _check_proof(mechanism, answer.auth_bytes, f"{endpoint} {name}")
        if mechanism.is_done():
            return
    raise AuthenticationFailed(f"{endpoint}: {name} did not end after {_MAX_ROUNDS} rounds")


def _check_proof(mechanism: Any, proof: bytes, what: str) -> None:
    rounds = _ROUNDS.search(proof)
    if rounds and not (rounds[1].isdigit() and len(rounds[1]) <= _DIGITS and int(rounds[1]) >= _FEWEST):
        text = f"{what}: the node asks for {printable(rounds[1][:20].decode(errors='replace'))} iterations"
        raise AuthenticationFailed(
            f"{text}; brokers have {_FEWEST} or more, and with fewer the answer would give the password away"
        )
    try:
        mechanism.receive(proof)
    except (ValueError, KeyError) as error:  # SCRAM: the node must prove that it knows the password too
        raise AuthenticationFailed(f"{what}: the node's answer is not valid proof: {error}") from error


_CLIENT = "kmigrate"
_CONSUMER_GROUP_DESCRIBE: Final = 69  # KIP-848
#: The longest answer in bytes: twice what a cluster of 50,000 partitions needs. Decoded, it takes up to 18 times that, where it is all smallest
#: elements: so what is short has less, by the request's api key. Only groups whose members say much have more.
_LONGEST: Final = 4 << 20
_LONGEST_OF: Final[Mapping[int, int]] = {
    **dict.fromkeys(
        (
            ApiVersionsRequest.API_KEY,
            SaslHandshakeRequest.API_KEY,
            SaslAuthenticateRequest.API_KEY,
            FindCoordinatorRequest.API_KEY,
        ),
        1 << 18,
    ),
    **dict.fromkeys((DescribeClusterRequest.API_KEY, DescribeQuorumRequest.API_KEY), 1 << 20),
    ListGroupsRequest.API_KEY: 2 << 20,  # 5 bytes may be a group
    **dict.fromkeys((DescribeGroupsRequest.API_KEY, OffsetFetchRequest.API_KEY, _CONSUMER_GROUP_DESCRIBE), 16 << 20),
}
_RECEIVE = 1 << 18
_HEAD = 1 << 10  # bytes that hold an answer's header


@contextlib.contextmanager
def map_errors(request_label: str, deadline: Deadline) -> Iterator[None]:
    """Turn errors of socket and TLS into ours, in this one place."""
    try:
        yield
    except TimeoutError as error:
        raise TimedOut(f"{request_label}: no answer within {deadline.seconds:g} s") from error
    except ssl.SSLError as error:
        raise explain_failure(error, request_label) from error
    except (socket.gaierror, UnicodeError) as error:
        text = f"{request_label}: {error}"
        raise Unreachable(text, (Reason("U08", text),)) from error
    except OSError as error:
        raise Unreachable(f"{request_label}: {error}") from error


class WireConnection:
    """Connected, negotiated and authenticated after construction; `keys` is what the node serves: api key -> (min, max).

    One request at a time. After any error it is out of step and must be dropped, as `Wire` does.
    """

    def __init__(self, host: str, port: int, security: WireSecurity, tls: ssl.SSLContext | None, deadline: Deadline) -> None:
        self.where = f"{host}:{port}"
        self._ids = itertools.count(1)
        with map_errors(f"{self.where} connect", deadline):
            self._socket = _connect_any_address(host, port, tls, deadline)
        try:
            self.keys = api_keys(self.api_versions(deadline))
            authenticate(lambda request: self.call(request, deadline), security, host, port, deadline)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket; never raises."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def certificate(self) -> Certificate:
        """As `Wire.certificate`."""
        return read_certificate(self._socket) if isinstance(self._socket, ssl.SSLSocket) else Certificate()

    def call(self, request: Any, deadline: Deadline) -> Any:
        """Send one request and return its decoded answer; the caller handles error codes in it."""
        request_label = f"{self.where} {request.name.removesuffix('Request')}"
        correlation_id = next(self._ids)
        request.with_header(correlation_id=correlation_id, client_id=_CLIENT)
        with map_errors(request_label, deadline):
            self._socket.settimeout(deadline.seconds_left())
            self._socket.sendall(bytes(request.encode(framed=True, header=True)))
            frame = self._receive_frame(request_label, _LONGEST_OF.get(request.API_KEY, _LONGEST), deadline)
        return _decode_answer(request, frame, correlation_id, request_label)

    def api_versions(self, deadline: Deadline) -> Any:
        """ApiVersions v3 with our name (KIP-511); nodes before Kafka 2.4 answer v0, which has neither features nor tags."""
        answer = self.call(
            ApiVersionsRequest(client_software_name=_CLIENT, client_software_version="1", version=3),
            deadline,
        )
        if answer.error_code == UNSUPPORTED_VERSION:
            answer = self.call(ApiVersionsRequest(version=0), deadline)
        check(answer.error_code, f"{self.where} ApiVersions")
        return answer

    def negotiate_version(self, request: Any, lowest: int, highest: int) -> int:
        """The newest version that both sides speak; raises Failed if there is none."""
        name, served = request.name.removesuffix("Request"), self.keys.get(request.API_KEY)
        if served is None:
            raise Failed(f"{self.where} does not serve {name} (api key {request.API_KEY})")
        version = min(highest, served[1])
        if version < max(lowest, served[0]):
            raise Failed(f"{self.where} serves {name} v{served[0]}-v{served[1]}, kmigrate supports v{lowest}-v{highest}")
        return version

    def _receive_frame(self, request_label: str, longest: int, deadline: Deadline) -> bytearray:
        (size,) = struct.unpack(">i", self._receive_bytes(4, deadline))
        if not 4 <= size <= longest:  # a TLS or HTTP port, most often
            raise Unreachable(f"{request_label}: a frame of {size} bytes is not Kafka's protocol")
        return self._receive_bytes(size, deadline)

    def _receive_bytes(self, size: int, deadline: Deadline) -> bytearray:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(deadline.seconds_left())
            chunk = self._socket.recv(min(size - len(data), _RECEIVE))
            if not chunk:
                raise ConnectionResetError("the node closed the connection")
            data += chunk
        return data


def api_keys(answer: Any) -> Mapping[int, tuple[int, int]]:
    """ApiVersions' list as a mapping: api key -> (min, max)."""
    return {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}


def _connect_any_address(host: str, port: int, tls: ssl.SSLContext | None, deadline: Deadline) -> socket.socket:
    """The first address of `host` that answers; unlike `create_connection`, all addresses share one deadline."""
    last_error: OSError = ConnectionRefusedError(f"no address for {host}")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        raw = socket.socket(family, kind, protocol)
        try:
            return _dial(raw, address, host, tls, deadline)
        except TimeoutError:
            raw.close()
            raise
        except OSError as error:
            raw.close()
            last_error = error
    raise last_error


def _dial(raw: socket.socket, address: Any, host: str, tls: ssl.SSLContext | None, deadline: Deadline) -> socket.socket:
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.settimeout(deadline.seconds_left())
    raw.connect(address)
    if tls is None:
        return raw
    raw.settimeout(deadline.seconds_left())
    return tls.wrap_socket(raw, server_hostname=host)


def _decode_answer(request: Any, frame: bytearray, correlation_id: int, request_label: str) -> Any:
    (answered,) = struct.unpack_from(">i", frame)
    if answered != correlation_id:
        raise Unreachable(f"{request_label}: answer {answered} to request {correlation_id}; the connection is out of step")
    answer = ResponseClassRegistry.get_response_class(request.header)
    whole, head = memoryview(frame), io.BytesIO(frame[:_HEAD])
    try:  # apart from its header, for which the decoder would copy the whole answer twice
        answer.parse_header(head, version=request.API_VERSION)
        return answer.decode(whole[head.tell() :], version=request.API_VERSION)
    except Exception as error:  # the decoder raises anything on a wrong byte
        raise Unreachable(f"{request_label}: the answer is not Kafka's protocol ({type(error).__name__})") from error


Read = TypeVar("Read", bound=Callable[..., Any])


def map_malformed_answers(read: Read) -> Read:
    """A function that reads answers of a node (`Wire`, or what has an `endpoint`, comes first).

    An answer that the protocol can carry and no node ever gives, such as a list without its one entry, or null for a list, is
    `Unreachable` as any other bytes that are not Kafka's.
    """

    @wraps(read)
    def guarded_read(wire: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return read(wire, *args, **kwargs)
        except (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            text = f"{wire.endpoint} {read.__name__}: the answer is not Kafka's protocol ({type(error).__name__})"
            raise Unreachable(text) from error

    return cast(Read, guarded_read)


_METADATA_LOG = "__cluster_metadata"
LATEST, EARLIEST = -1, -2  # ListOffsets
_CONSUMER, _DEBUGGING_CONSUMER = -1, -2  # its replica ids (ListOffsetsRequest.CONSUMER_REPLICA_ID, DEBUGGING_REPLICA_ID)
_Place = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
_TOPIC = 2  # ConfigResource.Type of a topic
_CONTROLLERS = 2  # DescribeCluster's endpoint type (KIP-919)
Use = Callable[[WireConnection, Deadline], Any]

_CONFIGS_BATCH = 500  # topics a request; a ZooKeeper-mode broker reads one znode for each


class NotLeader(Unavailable):
    """The controller answers, but another one leads, or none does at the moment."""


@dataclass(frozen=True, slots=True)
class ApiVersions:
    """What a node serves: api key -> (min, max); `metadata_version` is the finalized feature level (3.9-IV0 is 21) or None."""

    keys: Mapping[int, tuple[int, int]]
    migration_ready: bool
    metadata_version: int | None = None

    @property
    def mode(self) -> BrokerMode:
        """A broker's mode; says nothing about a controller, which is always KRaft."""
        if DescribeQuorumRequest.API_KEY in self.keys:
            return BrokerMode.KRAFT
        return BrokerMode.MIGRATION if self.migration_ready else BrokerMode.ZOOKEEPER


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """The cluster as one broker believes it to be; in KRaft mode `controller_id` is any live broker (KIP-590)."""

    cluster_id: str | None
    controller_id: int | None
    broker_ids: frozenset[int]
    racks: Mapping[int, str] = field(default_factory=dict)  # of brokers that have one


class PartitionLeader(NamedTuple):
    """A partition with the leader epoch that the answering broker knows; the higher epoch is the newer truth."""

    leader_epoch: int
    partition: Partition


class TopicLocations(NamedTuple):
    """The brokers' addresses by id, each partition's leader (-1: none), and topics that the answering broker does not know."""

    brokers: Mapping[int, tuple[str, int]]
    leaders: Mapping[tuple[str, int], int]
    unknown: frozenset[str]


class Wire:
    """One node; connects at the first call, keeps the connection, and opens a new one after any failure.

    Raises `Unreachable`, `TimedOut`, `AuthenticationFailed`; `Failed` if the node does not serve a request; and `admin.error_for`
    of error codes. Threads take turns: a call waits while those before it are answered, and its own timeout begins with its turn.
    """

    def __init__(self, host: str, port: int, security: WireSecurity | None = None, timeout: float = 5.0) -> None:
        self.host, self.port, self.timeout = host, port, timeout
        self._security = security or WireSecurity()
        self._tls: ssl.SSLContext | None = None
        self._connection: WireConnection | None = None
        self._lock = threading.Lock()
        self._answered = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def endpoint(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @map_malformed_answers
    def api_versions(self) -> ApiVersions:
        """Mode, migration flag (tag 3) and metadata version, as they are now."""
        answer = self._exchange(lambda connection, deadline: connection.api_versions(deadline))
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        return ApiVersions(
            keys=api_keys(answer),
            migration_ready=bool(answer.zk_migration_ready),
            metadata_version=levels.get("metadata.version") if answer.finalized_features_epoch >= 0 else None,
        )

    @map_malformed_answers
    def describe_quorum(self) -> Quorum:
        """The metadata quorum as its leader sees it; raises `NotLeader` on every other controller.

        A leader knows no high watermark until its majority has fetched from it. That raises `Unavailable`, since every lag
        computed with -1 would look like none.
        """
        topic = DescribeQuorumRequest.TopicData
        requested_topics = [topic(topic_name=_METADATA_LOG, partitions=[topic.PartitionData(partition_index=0)])]
        answer = self.ask(DescribeQuorumRequest, 0, 2, topics=requested_topics)
        self._check_leads(answer.error_code, answer.error_message)
        state = answer.topics[0].partitions[0]
        self._check_leads(state.error_code, state.error_message)
        if state.high_watermark < 0:
            raise Unavailable(f"{self.endpoint} was elected a moment ago and knows no high watermark yet")
        return Quorum(
            leader_id=state.leader_id,
            leader_epoch=state.leader_epoch,
            high_watermark=state.high_watermark,
            voters={replica.replica_id: replica.log_end_offset for replica in state.current_voters},
            observers={replica.replica_id: replica.log_end_offset for replica in state.observers},
        )

    @map_malformed_answers
    def describe_cluster(self) -> tuple[str, int, dict[int, tuple[str, int]]]:
        """A controller's view: cluster id, the leader's id (-1: none), and every controller's host and port (KIP-919).

        Raises `Failed` below metadata version 3.7-IV0; a controller that has not yet loaded its metadata is below it.
        """
        answer = self.ask(DescribeClusterRequest, 1, 1, endpoint_type=_CONTROLLERS)
        check(answer.error_code, f"{self.endpoint} DescribeCluster", answer.error_message)
        return answer.cluster_id, answer.controller_id, {node.broker_id: (node.host, node.port) for node in answer.brokers}

    @map_malformed_answers
    def metadata(self) -> NodeMetadata:
        """The broker's cluster id, controller and live peers, without topics; raises `Unavailable` while it knows nothing yet."""
        answer = self._request_metadata(topics=[])
        return NodeMetadata(
            cluster_id=answer.cluster_id,
            controller_id=answer.controller_id if answer.controller_id >= 0 else None,
            broker_ids=frozenset(broker.node_id for broker in answer.brokers),
            racks={broker.node_id: broker.rack for broker in answer.brokers if broker.rack},
        )

    @map_malformed_answers
    def controller_address(self) -> tuple[str, int]:
        """Host and port of the controller as this broker knows it; raises `Unavailable` while it knows none.

        In KRaft mode it is any broker that lives, which passes requests on (KIP-590).
        """
        answer = self._request_metadata(topics=[])
        addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        if answer.controller_id not in addresses:
            raise Unavailable(f"{self.endpoint} knows no controller at the moment")
        return addresses[answer.controller_id]

    @map_malformed_answers
    def partitions(self) -> tuple[PartitionLeader, ...]:
        """Every partition of every topic as this broker's metadata cache has it; raises `Unavailable` while it is empty."""
        answer = self._request_metadata(topics=None)
        for topic in answer.topics:
            check(topic.error_code, f"{self.endpoint} Metadata", topic.name)
        return tuple(_partition_leader(topic.name, partition) for topic in answer.topics for partition in topic.partitions)

    @map_malformed_answers
    def topics(self) -> dict[str, TopicMetadata]:
        """Every topic with its id, partitions and overrides, as this broker knows them; topics deleted meanwhile are left out."""
        answer = self._request_metadata(topics=None, newest=12)
        known_topics = [topic for topic in answer.topics if topic.error_code != UNKNOWN_TOPIC_OR_PARTITION]
        for topic in known_topics:
            check(topic.error_code, f"{self.endpoint} Metadata", topic.name)
        overrides: dict[str, dict[str, str]] = {}
        resource = DescribeConfigsRequest.DescribeConfigsResource
        for batch in batches([topic.name for topic in known_topics], _CONFIGS_BATCH):
            resources = [resource(resource_type=_TOPIC, resource_name=name, configuration_keys=None) for name in batch]
            for result in self.ask(DescribeConfigsRequest, 1, 4, resources=resources).results:
                if result.error_code != UNKNOWN_TOPIC_OR_PARTITION:
                    check(result.error_code, f"{self.endpoint} DescribeConfigs", result.error_message)
                    overrides[result.resource_name] = _select_overrides(result.configs)
        return {topic.name: _topic_metadata(topic, overrides[topic.name]) for topic in known_topics if topic.name in overrides}

    @map_malformed_answers
    def leaders(self, topic: str) -> dict[int, tuple[int, int]] | None:
        """Partition -> (leader, -1 for none; leader epoch) of one topic; None if this broker knows no such topic. Never creates it."""
        requested_topic = MetadataRequest.MetadataRequestTopic(name=topic)
        (answer,) = self._request_metadata(topics=[requested_topic]).topics
        if answer.error_code == UNKNOWN_TOPIC_OR_PARTITION:
            return None
        check(answer.error_code, f"{self.endpoint} Metadata", topic)
        return {partition.partition_index: (partition.leader_id, partition.leader_epoch) for partition in answer.partitions}

    @map_malformed_answers
    def find_coordinators(self, keys: Iterable[str], key_type: int = 0) -> dict[str, int | None]:
        """The coordinator of each group (`key_type` 0) or transactional id (1); None while it has none or is loading.

        Creates `__consumer_offsets` or `__transaction_state` if it does not exist yet: check `leaders` first.
        """
        return {key: self._coordinator_id(answer) for key, answer in self.coordinator_answers(tuple(keys), key_type).items()}

    @map_malformed_answers
    def coordinator_answers(self, keys: Sequence[str], key_type: int = 0) -> dict[str, Any]:
        """For each key FindCoordinator's answer, with its error code; creates the topic as `find_coordinators` does."""
        if self.negotiate_version(FindCoordinatorRequest, 1, 4) < 4:  # before Kafka 3.0
            return {key: self.ask(FindCoordinatorRequest, 1, 3, key=key, key_type=key_type) for key in keys}
        answer = self.ask(FindCoordinatorRequest, 4, 4, coordinator_keys=list(keys), key_type=key_type)
        return {coordinator.key: coordinator for coordinator in answer.coordinators}

    def groups(self) -> tuple[str, ...]:
        """The consumer groups that this broker has loaded, old copies of groups that have moved included."""
        return tuple(self.group_states())

    @map_malformed_answers
    def group_states(self) -> dict[str, str]:
        """The same groups with their states, as Kafka names them; empty from brokers before Kafka 2.6 (ListGroups)."""
        answer = self.ask(ListGroupsRequest, 0, 4)
        check(answer.error_code, f"{self.endpoint} ListGroups")
        return {group.group_id: group.group_state or "" for group in answer.groups}

    @map_malformed_answers
    def locations(self, topics: Collection[str]) -> TopicLocations:
        """Where the brokers are, and who leads the partitions of these topics."""
        answer = self._request_metadata([MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics])
        rows = ((topic.name, partition) for topic in answer.topics for partition in topic.partitions)
        return TopicLocations(
            {broker.node_id: (broker.host, broker.port) for broker in answer.brokers},
            {(name, partition.partition_index): partition.leader_id for name, partition in rows},
            frozenset(topic.name for topic in answer.topics if topic.error_code == UNKNOWN_TOPIC_OR_PARTITION),
        )

    @map_malformed_answers
    def log_offsets(
        self,
        partitions: Iterable[tuple[str, int]],
        which: int = LATEST,
        *,
        committed: bool = False,
        of_replicas: bool = False,
    ) -> dict[tuple[str, int], int]:
        """The high watermarks (`which` is LATEST) or the first offsets (EARLIEST) of partitions that this broker leads.

        The others are left out. `committed`: the last stable offset, where open transactions begin, instead of the high watermark.
        `of_replicas`: the ends of this broker's own logs, also where it follows (ListOffsets as Kafka's debugging consumer, replica id -2).
        """
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for topic, index in partitions:
            by_topic[topic].append(_Place(partition_index=index, timestamp=which))
        requested_topics = [
            ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=topic_partitions)
            for topic, topic_partitions in by_topic.items()
        ]
        replica_id = _DEBUGGING_CONSUMER if of_replicas else _CONSUMER
        answer = self.ask(
            ListOffsetsRequest, 2, 7, replica_id=replica_id, isolation_level=int(committed), topics=requested_topics
        )
        rows = ((topic.name, partition) for topic in answer.topics for partition in topic.partitions)
        return {(name, partition.partition_index): partition.offset for name, partition in rows if partition.error_code == 0}

    @map_malformed_answers
    def topic_configs(self, key: str, topics: Iterable[str]) -> dict[str, str]:
        """The value in force of one configuration key for each topic; topics deleted meanwhile are left out."""
        values: dict[str, str] = {}
        resource = DescribeConfigsRequest.DescribeConfigsResource
        for batch in batches(topics, _CONFIGS_BATCH):
            resources = [resource(resource_type=_TOPIC, resource_name=topic, configuration_keys=[key]) for topic in batch]
            for result in self.ask(DescribeConfigsRequest, 1, 4, resources=resources).results:
                if result.error_code != UNKNOWN_TOPIC_OR_PARTITION:
                    check(result.error_code, f"{self.endpoint} DescribeConfigs", result.error_message)
                    values.update((result.resource_name, entry.value) for entry in result.configs if entry.name == key)
        return values

    @map_malformed_answers
    def client_metrics(self) -> tuple[str, ...] | None:
        """The names of client-metrics subscriptions (KIP-714); None if this node does not list them (ZooKeeper mode)."""
        if not self.serves(ListConfigResourcesRequest):
            return None
        answer = self.ask(ListConfigResourcesRequest, 0, 0)
        check(answer.error_code, f"{self.endpoint} ListClientMetricsResources")
        return tuple(sorted(resource.resource_name for resource in answer.config_resources))

    def ask(self, request: Any, lowest: int, highest: int, **fields: Any) -> Any:
        """The answer to one request in the newest version that both sides speak; the caller handles error codes in it."""
        return self._exchange(
            lambda connection, deadline: connection.call(
                request(version=connection.negotiate_version(request, lowest, highest), **fields), deadline
            )
        )

    @map_malformed_answers
    def certificate(self) -> Certificate:
        """What the node shows of itself at the handshake."""
        found: Certificate = self._exchange(lambda connection, _: connection.certificate())
        return found

    def serves(self, request: Any) -> bool:
        """True if this node serves the request in any version."""
        return request.API_KEY in self._exchange(lambda connection, _: connection.keys)

    def negotiate_version(self, request: Any, lowest: int, highest: int) -> int:
        """The version that `ask` would use: the newest that both sides speak. Raises `Failed` if there is none."""
        version: int = self._exchange(lambda connection, _: connection.negotiate_version(request, lowest, highest))
        return version

    def _check_leads(self, code: int, detail: str | None) -> None:
        if code == NOT_LEADER_OR_FOLLOWER:
            raise NotLeader(f"{self.endpoint} does not lead the quorum")
        check(code, f"{self.endpoint} DescribeQuorum", detail)

    def _request_metadata(self, topics: list[Any] | None, newest: int = 9) -> Any:
        answer = self.ask(MetadataRequest, 4, newest, topics=topics, allow_auto_topic_creation=False)
        if not answer.brokers:  # it has started, but got no metadata from a controller yet: "no topics" would look healthy
            raise Unavailable(f"{self.endpoint} has no metadata yet")
        return answer

    def _coordinator_id(self, coordinator: Any) -> int | None:
        if coordinator.error_code in {COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE}:
            return None
        check(coordinator.error_code, f"{self.endpoint} FindCoordinator", coordinator.error_message)
        node_id: int = coordinator.node_id
        return node_id if node_id >= 0 else None

    def _exchange(self, use: Use) -> Any:
        self._wait_for_turn()
        deadline = Deadline(self.timeout)
        try:
            is_reused = self._connection is not None
            try:
                return self._use_connection(use, deadline)
            except Unreachable:
                if not is_reused:
                    raise
            # The node may have closed a kept connection long ago (idle limit, restart): that says nothing about its state now.
            return self._use_connection(use, deadline)
        finally:
            self._lock.release()

    def _wait_for_turn(self) -> None:
        """Take the lock. Over a slow link many calls wait for long, though each is answered in time: an observation asks a broker ten at once."""
        answered = self._answered
        while not self._lock.acquire(timeout=self.timeout):
            if answered == self._answered:
                raise TimedOut(f"{self.endpoint}: the previous call did not end within {self.timeout:g} s")
            answered = self._answered

    def _use_connection(self, use: Use, deadline: Deadline) -> Any:
        if self._connection is None:
            if self._tls is None and self._security.protocol in {"SSL", "SASL_SSL"}:
                self._tls = tls_context(self._security)
            self._connection = WireConnection(self.host, self.port, self._security, self._tls, deadline)
        try:
            answer = use(self._connection, deadline)
        except BaseException:  # an answer may still be under way; it must not be read as the next one's
            self.close()
            raise
        self._answered += 1
        return answer


def _select_overrides(entries: Iterable[Any]) -> dict[str, str]:
    return {entry.name: entry.value for entry in entries if entry.config_source == _OF_TOPIC and entry.value is not None}


def _topic_metadata(answer: Any, overrides: Mapping[str, str]) -> TopicMetadata:
    """`topic_id` comes with version 10 of the request (Kafka 2.8)."""
    topic_uuid = getattr(answer, "topic_id", None)
    identity = (
        topic_id_or_none(base64.urlsafe_b64encode(topic_uuid.bytes).decode().rstrip("=")) if topic_uuid is not None else None
    )
    rows = {
        partition.partition_index: PartitionMetadata(
            tuple(partition.replica_nodes), partition.leader_id, tuple(partition.isr_nodes)
        )
        for partition in answer.partitions
    }
    return TopicMetadata(answer.name, identity, rows, overrides)


def _partition_leader(topic: str, answer: Any) -> PartitionLeader:
    partition = Partition(topic, answer.partition_index, answer.leader_id, tuple(answer.replica_nodes), tuple(answer.isr_nodes))
    return PartitionLeader(answer.leader_epoch, partition)


_BROKER = 4  # ConfigResource.Type of a broker
_OF_TOPIC = 1  # ConfigSource of what was set for a topic
_STATIC = 4  # ConfigSource of the settings it read when it started
OF_DEFAULT = 5  # ConfigSource of Kafka's defaults
_LIST_MS = 10_000


@map_malformed_answers
def read_effective_config(wire: Wire, broker: int) -> dict[str, str]:
    """A running broker's configuration, static and dynamic; without sensitive values, which brokers never send."""
    return {entry.name: entry.value for entry in describe_broker_configs(wire, broker) if entry.value is not None}


@map_malformed_answers
def read_startup_config(wire: Wire, broker: int) -> Taken:
    """The settings that the broker read when it started, whatever was set dynamically since. Secrets are without their values."""
    synonyms = [synonym for entry in describe_broker_configs(wire, broker) for synonym in entry.synonyms]
    values = {setting.name: setting.value for setting in synonyms if setting.source == _STATIC}
    if not values:
        raise Failed(f"{wire.endpoint} reports nothing of its own file")
    return Taken(
        values,
        {setting.name: setting.value for setting in synonyms if setting.source == OF_DEFAULT and setting.value is not None},
    )


def describe_broker_configs(wire: Wire, broker: int | None, keys: list[str] | None = None) -> Iterator[Any]:
    """Each setting of a broker, or (None) of all brokers' default, with all its sources (KIP-226); `keys`: only these."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    broker_resource = resource(
        resource_type=_BROKER, resource_name="" if broker is None else str(broker), configuration_keys=keys
    )
    for result in wire.ask(DescribeConfigsRequest, 1, 4, resources=[broker_resource], include_synonyms=True).results:
        check(result.error_code, f"{wire.endpoint} DescribeConfigs", result.error_message)
        yield from result.configs


@map_malformed_answers
def describe_log_dirs(wire: Wire) -> tuple[LogDir, ...]:
    """Every log directory of the broker and its error; without its replicas, which may be many."""
    answer = wire.ask(DescribeLogDirsRequest, 1, 4, topics=[])
    check(getattr(answer, "error_code", None) or 0, f"{wire.endpoint} DescribeLogDirs")
    directories = tuple(
        LogDir(directory.log_dir, error_name(directory.error_code) if directory.error_code else "", _usable_bytes(directory))
        for directory in answer.results
    )
    if not directories:  # before version 3 this is the answer if DESCRIBE of the cluster is not allowed
        raise Failed(f"{wire.endpoint} names no log directory: our user may not DESCRIBE the cluster")
    return directories


def _usable_bytes(directory: Any) -> int | None:
    """The room on the directory's disk; None below version 4 of the answer, and where the broker does not know it (-1)."""
    usable: int | None = getattr(directory, "usable_bytes", None)
    return usable if usable is not None and usable >= 0 else None


@map_malformed_answers
def list_reassignments(wire: Wire) -> tuple[str, ...]:
    """Partitions that are being reassigned; only the controller knows them, others raise `Unavailable` (KRaft brokers ask it)."""
    answer = wire.ask(ListPartitionReassignmentsRequest, 0, 0, timeout_ms=_LIST_MS, topics=None)
    check(answer.error_code, f"{wire.endpoint} ListPartitionReassignments", answer.error_message)
    return tuple(sorted(f"{topic.name}-{partition.partition_index}" for topic in answer.topics for partition in topic.partitions))
