"""The steps that expand `__consumer_offsets`, and that undo it until the first broker has restarted (`core.expansion`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_kmigrate.core import expansion, offsets_repair
from airflow_provider_kmigrate.core.cluster import GroupProgressSpec, NodeRole, NodeSpec, Policy
from airflow_provider_kmigrate.core.coordinator import OFFSETS, by_coordinator
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.expansion import Export, export_of
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Expansion, ExpansionStage, Fields
from airflow_provider_kmigrate.core.offsets_repair import GroupLog
from airflow_provider_kmigrate.core.text import summarize
from airflow_provider_kmigrate.exceptions import Failed, Refused
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.nodes import note_counts, note_expansion, set_in_original
from airflow_provider_kmigrate.steps.offsets_repair import commit_at_coordinators
from airflow_provider_kmigrate.steps.prepare import save_all
from airflow_provider_kmigrate.steps.run import Step, StepContext
from airflow_provider_kmigrate.steps.waits import EndOfRoll

_A_DAY = 86_400.0  # administrators stop and start applications
_PLANS_FOR = 15.0  # seconds that the plan waits for what may pass
_VERIFIED = 3  # observations in a row
_READINGS = 10  # readings of the log, for tombstones to reach the followers: mostly the first one shows them


class PlanExpansion(Step):
    """Check whether the topic may be expanded, and describe what would be done; changes nothing."""

    name = "expansion plan"
    fields = expansion.PLANNED
    interval = 1.0

    def __init__(self, target: int, *, undo: bool) -> None:
        self._target, self._undo = target, undo

    def begin(self, context: StepContext) -> None:
        """Missing rights on the log would show only once applications are stopped."""
        context.tools.offsets_log().prove_readable()

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Describe the expansion, or refuse it; what does not pass within seconds is a refusal."""
        found = expansion.decide_undo(view, self._target) if self._undo else expansion.decide_plan(view, self._target)
        if isinstance(found, Wait) and view.taken_at - first.taken_at > _PLANS_FOR:
            return Refuse(found.reasons)
        if isinstance(found, Wait | Refuse):
            return found
        return Done(expansion.describe(view, found, undo=self._undo))


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
        return self.decided(view)

    @abstractmethod
    def decided(self, view: ClusterView) -> Decision:
        """The decision from one view."""

    def act(self, context: StepContext, act: Act) -> None:
        """Act on the view that was decided on; it is a few seconds old at most."""
        found = expansion.under_way(self._view, self._target) if self._view else None
        if self._view is None or not isinstance(found, Expansion):
            raise Failed(f"{self.name}: asked to {act.verb} before anything was decided")
        if act.verb is not self.verb:
            super().act(context, act)
        self.do(context, self._view, found)

    verb: Verb

    @abstractmethod
    def do(self, context: StepContext, view: ClusterView, found: Expansion) -> None:
        """The act itself."""


class StopGroups(_ExpansionStep):
    """Note that the expansion begins, with the groups that have members, and wait until no group that moves has a member."""

    doing, verb = "stop groups", Verb.NOTE
    fields = expansion.WHAT | Fields.FILES
    interval = 2.0
    patience = _A_DAY

    def decided(self, view: ClusterView) -> Decision:
        """Wait until no broker has a member of a group that moves."""
        return expansion.decide_stopped(view, self._target)

    def do(self, context: StepContext, view: ClusterView, found: Expansion) -> None:
        """Save the originals, which the restarts render files from, while every broker is up. The note comes last: it needs both."""
        save_all(context)
        context.backup.keep_export(self._target, Export(tuple(expansion.with_members(view, found))).to_json())
        note_expansion(context, found)


class _WithExport(_ExpansionStep):
    """A step that needs the export; never deferred, since the triggerer's machine need not have the backup."""

    def begin(self, context: StepContext) -> None:
        """Read the export of this expansion from the backup."""
        self._export = export_of(context.backup.export(self._target))
        self.groups = tuple(sorted(self._export.groups))  # no broker lists one that was deleted


