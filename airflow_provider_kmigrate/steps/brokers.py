"""Restart one broker in its next mode, on migration or rollback: the acts. `core.migration.broker_restart` decides."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import NoReturn, Self

from airflow_provider_kmigrate.clients.hosts.agent import MetaTexts
from airflow_provider_kmigrate.core.cluster_state.decision import (
    Act,
    NextAction,
    Reading,
    Verb,
)
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Fields
from airflow_provider_kmigrate.core.cluster_state.spec import GroupProgressSpec, NodeSpec, Policy
from airflow_provider_kmigrate.core.migration import broker_restart, coordinator, gates, recovery, roll, rollback
from airflow_provider_kmigrate.core.migration.broker_restart import BrokerRestart, RestartState
from airflow_provider_kmigrate.core.migration.progress import StepProgress
from airflow_provider_kmigrate.core.migration.rollback import SAFE, RollbackTerms
from airflow_provider_kmigrate.core.node_files import config_matrix
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, TimedOut
from airflow_provider_kmigrate.steps.group_watch import load_progress, save_progress
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.nodes import (
    directories_are_ours,
    install_file,
    note_counts,
    note_registered,
    note_rolled_back,
    restart,
    retry,
    start,
)
from airflow_provider_kmigrate.steps.run import NodeStep, StepContext, observe_files, run_step


class RollBroker(NodeStep):
    """Bring one broker into migration mode or into KRaft mode, as `broker_restart.next_action` decides."""

    acts_elsewhere = frozenset({Verb.RESTART_LEADER, Verb.ELECT}) | recovery.REPAIRS
    doing = ""
    in_windows = True
    back = False  # the rollback does not stop at an edited file
    judges_slow_stop = True

    def __init__(self, node: NodeSpec, target: BrokerMode, policy: Policy, groups: GroupProgressSpec | None = None) -> None:
        """`groups`: how the consumer groups must continue; None: they are not waited for."""
        super().__init__(node)
        self.target, self._policy = target, policy
        self.name = f"{self.name} to {target}".strip()
        self.samples, self.interval = policy.stable_samples, policy.sample_interval
        self.patience = policy.start_timeout
        self.begin_as(broker_restart.roll_to(node.id, target), groups)

    def begin_as(self, kind: BrokerRestart, groups: GroupProgressSpec | None) -> None:
        """Begin a restart of this kind, of which nothing was observed yet."""
        self.restart, self.state = kind, RestartState.begin(kind, self._policy, groups)
        self.fields = kind.reading_before.fields

    def resume(self, progress: StepProgress) -> Self:
        """Continue the healthy time, the canary's verdict and the count of recoveries."""
        self.state = self.state.resume_from(progress)
        return super().resume(progress)

    @property
    def progress(self) -> StepProgress:
        """The healthy time, the canary's verdict and the count of recoveries."""
        return self.state.to_progress(self.waited)

    @property
    def seconds_left(self) -> float:
        """The rest of a bake that has begun."""
        healthy_seconds = self.state.healthy.held
        return max(0.0, self._policy.canary_bake - healthy_seconds) if healthy_seconds else 0.0

    def begin(self, context: StepContext) -> None:
        """Read what the previous restart left of the consumer groups."""
        if self.state.groups is not None:
            self.state = replace(self.state, groups=load_progress(context, self.state.groups.spec))

    def next_action(self, view: ClusterView, _first: ClusterView, read: Reading) -> NextAction[RestartState]:
        """Decide, and remember."""
        action = broker_restart.next_action(self.restart, self.state, view, read)
        self.state = action.state
        return action

    def act(self, context: StepContext, act: Act) -> None:
        """Repair the dual-write, or do what was decided: restart, roll back, elect."""
        if act.verb in recovery.REPAIRS:
            from airflow_provider_kmigrate.steps.dual_write import repair_dual_write  # noqa: PLC0415  # few restarts need it

            repair_dual_write(context, self.name, act)
            return
        self.state = replace(self.state, leader=self.state.leader.back_off(act.verb))  # before it begins: a failed try counts
        match act.verb:
            case Verb.START | Verb.REWRITE | Verb.RESTART:
                self._act_on_broker(context, act.verb)
            case Verb.ROLL_BACK_CANARY:
                self._roll_back_alone(context)
            case Verb.RESTART_LEADER:
                self._restart_stuck_leader(context)
            case Verb.ELECT:
                view = context.observer.observe(Fields.ZOOKEEPER | Fields.PARTITIONS)
                context.tools.admin.elect_preferred(roll.skipped_by_takeover(view, self.node.id), context.fence)
            case _:
                super().act(context, act)

    def _act_on_broker(self, context: StepContext, verb: Verb) -> None:
        """Act on this broker itself: its file, then its process."""
        if self.target is BrokerMode.MIGRATION:
            note_registered(context, self.node.id)
        if verb is not Verb.START:
            install_file(context, self.node, roll.STAGE[self.target], allow_edits=self.back or self.state.left_behind)
        if verb is Verb.START:
            self._start_broker(context)
        if verb is Verb.RESTART and not self.back:
            note_counts(context, self.state.counts)
        if verb is Verb.RESTART:
            self._restart_broker(context)
            self.state = replace(
                self.state, restarted=True
            )  # certain now: a machine that fails before comes back in the earlier mode (R13)

    def _restart_broker(self, context: StepContext) -> None:
        self.state = self.state.reset_for_stop()
        if self.state.groups is not None:
            save_progress(context, self.state.groups)  # before the broker stops: who must continue
        stop_gates: list[gates.Gate] = []
        restart(
            context,
            self.node,
            self.metas_to_write(context),
            lambda seconds: stop_gates.append(self._leaders_moved_in_stop(context, seconds)),
        )
        for gate in stop_gates:
            if not gate.met:
                raise Refused(f"{self.name}: {format_reasons(gate.reasons)}", gate.reasons)

    def _leaders_moved_in_stop(self, context: StepContext, seconds: float) -> gates.Gate:
        """G12, checked only after a slow stop: an observation costs downtime. A failed one must not keep the broker down."""
        if not self.judges_slow_stop or seconds < gates.slow_stop_limit(0):
            return gates.MET
        try:
            view = context.observer.observe(Fields.PARTITIONS)
        except KMigrateError as error:
            context.say(f"Could not read whether the slow stop of {self.node.name} left leaders behind (G12): {error}")
            return gates.MET
        return gates.leaders_moved_by_stop(view, self.node.id, seconds)

    def _start_broker(self, context: StepContext) -> None:
        """Start the broker, which is down. If its meta.properties cannot be read, it is started anyway and the error raised."""
        try:
            metas = self.metas_to_write(context)
        except KMigrateError:
            start(context, self.node)
            raise
        start(context, self.node, metas)

    def metas_to_write(self, _context: StepContext) -> MetaTexts:
        """The meta.properties that must be written while the broker is down."""
        return {}

    def _restart_stuck_leader(self, context: StepContext) -> None:
        """Restart the leader with the file that it has, if it is still the cause."""
        view = context.observer.observe(Fields.BROKERS | Fields.ZOOKEEPER | Fields.PARTITIONS | Fields.COORDINATORS)
        follower = recovery.follower_out_of_isrs(view, self.node.id)
        node = next((broker for broker in context.spec.brokers if broker.id == follower), self.node)
        leader_or_reason = recovery.leader_to_restart(view, node.id, read_lags(context, view, node))
        leader = next((broker for broker in context.spec.brokers if broker.id == leader_or_reason), None)
        if leader is None:
            context.say(str(leader_or_reason))
            return
        file_gate = gates.starts_as_it_runs(observe_files(context, Fields.BROKERS, (leader,)).broker(leader.id))
        if not (
            gate := gates.combine_gates(
                (coordinator.brokers_agree(view), directories_are_ours(context, self.name, leader), file_gate)
            )
        ).met:
            context.say(f"Not restarting {leader.name} now: {format_reasons(gate.reasons)}")
            return
        restart(context, leader)
        context.say(f"Restarted {leader.name}. Search its log for 'alter-partition' and ERROR.")

    def _roll_back_alone(self, context: StepContext) -> NoReturn:
        """Run the rollback step for this one broker to its end. This run never continues, whatever the result."""
        worse = self.state.canary.worse if self.state.canary else ()
        mode = roll.previous_mode(self.target)
        self.state = replace(self.state, healthy=self.state.healthy.reset())  # the time counted so far belongs to the failed mode
        try:
            run_step(RollBackCanary(self.node, mode, self._policy), context)
            end_reasons = (roll.rolled_back_reason(context.observer.observe(Fields.ZOOKEEPER), self.node.id, mode),)
        except (Refused, TimedOut, Failed) as error:
            end_reasons = (roll.not_rolled_back_reason(self.node.id, str(error)), *getattr(error, "reasons", ()))
        raise Refused(f"{self.name}: {format_reasons((*worse, *end_reasons[:1]))}", (*worse, *end_reasons))

    def forget_decision(self) -> None:
        """Forget what was decided of groups and of the dual-write."""
        self.state = self.state.withdraw_decision()

    def end(self, context: StepContext) -> None:
        """Leave the sweep of the consumer groups to the next restart."""
        if self.state.groups is not None:
            save_progress(context, self.state.groups)


