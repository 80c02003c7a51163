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

from airflow_provider_kmigrate.core.cluster_state.decision import Done, Wait
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, GroupSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.migration.controllers import ApprovedState
from airflow_provider_kmigrate.core.migration.plan import APPROVE, PLANS, ROLLBACK, Plan, StepRow, row_of, steps_after_approval
from airflow_provider_kmigrate.core.migration.progress import FRESH, StepProgress
from airflow_provider_kmigrate.core.migration.rollback import RollbackTerms, terms_error
from airflow_provider_kmigrate.core.shared.text import join_ids
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.run import Step, StepContext, run_step

Arguments = Mapping[str, Any]
_PACKAGE = __package__.rpartition(".")[0]
_NONE: Arguments = MappingProxyType({})
Found = TypeVar("Found")
Choice = TypeVar("Choice", bound=StrEnum)
_ACTIVE = Fields.CONTROLLERS | Fields.QUORUM | Fields.ZOOKEEPER  # what shows which controller is active


def build(spec: ClusterSpec, kind: str, arguments: Arguments, progress: StepProgress = FRESH) -> Step:
    """Build the step `kind` for this cluster. `arguments`: JSON values; `progress`: what earlier runs of the step stored.

    Raises ValueError for a name that no row has, and `Refused` (F09) for what the cluster file does not have, or a value that is not allowed.
    """
    row = row_of(kind)
    step: Step = _import_by_name(row.step)(*(_READERS[name](spec, arguments) for name in row.takes)).resume(progress)
    step.estimate, step.left = row.estimate, parse_left_brokers(spec, arguments)
    return step


def _import_by_name(name: str) -> Callable[..., Any]:
    """What a row names as `module.name`."""
    module, _, attribute = name.partition(".")
    imported: Callable[..., Any] = getattr(import_module(f"{__package__}.{module}"), attribute)
    return imported


def find_node(spec: ClusterSpec, role: NodeRole, number: object) -> NodeSpec:
    """The node with this id, a number or its text. Raises `Refused` (F09) if the cluster file has none."""
    return _choose(role, number, {str(node.id): node for node in spec.nodes() if node.role is role}, spec.path)


def find_group(spec: ClusterSpec, name: object) -> GroupSpec:
    """The consumer group of this name. Raises `Refused` (F09) if the cluster file has none."""
    return _choose("consumer group", name, {group.name: group for group in spec.groups}, spec.path)


def parse_choice(kind: type[Choice], name: str, value: object) -> Choice:
    """The value of an argument with few allowed values. Raises `Refused` (F09) for any other."""
    return _choose(name, value, {str(choice): choice for choice in kind}, "This argument")


def _choose(what: str, value: object, choices: Mapping[str, Found], source: str = "The cluster file") -> Found:
    if str(value) in choices:
        return choices[str(value)]
    text = f"{source} has no {what} {value!r}; it has {', '.join(choices) or 'none'}."
    raise Refused.because(Reason("F09", text))