class ExportOffsets(_WithExport):
    """Save the offsets of every group that moves into the backup, in two copies, if the log holds the same."""

    doing, verb = "export offsets", Verb.EXPORT

    def decided(self, view: ClusterView) -> Decision:
        """Export the offsets of the groups that move, unless they are exported."""
        return expansion.decide_export(view, self._target, self._export)

    def do(self, context: StepContext, view: ClusterView, found: Expansion) -> None:
        """Save the offsets in the backup, twice. Refuses if the observation and the raw log differ."""
        made = expansion.exported(view, found, self._export, _stored(context, found))
        if isinstance(made, Refuse):
            raise Refused.because(*made.reasons)
        self._export = made
        path = context.backup.keep_export(self._target, self._export.to_json())
        context.say(f"Saved the offsets of {len(self._export.groups)} groups in {path} and its copy.")


class DeleteGroups(_WithExport):
    """Delete every group that moves, once the export has its offsets, until no old commit is left in the log."""

    doing, verb = "delete groups", Verb.DELETE_GROUPS

    def decided(self, view: ClusterView) -> Decision:
        """Delete the moving groups, if the export has all their offsets."""
        return expansion.decide_delete(view, self._target, self._export)

    def do(self, context: StepContext, view: ClusterView, found: Expansion) -> None:
        """Commit each group's own offsets once before it is deleted: missing rights would show only when they are gone."""
        there = expansion.importable(view, expansion.existing(view, found))
        commit_at_coordinators(context, view, there)
        note_expansion(context, replace(found, stage=ExpansionStage.DELETING))
        for broker, groups in by_coordinator(view, there).items():
            context.tools.groups_at(context.spec.node(NodeRole.BROKER, broker)).delete(groups, context.fence)
        self._prove_deleted(context, found)
        note_expansion(context, replace(found, stage=ExpansionStage.DELETED))

    def _prove_deleted(self, context: StepContext, found: Expansion) -> None:
        """A broker answers before its followers have the tombstones: a new leader without them would serve the old commits."""
        for left in range(_READINGS - 1, -1, -1):
            wrong = offsets_repair.unlike(_stored(context, found), {}, ())
            if wrong and not left:
                raise Refused.because(expansion.unlike_log(wrong))
            if not wrong:
                return
            context.clock.sleep(self.interval)


class ExpandTopic(_ExpansionStep):
    """Give the topic its partitions, with replicas on every rack."""

    doing, verb = "expand", Verb.EXPAND
    fields = expansion.WHAT | Fields.REASSIGNMENTS

    def decided(self, view: ClusterView) -> Decision:
        """Add the partitions, or wait until all replicas of them are in sync."""
        return expansion.decide_expand(view, self._target)

    def do(self, context: StepContext, view: ClusterView, found: Expansion) -> None:
        """Add the partitions with their replicas."""
        before = sum(row.topic == OFFSETS.name for row in view.partitions or ())
        context.tools.admin.add_partitions(OFFSETS.name, expansion.replicas_wanted(view, found), before, context.fence)


class RestartBroker(RollBroker):
    """Restart one broker in its mode, so that it reads the new count; its file gets that count, too."""

    always = fields = roll.MIN_OBSERVATIONS  # an expansion starts no probe

    def __init__(self, node: NodeSpec, target: int, policy: Policy, groups: GroupProgressSpec | None = None) -> None:
        super().__init__(node, BrokerMode.ZOOKEEPER, policy, groups)  # until its file was read
        self.name, self._count = f"restart {node.name} for {target} partitions", target

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Restart the broker in the mode in which it runs."""
        self.target = expansion.mode_of(view.broker(self.node.id)) or self.target
        return super().decide(view, first)

    def decide_alone(self, view: ClusterView, _before: ClusterView) -> Decision:
        """Decide whether this broker must restart to use the new count."""
        return expansion.decide_restart(view, self.node.id, self._count, restarted=self._restarted)

    def decide_restart(self, view: ClusterView, _first: ClusterView, before: ClusterView) -> Decision:
        """Decide the restart; it also needs the consumer groups that stay where they are. Those that move are stopped."""
        decision = self.decide_alone(view, before)
        if self._groups is not None:
            self._groups.let_go(expansion.moving_names(view, self._groups.progress.names(view)))
        return self._with_groups(view, decision, decision)

    def expensive_fields(self, view: ClusterView) -> Fields:
        """As a roll's, with the groups at each broker before a restart."""
        more = super().expensive_fields(view)
        return more | Fields.HOSTED_GROUPS if more & Fields.COORDINATORS else more

    def _act_on_broker(self, context: StepContext, verb: Verb) -> None:
        if verb is not Verb.START:
            set_in_original(context, self.node, {OFFSETS.setting: str(self._count)})
        super()._act_on_broker(context, verb)


