"""The steps that move a consumer group off ZooKeeper coordination or roll it back: instances, mode, watch, clean-up.

`CheckGroup` scans a group before anything moves; `ReleaseGroup` lets a rolled-back group migrate again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from airflow_provider_kmigrate import __version__
from airflow_provider_kmigrate.clients import group_writes
from airflow_provider_kmigrate.clients.znodes import Delete
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec
from airflow_provider_kmigrate.core.groups import members as group_health
from airflow_provider_kmigrate.core.groups import move as group_move
from airflow_provider_kmigrate.core.groups import scan
from airflow_provider_kmigrate.core.groups.cutover import describe_plan, returned_reasons
from airflow_provider_kmigrate.core.groups.group_plan import plan_groups
from airflow_provider_kmigrate.core.groups.members import GroupHealth, GroupObservations, unread_reasons
from airflow_provider_kmigrate.core.groups.move import Goal, decide_release
from airflow_provider_kmigrate.core.groups.scan import TwoObservations
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind
from airflow_provider_kmigrate.core.member.registration import GroupHold, GroupPaths, Mode
from airflow_provider_kmigrate.core.migration.plan_facts import PlanFacts
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.core.migration.waits import HealthyTimer, watched_seconds
from airflow_provider_kmigrate.exceptions import Failed, Unreachable
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.run import Step, StepContext

_FIELDS = Fields.ZOOKEEPER | Fields.GROUP_MEMBERS
_SHARE = 0.9  # of the patience: a canary that never gets stable is rolled back before the step gives up
_BEFORE = {MemberKind.MIGRATING: MemberKind.ZOOKEEPER, MemberKind.KAFKA: MemberKind.MIGRATING}


def plan_from_here(context: StepContext, groups: Sequence[GroupSpec], goal: Goal | None = None) -> dict[str, Any]:
    """The plan of a migration of these groups, or of their rollback to `goal`; changes nothing. Raises `Unreachable` for an unread group."""
    names = [group.name for group in groups]
    view = context.observer.observe(_FIELDS, groups=names)
    observed = view.groups or {}
    if missing := [reason for name in names for reason in unread_reasons(observed.get(name), name)]:
        raise Unreachable(format_reasons(missing))
    texts = {group.name: describe_plan(observed[group.name], group, goal) for group in groups}
    for name in names:
        if unserved := group_move.check_old_version_is_served(view.zk, name, goal):
            texts[name] = f"{group_move.describe_position(observed[name])}. {format_reasons(unserved.reasons)}"
    facts = PlanFacts(context.spec, view, {}, None, made_by=__version__, made_ms=round(1000 * context.clock.now()))
    return plan_groups(facts, texts, goal)


class GroupStep(Step):
    """A step of one group. It reads ZooKeeper and the group's coordinator once a second."""

    fields = _FIELDS
    samples = 2
    interval = 1.0
    doing: str  # begins the step's name

    def __init__(self, group: GroupSpec) -> None:
        self.group, self.groups, self.name = group, (group.name,), f"{self.doing} group {group.name}"
        self.patience = group.switch_timeout
        self._observations = GroupObservations()

    def find_group(self, view: ClusterView) -> GroupSeen | None:
        """The observation of this group; None if it was not read."""
        return (view.groups or {}).get(self.group.name)

    def add_observation(self, view: ClusterView) -> GroupObservations:
        """Add one observation to the earlier ones."""
        self._observations = self._observations.with_observation(self.find_group(view), view.taken_at, self.group)
        return self._observations


