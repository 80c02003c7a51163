"""Elections and new partitions, asked of the controller by the wire client: with every login that the wire client has.

The controller is looked up before each act. In KRaft mode any broker passes the request on (KIP-590); in ZooKeeper mode one that is not
the controller any more says so, and the next one is looked up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Final, Self

from kafka.protocol.admin import CreatePartitionsRequest, ElectLeadersRequest
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from airflow_provider_kmigrate.clients.admin import ELECTION_NOT_NEEDED, UNKNOWN_TOPIC_OR_PARTITION, check, error_for, error_name
from airflow_provider_kmigrate.clients.holding import UNFENCED_GAP, Holding
from airflow_provider_kmigrate.clients.identity import security_from_kafka
from airflow_provider_kmigrate.clients.settings import KafkaSettings
from airflow_provider_kmigrate.clients.wire import Wire, map_malformed_answers
from airflow_provider_kmigrate.clients.wire_groups import Brokers
from airflow_provider_kmigrate.clients.znodes import batches
from airflow_provider_kmigrate.core.cluster_state.model import Partition
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Unavailable

_NOT_CONTROLLER: Final = 41
_ELECTIONS: Final = 500  # partitions a request
_PREFERRED: Final = 0
_NOTHING_TO_DO: Final = frozenset({ELECTION_NOT_NEEDED, UNKNOWN_TOPIC_OR_PARTITION})  # has a leader already; deleted meanwhile
_SHARE: Final = 0.8  # of the time for a call, after which the broker itself gives up and says why


class _ControllerMovedError(Unavailable):
    """A request met a broker that is not the controller any more."""


_again_elsewhere = retry(
    retry=retry_if_exception_type(_ControllerMovedError), stop=stop_after_attempt(6), wait=wait_fixed(0.5), reraise=True
)


class Admin:
    """Acts of a cluster's controller. `timeout`: seconds for each request. Raises as `Wire` does."""

    def __init__(self, settings: KafkaSettings, timeout: float = UNFENCED_GAP) -> None:
        self._settings, self._timeout = settings, timeout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is kept between calls."""

    def add_partitions(self, topic: str, replicas: Sequence[Sequence[int]], before: int, holding: Holding) -> None:
        """Add a partition for each list of replicas, its preferred leader first, to a topic that has `before`. Not retried."""
        with self._controller() as wire:
            _create_partitions(wire, topic, replicas, before, self._limit_ms, holding)

    @_again_elsewhere
    def elect_preferred(self, partitions: Collection[Partition], holding: Holding) -> None:
        """Elect each partition's preferred leader; those that have it already stay.

        Tried again only if the controller has moved. Raises `Unavailable` if a preferred leader is not in the ISR; the other partitions
        are elected.
        """
        if not partitions:
            return
        failures: list[tuple[str, int]] = []
        with self._controller() as wire:
            for batch in batches(partitions, _ELECTIONS):
                failures += _elect(wire, batch, self._limit_ms, holding)
            if failures:
                name, code = failures[0]
                text = f"{wire.endpoint} ElectLeaders: {count_of(len(failures), 'partition was', 'partitions were')} not elected, such as {name}"
                if code == _NOT_CONTROLLER:
                    raise _ControllerMovedError(f"{text}: {error_name(code)}")
                raise error_for(code, text)

    @property
    def _limit_ms(self) -> int:
        return int(self._timeout * _SHARE * 1000)

    def _controller(self) -> Wire:
        """A connection of its own, not yet open: a kept one that has broken would send a request twice."""
        with Brokers(self._settings.properties, self._timeout) as brokers:
            host, port = brokers.ask_first_broker(lambda wire: wire.controller_address())
        return Wire(host, port, security_from_kafka(self._settings), self._timeout)


@map_malformed_answers
def _create_partitions(  # noqa: PLR0917 - the request's fields
    wire: Wire, topic: str, replicas: Sequence[Sequence[int]], before: int, limit_ms: int, holding: Holding
) -> None:
    of_topic = CreatePartitionsRequest.CreatePartitionsTopic
    assignments = [of_topic.CreatePartitionsAssignment(broker_ids=list(row)) for row in replicas]
    requested_topic = of_topic(name=topic, count=before + len(replicas), assignments=assignments)
    wire.negotiate_version(CreatePartitionsRequest, 0, 3)  # connects: nothing but the request itself comes after the fence
    holding.check()
    answer = wire.ask(CreatePartitionsRequest, 0, 3, topics=[requested_topic], timeout_ms=limit_ms, validate_only=False)
    for result in answer.results:
        check(result.error_code, f"{wire.endpoint} CreatePartitions of {result.name}", result.error_message)


@map_malformed_answers
def _elect(wire: Wire, partitions: Sequence[Partition], limit_ms: int, holding: Holding) -> list[tuple[str, int]]:
    """The partitions that were not elected, each with Kafka's error code."""
    of_topic = ElectLeadersRequest.TopicPartitions
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        by_topic[partition.topic].append(partition.index)
    requested = [of_topic(topic=topic, partitions=indexes) for topic, indexes in by_topic.items()]
    wire.negotiate_version(ElectLeadersRequest, 1, 2)  # as in `_create_partitions`
    holding.check()
    answer = wire.ask(ElectLeadersRequest, 1, 2, election_type=_PREFERRED, topic_partitions=requested, timeout_ms=limit_ms)
    if answer.error_code == _NOT_CONTROLLER:
        raise _ControllerMovedError(f"{wire.endpoint} ElectLeaders: {error_name(answer.error_code)}")
    check(answer.error_code, f"{wire.endpoint} ElectLeaders")
    rows = [
        (f"{topic.topic}-{result.partition_id}", result.error_code)
        for topic in answer.replica_election_results
        for result in topic.partition_result
    ]
    return [(name, code) for name, code in rows if code and code not in _NOTHING_TO_DO]
