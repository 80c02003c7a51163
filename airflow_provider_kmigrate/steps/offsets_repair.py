"""The repair of `__consumer_offsets`: import the newest commit of each group, then remove its copies (`core.offsets_topic.offsets_repair`).

Where it stands is read from the raw log, before each act: a repair that was killed does what is left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Cause, ClusterView, FetchedOffset, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS, brokers_agree, group_by_coordinator
from airflow_provider_kmigrate.core.migration.gates import refuse_or_wait
from airflow_provider_kmigrate.core.offsets_topic import expansion, offsets_repair
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import GroupLog, RepairPlan, parse_decisions
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.steps.run import Step, StepContext, pass_gate_again


class RepairOffsets(Step):
    """Leave one copy of each commit, where the topic's count puts it, once all brokers use that count and the groups are stopped.

    `decisions`: the operator's, as a run's conf has them; `Refused` (F09) for anything else. It is never deferred: the triggerer's
    machine need not reach the raw log.
    """

    name = "repair offsets"
    fields = expansion.WHAT
    interval = 1.0
    patience = 86_400.0  # administrators stop applications
    may_defer = False

    def __init__(self, decisions: Mapping[str, Mapping[str, int | None]]) -> None:
        self._decided = parse_decisions(decisions)
        self._log: dict[str, GroupLog] = {}
        self._gone: frozenset[str] = frozenset()  # topics
        self._plan: RepairPlan | None = None
        self._view: ClusterView | None = None
        self._removed = 0

    def begin(self, context: StepContext) -> None:
        """Read the raw log of `__consumer_offsets`, and which of its topics are gone."""
        self._read_log(context)

    def _read_log(self, context: StepContext) -> None:
        """Read the log, and which of its topics no broker knows any more; one that restarts may not know all of them yet."""
        self._log = context.tools.offsets_log().read()
        topics = sorted({key.topic for log in self._log.values() for key in log.commits})
        unknown = (context.tools.wire(node).locations(topics).unknown for node in context.spec.brokers)
        self._gone = frozenset(topics).intersection(*unknown)

    def _make_plan(self, count: int) -> RepairPlan:
        return offsets_repair.plan_repair(self._log, count, self._decided, self._gone)

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """The next act, by the log as it was after the last one; `act` reads it again before it changes anything."""
        gate = brokers_agree(view)
        if not gate.met:
            return refuse_or_wait(gate)
        count = sum(partition.topic == OFFSETS.name for partition in view.partitions or ())
        self._view = view
        if self._plan is None or self._plan.count != count:
            self._plan = self._make_plan(count) if count else RepairPlan(count)
        if not set(self._plan.stop) <= set(self.groups):  # no broker lists a group whose commits it cannot find
            self.groups = self._plan.stop
            return Wait(
                (
                    Reason(
                        "K02",
                        f"Asking the brokers for {count_of(len(self.groups), 'group')}.",
                        cause=Cause.COORDINATORS_NOT_ASKED,
                    ),
                )
            )
        decision = offsets_repair.decide_repair(self._plan, view)
        return Done(f"{decision.text}{self._describe_next_step()}") if isinstance(decision, Done) else decision

    def _describe_next_step(self) -> str:
        text = f" {count_of(self._removed, 'copy was', 'copies were')} removed. Restart every broker once: until then it keeps the copies that it has loaded."
        return text if self._removed else ""

    def act(self, context: StepContext, act: Act) -> None:
        """Save the plan and do its next part, unless a group has committed since the log was read; then read the log again."""
        if self._plan is None or self._view is None:
            raise Failed(f"{self.name}: asked to {act.verb} before anything was decided")
        self._read_log(context)
        planned, self._plan = self._plan, None
        if self._make_plan(planned.count) != planned:
            context.say("Groups have committed since the log was read: planning again.")
            return
        pass_gate_again(self.name, context)  # the log may have taken minutes
        context.say(f"The plan, with all values: {context.backup.keep_repair(planned.as_dict(), context.fence.token)}")
        if act.verb is Verb.IMPORT:
            commit_at_coordinators(context, self._view, _offsets_to_import(planned))
        else:
            context.tools.offsets_log().remove(planned.strays, context.fence)
            self._removed += len(planned.strays)
        self._read_log(context)


def _offsets_to_import(plan: RepairPlan) -> dict[str, dict[TopicPartition, FetchedOffset]]:
    offsets: dict[str, dict[TopicPartition, FetchedOffset]] = defaultdict(dict)
    for key, commit in plan.imports.items():
        offsets[key.group][key.where] = FetchedOffset(commit.offset or 0, commit.leader_epoch, commit.metadata)
    return offsets


def commit_at_coordinators(context: StepContext, view: ClusterView, offsets: Mapping[str, expansion.FetchedOffsets]) -> None:
    """Commit the offsets of each group at the broker that coordinates it, by this view; a group without offsets is left out."""
    for broker, groups in group_by_coordinator(view, offsets).items():
        group_client = context.tools.groups_at(context.spec.node(NodeRole.BROKER, broker))
        for group in groups:
            if offsets[group]:
                group_client.commit(group, offsets[group], context.fence)
