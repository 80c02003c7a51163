"""Every step by name and plain arguments, so that a trigger in another process can build the same step; and rolling over nodes.

A step's module is imported when the step is built: a task imports only its own. Rolling: which nodes a plan postpones, and a step
on every node that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from airflow_provider_kmigrate.core.cluster import ClusterSpec, GroupProgressSpec, GroupSpec, NodeRole, NodeSpec, Policy
from airflow_provider_kmigrate.core.decision import Done, Wait
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.migration.controllers import ApprovedState, postponed_controller
from airflow_provider_kmigrate.core.model import BrokerMode, Fields, Reason
from airflow_provider_kmigrate.core.phase import COPIED, Phase
from airflow_provider_kmigrate.core.plan import EXPANSION, MIGRATION, ROLLBACK, PlanStep
from airflow_provider_kmigrate.core.progress import FRESH, StepProgress
from airflow_provider_kmigrate.core.rollback import RollbackTerms, postponed_stop, terms_error
from airflow_provider_kmigrate.core.text import join_ids
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.run import Step, StepContext, run_step

Arguments = Mapping[str, Any]
Found = TypeVar("Found")
Choice = TypeVar("Choice", bound=StrEnum)
OBSERVING = frozenset({"controllers ready", "registered", "phase", "lag", "equivalent", "coordinators"})
"""Steps that only observe; a sensor may run them without holding the fence."""
_ACTIVE = Fields.CONTROLLERS | Fields.QUORUM | Fields.ZOOKEEPER  # what shows which controller is active
_ACTIVE_LAST = {"stop controller": postponed_stop, "finalize": postponed_controller, "restart broker": roll.postponed_restart}


def build(spec: ClusterSpec, kind: str, arguments: Arguments, progress: StepProgress = FRESH) -> Step:
    """Build the step `kind` for this cluster. `arguments`: JSON values; `progress`: what earlier runs of the step stored.

    Raises KeyError for a name that is not in `STEPS`.
    """
    module, make = STEPS[kind]
    step = make(import_module(f"{__package__}.{module}"), _Asked(spec, arguments)).resume(progress)
    step.kind = kind
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
    """The terms of a rollback: `skip_failover`, and `accept_loss`, which names the cluster id.

    Raises `Refused` (G35) if `accept_loss` would not take effect as written.
    """
    failover, accepted = not arguments.get("skip_failover"), arguments.get("accept_loss") or ""
    if (wrong := terms_error(accepted, spec.cluster_id, failover=failover)) is not None:
        raise Refused.because(wrong)
    return RollbackTerms(failover, lossy=bool(accepted))


@dataclass(frozen=True)
class _Asked:
    """The arguments of one step. Raises `Refused` (F09) for what the cluster file does not have, and for a value that is not allowed."""

    spec: ClusterSpec
    arguments: Arguments

    def get(self, name: str, default: object = None) -> Any:
        """An argument by its name."""
        return self.arguments.get(name, default)

    @property
    def broker(self) -> NodeSpec:
        """The broker that the argument `node` names."""
        return node_of(self.spec, NodeRole.BROKER, self.get("node"))

    @property
    def controller(self) -> NodeSpec:
        """The controller that the argument `node` names."""
        return node_of(self.spec, NodeRole.CONTROLLER, self.get("node"))

    @property
    def group(self) -> GroupSpec:
        """The group that the argument `group` names."""
        return group_of(self.spec, self.get("group"))

    @property
    def instance(self) -> str:
        """The name of an instance of the group."""
        names = {each.name: each.name for each in self.group.instances}
        return _chosen(f"instance of group {self.group.name}", self.get("instance"), names)

    @property
    def roll(self) -> tuple[NodeSpec, BrokerMode, Policy, GroupProgressSpec]:
        """The arguments of every roll of a broker."""
        return self.broker, self.choice(BrokerMode, "target"), self.spec.policy, self.spec.group_progress

    @property
    def terms(self) -> RollbackTerms:
        """The terms of a rollback."""
        return terms_of(self.spec, self.arguments)

    @property
    def approved(self) -> ApprovedState:
        """What the approval of a finalization was given on."""
        return ApprovedState(self.get("approved") or "", self.get("rests_on") or {})

    @property
    def partitions(self) -> int:
        """The count of partitions that is wanted."""
        return _whole("partitions", self.get("partitions"))

    @property
    def undo(self) -> bool:
        """Whether an expansion is undone."""
        return bool(self.get("undo"))

    def choice(self, kind: type[Choice], name: str) -> Choice:
        """A member of an enumeration, by its value. Raises `Refused` (F09) for another value."""
        return one_of(kind, name, self.get(name))


STEPS: Mapping[str, tuple[str, Callable[[Any, _Asked], Step]]] = {
    "provision": ("controllers", lambda m, asked: m.ProvisionController(asked.controller, asked.spec.cluster_id)),
    "controllers ready": ("waits", lambda m, _: m.controllers_ready()),
    "roll": ("brokers", lambda m, asked: m.RollBroker(*asked.roll)),
    "registered": ("waits", lambda m, asked: m.BrokersRegistered([node.id for node in asked.spec.brokers], asked.spec.group_progress)),
    "phase": (
        "waits",
        lambda m, asked: m.phase_reached(
            [one_of(Phase, "phases", each) for each in asked.get("phases", COPIED)], asked.get("patience", 600.0)
        ),
    ),
    "copied": ("waits", lambda m, asked: m.Copied(asked.spec.policy.copy_timeout)),
    "lag": ("waits", lambda m, asked: m.lag_small(_whole("limit", asked.get("limit", 10)), asked.spec.policy.copy_timeout)),
    "equivalent": ("waits", lambda m, asked: m.equivalent(asked.spec.policy.copy_timeout)),
    "coordinators": ("waits", lambda m, asked: m.coordinators_agree(asked.get("patience", 600.0))),
    # Small batches pay only if followers come back quickly (measured); otherwise they multiply the stall.
    "leaders": (
        "waits", lambda m, asked: m.PreferredLeaders(asked.spec.policy.elect_batch if asked.spec.policy.fast_failover else 1_000_000)
    ),
    "soak": ("waits", lambda m, asked: m.Soak(asked.get("seconds", asked.spec.policy.min_soak))),
    "finalize": ("controllers", lambda m, asked: m.FinalizeController(asked.controller, asked.approved)),
    "finalized": ("waits", lambda m, _: m.Finalized()),
    "restore flag": ("rollback", lambda m, asked: m.RestoreFlag(asked.controller)),
    "controller failover": ("rollback", lambda m, asked: m.ControllerFailover(asked.spec.controllers)),
    "roll back broker": (
        "brokers", lambda m, asked: m.RollBackBroker(*asked.roll)
    ),
    "equivalent after failover": (
        "rollback", lambda m, asked: m.equivalent_after_failover(asked.spec.policy.copy_timeout, asked.terms)
    ),
    "stop controller": ("rollback", lambda m, asked: m.StopController(asked.controller, asked.spec.controllers, asked.terms)),
    "handover": ("rollback", lambda m, asked: m.Handover(asked.spec.controllers, asked.terms)),
    "zookeeper leads": ("rollback", lambda m, _: m.ZooKeeperLeads()),
    "wipe": ("rollback", lambda m, asked: m.WipeController(asked.controller)),
    "rolled back": ("rollback", lambda m, _: m.rolled_back()),
    "repair offsets": ("offsets_repair", lambda m, asked: m.repair_offsets(asked.get("decisions") or {})),
    "switch": (
        "groups",
        lambda m, asked: m.SwitchInstance(
            asked.group, asked.instance, asked.choice(m.MemberKind, "target"), bake=asked.group.bake if asked.get("bake") else 0.0
        ),
    ),
    "mode": ("groups", lambda m, asked: m.SetMode(asked.group, asked.choice(m.Mode, "mode"))),
    "watch group": ("groups", lambda m, asked: m.WatchGroup(asked.group, asked.group.bake)),
    "roll back group": ("groups", lambda m, asked: m.RollBackGroup(asked.group, asked.choice(m.Goal, "goal"))),
    "clean up": ("groups", lambda m, asked: m.CleanUp(asked.group)),
    "expansion plan": ("expansion", lambda m, asked: m.PlanExpansion(asked.partitions, undo=asked.undo)),
    "groups stopped": ("expansion", lambda m, asked: m.StopGroups(asked.partitions)),
    "export offsets": ("expansion", lambda m, asked: m.ExportOffsets(asked.partitions)),
    "delete groups": ("expansion", lambda m, asked: m.DeleteGroups(asked.partitions)),
    "expand": ("expansion", lambda m, asked: m.ExpandTopic(asked.partitions)),
    "restart broker": ("expansion", lambda m, asked: m.RestartBroker(asked.broker, asked.partitions, asked.spec.policy)),
    "one coordinator": ("expansion", lambda m, asked: m.one_coordinator(asked.partitions)),
    "import offsets": ("expansion", lambda m, asked: m.ImportOffsets(asked.partitions, undo=asked.undo)),
    "verify offsets": ("expansion", lambda m, asked: m.VerifyOffsets(asked.partitions, undo=asked.undo)),
    "groups progress": ("expansion", lambda m, asked: m.GroupsProgress(asked.partitions, asked.get("groups"))),
}  # fmt: skip
"""Name of a step -> its module, and what makes it of that module and the arguments."""


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
    step = partial(step_on, context, kind, arguments)
    if target := arguments.get("target"):
        return roll_all(context, BrokerMode(target), step)
    view = context.observer.observe(_ACTIVE)
    row = postponing(kind, arguments)
    nodes = [node for node in context.spec.nodes() if row is not None and node.role is row.each]
    nodes.sort(key=lambda node: bool(_ACTIVE_LAST[kind](view, node.id)))
    return [run_step(step(node), context) for node in nodes][-1]


def step_on(context: StepContext, kind: str, arguments: Arguments, node: NodeSpec | None) -> Step:
    """The step, on this node if one is given."""
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
