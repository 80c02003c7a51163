"""The steps of a group's cutover and of its rollback: they do what `core.groups.cutover` decides, to all instances at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Self

from airflow_provider_kmigrate.clients import group_writes
from airflow_provider_kmigrate.clients.zookeeper_session import Changed
from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec, GroupWay
from airflow_provider_kmigrate.core.groups.cutover import (
    MOVED,
    decide_cutover,
    decide_cutover_rollback,
    find_empty_partitions,
    unreachable_goal_reasons,
)
from airflow_provider_kmigrate.core.groups.cutover_canary import CANARY, CANARY_PASSED
from airflow_provider_kmigrate.core.groups.cutover_state import STOPPED, CutoverState, CutoverTurn
from airflow_provider_kmigrate.core.groups.move import Goal, check_old_version_is_served
from airflow_provider_kmigrate.core.member.cutover_note import CanaryPhase, CutoverNote
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind, Store
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, Fenced, Refused, Unavailable
from airflow_provider_kmigrate.steps.groups import GroupStep, RollBackGroup, note_hold_of_group
from airflow_provider_kmigrate.steps.run import Step, StepContext

_VERSIONS: dict[str, str] = {MemberKind.KAFKA: "new", MemberKind.ZOOKEEPER: "old"}


_INTERVAL: Final = 0.5  # seconds between observations while instances start, which need the processor
_QUIET_INTERVAL: Final = 0.1  # while there is no member: each second of it is one of the pause
_BAKE_INTERVAL: Final = 2.0  # while a canary bakes: nothing is interrupted, and it may be the triggerer that observes


class _CutoverStep(GroupStep):
    """A step of a cutover: it decides by turns, and acts on all instances at once."""

    interval = _INTERVAL
    may_defer = False  # the pause waits for no triggerer
    acts_again = (Unavailable, Changed)

    def __init__(self, group: GroupSpec) -> None:
        super().__init__(group)
        # longer than the cutover waits before it turns back
        self.patience = 2 * group.switch_timeout + group.commit_within
        if group.side_by_side:
            self.patience += 3 * group.switch_timeout + group.commit_within + group.bake
            # one process judges a whole bake: what was started again between two processes is not known
            self.min_watch = group.switch_timeout + group.commit_within + group.bake
        self._state = CutoverState()
        self._turn = CutoverTurn(Wait(()), self._state)
        self._observed: GroupSeen | None = None
        self._failed: tuple[Reason, ...] = ()  # why the cutover is rolled back
        self._is_rolled_back = False  # the note was deleted: the rollback is over

    def _take_turn(self, view: ClusterView, *, back: bool) -> CutoverTurn:
        self._observed = self.find_group(view)
        decide = decide_cutover_rollback if back else decide_cutover
        self._turn = decide(self._state, self._observed, view.taken_at, self.group)
        self._state, self.may_defer = self._turn.state, self._turn.may_defer
        busy_interval = _BAKE_INTERVAL if self.may_defer else _INTERVAL
        self.interval = _QUIET_INTERVAL if self._state.is_quiet else busy_interval
        return self._turn

    def _decide_rollback(self, view: ClusterView) -> Decision:
        if self._is_rolled_back:
            return Done(f"Group {self.group.name} is rolled back: its old version runs.")
        return self._take_turn(view, back=True).decision

    @property
    def _note(self) -> CutoverNote | None:
        """The note of the last observation."""
        note = self._observed.zk.cutover if self._observed is not None and self._observed.zk is not None else None
        return note if isinstance(note, CutoverNote) else None

    def _act_on(self, context: StepContext, turn: CutoverTurn, act: Act) -> None:
        match act.verb:
            case Verb.STOP_INSTANCES | Verb.START_INSTANCES:
                self._switch_all(context, turn)
            case Verb.COPY_OFFSETS:
                self._copy(context, turn)
            case Verb.NOTE:
                self._write_note(context, act)
            case _:
                super().act(context, act)

    def _switch_all(self, context: StepContext, turn: CutoverTurn) -> None:
        """Ask all instances of the turn at once. One that refuses is an answer: the next turn decides what follows from it."""
        if self.group.by_hand:
            self._ask_people(context, turn)
            return
        instances = [self.group.instance(name) for name in turn.instances]
        switch, token = context.tools.instances.switch, context.fence.token
        errors = context.at_once(
            [lambda instance=instance: switch(self.group, instance, turn.kind, token) for instance in instances]  # type: ignore[misc]
        )
        refused, unknown = dict[str, str](), set[str]()
        for instance, error in zip(instances, errors, strict=True):
            if isinstance(error, Fenced):
                raise error
            if error is not None:
                context.say(f"{error} Its members will show what became of it.")
            if isinstance(error, Failed | Refused):
                refused[instance.name] = str(error)
            elif error is not None:  # its effect is not known
                unknown.add(instance.name)
        self._state = self._state.with_requests(turn.instances, turn.kind, context.clock.monotonic(), refused, unknown)

    def _ask_people(self, context: StepContext, turn: CutoverTurn) -> None:
        """Say what people are to do now, once for each instance; the next observations show that they did."""
        names = ", ".join(turn.instances)
        what = (
            f"Stop {names}, and keep them stopped"
            if turn.kind == STOPPED
            else f"Start {names} as the {_VERSIONS[turn.kind]} version"
        )
        text = f"NOW, BY HAND: {what}: group {self.group.name}. There are {self.group.switch_timeout:.0f} s for it."
        context.say(text)
        context.journal.write("by hand", self.name, text)
        self._state = self._state.with_requests(turn.instances, turn.kind, context.clock.monotonic(), {})

    def _copy(self, context: StepContext, turn: CutoverTurn) -> None:
        """Write what the turn planned; the next observation reads it back."""
        if turn.writes.to is Store.KAFKA:
            context.tools.commit_offsets(turn.writes, context.fence)
        else:
            offsets = {write.where: write.offset for write in turn.writes.writes}
            group_writes.raise_in_zookeeper(context.tools.zk, self.group.name, offsets, context.fence)

    def _write_note(self, context: StepContext, act: Act) -> None:
        note = self._note
        if act.about == MOVED and note is not None:
            moved = replace(note, moved_ms=int(context.clock.now() * 1000))
            group_writes.note_cutover(context.tools.zk, self.group.name, moved, context.fence)
        elif act.about == CANARY_PASSED and note is not None:
            passed = replace(note, canary=CanaryPhase.PASSED)
            group_writes.note_cutover(context.tools.zk, self.group.name, passed, context.fence)
        else:
            group_writes.forget_cutover(context.tools.zk, self.group.name, context.fence)
            self._is_rolled_back = True

    def _note_failure(self, context: StepContext, act: Act) -> None:
        """Note that the group is rolled back, and hold it, before anything of it is."""
        note = self._note
        if note is not None and not note.failed and self._failed:
            rows = tuple((reason.code, reason.text) for reason in self._failed)
            group_writes.note_cutover(context.tools.zk, self.group.name, replace(note, failed=rows), context.fence)
            self._observed = _with_note(self._observed, replace(note, failed=rows))
        note_hold_of_group(context, self.group.name, act)


def _with_note(observed: GroupSeen | None, note: CutoverNote) -> GroupSeen | None:
    if observed is None or observed.zk is None:
        return observed
    return replace(observed, zk=replace(observed.zk, cutover=note))


class CutOver(_CutoverStep):
    """Cut one group over to its new version; on any failure roll it back, and refuse with the reasons (K69)."""

    doing = "cut over"

    def resume(self, progress: StepProgress) -> Self:
        """Continue a rollback that was decided, and with a canary that was there, or has passed its bake."""
        self._failed = progress.verdict
        if not self._failed:
            has_baked = 0 < self.group.bake <= progress.healthy_seconds
            canary = replace(self._state.canary, has_joined=progress.restart_begun, has_baked=has_baked)
            self._state = replace(self._state, canary=canary)
        return super().resume(progress)

    @property
    def progress(self) -> StepProgress:
        """The verdict stays until the group is rolled back: no later try may go on before that. A part of a bake does not count."""
        canary = self._state.canary
        healthy_seconds = self.group.bake if canary.has_baked else 0.0
        return replace(super().progress, verdict=self._failed, healthy_seconds=healthy_seconds, restart_begun=canary.has_joined)

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Decide the next move; once anything has failed, that of the rollback."""
        self._observed = self.find_group(view)
        note = self._note
        if note is not None and note.failed:
            self._failed = self._failed or tuple(Reason(code, text) for code, text in note.failed)
        if not self._failed:
            turn = self._take_turn(view, back=False)
            if turn.failed:
                self._begin_rollback(turn.failed)
            return turn.decision
        decision = self._decide_rollback(view)
        if not isinstance(decision, Done):
            return decision
        failed, self._failed = self._failed, ()
        text = f"The cutover of group {self.group.name} failed. Its old version runs again, from the offsets that were processed."
        return Refuse((Reason("K69", text), *failed))

    def act(self, context: StepContext, act: Act) -> None:
        """Do the decided move: note, stop, copy, start."""
        if self._failed:
            self._note_failure(context, act)
            if act.verb is not Verb.ROLL_BACK:
                self._act_on(context, self._turn, act)
            return
        try:
            self._note_beginning(context, act)
            self._act_on(context, self._turn, act)
        except (Failed, Refused, AuthenticationFailed) as error:
            if isinstance(error, Fenced) or self._note is None:  # a newer run goes on; or nothing was stopped
                raise
            self._begin_rollback([Reason("K93", f"Group {self.group.name}: '{act.label}' failed: {error}")])
            context.say(f"{error} The group is rolled back.")

    def _begin_rollback(self, failed: Iterable[Reason]) -> None:
        """What instances were asked before says nothing of the rollback."""
        self._failed, self._state = tuple(failed), CutoverState()

    def _note_beginning(self, context: StepContext, act: Act) -> None:
        """Before the first stop: that it begins. Before the new version starts: that both stores hold the same.

        With a canary also that it begins, and that all stop, which is when the pause begins.
        """
        note, observed, is_canary = self._note, self._observed, act.about == CANARY
        now_ms = int(context.clock.now() * 1000)
        if act.verb is Verb.STOP_INSTANCES and note is None and observed is not None and observed.zk is not None:
            phase = CanaryPhase.RUNS if is_canary else CanaryPhase.NONE
            empty = find_empty_partitions(observed)
            note = CutoverNote(context.run, now_ms, observed.zk.partitions, canary=phase, empty=empty)
        elif act.verb is Verb.STOP_INSTANCES and note is not None and note.canary is CanaryPhase.PASSED and not is_canary:
            note = replace(note, canary=CanaryPhase.OVER, began_ms=now_ms)
        elif act.verb is Verb.START_INSTANCES and note is not None and not note.copied and not is_canary:
            note = replace(note, copied=True)
        else:
            return
        group_writes.note_cutover(context.tools.zk, self.group.name, note, context.fence)


