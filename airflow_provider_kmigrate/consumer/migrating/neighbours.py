"""Who else is in the Kafka group (R6, R7): DescribeGroups, in a thread and over a connection of their own.

The group is asked for only while this member is in it, or was refused by it: nobody has to tell of a group that is not there.
Unknown is not nobody: the last answer stays until there is another, and its age can be told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import ConsumerGroupState, KafkaException

from airflow_provider_kmigrate.clients import wire_groups
from airflow_provider_kmigrate.consumer.kafka_calls import kafka_calls, quiet_admin
from airflow_provider_kmigrate.core.coordination.assignors import KafkaMember
from airflow_provider_kmigrate.core.coordination.group_seen import KafkaGroup
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.exceptions import KMigrateError, TimedOut, Unreachable

_log = logging.getLogger(__name__)
_EVERY_S: Final = 3.0
_AGAIN_S: Final = 0.2  # a group that rebalances tells nothing of its partitions
_ANSWER_S: Final = 3.0
_STABLE: Final = "Stable"

Ask = Callable[[], KafkaGroup]
Answer = tuple[KafkaMember, ...]


def asking(properties: Mapping[str, Any], group: str) -> Ask:
    """DescribeGroups of one group, answered within seconds or an exception of ours.

    By the wire client; where that one does not speak the properties' security, by librdkafka, with what `wire_groups` says of it.
    """
    given = {name: value for name, value in properties.items() if isinstance(value, str | int | float) or name == "oauth_cb"}
    told = {name: value if callable(value) else str(value) for name, value in given.items()}
    if "oauth_cb" not in told and wire_groups.speaks(told):
        return lambda: wire_groups.describe(told, group, _ANSWER_S)
    return _by_librdkafka(told, group)


def _by_librdkafka(properties: Mapping[str, Any], group: str) -> Ask:
    admin = quiet_admin(properties)

    def ask() -> KafkaGroup:
        with kafka_calls(f"describing {group}"):
            found = admin.describe_consumer_groups([group], request_timeout=_ANSWER_S)[group].result(_ANSWER_S + 1)
        # one that is being shared out tells of members without assignments
        stable = found.state is ConsumerGroupState.STABLE
        return KafkaGroup(_STABLE, tuple(map(_member, found.members))) if stable else KafkaGroup(found.state.name)

    return ask


def _member(found: Any) -> KafkaMember:
    holds = frozenset(TopicPartition(each.topic, each.partition) for each in found.assignment.topic_partitions)
    return KafkaMember(found.member_id, found.client_id, holds, found.host)


def _from_nobody(error: KMigrateError) -> bool:
    """Whether nobody was reached, or nobody answered; not where there was an answer that is an error, or cannot be read."""
    return isinstance(error, Unreachable | TimedOut) and isinstance(error.__cause__, OSError | KafkaException | None)


class GroupPoller(threading.Thread):
    """Asks every few seconds, and at once after `changed`. `may_ask`: whether the group is known to be there; `differs` is told of news.

    `away` is told with None that the coordinator is out of reach, since a `session` of seconds ago: by then the group has put this member
    out, and librdkafka, which counts a session only on a connection that stands, says nothing of it (measured). And, each time it tells,
    who is in the stable group. Who never had an answer knows nothing of anybody's reach: the way here is another one than librdkafka's.
    """

    def __init__(
        self,
        ask: Ask,
        may_ask: Callable[[], bool],
        differs: Callable[[], None],
        away: Callable[[Answer | None], object] = bool,
        session: float = float("inf"),
    ) -> None:
        super().__init__(daemon=True, name="kmigrate-neighbours")
        self._ask, self._may_ask, self._differs, self._away, self._session = ask, may_ask, differs, away, session
        self._reached = time.monotonic()
        self._changed, self._ending = threading.Event(), threading.Event()
        self._answer: Answer = ()
        self._heard = float("-inf")
        self._spoken = False  # this thread has had an answer once: its own way to the brokers works

    @property
    def members(self) -> Answer:
        """By the last answer; nobody while there was none."""
        return self._answer

    @property
    def age(self) -> float:
        """Seconds since the last answer; infinite while there was none."""
        return time.monotonic() - self._heard

    def changed(self) -> None:
        """Any thread: the group rebalances."""
        self._changed.set()

    def end(self) -> None:
        """Does not wait: a question that is under way ends by its own time-out."""
        self._ending.set()
        self._changed.set()

    def run(self) -> None:
        while not self._ending.is_set():
            told = self.look() if self._may_ask() else self._rests()
            self._changed.wait(_EVERY_S if told else _AGAIN_S)
            self._changed.clear()

    def _rests(self) -> bool:
        self._reached = time.monotonic()
        return False

    def _is_reached(self, at: float) -> None:
        self._reached, self._spoken = at, True

    def look(self) -> bool:
        """Ask once; whether there was an answer."""
        began = time.monotonic()
        try:
            found = self._ask()
        except KMigrateError as error:
            _log.info("%s", error)
            if not _from_nobody(error):
                self._is_reached(began)
            elif self._spoken and time.monotonic() - self._reached >= self._session:
                self._away(None)
            return False
        self._is_reached(began)
        if found.state != _STABLE:
            return False
        self._away(found.members)
        answer = tuple(sorted(found.members))
        news, self._answer, self._heard = answer != self._answer, answer, began
        if news:
            self._differs()
        return True
