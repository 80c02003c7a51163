"""Every step by name and plain arguments, so that a trigger in another process can build the same step; and whole plans.

A step's module is imported when the step is built: a task imports only its own. Whole plans: which nodes a plan postpones, a step
on every node that is left, and every step of a plan in one task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar

from airflow_provider_kmigrate.core.cluster import ClusterSpec, GroupProgressSpec, GroupSpec, NodeRole, NodeSpec, Policy
from airflow_provider_kmigrate.core.decision import Done, Wait
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.migration.controllers import ApprovedState, postponed_controller
from airflow_provider_kmigrate.core.model import BrokerMode, Fields, Reason
from airflow_provider_kmigrate.core.plan import APPROVE, EXPANSION, MIGRATION, ROLLBACK, Plan, PlanStep, after_approval
from airflow_provider_kmigrate.core.progress import FRESH, StepProgress
from airflow_provider_kmigrate.core.rollback import RollbackTerms, terms_error
from airflow_provider_kmigrate.core.text import join_ids
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.run import Step, StepContext, run_step

Arguments = Mapping[str, Any]
_NONE: Arguments = MappingProxyType({})
Found = TypeVar("Found")
Choice = TypeVar("Choice", bound=StrEnum)
OBSERVING = frozenset({"controllers ready", "registered", "phase", "lag", "equivalent", "coordinators"})
"""Steps that only observe; a sensor may run them without holding the fence."""
_ACTIVE = Fields.CONTROLLERS | Fields.QUORUM | Fields.ZOOKEEPER  # what shows which controller is active
_ACTIVE_LAST = {"finalize": postponed_controller, "restart broker": roll.postponed_restart}


def build(spec: ClusterSpec, kind: str, arguments: Arguments, progress: StepProgress = FRESH) -> Step:
    """Build the step `kind` for this cluster. `arguments`: JSON values; `progress`: what earlier runs of the step stored.

    Raises KeyError for a name that is not in `STEPS`.
    """
    module, make = STEPS[kind]
    step = make(import_module(f"{__package__}.{module}"), spec, arguments).resume(progress)
    step.kind, step.left = kind, left_brokers(spec, arguments)
    return step


def node_of(spec: ClusterSpec, role: NodeRole, asked: object) -> NodeSpec:
    """The node with this id, a number or its text. Raises `Refused` (F09) if the cluster file has none."""
    return _chosen(role, asked, {str(node.id): node for node in spec.nodes() if node.role is role}, spec.path)


def group_of(spec: ClusterSpec, asked: object) -> GroupSpec:
    """The consumer group of this name. Raises `Refused` (F09) if the cluster file has none."""
    return _chosen("consumer group", asked, {group.name: group for group in spec.groups}, spec.path)


def one_of(kind: type[Choice], name: str, asked: object) -> Choice:
    """The value of an argument with few allowed values. Raises `Refused` (F09) for any other."""
    return _chosen(name, asked, {str(each): each for each in kind}, "This argument")


def _chosen(what: str, asked: object, known: Mapping[str, Found], where: str = "The cluster file") -> Found:
    if str(asked) in known:
        return known[str(asked)]
    text = f"{where} has no {what} {asked!r}; it has {', '.join(known) or 'none'}."
    raise Refused.because(Reason("F09", text))


def _whole(name: str, asked: object) -> int:
    try:
        return int(str(asked))
    except ValueError:
        raise Refused.because(Reason("F09", f"{name} is {asked!r}, and must be a whole number.")) from None


def terms_of(spec: ClusterSpec, arguments: Arguments) -> RollbackTerms:
    """The terms of a rollback: `skip_failover`, `accept_loss` and `accept_split_groups`, which name the cluster id, and `leave_broker`.

    Raises `Refused` (G35, F09) for one that would not take effect as written.
    """
    failover, accepted = not arguments.get("skip_failover"), arguments.get("accept_loss") or ""
    splits = arguments.get("accept_split_groups") or ""
    if (wrong := terms_error(accepted, spec.cluster_id, failover=failover, accept_split_groups=splits)) is not None:
        raise Refused.because(wrong)
    return RollbackTerms(failover, bool(accepted), bool(splits), left_brokers(spec, arguments))


def left_brokers(spec: ClusterSpec, arguments: Arguments) -> frozenset[int]:
    """The brokers of `leave_broker`, such as "7, 9". Raises `Refused` (F09) for no number, and for a broker of the cluster file."""
    numbers = frozenset(
        _whole("leave_broker", text) for text in str(arguments.get("leave_broker") or "").replace(",", " ").split()
    )
    if named := sorted(numbers & {node.id for node in spec.brokers}):
        raise Refused.because(
            Reason("F09", f"leave_broker names {join_ids(named)}, which the cluster file names: it is rolled back.")
        )
    return numbers


def _broker(spec: ClusterSpec, asked: Arguments) -> NodeSpec:
    return node_of(spec, NodeRole.BROKER, asked.get("node"))


def _controller(spec: ClusterSpec, asked: Arguments) -> NodeSpec:
    return node_of(spec, NodeRole.CONTROLLER, asked.get("node"))


def _group(spec: ClusterSpec, asked: Arguments) -> GroupSpec:
    return group_of(spec, asked.get("group"))


def _switch(module: Any, spec: ClusterSpec, asked: Arguments) -> Step:
    group, kind = _group(spec, asked), one_of(module.MemberKind, "target", asked.get("target"))
    names = {each.name: each.name for each in group.instances}
    instance = _chosen(f"instance of group {group.name}", asked.get("instance"), names)
    step: Step = module.SwitchInstance(group, instance, kind, bake=group.bake if asked.get("bake") else 0.0)
    return step


def _partitions(asked: Arguments) -> int:
    return _whole("partitions", asked.get("partitions"))


def _roll(spec: ClusterSpec, asked: Arguments) -> tuple[NodeSpec, BrokerMode, Policy, GroupProgressSpec]:
    """The arguments of every roll of a broker."""
    return _broker(spec, asked), one_of(BrokerMode, "target", asked.get("target")), spec.policy, spec.group_progress


def _restart(spec: ClusterSpec, asked: Arguments) -> tuple[NodeSpec, int, Policy, GroupProgressSpec]:
    """The arguments of a restart in an expansion."""
    return _broker(spec, asked), _partitions(asked), spec.policy, spec.group_progress


STEPS: Mapping[str, tuple[str, Callable[[Any, ClusterSpec, Arguments], Step]]] = {
    "provision": ("controllers", lambda m, spec, asked: m.ProvisionController(_controller(spec, asked), spec.cluster_id)),
    "controllers ready": ("waits", lambda m, _spec, _asked: m.controllers_ready()),
    "roll": ("brokers", lambda m, spec, asked: m.RollBroker(*_roll(spec, asked))),
    "registered": ("waits", lambda m, spec, _: m.brokers_registered([node.id for node in spec.brokers], spec.group_progress)),
    "phase": ("waits", lambda m, _, asked: m.phase_reached(asked.get("patience", 600.0))),
    "copied": ("waits", lambda m, spec, _: m.Copied(spec.policy.copy_timeout)),
    "lag": ("waits", lambda m, spec, asked: m.lag_small(_whole("limit", asked.get("limit", 10)), spec.policy.copy_timeout)),
    "equivalent": ("waits", lambda m, spec, _: m.equivalent(spec.policy.copy_timeout)),
    "coordinators": ("waits", lambda m, _, asked: m.coordinators_agree(asked.get("patience", 600.0))),
    # Small batches pay only if followers come back quickly (measured); otherwise they multiply the stall.
    "leaders": (
        "waits", lambda m, spec, _: m.PreferredLeaders(spec.policy.elect_batch if spec.policy.fast_failover else 1_000_000)
    ),
    "soak": ("waits", lambda m, spec, asked: m.Soak(asked.get("seconds", spec.policy.min_soak))),
    "finalize": (
        "controllers",
        lambda m, spec, asked: m.FinalizeController(
            _controller(spec, asked), ApprovedState(asked.get("approved") or "", asked.get("rests_on") or {})
        ),
    ),
    "finalized": ("waits", lambda m, _spec, _asked: m.Finalized()),
    "restore flag": ("rollback", lambda m, spec, asked: m.RestoreFlag(_controller(spec, asked))),
    "controller failover": ("rollback", lambda m, spec, _: m.ControllerFailover(spec.controllers)),
    "roll back broker": ("brokers", lambda m, spec, asked: m.RollBackBroker(*_roll(spec, asked), terms_of(spec, asked))),
    "equivalent after failover": (
        "rollback", lambda m, spec, asked: m.equivalent_after_failover(spec.policy.copy_timeout, terms_of(spec, asked))
    ),
    "handover": ("rollback", lambda m, spec, asked: m.Handover(spec.controllers, terms_of(spec, asked))),
    "zookeeper leads": ("rollback", lambda m, _spec, _asked: m.ZooKeeperLeads()),
    "wipe": ("rollback", lambda m, spec, asked: m.WipeController(_controller(spec, asked))),
    "rolled back": ("rollback", lambda m, _spec, _asked: m.rolled_back()),
    "repair offsets": ("offsets_repair", lambda m, _, asked: m.RepairOffsets(asked.get("decisions") or {})),
    "switch": ("groups", _switch),
    "mode": ("groups", lambda m, spec, asked: m.SetMode(_group(spec, asked), one_of(m.Mode, "mode", asked.get("mode")))),
    "watch group": ("groups", lambda m, spec, asked: m.WatchGroup(_group(spec, asked))),
    "roll back group": (
        "groups", lambda m, spec, asked: m.RollBackGroup(_group(spec, asked), one_of(m.Goal, "goal", asked.get("goal")))
    ),
    "clean up": ("groups", lambda m, spec, asked: m.CleanUp(_group(spec, asked))),
    "expansion plan": ("expansion", lambda m, _, asked: m.PlanExpansion(_partitions(asked), undo=bool(asked.get("undo")))),
    "groups stopped": ("expansion", lambda m, _, asked: m.StopGroups(_partitions(asked))),
    "export offsets": ("expansion", lambda m, _, asked: m.ExportOffsets(_partitions(asked))),
    "delete groups": ("expansion", lambda m, _, asked: m.DeleteGroups(_partitions(asked))),
    "expand": ("expansion", lambda m, _, asked: m.ExpandTopic(_partitions(asked))),
    "restart broker": ("expansion", lambda m, spec, asked: m.RestartBroker(*_restart(spec, asked))),
    "one coordinator": ("expansion", lambda m, spec, asked: m.one_coordinator(_partitions(asked), spec.group_progress)),
    "import offsets": ("expansion", lambda m, _, asked: m.ImportOffsets(_partitions(asked), undo=bool(asked.get("undo")))),
    "verify offsets": ("expansion", lambda m, _, asked: m.VerifyOffsets(_partitions(asked), undo=bool(asked.get("undo")))),
    "groups progress": ("expansion", lambda m, _, asked: m.GroupsProgress(_partitions(asked), asked.get("groups"))),
}  # fmt: skip
"""Name of a step -> its module, and what makes it of that module, the cluster file and the arguments.

