"""What must hold of a cluster after every cell, asked of its nodes beside the tool: the invariants of the fault matrix.

Marks of the cell before are kept, so that what goes back is seen. What is not known yet is asked again for `_PATIENCE_S` seconds; what
went back once has gone back, and is not asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from airflow_provider_kmigrate.clients import wire_groups
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, Migration, ZkController
from airflow_provider_kmigrate.core.migration import equivalence
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS, Agreement, judge_counts, list_coordinator_topics
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.steps.run import StepContext
from tests.kit.localcluster.cluster import LocalCluster
from tests.system import linked

COMMITS = "I3 committed offsets not back, none lost, none beyond the log"
EPOCHS = "I4 controller, quorum and leader epochs not back"
EQUAL = "I5 ZooKeeper and KRaft equal"
ACCEPTOR = "I13 one count of __consumer_offsets, one acceptor a group"
_PATIENCE_S = 45.0
_ANSWER_S = 20.0
QUORUM = "quorum"


class NotYet(Exception):
    """It is not known, or is not so yet."""


@dataclass
class Oracle:
    """Of one cluster with the consumer groups that must live on."""

    cluster: LocalCluster
    groups: tuple[str, ...] = ()
    _offsets: dict[Hashable, int] = field(default_factory=dict)
    _epochs: dict[Hashable, int] = field(default_factory=dict)
    _count: int | None = None

    def check(self) -> tuple[tuple[str, ...], str]:
        """The names of what was checked, and what was found wrong; empty where nothing was."""
        asked = {COMMITS: self._commits, EPOCHS: self._epochs_now, EQUAL: self._equal, ACCEPTOR: self._accepted}
        found = {name: _message(ask) for name, ask in asked.items()}
        wrong = [f"{name}: {problem}" for name, problem in found.items() if problem]
        return tuple(name for name, problem in found.items() if problem is not None), "; ".join(wrong)

    def _commits(self) -> str | None:
        if not self.groups:
            return None
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        found = {(group, where): offset for group in self.groups for where, offset in _committed(admin, group).items()}
        ends = _ends(admin, {where for _, where in found})
        beyond = [f"{key} at {offset} of {ends[key[1]]}" for key, offset in found.items() if offset > ends[key[1]]]
        now: dict[Hashable, int] = dict(found.items())
        problem = went_back(self._offsets, now, gone=True)
        self._offsets = now
        return "; ".join([problem] * bool(problem) + beyond)

    def _epochs_now(self) -> str | None:
        with linked.context(self.cluster, "looking", acting=False) as context:
            view = context.observer.observe(Fields.POSITION | Fields.STATE_EPOCH)
            now: dict[Hashable, int] = _leader_epochs(context)
        now |= _controllers_epochs(view)
        problem = "; ".join(filter(None, (went_back(self._epochs, now, gone=False), _out_of_reach(view))))
        if not _answering(view):  # a quorum that is gone takes its epochs along
            self._epochs.pop(QUORUM, None)
        self._epochs |= now
        return problem

    def _equal(self) -> str | None:
        with linked.context(self.cluster, "looking", acting=False) as context:
            if not dual_writing(context.observer.observe(Fields.POSITION)):
                return None
            view = context.observer.observe(Fields.POSITION | Fields.METADATA)
        if reasons := (*equivalence.unread_kind_reasons(view), *equivalence.difference_reasons(view)):
            raise NotYet("; ".join(reason.text for reason in reasons))
        return ""

    def _accepted(self) -> str | None:
        with linked.context(self.cluster, "looking", acting=False) as context:
            view = context.observer.observe(Fields.PARTITIONS | Fields.COORDINATORS | Fields.BROKERS)
            counts, count = next(
                ((counts, count) for topic, counts, count in list_coordinator_topics(view) if topic is OFFSETS), (None, 0)
            )
            if view.partitions is None:
                raise NotYet("no partitions were read")
            if not count:
                return None
            acceptors = {group: _acceptors(context, group) for group in self.groups}
        verdict = judge_counts(counts, count, [node.id for node in self.cluster.plan.brokers])
        if verdict.agreement is Agreement.UNKNOWN:
            raise NotYet("; ".join(reason.text for reason in verdict.reasons))
        before, self._count = self._count or count, count
        if verdict.agreement is Agreement.BROKEN or before != count:
            return f"{count} partitions after {before}; {'; '.join(reason.text for reason in verdict.reasons)}"
        if wrong := {group: found for group, found in acceptors.items() if len(found) != 1}:
            raise NotYet(f"accepted by: {wrong}")
        return ""


def went_back(before: Mapping[Hashable, int], now: Mapping[Hashable, int], *, gone: bool) -> str:
    """Which marks are lower than before, and, if `gone`, which are not there any more; empty where none is."""
    lower = [f"{key} from {mark} to {now[key]}" for key, mark in before.items() if key in now and now[key] < mark]
    missing = [f"{key} is gone, was at {mark}" for key, mark in before.items() if gone and key not in now]
    return ", ".join([*lower, *missing])


def dual_writing(view: ClusterView) -> bool:
    """Whether KRaft owns the cluster, its copy is done and no controller has ended the migration."""
    zk, flags = view.zk, [controller.migration_flag for controller in view.controllers.values()]
    if zk is None:
        raise NotYet("ZooKeeper was not read")
    owns = isinstance(zk.controller, ZkController) and zk.controller.is_kraft
    copied = isinstance(zk.migration, Migration) and zk.migration.metadata_offset > 0
    return owns and copied and all(flags)


def _message(ask: Callable[[], str | None]) -> str | None:
    """What is wrong: empty for nothing, None where the question does not arise."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return ask()
        except (NotYet, KMigrateError, KafkaException) as error:
            if time.monotonic() > deadline:
                return f"not within {_PATIENCE_S:g} s: {error}"[:400]
            time.sleep(1.0)