def read_lags(context: StepContext, view: ClusterView, follower: NodeSpec) -> dict[tuple[str, int], int]:
    """Records by which the logs of `follower` end before their leaders', where it is out of the ISR. What is not read is left out.

    What it says of itself (DescribeLogDirs) is no measure: a follower knows no high watermark beyond its own end (Kafka 3.9.2, measured).
    Nor is what a consumer gets of a leader: its high watermark, which stands still, or is not given at all, while its ISR cannot change.
    """
    out = view.missing_isr(follower.id)
    own_ends = context.tools.wire(follower).log_offsets([(p.topic, p.index) for p in out], of_replicas=True)
    leaders_ends: dict[tuple[str, int], int] = {}
    for node in context.spec.brokers:
        if led := [(p.topic, p.index) for p in out if p.leader == node.id]:
            with suppress(KMigrateError):
                leaders_ends |= context.tools.wire(node).log_offsets(led, of_replicas=True)
    return recovery.lags_of(view, follower.id, own_ends, leaders_ends)


class RollBackBroker(RollBroker):
    """Roll one broker back to migration mode, which needs a moving dual-write, or to its original file."""

    doing = "roll back"
    in_windows = False
    back = True
    acts_elsewhere = RollBroker.acts_elsewhere | {Verb.RAISE, Verb.ROLL_BACK_OTHER}

    def __init__(
        self,
        node: NodeSpec,
        target: BrokerMode,
        policy: Policy,
        groups: GroupProgressSpec | None = None,
        terms: RollbackTerms = SAFE,
    ) -> None:
        """As a roll; `terms`: what the run accepts."""
        super().__init__(node, target, policy, groups)
        self.begin_as(broker_restart.roll_back_to(node.id, target, terms), groups)

    def act(self, context: StepContext, act: Act) -> None:
        """Raise the epochs of partition states, bring another broker back, or act as a roll does."""
        if act.verb is Verb.RAISE:
            self.state = replace(self.state, leader=self.state.leader.back_off(act.verb))
            self._raise_states_and_elect(context)
        elif act.verb is Verb.ROLL_BACK_OTHER:
            self._roll_back_left_brokers(context)
        else:
            super().act(context, act)

    def _roll_back_left_brokers(self, context: StepContext) -> None:
        """Give the brokers that were left without a quorum their original files, one by one, and wait until each answers."""
        view = context.observer.observe(Fields.POSITION | Fields.NODES)
        for node in context.spec.brokers:
            if node.id in rollback.find_brokers_without_quorum(view) and node.id != self.node.id:
                run_step(RollBackLeftBroker(node, self.target, self._policy), context)

    def _raise_states_and_elect(self, context: StepContext) -> None:
        view = context.observer.observe(Fields.PARTITIONS)
        lags = read_lags(context, view, self.node)
        if why_not := recovery.reason_not_to_elect(view, self.node.id, lags):
            context.say(why_not)
            return
        from airflow_provider_kmigrate.steps.dual_write import elect_again  # noqa: PLC0415  # few restarts need it

        elect_again(context)

    def metas_to_write(self, context: StepContext) -> MetaTexts:
        """Version 0 before a ZooKeeper start; a broker exits with version 1 (G10)."""
        if self.target is not BrokerMode.ZOOKEEPER:
            return {}
        host, what = context.tools.host(self.node), f"meta.properties of {self.node.name} could not be read"
        files = retry(context, what, lambda: host.files(self.node))
        metas = {
            folder: config_matrix.render_version_0((files.meta or {})[folder])
            for folder in config_matrix.version_1_directories(files)
        }
        for folder in metas:
            context.say(f"{self.node.name}: {folder}/meta.properties changes from version 1 to 0, which ZooKeeper brokers need.")
        return metas


class RollBackLeftBroker(RollBackBroker):
    """Roll back a broker that hangs, because its file needs controllers that were handed over; done once it answers again."""

    def __init__(self, node: NodeSpec, target: BrokerMode, policy: Policy) -> None:
        super().__init__(node, target, policy)
        self.begin_as(broker_restart.roll_back_left_broker(node.id), None)


class RollBackCanary(RollBackBroker):
    """Roll back only the first broker of a pass, because it is worse; no other rollback step runs."""

    doing = "roll back canary"
    judges_slow_stop = False  # a degraded broker may stop slowly, or be killed in the end; that says nothing about the controller

    def __init__(self, node: NodeSpec, target: BrokerMode, policy: Policy) -> None:
        super().__init__(node, target, policy)
        self.begin_as(broker_restart.roll_back_canary(node.id, target), None)

    def act(self, context: StepContext, act: Act) -> None:
        """Note in ZooKeeper that this broker was rolled back alone, then act."""
        note_rolled_back(context, self.node.id, self.target)
        super().act(context, act)