class RollBackCutover(_CutoverStep):
    """Roll a group of way cutover back to its old version, from wherever it is."""

    doing = "roll back"

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Decide the next move of the rollback; nothing is stopped for an old version that would get no record."""
        unserved = check_old_version_is_served(view.zk, self.group.name, Goal.ZOOKEEPER_CONSUMERS)
        return unserved or self._decide_rollback(view)

    def act(self, context: StepContext, act: Act) -> None:
        """Hold the group, and do the decided move."""
        self._failed = self._failed or (
            Reason("K69", f"Group {self.group.name} is rolled back by {context.run or 'an operator'}."),
        )
        self._note_failure(context, act)
        self._act_on(context, self._turn, act)


class _Unreachable(GroupStep):
    """A rollback to a state that the group's way does not have: refused."""

    doing = "roll back"

    def __init__(self, group: GroupSpec, reasons: Iterable[Reason]) -> None:
        super().__init__(group)
        self._reasons = tuple(reasons)

    def decide(self, _view: ClusterView, _first: ClusterView) -> Decision:
        """Refuse."""
        return Refuse(self._reasons)


def make_group_rollback(group: GroupSpec, goal: Goal) -> Step:
    """The rollback of a group, by its way."""
    if group.way is not GroupWay.CUTOVER:
        return RollBackGroup(group, goal)
    reasons = unreachable_goal_reasons(group, goal)
    return _Unreachable(group, reasons) if reasons else RollBackCutover(group)