def _parse_whole_number(name: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise Refused.because(Reason("F09", f"{name} is {value!r}, and must be a whole number.")) from None


def parse_rollback_terms(spec: ClusterSpec, arguments: Arguments) -> RollbackTerms:
    """The terms of a rollback: `skip_failover`, `accept_loss` and `accept_split_groups`, which name the cluster id, and `leave_broker`.

    Raises `Refused` (G35, F09) for one that would not take effect as written.
    """
    failover, accepted = not arguments.get("skip_failover"), arguments.get("accept_loss") or ""
    splits = arguments.get("accept_split_groups") or ""
    if (wrong := terms_error(accepted, spec.cluster_id, failover=failover, accept_split_groups=splits)) is not None:
        raise Refused.because(wrong)
    return RollbackTerms(failover, bool(accepted), bool(splits), parse_left_brokers(spec, arguments))


def parse_left_brokers(spec: ClusterSpec, arguments: Arguments) -> frozenset[int]:
    """The brokers of `leave_broker`, such as "7, 9". Raises `Refused` (F09) for no number, and for a broker of the cluster file."""
    numbers = frozenset(
        _parse_whole_number("leave_broker", text) for text in str(arguments.get("leave_broker") or "").replace(",", " ").split()
    )
    if in_cluster_file := sorted(numbers & {node.id for node in spec.brokers}):
        raise Refused.because(
            Reason("F09", f"leave_broker names {join_ids(in_cluster_file)}, which the cluster file names: it is rolled back.")
        )
    return numbers


def parse_expansion_terms(arguments: Arguments) -> tuple[int, bool]:
    """The partitions of an expansion, and whether it is undone. Raises `Refused` (F09) for what is no number."""
    return _parse_whole_number("partitions", arguments.get("partitions")), bool(arguments.get("undo"))


def _parse_instance(spec: ClusterSpec, arguments: Arguments) -> str:
    group = find_group(spec, arguments.get("group"))
    names = {instance.name: instance.name for instance in group.instances}
    return _choose(f"instance of group {group.name}", arguments.get("instance"), names)


def _elect_batch(spec: ClusterSpec, _arguments: Arguments) -> int:
    """Small batches pay only if followers come back quickly (measured); otherwise they multiply the stall."""
    return spec.policy.elect_batch if spec.policy.fast_failover else 1_000_000


def _make_choice_reader(module: str, kind: str, name: str) -> Callable[[ClusterSpec, Arguments], StrEnum]:
    """As `one_of`, of a class that only the steps of consumer groups import."""

    def read(_spec: ClusterSpec, arguments: Arguments) -> StrEnum:
        choices: type[StrEnum] = getattr(import_module(f"{_PACKAGE}.core.{module}"), kind)
        return parse_choice(choices, name, arguments.get(name))

    return read


_READERS: Mapping[str, Callable[[ClusterSpec, Arguments], Any]] = {
    # of the cluster file
    "cluster_id": lambda spec, _: spec.cluster_id,
    "policy": lambda spec, _: spec.policy,
    "copy_timeout": lambda spec, _: spec.policy.copy_timeout,
    "elect_batch": _elect_batch,
    "group_progress": lambda spec, _: spec.group_progress,
    "broker_ids": lambda spec, _: [broker.id for broker in spec.brokers],
    "controllers": lambda spec, _: spec.controllers,
    # of the cluster file, as an argument chooses
    "broker": lambda spec, arguments: find_node(spec, NodeRole.BROKER, arguments.get("node")),
    "controller": lambda spec, arguments: find_node(spec, NodeRole.CONTROLLER, arguments.get("node")),
    "group": lambda spec, arguments: find_group(spec, arguments.get("group")),
    "instance": _parse_instance,
    "bake": lambda spec, arguments: find_group(spec, arguments.get("group")).bake if arguments.get("bake") else 0.0,
    "seconds": lambda spec, arguments: arguments.get("seconds", spec.policy.min_soak),
    "terms": parse_rollback_terms,
    # arguments
    "target": lambda _, arguments: parse_choice(BrokerMode, "target", arguments.get("target")),
    "member_kind": _make_choice_reader("member.group_seen", "MemberKind", "target"),
    "mode": _make_choice_reader("member.registration", "Mode", "mode"),
    "goal": _make_choice_reader("groups.move", "Goal", "goal"),
    "partitions": lambda _, arguments: _parse_whole_number("partitions", arguments.get("partitions")),
    "limit": lambda _, arguments: _parse_whole_number("limit", arguments.get("limit", 10)),
    "undo": lambda _, arguments: bool(arguments.get("undo")),
    "groups": lambda _, arguments: arguments.get("groups"),
    "decisions": lambda _, arguments: arguments.get("decisions") or {},
    "patience": lambda _, arguments: arguments.get("patience", 600.0),
    "approved_state": lambda _, arguments: ApprovedState(arguments.get("approved") or "", arguments.get("rests_on") or {}),
}
"""What a row `takes` -> how it is read from the cluster file and the arguments of a task. Each may raise `Refused` (F09)."""


def find_postponing_row(kind: str, arguments: Arguments) -> StepRow | None:
    """The row of a plan that postpones nodes of this step, so that they run at its end; None if no plan does."""
    target = arguments.get("target") or None
    rows = (row for plan in PLANS for row in plan if row.last and row.kind == kind)
    return next((row for row in rows if row.target == (target and parse_choice(BrokerMode, "target", target))), None)


def reason_to_postpone(context: StepContext, kind: str, arguments: Arguments) -> str:
    """Why the node of a step runs after its others; empty if it does not. Observes the cluster only if the plan postpones such nodes.

    Raises `Refused` (F09) if the cluster file has no such node.
    """
    row = find_postponing_row(kind, arguments)
    if row is None or row.each is None or row.last is None:
        return ""
    node = find_node(context.spec, row.each, arguments.get("node")).id
    if row.target:
        brokers = [broker.id for broker in context.spec.brokers]
        return roll.why_postponed(context.observer.observe(roll.MIN_OBSERVATIONS), node, brokers, row.target)
    return row.last.why(context.observer.observe(_ACTIVE), node) if row.last.why else ""


def run_remaining_nodes(context: StepContext, kind: str, arguments: Arguments) -> Done | Wait:
    """Run a step on every node that is left, postponed ones last; returns the last result. Raises as the step does.

    `arguments` as `run_plan`'s, with `target`.
    """
    step = partial(_build_step_on, context, kind, arguments)
    if target := arguments.get("target"):
        return roll_all(context, BrokerMode(target), step)
    view = context.observer.observe(_ACTIVE)
    row = find_postponing_row(kind, arguments) or row_of(kind)
    why = (row.last and row.last.why) or (lambda _view, _node: "")
    nodes = sorted(row.nodes(context.spec), key=lambda node: bool(why(view, node.id)))
    return [run_step(step(node), context) for node in nodes][-1]


def _build_step_on(context: StepContext, kind: str, arguments: Arguments, node: NodeSpec | None) -> Step:
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


def run_rollback(context: StepContext, arguments: Arguments = _NONE) -> Done:
    """Run the whole rollback as its DAG does, without approval, and release the fence at its end.

    `arguments`: the terms, as a run's conf has them. Raises as its steps do. Killed and run again, it observes the cluster and does
    what is left.
    """
    steps, *_ = _import_by_name(ROLLBACK[0].run)(context, parse_rollback_terms(context.spec, arguments))
    end = run_plan(context, steps_after_approval(ROLLBACK), arguments)
    context.fence.release()
    return Done(f"{getattr(end, 'text', '')} Steps taken: {len(steps)}.")


def run_plan(context: StepContext, plan: Plan, arguments: Arguments = _NONE) -> object:
    """Run every step of a plan in order, without approval; returns the last result. Raises as the steps do.

    `arguments`: of all steps beside node and target, such as the terms of a rollback.
    """
    rows_to_run = (row for row in plan if row.kind != APPROVE and not arguments.get(row.skip_if))
    return [_run_row(context, row, arguments) for row in rows_to_run][-1]


def _run_row(context: StepContext, row: StepRow, arguments: Arguments) -> object:
    if row.run:
        return _import_by_name(row.run)(context)
    row_arguments = {**arguments, "target": row.target} if row.target else arguments
    if row.last:
        rest = run_remaining_nodes(context, row.kind, row_arguments)
        if not row.target:
            return rest  # it ran every node
    # brokers already in the mode, too: only their own step finds what a dead run left on their machines
    nodes: tuple[NodeSpec | None, ...] = row.nodes(context.spec) or (None,)
    return [run_step(_build_step_on(context, row.kind, row_arguments, node), context) for node in nodes][-1]