class _Watching(GroupStep):
    """A step that watches a group until it was healthy for `wanted` seconds in a row, over all runs of the step."""

    def __init__(self, group: GroupSpec, wanted: float) -> None:
        super().__init__(group)
        self._wanted = wanted
        self._healthy_timer, self._health = HealthyTimer(0.0, self.interval), GroupHealth()
        self._worse: tuple[Reason, ...] = ()
        self._seconds, self._times, self._was_well = 0.0, 0, False
        self._at: float | None = None  # time of the last complete observation

    def resume(self, progress: StepProgress) -> Self:
        """Continue the healthy time and the count of lapses."""
        self._healthy_timer = replace(self._healthy_timer, held=progress.healthy_seconds)
        self._worse = progress.worse
        self._seconds, self._times = progress.watched_seconds, progress.lapses
        return super().resume(progress)

    @property
    def progress(self) -> StepProgress:
        """The watch is forgotten once a verdict was reached from it."""
        seconds, times = (0.0, 0) if self._worse else (self._seconds, self._times)
        progress = replace(super().progress, healthy_seconds=self._healthy_timer.held, worse=self._worse)
        return replace(progress, watched_seconds=seconds, lapses=times)

    def _count_observation(self, view: ClusterView, healthy: bool) -> tuple[Reason, ...]:
        """Count one complete observation; returns the reasons if the group never stays healthy."""
        self._seconds += watched_seconds(self._at, view.taken_at, self.interval)
        self._times += self._was_well and not healthy
        self._at, self._was_well = view.taken_at, healthy
        self._healthy_timer = self._healthy_timer.add_sample(view.taken_at, healthy=healthy)
        return group_health.never_healthy_reasons(self.group, self._seconds, self._times, self._wanted)

    def _count_incomplete(self, view: ClusterView) -> None:
        """Count an incomplete observation: neither healthy nor unhealthy."""
        self._seconds = max(0.0, self._seconds - self._healthy_timer.held)
        self._at, self._was_well = None, False
        self._healthy_timer = self._healthy_timer.add_sample(view.taken_at, healthy=False)
        self._health = group_health.restart_health_timers(self._health, view.taken_at)


def _min_watch_seconds(group: GroupSpec) -> float:
    """Seconds one process must observe to find a starving partition, at any start, or a group that is never stable."""
    return 2 * max(group.commit_within, group_health.REBALANCE_LIMIT)


class SetMode(GroupStep):
    """Set `migration/mode` of one group and wait until every member is settled; refuses a group that does not settle (V30)."""

    def __init__(self, group: GroupSpec, mode: Mode) -> None:
        self.doing, self._mode = f"mode {mode} of", mode
        super().__init__(group)
        self._unstable_since: float | None = None  # since when the group is under that mode and not stable

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Write the mode and wait; refuse (V30) if the group stays unstable for `_SHARE` of the patience."""
        observations = self.add_observation(view)
        decision = group_move.done_if_mode_not_needed(observations.now, self.group, self._mode) or group_move.decide_set_mode(
            observations, self.group, self._mode
        )
        group_read = not unread_reasons(observations.now, self.group.name, offsets=False)
        if not isinstance(decision, Wait) or not (group_read and group_move.is_mode_written(observations.now, self._mode)):
            self._unstable_since = None
            return decision
        self._unstable_since = observations.at if self._unstable_since is None else self._unstable_since
        worse = group_health.health_fault_reasons(
            GroupHealth(unstable_since=self._unstable_since), self.group, observations.at, _SHARE * self.patience
        )
        return Refuse((*worse, *decision.reasons)) if worse else decision

    def act(self, context: StepContext, _act: Act) -> None:
        """Write the mode's znode, by its version and under the fence."""
        group_writes.write_mode(context.tools.zk, self.group.name, self._mode, context.fence)