What makes it raises `Refused` (F09) for what the cluster file does not have, and for a value that is not allowed.
"""


def postponing(kind: str, arguments: Arguments) -> PlanStep | None:
    """The row of a plan that postpones nodes of this step, so that they run at its end; None if no plan does."""
    target = arguments.get("target") or None
    rows = (row for row in (*MIGRATION, *ROLLBACK, *EXPANSION) if row.last and row.kind == kind)
    return next((row for row in rows if row.target == (target and one_of(BrokerMode, "target", target))), None)


def postponed(context: StepContext, kind: str, arguments: Arguments) -> str:
    """Why the node of a step runs after its others; empty if it does not. Observes the cluster only if the plan postpones such nodes.

    Raises `Refused` (F09) if the cluster file has no such node.
    """
    row = postponing(kind, arguments)
    if row is None or row.each is None:
        return ""
    node = node_of(context.spec, row.each, arguments.get("node")).id
    if row.target:
        brokers = [each.id for each in context.spec.brokers]
        return roll.postponed(context.observer.observe(roll.MIN_OBSERVATIONS), node, brokers, row.target)
    return _ACTIVE_LAST[kind](context.observer.observe(_ACTIVE), node)


def run_rest(context: StepContext, kind: str, arguments: Arguments) -> Done | Wait:
    """Run a step on every node that is left, postponed ones last; returns the last result. Raises as the step does.

    `arguments` as `run_plan`'s, with `target`.
    """
    step = partial(_step_on, context, kind, arguments)
    if target := arguments.get("target"):
        return roll_all(context, BrokerMode(target), step)
    view = context.observer.observe(_ACTIVE)
    row = postponing(kind, arguments)
    nodes = [node for node in context.spec.nodes() if row is not None and node.role is row.each]
    nodes.sort(key=lambda node: bool(_ACTIVE_LAST[kind](view, node.id)))
    return [run_step(step(node), context) for node in nodes][-1]


def _step_on(context: StepContext, kind: str, arguments: Arguments, node: NodeSpec | None) -> Step:
    return build(context.spec, kind, arguments if node is None else {**arguments, "node": node.id})


def roll_all(context: StepContext, target: BrokerMode, step: Callable[[NodeSpec], Step]) -> Done:
    """Run `step` for every broker not in `target` yet: one already begun first, the ZooKeeper controller last. Raises as the steps do.

    The cluster is observed before each, since the ZooKeeper controller moves.
    """
    nodes, done = {node.id: node for node in context.spec.brokers}, []
    while (number := roll.next_to_roll(context.observer.observe(roll.MIN_OBSERVATIONS), list(nodes), target)) is not None:
        run_step(step(nodes[number]), context)
        done.append(number)
    text = f"Restarted last: {join_ids(done)}." if done else "No broker was left."
    context.say(f"Done: {text}")
    return Done(text)


_WITHOUT_LOOP: Mapping[str, tuple[str, str]] = {
    "preflight": ("prepare", "run_preflight"),
    "backup": ("prepare", "run_backup"),
    "plan": ("rollback", "planned"),
    "rollback plan": ("rollback", "planned_in_migration"),
    "readiness": ("waits", "require_rollback_assured"),
}
"""Rows of a plan that run no loop of a step -> the module and its function of the context."""


def run_rollback(context: StepContext, arguments: Arguments = _NONE) -> Done:
    """Run the whole rollback as its DAG does, without approval, and release the fence at its end.

    `arguments`: the terms, as a run's conf has them. Raises as its steps do. Killed and run again, it observes the cluster and does
    what is left.
    """
    steps, _ = _without_loop(context, "plan", terms_of(context.spec, arguments))
    end = run_plan(context, after_approval(ROLLBACK), arguments)
    context.fence.release()
    return Done(f"{getattr(end, 'text', '')} Steps taken: {len(steps)}.")


def run_plan(context: StepContext, plan: Plan, arguments: Arguments = _NONE) -> object:
    """Run every step of a plan in order, without approval; returns the last result. Raises as the steps do.

    `arguments`: of all steps beside node and target, such as the terms of a rollback.
    """
    wanted = (row for row in plan if row.kind != APPROVE and not arguments.get(row.skip_if))
    return [_run_row(context, row, arguments) for row in wanted][-1]


def _run_row(context: StepContext, row: PlanStep, arguments: Arguments) -> object:
    if row.kind in _WITHOUT_LOOP:
        return _without_loop(context, row.kind)
    asked = {**arguments, "target": row.target} if row.target else arguments
    if row.last:
        rest = run_rest(context, row.kind, asked)
        if not row.target:
            return rest  # it ran every node
    # brokers already in the mode, too: only their own step finds what a dead run left on their machines
    nodes: list[NodeSpec | None] = [node for node in context.spec.nodes() if node.role is row.each] or [None]
    return [run_step(_step_on(context, row.kind, asked, node), context) for node in nodes][-1]


def _without_loop(context: StepContext, kind: str, *terms: RollbackTerms) -> Any:
    module, name = _WITHOUT_LOOP[kind]
    return getattr(import_module(f"{__package__}.{module}"), name)(context, *terms)
