"""The steps that expand `__consumer_offsets`, and that undo it until the first broker has restarted (`core.offsets_topic.expansion`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, NextAction, Reading, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Expansion, ExpansionStage, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import GroupProgressSpec, NodeRole, NodeSpec, Policy
from airflow_provider_kmigrate.core.migration.broker_restart import BrokerRestart, RestartState
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS, group_by_coordinator
from airflow_provider_kmigrate.core.offsets_topic import expansion, offsets_repair
from airflow_provider_kmigrate.core.offsets_topic.expansion import Export, parse_export
from airflow_provider_kmigrate.core.offsets_topic.expansion_plan import plan_expansion
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import GroupLog
from airflow_provider_kmigrate.core.shared.text import count_of, summarize
from airflow_provider_kmigrate.exceptions import Failed, Refused
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.nodes import note_counts, note_expansion, set_in_original
from airflow_provider_kmigrate.steps.offsets_repair import commit_at_coordinators
from airflow_provider_kmigrate.steps.plan_binding import read_plan_facts
from airflow_provider_kmigrate.steps.prepare import save_all
from airflow_provider_kmigrate.steps.run import Step, StepContext, run_step
from airflow_provider_kmigrate.steps.waits import EndOfRoll

_HOSTED = Fields.COORDINATORS | Fields.HOSTED_GROUPS  # what a restart needs of each broker's groups
_A_DAY = 86_400.0  # administrators stop and start applications
_PLANS_FOR = 15.0  # seconds that the plan waits for what may pass
_VERIFIED = 3  # observations in a row
_READINGS = 10  # readings of the log, for tombstones to reach the followers: mostly the first one shows them


class PlanExpansion(Step):
    """Check whether the topic may be expanded, and describe what would be done; changes nothing."""

    name = "expansion plan"
    fields = expansion.PLANNED | Fields.NODES
    interval = 1.0
    planned: tuple[Expansion, ClusterView]  # once it is decided

    def __init__(self, target: int, undo: bool) -> None:
        self._target, self._undo = target, undo

    def begin(self, context: StepContext) -> None:
        """Missing rights on the log would show only once applications are stopped."""
        context.tools.offsets_log().prove_readable()

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Describe the expansion, or refuse it; what does not pass within seconds is a refusal."""
        planned = expansion.decide_undo(view, self._target) if self._undo else expansion.decide_plan(view, self._target)
        if isinstance(planned, Wait) and view.taken_at - first.taken_at > _PLANS_FOR:
            return Refuse(planned.reasons)
        if isinstance(planned, Wait | Refuse):
            return planned
        self.planned = planned, view
        steps, consequences = expansion.describe_expansion(view, planned, undo=self._undo)
        return Done("\n".join((*steps, *consequences)))


def plan_from_here(context: StepContext, target: int, *, undo: bool = False) -> dict[str, Any]:
    """The plan of an expansion to `target` partitions, or of its undo. Raises as `PlanExpansion` refuses."""
    step = PlanExpansion(target, undo)
    run_step(step, context)
    planned, view = step.planned
    return plan_expansion(read_plan_facts(context, view), planned, undo=undo)


class _ExpansionStep(Step):
    """A step of one expansion, decided on every broker's groups. It keeps the view that it decided on, for the act."""

    fields = expansion.WHAT
    interval = 1.0
    doing: str

    def __init__(self, target: int) -> None:
        self.name, self._target = f"{self.doing}, {OFFSETS.name} to {target}", target
        self._export = Export()
        self._view: ClusterView | None = None

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Decide by `decided`, and keep the observation for the act."""
        self._view = view
        return self.decide_from(view)

    @abstractmethod
    def decide_from(self, view: ClusterView) -> Decision:
        """The decision from one view."""

    def act(self, context: StepContext, act: Act) -> None:
        """Act on the view that was decided on; it is a few seconds old at most."""
        ongoing = expansion.expansion_under_way(self._view, self._target) if self._view else None
        if self._view is None or not isinstance(ongoing, Expansion):
            raise Failed(f"{self.name}: asked to {act.verb} before anything was decided")
        if act.verb is not self.verb:
            super().act(context, act)
        self.perform(context, self._view, ongoing)

    verb: Verb

    @abstractmethod
    def perform(self, context: StepContext, view: ClusterView, ongoing: Expansion) -> None:
        """The act itself."""


class StopGroups(_ExpansionStep):
    """Note that the expansion begins, with the groups that have members, and wait until no group that moves has a member."""

    doing, verb = "stop groups", Verb.NOTE
    fields = expansion.WHAT | Fields.FILES
    interval = 2.0
    patience = _A_DAY

    def decide_from(self, view: ClusterView) -> Decision:
        """Wait until no broker has a member of a group that moves."""
        return expansion.decide_stopped(view, self._target)

    def perform(self, context: StepContext, view: ClusterView, ongoing: Expansion) -> None:
        """Save the originals, which the restarts render files from, while every broker is up. The note comes last: it needs both."""
        save_all(context)
        context.backup.keep_export(self._target, Export(tuple(expansion.moving_groups_with_members(view, ongoing))).to_json())
        note_expansion(context, ongoing)


class _WithExport(_ExpansionStep):
    """A step that needs the export; never deferred, since the triggerer's machine need not have the backup."""

    def begin(self, context: StepContext) -> None:
        """Read the export of this expansion from the backup."""
        self._export = parse_export(context.backup.read_export(self._target))
        self.groups = tuple(sorted(self._export.groups))  # no broker lists one that was deleted


