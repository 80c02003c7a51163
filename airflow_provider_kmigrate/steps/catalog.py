"""Every step by name and plain arguments, so that a trigger in another process can build the same step; and rolling over nodes.

A step's module is imported when the step is built: a task imports only its own. Rolling: which nodes a plan postpones, and a step
on every node that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from airflow_provider_kmigrate.core.cluster import ClusterSpec, GroupSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.decision import Done, Wait
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.migration.controllers import postponed_controller
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.phase import Phase
from airflow_provider_kmigrate.core.plan import MIGRATION, ROLLBACK, PlanStep
from airflow_provider_kmigrate.core.progress import FRESH, StepProgress
from airflow_provider_kmigrate.core.rollback import RollbackTerms, postponed_stop, terms_error
from airflow_provider_kmigrate.core.text import join_ids
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.run import Step, StepContext, run_step

Arguments = Mapping[str, Any]
Builder = Callable[[ClusterSpec, Arguments], Step]
Found = TypeVar("Found")
Choice = TypeVar("Choice", bound=StrEnum)
OBSERVING = frozenset({"controllers ready", "registered", "phase", "lag", "equivalent"})
"""Steps that only observe; a sensor may run them without holding the fence."""
_QUORUM = Fields.CONTROLLERS | Fields.QUORUM
_ACTIVE_LAST = {"stop controller": postponed_stop, "finalize": postponed_controller}


def build(spec: ClusterSpec, kind: str, arguments: Arguments, progress: StepProgress = FRESH) -> Step:
    """Build the step `kind` for this cluster. `arguments`: JSON values; `progress`: what earlier runs of the step stored.

    Raises KeyError for a name that is not in `STEPS`.
    """
    return STEPS[kind](spec, arguments).resume(progress)


def node_of(spec: ClusterSpec, role: NodeRole, asked: object) -> NodeSpec:
    """The node with this id, a number or its text. Raises `Refused` (F09) if the cluster file has none."""
    return _chosen(role, asked, {str(node.id): node for node in spec.nodes() if node.role is role}, spec.path)


def group_of(spec: ClusterSpec, asked: object) -> GroupSpec:
    """The consumer group of this name. Raises `Refused` (F09) if the cluster file has none."""
    return _chosen("consumer group", asked, {group.name: group for group in spec.groups}, spec.path)


def instance_of(group: GroupSpec, asked: object) -> str:
    """The name of a group's instance. Raises `Refused` (F09) if the cluster file has none."""
    return _chosen(f"instance of group {group.name}", asked, {each.name: each.name for each in group.instances})


def one_of(kind: type[Choice], name: str, asked: object) -> Choice:
    """The value of an argument with few allowed values. Raises `Refused` (F09) for any other."""
    return _chosen(name, asked, {str(each): each for each in kind}, "This argument")


def _chosen(what: str, asked: object, known: Mapping[str, Found], where: str = "The cluster file") -> Found:
    if str(asked) in known:
        return known[str(asked)]
    text = f"{where or 'The cluster file'} has no {what} {asked!r}; it has {', '.join(known) or 'none'}."
    raise Refused.because(Reason("F09", text))


def _whole(name: str, asked: object) -> int:
    try:
        return int(str(asked))
    except ValueError:
        raise Refused.because(Reason("F09", f"{name} is {asked!r}, and must be a whole number.")) from None


def terms_of(spec: ClusterSpec, arguments: Arguments) -> RollbackTerms:
    """The terms of a rollback: `skip_failover`, and `accept_loss`, which names the cluster id.

    Raises `Refused` (G35) if `accept_loss` would not take effect as written.
    """
    failover, accepted = not arguments.get("skip_failover"), arguments.get("accept_loss") or ""
    if (wrong := terms_error(accepted, spec.cluster_id, failover=failover)) is not None:
        raise Refused.because(wrong)
    return RollbackTerms(failover, lossy=bool(accepted))


def asked_by(spec: ClusterSpec, terms: RollbackTerms) -> dict[str, Any]:
    """The arguments that state these terms, as a run's conf does; `terms_of` reads them."""
    return {"skip_failover": not terms.failover, "accept_loss": spec.cluster_id if terms.lossy else ""}