class SwitchInstance(_Watching):
    """Restart one instance as the next kind of member once the whole group is stable, and wait until it is stable again.

    With `bake` the instance is then watched for that many seconds. If the group gets worse, or the instance restarts repeatedly,
    only this instance is rolled back, and the step refuses.
    """

    def __init__(self, group: GroupSpec, instance: str, target: MemberKind, bake: float = 0.0) -> None:
        self.doing = f"{instance} of"
        super().__init__(group, bake)
        self.name = f"{self.name} as {target}"
        self._begun = False  # the restart was decided, in any run of the step
        self.min_watch = _min_watch_seconds(group) if bake else 0.0
        self._instance, self._target = group.instance(instance), target
        self._asked: MemberKind | None = None  # the kind this run of the step restarted it as
        self._joined: frozenset[str] = frozenset()  # the member ids that Kafka had at the last observation
        self._former: frozenset[str] = frozenset()  # the member ids at the last observation before this run's restart
        self._before = GroupHealth()  # at the last observation
        self._settled = False  # the group was stable with the instance as its target kind, in any run of the step
        self._back_again = False  # K69: the verdict was acted on

    def resume(self, progress: StepProgress) -> Self:
        """Continue the verdict, an own restart that is under way, and the healthy time."""
        super().resume(progress)
        self._worse = progress.worse or progress.verdict
        self._begun, self._settled = progress.restart_begun, progress.healthy_seconds > 0
        self._health = GroupHealth(earlier=progress.member_restarts)
        return self

    @property
    def progress(self) -> StepProgress:
        """The verdict stays until the instance is rolled back: no later try may begin again before that."""
        verdict = () if self._back_again else self._worse
        progress = replace(super().progress, verdict=verdict, restart_begun=self._begun)
        return replace(progress, member_restarts=self._health.restarts)

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Switch, wait, watch; once the group is worse, roll this instance back and refuse."""
        observations = self.add_observation(view)
        if self._worse:
            return self._decide_rollback(observations)
        past = group_move.done_if_beyond(observations.now, self.group, self._instance.name, self._target)
        if past is not None:
            return past
        decision = self._decide_switch(observations, self._target)
        if isinstance(decision, Refuse | Act) or self._wanted == 0:
            return decision
        missing = unread_reasons(observations.now, self.group.name, ends=True)
        if missing:
            self._count_incomplete(view)
            return Wait(missing)
        return self._watch_after_restart(view, observations, decision)

    def _decide_switch(self, observations: GroupObservations, kind: MemberKind, *, hurry: bool = False) -> Decision:
        """Decide the switch to `kind`. A canary that dies while it bakes is judged, not restarted."""
        to_target, name = kind is self._target, self._instance.name
        if observations.now is not None and observations.now.kafka is not None:
            self._joined = frozenset(member.member_id for member in observations.now.kafka.members)
            self._before = group_health.health_before_switch(observations.now)
        died = to_target and self._settled and group_move.is_instance_absent(observations.now, self.group, name)
        restart_requested = died or self._asked is kind
        decision = group_move.decide_switch(
            observations, self.group, name, kind, restart_requested=restart_requested, hurry=hurry, former=self._former
        )
        if not to_target or not isinstance(decision, Act):
            return decision
        blocked = group_move.check_switch_order(observations, self.group, name, kind, begun=self._begun)
        self._begun = self._begun or blocked is None
        return blocked or decision

    def _watch_after_restart(self, view: ClusterView, observations: GroupObservations, decision: Decision) -> Decision:
        """Follow the group from the restart on: it must get stable first, then it bakes."""
        self._settled = self._settled or isinstance(decision, Done)
        if observations.now is None or not (self._settled or self._asked):
            return decision
        at, watched_instance = view.taken_at, (self._instance.name, self._target)
        self._health = group_health.update_health(self._health, observations.now, self.group, at, watched_instance)
        limit = group_health.REBALANCE_LIMIT if self._settled else _SHARE * self.patience
        unsteady = self._count_observation(view, isinstance(decision, Done)) if self._settled else ()
        self._worse = group_health.health_fault_reasons(self._health, self.group, at, limit) or unsteady
        if self._worse:
            self._restart_watch(self._health.restarts)  # a cleared task begins with a whole bake
            return self._decide_rollback(observations)
        if not isinstance(decision, Done) or self._healthy_timer.held >= self._wanted:
            return decision
        text = f"{self._instance.name} of group {self.group.name} bakes: healthy for {self._healthy_timer.held:.0f} of {self._wanted:.0f} s."
        return Wait((Reason("T01", text),), healthy=True)

    def _restart_watch(self, recoveries: int = 0) -> None:
        """Restart the watch. `recoveries` is forgotten once it was acted on; a run that ends before passes it to the next."""
        self._healthy_timer, self._settled = HealthyTimer(0.0, self.interval), False
        self._health = GroupHealth(earlier=recoveries)
        self._seconds, self._times, self._at, self._was_well = 0.0, 0, None, False

    def _decide_rollback(self, observations: GroupObservations) -> Decision:
        before = _BEFORE[self._target]
        decision = self._decide_switch(observations, before, hurry=True)
        if isinstance(decision, Act):
            text = f"{self._instance.name} is rolled back to {before}: {' '.join(reason.text for reason in self._worse)}"
            return Act(Verb.ROLL_BACK_CANARY if decision.verb is Verb.SWITCH else decision.verb, text)
        if isinstance(decision, Done):
            self._back_again, self._begun = True, False
            text = (
                f"{self._instance.name} of group {self.group.name} was rolled back to {before}; no other instance was switched."
            )
            return Refuse((Reason("K69", text), *self._worse))
        if isinstance(decision, Refuse) and group_move.is_instance_absent(observations.now, self.group, self._instance.name):
            return Wait(decision.reasons)  # until Kafka has removed the dead member
        return decision

    def act(self, context: StepContext, act: Act) -> None:
        """Restart the instance, or copy the offsets that its restart needs."""
        kind = _BEFORE[self._target] if act.verb is Verb.ROLL_BACK_CANARY else self._target
        if act.verb is Verb.COPY_OFFSETS:
            copy_offsets(context, self.group.name)
            return
        if act.verb not in {Verb.SWITCH, Verb.ROLL_BACK_CANARY}:
            super().act(context, act)
        if kind is not self._target:
            note_hold_of_group(context, self.group.name, act)
        self._asked = kind  # also if it fails half-way: the members show what became of it
        self._former = self._joined
        self._restart_watch()
        self._health = self._before
        context.tools.instances.switch(self.group, self._instance, kind, context.fence.token)


class WatchGroup(_Watching):
    """Watch a group that is not being moved: it must stay stable and keep committing for its `bake`.

    A `worse` found by another process is final: this one would need as long to see it again.
    """

    samples = 1
    doing = "watch"

    def __init__(self, group: GroupSpec) -> None:
        super().__init__(group, group.bake)
        self.min_watch = _min_watch_seconds(group)

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Wait until the group was healthy for long enough; refuse (V30) once it is worse, and stay refused."""
        if self._worse:
            return Refuse(self._worse)
        observed_group, at = self.find_group(view), view.taken_at
        missing = unread_reasons(observed_group, self.group.name, ends=True)
        if missing or observed_group is None:
            self._count_incomplete(view)
            return Wait(missing)
        self._health = group_health.update_health(self._health, observed_group, self.group, at)
        worse = group_health.health_fault_reasons(self._health, self.group, at) or returned_reasons(observed_group, self.group)
        unsteady = self._count_observation(view, not worse and self._health.unstable_since is None)
        self._worse = worse or unsteady
        if self._worse:
            return Refuse(self._worse)
        if self._healthy_timer.held >= self._wanted:
            return Done(f"Group {self.group.name} was healthy for {self._healthy_timer.held:.0f} s.")
        text = f"Group {self.group.name} is watched: healthy for {self._healthy_timer.held:.0f} of {self._wanted:.0f} s."
        return Wait((Reason("T01", text),), healthy=self._health.unstable_since is None)