class ExportOffsets(_WithExport):
    """Save the offsets of every group that moves into the backup, in two copies, if the log holds the same."""

    doing, verb = "export offsets", Verb.EXPORT

    def decide_from(self, view: ClusterView) -> Decision:
        """Export the offsets of the groups that move, unless they are exported."""
        return expansion.decide_export(view, self._target, self._export)

    def perform(self, context: StepContext, view: ClusterView, ongoing: Expansion) -> None:
        """Save the offsets in the backup, twice. Refuses if the observation and the raw log differ."""
        export = expansion.build_export(view, ongoing, self._export, _read_moving_groups_log(context, ongoing))
        if isinstance(export, Refuse):
            raise Refused.because(*export.reasons)
        self._export = export
        path = context.backup.keep_export(self._target, self._export.to_json())
        context.say(f"Saved the offsets of {count_of(len(self._export.groups), 'group')} in {path} and its copy.")


class DeleteGroups(_WithExport):
    """Delete every group that moves, once the export has its offsets, until no old commit is left in the log."""

    doing, verb = "delete groups", Verb.DELETE_GROUPS

    def decide_from(self, view: ClusterView) -> Decision:
        """Delete the moving groups, if the export has all their offsets."""
        return expansion.decide_delete(view, self._target, self._export)

    def perform(self, context: StepContext, view: ClusterView, ongoing: Expansion) -> None:
        """Commit each group's own offsets once before it is deleted: missing rights would show only when they are gone."""
        offsets = expansion.importable_offsets(view, expansion.existing_offsets(view, ongoing))
        commit_at_coordinators(context, view, offsets)
        note_expansion(context, replace(ongoing, stage=ExpansionStage.DELETING))
        for broker, groups in group_by_coordinator(view, offsets).items():
            context.tools.groups_at(context.spec.node(NodeRole.BROKER, broker)).delete(groups, context.fence)
        self._prove_deleted(context, ongoing)
        note_expansion(context, replace(ongoing, stage=ExpansionStage.DELETED))

    def _prove_deleted(self, context: StepContext, ongoing: Expansion) -> None:
        """A broker answers before its followers have the tombstones: a new leader without them would serve the old commits."""
        for readings_left in range(_READINGS - 1, -1, -1):
            differences = offsets_repair.find_log_mismatches(_read_moving_groups_log(context, ongoing), {}, ())
            if differences and not readings_left:
                raise Refused.because(expansion.log_mismatch_reason(differences))
            if not differences:
                return
            context.clock.sleep(self.interval)


class ExpandTopic(_ExpansionStep):
    """Give the topic its partitions, with replicas on every rack."""

    doing, verb = "expand", Verb.EXPAND
    fields = expansion.WHAT | Fields.REASSIGNMENTS

    def decide_from(self, view: ClusterView) -> Decision:
        """Add the partitions, or wait until all replicas of them are in sync."""
        return expansion.decide_expand(view, self._target)

    def perform(self, context: StepContext, view: ClusterView, ongoing: Expansion) -> None:
        """Add the partitions with their replicas."""
        before = sum(row.topic == OFFSETS.name for row in view.partitions or ())
        context.tools.admin.add_partitions(OFFSETS.name, expansion.replicas_to_add(view, ongoing), before, context.fence)


class RestartBroker(RollBroker):
    """Restart one broker in its mode, so that it reads the new count; its file gets that count, too."""

    def __init__(self, node: NodeSpec, target: int, policy: Policy, groups: GroupProgressSpec | None = None) -> None:
        super().__init__(node, BrokerMode.ZOOKEEPER, policy, groups)  # until its file was read
        self.name, self._count = f"restart {node.name} for {count_of(target, 'partition')}", target
        self.begin_as(
            BrokerRestart(
                node.id, self.target, self._decide_restart, let_go=expansion.select_moving_groups, with_coordinators=_HOSTED
            ),
            groups,
        )

    def next_action(self, view: ClusterView, first: ClusterView, read: Reading) -> NextAction[RestartState]:
        """Restart the broker in the mode in which it runs."""
        self.target = expansion.mode_in_file(view.broker(self.node.id)) or self.target
        self.restart = replace(self.restart, target=self.target)
        return super().next_action(view, first, read)

    def _decide_restart(self, view: ClusterView, state: RestartState, _before: ClusterView) -> Decision:
        return expansion.decide_restart(view, self.node.id, self._count, restarted=state.restarted)

    def _act_on_broker(self, context: StepContext, verb: Verb) -> None:
        if verb is not Verb.START:
            set_in_original(context, self.node, {OFFSETS.setting: str(self._count)})
        super()._act_on_broker(context, verb)