def _roll(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.brokers import RollBroker

    return RollBroker(
        node_of(spec, NodeRole.BROKER, arguments.get("node")), one_of(BrokerMode, "target", arguments.get("target")), spec.policy
    )


def _roll_back(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.brokers import RollBackBroker

    return RollBackBroker(
        node_of(spec, NodeRole.BROKER, arguments.get("node")), one_of(BrokerMode, "target", arguments.get("target")), spec.policy
    )


def _provision(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.controllers import ProvisionController

    return ProvisionController(node_of(spec, NodeRole.CONTROLLER, arguments.get("node")), spec.cluster_id)


def _finalize(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.controllers import FinalizeController

    return FinalizeController(node_of(spec, NodeRole.CONTROLLER, arguments.get("node")), arguments.get("approved") or "")


def _controllers_ready(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.waits import ControllersReady

    del spec, arguments
    return ControllersReady()


def _registered(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.waits import BrokersRegistered

    del arguments
    return BrokersRegistered([node.id for node in spec.brokers])


def _phase(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.core.migration.waits import COPIED
    from airflow_provider_kmigrate.steps.waits import PhaseReached

    del spec
    phases = [one_of(Phase, "phases", phase) for phase in arguments.get("phases", COPIED)]
    return PhaseReached(phases, arguments.get("patience", 600.0))


def _copied(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.waits import Copied

    del arguments
    return Copied(spec.policy.copy_timeout)


def _lag(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.waits import LagSmall

    return LagSmall(_whole("limit", arguments.get("limit", 10)), spec.policy.copy_timeout)


def _equivalent(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.waits import Equivalent

    del arguments
    return Equivalent(spec.policy.copy_timeout)


def _leaders(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.waits import PreferredLeaders

    del arguments
    # Small batches pay only if followers come back quickly (measured); otherwise they multiply the stall.
    return PreferredLeaders(spec.policy.elect_batch if spec.policy.fast_failover else 1_000_000)


def _soak(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.waits import Soak

    return Soak(arguments.get("seconds", spec.policy.min_soak))


def _finalized(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.waits import Finalized

    del spec, arguments
    return Finalized()


def _restore_flag(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.rollback import RestoreFlag

    return RestoreFlag(node_of(spec, NodeRole.CONTROLLER, arguments.get("node")))


def _failover(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.rollback import ControllerFailover

    del arguments
    return ControllerFailover(spec.controllers)


def _equal_after_failover(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.rollback import EquivalentAfterFailover

    return EquivalentAfterFailover(spec.policy.copy_timeout, terms_of(spec, arguments))


def _stop_controller(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.rollback import StopController

    return StopController(node_of(spec, NodeRole.CONTROLLER, arguments.get("node")), spec.controllers, terms_of(spec, arguments))


def _handover(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.rollback import Handover

    return Handover(spec.controllers, terms_of(spec, arguments))


def _zookeeper_leads(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.rollback import ZooKeeperLeads

    del spec, arguments
    return ZooKeeperLeads()


def _wipe(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.rollback import WipeController

    return WipeController(node_of(spec, NodeRole.CONTROLLER, arguments.get("node")))


def _rolled_back(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.rollback import RolledBack

    del spec, arguments
    return RolledBack()


def _switch(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.core.coordination.group_seen import MemberKind
    from airflow_provider_kmigrate.steps.groups import SwitchInstance

    group = group_of(spec, arguments.get("group"))
    instance = instance_of(group, arguments.get("instance"))
    bake = group.bake if arguments.get("bake") else 0.0
    return SwitchInstance(group, instance, one_of(MemberKind, "target", arguments.get("target")), bake=bake)


def _mode(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.core.coordination.registration import Mode
    from airflow_provider_kmigrate.steps.groups import SetMode

    return SetMode(group_of(spec, arguments.get("group")), one_of(Mode, "mode", arguments.get("mode")))


def _watch_group(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.groups import WatchGroup

    group = group_of(spec, arguments.get("group"))
    return WatchGroup(group, group.bake)


def _roll_back_group(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.core.groups.move import Goal
    from airflow_provider_kmigrate.steps.groups import RollBackGroup

    return RollBackGroup(group_of(spec, arguments.get("group")), one_of(Goal, "goal", arguments.get("goal")))


def _clean_up(spec: ClusterSpec, arguments: Arguments) -> Step:
    from airflow_provider_kmigrate.steps.groups import CleanUp

    return CleanUp(group_of(spec, arguments.get("group")))


STEPS: Mapping[str, Builder] = {
    "provision": _provision,
    "controllers ready": _controllers_ready,
    "roll": _roll,
    "registered": _registered,
    "phase": _phase,
    "copied": _copied,
    "lag": _lag,
    "equivalent": _equivalent,
    "leaders": _leaders,
    "soak": _soak,
    "finalize": _finalize,
    "finalized": _finalized,
    "restore flag": _restore_flag,
    "controller failover": _failover,
    "roll back broker": _roll_back,
    "equivalent after failover": _equal_after_failover,
    "stop controller": _stop_controller,
    "handover": _handover,
    "zookeeper leads": _zookeeper_leads,
    "wipe": _wipe,
    "rolled back": _rolled_back,
    "switch": _switch,
    "mode": _mode,
    "watch group": _watch_group,
    "roll back group": _roll_back_group,
    "clean up": _clean_up,
}


def has_last(kind: str, arguments: Arguments) -> bool:
    """True if a plan postpones nodes of this step, so that they run at its end."""
    return _postponing(kind, arguments) is not None


def _postponing(kind: str, arguments: Arguments) -> PlanStep | None:
    target = arguments.get("target") or None
    rows = (row for row in (*MIGRATION, *ROLLBACK) if row.last and row.kind == kind)
    return next((row for row in rows if row.target == (target and one_of(BrokerMode, "target", target))), None)


def postponed(context: StepContext, kind: str, arguments: Arguments) -> str:
    """Why the node of a step runs after its others; empty if it does not. Observes the cluster only if the plan postpones such nodes.

    Raises `Refused` (F09) if the cluster file has no such node.
    """
    row = _postponing(kind, arguments)
    if row is None or row.each is None:
        return ""
    node = node_of(context.spec, row.each, arguments.get("node")).id
    if row.target:
        return roll.postponed(
            context.observer.observe(roll.MIN_OBSERVATIONS), node, [each.id for each in context.spec.brokers], row.target
        )
    return _ACTIVE_LAST[kind](context.observer.observe(_QUORUM), node)


def run_rest(context: StepContext, kind: str, arguments: Arguments) -> Done | Wait:
    """Run a step on every node that is left, postponed ones last.

    `arguments` as `run_plan`'s, with `target`. Raises as the step does.
    """
    step = partial(step_on, context, kind, arguments)
    target = arguments.get("target")
    return roll_all(context, BrokerMode(target), step) if target else roll_active_last(context, _ACTIVE_LAST[kind], step)


def step_on(context: StepContext, kind: str, arguments: Arguments, node: NodeSpec | None) -> Step:
    """The step, on this node if one is given."""
    return build(context.spec, kind, arguments if node is None else {**arguments, "node": node.id})


def roll_all(context: StepContext, target: BrokerMode, step: Callable[[NodeSpec], Step]) -> Done:
    """Run `step` for every broker not in `target` yet: one already begun first, the ZooKeeper controller last.

    Raises as the steps do.

    The cluster is observed before each, since the ZooKeeper controller moves.
    """
    nodes, done = {node.id: node for node in context.spec.brokers}, []
    while (number := roll.next_to_roll(context.observer.observe(roll.MIN_OBSERVATIONS), list(nodes), target)) is not None:
        run_step(step(nodes[number]), context)
        done.append(number)
    text = f"Restarted last: {join_ids(done)}." if done else "No broker was left."
    context.say(f"Done: {text}")
    return Done(text)


def roll_active_last(
    context: StepContext, why: Callable[[ClusterView, int], str], step: Callable[[NodeSpec], Step]
) -> Done | Wait:
    """Run `step` for every controller, those with a reason `why` last; returns the last result. Raises as the steps do."""
    view = context.observer.observe(_QUORUM)
    nodes = sorted(context.spec.controllers, key=lambda node: bool(why(view, node.id)))
    return [run_step(step(node), context) for node in nodes][-1]