class RollBackGroup(GroupStep):
    """Roll a group back to a goal from any state, one instance or the mode at a time."""

    max_acts = 3
    doing = "roll back"

    def __init__(self, group: GroupSpec, goal: Goal) -> None:
        super().__init__(group)
        self.name, self._goal = f"{self.name} to {goal}", goal
        self._move: tuple[str, MemberKind | Mode] | None = None
        self._asked: tuple[str, MemberKind | Mode] | None = None
        self._since = 0.0  # when this move was first decided

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Decide the next move towards the goal; each finished move is followed by the next one."""
        observations = self.add_observation(view)
        missing = unread_reasons(observations.now, self.group.name)
        if missing or observations.now is None:
            return Wait(missing)
        if unserved := group_move.check_old_version_is_served(view.zk, self.group.name, self._goal):
            return unserved
        move = self._asked or group_move.next_rollback_move(observations, self.group, self._goal)
        if move is None:
            text = f"Group {self.group.name} is rolled back: {group_move.describe_position(observations.now)}."
            return group_move.done_when_stable(observations.now, self.group, text)
        if move != self._move:
            self._move, self._since = move, observations.at
        decision = self._decide_move(observations, *move)
        if isinstance(decision, Act):
            instance, to = move
            verb = Verb.COPY_OFFSETS if decision.verb is Verb.COPY_OFFSETS else Verb.ROLL_BACK
            return Act(verb, decision.text, f"{instance or 'mode'} to {to}")
        if isinstance(decision, Done):
            self._asked = None
            return Wait((Reason("T01", decision.text),), healthy=True)
        return decision

    def _decide_move(self, observations: GroupObservations, instance: str, to: MemberKind | Mode) -> Decision:
        if isinstance(to, Mode):
            return group_move.decide_set_mode(observations, self.group, to)
        hurry = observations.at - self._since >= group_health.REBALANCE_LIMIT
        return group_move.decide_switch(
            observations, self.group, instance, to, restart_requested=self._asked is not None, hurry=hurry
        )

    def act(self, context: StepContext, act: Act) -> None:
        """Do the decided move: copy offsets, write the mode, or restart an instance."""
        if self._move is None:
            raise Failed(f"{self.name}: asked to {act.verb} before anything was decided")
        instance, to = self._move
        note_hold_of_group(context, self.group.name, act)
        if act.verb is Verb.COPY_OFFSETS:
            copy_offsets(context, self.group.name)
        elif isinstance(to, Mode):
            group_writes.write_mode(context.tools.zk, self.group.name, to, context.fence)
        else:
            self._asked, self._since = self._move, context.clock.monotonic()
            context.tools.instances.switch(self.group, self.group.instance(instance), to, context.fence.token)


class CleanUp(GroupStep):
    """Delete the leftovers of a group that has left ZooKeeper: the mode and empty folders. Its offsets stay; they cost nothing."""

    doing = "clean up"

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Decide whether the group has left ZooKeeper, and what it left there."""
        return group_move.decide_clean_up(self.find_group(view), self.group)

    def act(self, context: StepContext, _act: Act) -> None:
        """Delete what the migrating consumers left, each znode by its version and under the fence."""
        paths, zk = GroupPaths(self.group.name), context.tools.zk
        # The mode goes last: while it exists, the group does not count as cleaned up.
        owners = _list_subtree(zk, f"{paths.root}/owners", 1)
        folders = [paths.hold, *_list_subtree(zk, paths.resets, 1), paths.migration_ids, paths.ids, *owners]
        for path in (*folders, paths.mode, paths.cutover, f"{paths.root}/migration"):
            znode = zk.read(path)
            if znode is not None:  # ZooKeeper deletes no znode that has children
                zk.commit([Delete(path, znode[1])], holding=context.fence)