def _committed(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    (asked,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=_ANSWER_S).values()
    found: dict[tuple[str, int], int] = {}
    for one in asked.result(_ANSWER_S).topic_partitions:
        if one.error is not None:
            raise NotYet(f"{group} {one.topic}-{one.partition}: {one.error}")
        if one.offset >= 0:
            found[one.topic, one.partition] = one.offset
    return found


def _ends(admin: AdminClient, wheres: set[Any]) -> dict[Any, int]:
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = admin.list_offsets({TopicPartition(*where): latest for where in wheres}, request_timeout=_ANSWER_S)
    return {(one.topic, one.partition): result.result(_ANSWER_S).offset for one, result in asked.items()}


def _leader_epochs(context: StepContext) -> dict[Hashable, int]:
    """Of each partition, as the broker knows it that has heard of the newest."""
    found: dict[Hashable, int] = {}
    for node in context.spec.brokers:
        for led in context.tools.wire(node).partitions():
            key = f"leader epoch of {led.partition.name}"
            found[key] = max(found.get(key, -1), led.leader_epoch)
    return found


def _controllers_epochs(view: ClusterView) -> dict[Hashable, int]:
    """Not those of the partitions' states: each quorum writes its own there, and a second one begins at 1 again."""
    if view.zk is None or view.zk.controller_epoch is None or view.state_epoch is None:
        raise NotYet("ZooKeeper's epochs were not read")
    found: dict[Hashable, int] = {"/controller_epoch": view.zk.controller_epoch}
    if view.quorum is None and 2 * _answering(view) > len(view.controllers):
        raise NotYet("no controller leads")
    return found | ({QUORUM: view.quorum.leader_epoch} if view.quorum else {})


def _answering(view: ClusterView) -> int:
    return sum(controller.answers for controller in view.controllers.values())


def _out_of_reach(view: ClusterView) -> str:
    """States that a ZooKeeper controller could not change, since their epoch is above its own (G02)."""
    zk = view.zk
    owns = zk is not None and isinstance(zk.controller, ZkController) and not zk.controller.is_kraft
    if zk is None or not owns or view.state_epoch is None or view.state_epoch <= (zk.controller_epoch or 0):
        return ""
    return f"states of epoch {view.state_epoch} above /controller_epoch {zk.controller_epoch}"


def _acceptors(context: StepContext, group: str) -> list[int]:
    """The brokers that take themselves for the group's coordinator."""
    reported = {
        node.id: wire_groups.describe_groups_at(context.tools.wire(node), [group])[group] for node in context.spec.brokers
    }
    return [node for node, answer in reported.items() if not isinstance(answer, KMigrateError)]