def one_coordinator(target: int, groups: GroupProgressSpec) -> Step:
    """Wait until every broker uses the new count, each group has one coordinator, and the groups that did not move continue."""
    decided = expansion.decide_one_coordinator
    name, fields = "one coordinator a group", expansion.WHAT
    return EndOfRoll(name, groups, lambda view: decided(view, target), fields=fields, interval=1.0)


class ImportOffsets(_WithExport):
    """Commit the exported offsets at each group's coordinator; `undo`: under the old count, before any broker has restarted."""

    doing, verb = "import offsets", Verb.IMPORT

    def __init__(self, target: int, *, undo: bool = False) -> None:
        super().__init__(target)
        self._undo = undo
        self.fields |= Fields.FILES if undo else Fields(0)

    def decided(self, view: ClusterView) -> Decision:
        """Import what brokers do not have yet, or refuse what differs."""
        return expansion.decide_import(view, self._target, self._export, undo=self._undo)

    def do(self, context: StepContext, view: ClusterView, _found: Expansion) -> None:
        """Commit each missing offset at the broker that coordinates its group."""
        missing, _ = expansion.compared(view, self._export)
        commit_at_coordinators(context, view, missing)


class VerifyOffsets(_WithExport):
    """Compare the coordinators' answers, several times, and the log with the export, and end the expansion (or its undo)."""

    doing, verb = "verify offsets", Verb.NOTE

    def __init__(self, target: int, *, undo: bool = False) -> None:
        super().__init__(target)
        self._undo, self._equal = undo, 0
        self.fields |= Fields.FILES if undo else Fields(0)

    def decided(self, view: ClusterView) -> Decision:
        """Compare the offsets with the export; they must be equal in several observations in a row."""
        decision = expansion.decide_verify(view, self._target, self._export, sure=self._equal >= _VERIFIED - 1, undo=self._undo)
        self._equal = self._equal + 1 if isinstance(decision, Wait) and decision.healthy else 0
        return decision

    def do(self, context: StepContext, view: ClusterView, found: Expansion) -> None:
        """End the expansion if the log holds each offset once: no later move of a leader can bring another one back."""
        if found.stage is not ExpansionStage.BEGUN:
            log = _stored(context, found)
            wanted = expansion.commits_of(expansion.importable(view, self._export.groups))
            imported = {group: log[group] for group in self._export.groups if group in log}
            if wrong := offsets_repair.unlike(imported, wanted, found.old if self._undo else (found.new,)):
                raise Refused.because(expansion.unlike_log(wrong))
            self._name_others(context, {group: log[group] for group in log.keys() - imported.keys()}, found.new)
        if not self._undo:
            note_counts(context, {OFFSETS.name: found.new})
        note_expansion(context, None if self._undo else replace(found, stage=ExpansionStage.IMPORTED))

    def _name_others(self, context: StepContext, log: Mapping[str, GroupLog], count: int) -> None:
        """A group that appeared while brokers disagreed may have committed in its old partition; most are short-lived and need nothing."""
        if not self._undo and (split := offsets_repair.plan(log, count).stop):
            context.say(
                f"{len(split)} groups that appeared during the restarts have commits that no broker looks for: {summarize(split, 20)}. "
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
            self.groups, self._known = export_of(context.backup.export(self._target)).with_members, True

    @property
    def more_arguments(self) -> Mapping[str, Any]:
        """These groups: the triggerer has no backup."""
        return {"groups": list(self.groups)}

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Wait until each of these groups consumes again."""
        return expansion.decide_progress(view, first, self.groups)


def _stored(context: StepContext, found: Expansion) -> dict[str, GroupLog]:
    """What the log holds of all groups that move, also of groups that no broker lists."""
    everything = context.tools.offsets_log().read(newest=True)
    return {group: log for group, log in everything.items() if expansion.moves(group, found)}