def one_coordinator(target: int, groups: GroupProgressSpec) -> Step:
    """Wait until every broker uses the new count, each group has one coordinator, and the groups that did not move continue."""
    decide = expansion.decide_one_coordinator
    name, fields = "one coordinator a group", expansion.WHAT
    return EndOfRoll(name, groups, lambda view: decide(view, target), fields=fields, interval=1.0)


class ImportOffsets(_WithExport):
    """Commit the exported offsets at each group's coordinator; `undo`: under the old count, before any broker has restarted."""

    doing, verb = "import offsets", Verb.IMPORT

    def __init__(self, target: int, undo: bool = False) -> None:
        super().__init__(target)
        self._undo = undo
        self.fields |= Fields.FILES if undo else Fields(0)

    def decide_from(self, view: ClusterView) -> Decision:
        """Import what brokers do not have yet, or refuse what differs."""
        return expansion.decide_import(view, self._target, self._export, undo=self._undo)

    def perform(self, context: StepContext, view: ClusterView, _ongoing: Expansion) -> None:
        """Commit each missing offset at the broker that coordinates its group."""
        missing, _ = expansion.compare_offsets(view, self._export)
        commit_at_coordinators(context, view, missing)


class VerifyOffsets(_WithExport):
    """Compare the coordinators' answers, several times, and the log with the export, and end the expansion (or its undo)."""

    doing, verb = "verify offsets", Verb.NOTE

    def __init__(self, target: int, undo: bool = False) -> None:
        super().__init__(target)
        self._undo, self._equal = undo, 0
        self.fields |= Fields.FILES if undo else Fields(0)

    def decide_from(self, view: ClusterView) -> Decision:
        """Compare the offsets with the export; they must be equal in several observations in a row."""
        decision = expansion.decide_verify(view, self._target, self._export, sure=self._equal >= _VERIFIED - 1, undo=self._undo)
        self._equal = self._equal + 1 if isinstance(decision, Wait) and decision.healthy else 0
        return decision

    def perform(self, context: StepContext, view: ClusterView, ongoing: Expansion) -> None:
        """End the expansion if the log holds each offset once: no later move of a leader can bring another one back."""
        if ongoing.stage is not ExpansionStage.BEGUN:
            log = _read_moving_groups_log(context, ongoing)
            exported_commits = expansion.commits_by_partition(expansion.importable_offsets(view, self._export.groups))
            imported = {group: log[group] for group in self._export.groups if group in log}
            if differences := offsets_repair.find_log_mismatches(
                imported, exported_commits, ongoing.old if self._undo else (ongoing.new,)
            ):
                raise Refused.because(expansion.log_mismatch_reason(differences))
            self._report_other_groups(context, {group: log[group] for group in log.keys() - imported.keys()}, ongoing.new)
        if not self._undo:
            note_counts(context, {OFFSETS.name: ongoing.new})
        note_expansion(context, None if self._undo else replace(ongoing, stage=ExpansionStage.IMPORTED))

    def _report_other_groups(self, context: StepContext, log: Mapping[str, GroupLog], count: int) -> None:
        """A group that appeared while brokers disagreed may have committed in its old partition; most are short-lived and need nothing."""
        if not self._undo and (divided_groups := offsets_repair.plan_repair(log, count).stop):
            context.say(
                f"{count_of(len(divided_groups), 'group that appeared during the restarts has', 'groups that appeared during the restarts have')} commits that no broker looks for: {summarize(divided_groups, 20)}. "
                f"The DAG kmigrate_offsets_repair__{context.spec.name} imports them."
            )


class GroupsProgress(Step):
    """Wait until the groups that had members before consume again.

    `groups`: their names; None: those of the export, which only a worker can read.
    """

    name = "progress of the groups that moved"
    fields = Fields.ZOOKEEPER | Fields.GROUP_MEMBERS
    interval = 2.0
    patience = _A_DAY

    def __init__(self, target: int, groups: Sequence[str] | None = None) -> None:
        self._target = target
        self._known = groups is not None
        self.groups = tuple(groups or ())

    def begin(self, context: StepContext) -> None:
        """Read from the export which groups had members."""
        if not self._known:
            self.groups, self._known = parse_export(context.backup.read_export(self._target)).with_members, True

    @property
    def more_arguments(self) -> Mapping[str, Any]:
        """These groups: the triggerer has no backup."""
        return {"groups": list(self.groups)}

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Wait until each of these groups consumes again."""
        return expansion.decide_progress(view, first, self.groups)


def _read_moving_groups_log(context: StepContext, ongoing: Expansion) -> dict[str, GroupLog]:
    """What the log holds of all groups that move, also of groups that no broker lists."""
    everything = context.tools.offsets_log().read()
    return {group: log for group, log in everything.items() if expansion.is_moved_by(group, ongoing)}