def _list_subtree(zk: ZooKeeper, path: str, depth: int) -> list[str]:
    """A folder and its contents down to `depth`, children first."""
    inner = (
        [descendant for child in zk.children(path) for descendant in _list_subtree(zk, f"{path}/{child}", depth - 1)]
        if depth
        else []
    )
    return [*inner, path]


def copy_offsets(context: StepContext, group: str) -> None:
    """Copy Kafka's committed offsets into ZooKeeper if those there are lower or missing; never the other way, never lower."""
    observed_group = (context.observer.observe(_FIELDS, groups=(group,)).groups or {}).get(group)
    if observed_group is None or observed_group.committed is None:
        raise Failed(f"group {group}: could not read its offsets; none was copied")
    group_writes.raise_in_zookeeper(context.tools.zk, group, observed_group.committed, context.fence)


TopicSettings = Callable[[Iterable[str]], Mapping[str, Mapping[str, str]]]


class CheckGroup(GroupStep):
    """Compare two observations, one commit interval of the group apart; refuse blockers, report everything else. Read-only.

    `settings`: returns the topic settings that a ZooKeeper consumer (legacy) may be unable to read.
    """

    samples = 1
    doing = "check"

    def __init__(self, group: GroupSpec, settings: TopicSettings) -> None:
        super().__init__(group)
        self._settings = settings
        self._before: tuple[GroupSeen, float] | None = None  # the first complete observation

    def decide(self, view: ClusterView, first: ClusterView) -> Decision:
        """Judge two complete observations; the first one that is complete is kept for the comparison."""
        for observation in (first, view):
            self._before = self._before or scan.complete_observation(
                self.find_group(observation), observation.taken_at, self.group
            )
        now, before = self.find_group(view), self._before
        missing = unread_reasons(now, self.group.name, ends=True)
        if missing or now is None or before is None:
            return Wait(missing)
        gap = view.taken_at - before[1]
        if (wait := scan.wait_before_judging(gap, self.group)) is not None:
            return wait
        settings = self._settings(scan.subscribed_topics(now))
        return scan.judge_group(TwoObservations(now, before[0], gap, settings), self.group)


class ReleaseGroup(GroupStep):
    """Release a rolled-back group, so that it may migrate again: the operator's decision."""

    doing = "release"

    def decide(self, view: ClusterView, _first: ClusterView) -> Decision:
        """Decide whether the group is held."""
        return decide_release(self.find_group(view), self.group.name)

    def act(self, context: StepContext, _act: Act) -> None:
        """Delete the note that holds the group."""
        group_writes.forget_hold(context.tools.zk, self.group.name, context.fence)


def note_hold_of_group(context: StepContext, group: str, act: Act) -> None:
    """Hold the group before any of it is rolled back: no other run migrates it until the operator releases it."""
    group_writes.note_hold(context.tools.zk, group, GroupHold(context.run, act.text), context.fence)
