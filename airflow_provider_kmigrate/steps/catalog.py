"""Every step by name and plain arguments, so that a trigger in another process can build the same step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from airflow_provider_kmigrate.core.cluster import ClusterSpec, GroupSpec, NodeSpec, Role
from airflow_provider_kmigrate.core.coordination.group_seen import MemberKind
from airflow_provider_kmigrate.core.coordination.registration import Mode
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.migration.waits import COPIED
from airflow_provider_kmigrate.core.model import BrokerMode, Reason
from airflow_provider_kmigrate.core.phase import Phase
from airflow_provider_kmigrate.core.progress import FRESH, StepProgress
from airflow_provider_kmigrate.core.rollback.conditions import RollbackTerms, terms_error
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.brokers import RollBackBroker, RollBroker
from airflow_provider_kmigrate.steps.controllers import FinalizeController, ProvisionController
from airflow_provider_kmigrate.steps.groups import CleanUp, GroupWatched, RollBackGroup, SetMode, SwitchInstance
from airflow_provider_kmigrate.steps.rollback import (
    ControllerFailover,
    EqualAfterFailover,
    HandOver,
    RestoreFlag,
    RolledBack,
    StopController,
    WipeController,
    ZooKeeperLeads,
)
from airflow_provider_kmigrate.steps.run import Step
from airflow_provider_kmigrate.steps.waits import (
    BrokersRegistered,
    ControllersReady,
    Copied,
    Equivalent,
    Finalized,
    LagSmall,
    PhaseReached,
    PreferredLeaders,
    Soak,
)

Arguments = Mapping[str, Any]
Found = TypeVar("Found")
Choice = TypeVar("Choice", bound=StrEnum)
OBSERVING = frozenset({"controllers ready", "registered", "phase", "lag", "equivalent"})
"""Steps that only observe; a sensor may run them without holding the fence."""


def build(spec: ClusterSpec, kind: str, arguments: Arguments, progress: StepProgress = FRESH) -> Step:
    """Build the step `kind` for this cluster. `arguments`: JSON values; `progress`: what earlier runs of the step stored.

    Raises KeyError for a name that is not in `STEPS`.
    """
    return STEPS[kind](spec, arguments).resume(progress)


def node_of(spec: ClusterSpec, role: Role, asked: object) -> NodeSpec:
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


def _roll(spec: ClusterSpec, arguments: Arguments) -> Step:
    node = node_of(spec, Role.BROKER, arguments.get("node"))
    return RollBroker(node, one_of(BrokerMode, "target", arguments.get("target")), spec.policy)


def _provision(spec: ClusterSpec, arguments: Arguments) -> Step:
    return ProvisionController(node_of(spec, Role.CONTROLLER, arguments.get("node")), spec.cluster_id)


def _back(spec: ClusterSpec, arguments: Arguments) -> Step:
    node = node_of(spec, Role.BROKER, arguments.get("node"))
    return RollBackBroker(node, one_of(BrokerMode, "target", arguments.get("target")), spec.policy)


def _of_controller(step: Callable[[NodeSpec], Step]) -> Callable[[ClusterSpec, Arguments], Step]:
    return lambda spec, arguments: step(node_of(spec, Role.CONTROLLER, arguments.get("node")))


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


def _stop_controller(spec: ClusterSpec, arguments: Arguments) -> Step:
    node = node_of(spec, Role.CONTROLLER, arguments.get("node"))
    return StopController(node, spec.controllers, terms_of(spec, arguments))


def _registered(spec: ClusterSpec, arguments: Arguments) -> Step:
    del arguments
    return BrokersRegistered([node.id for node in spec.brokers])


def _phase(spec: ClusterSpec, arguments: Arguments) -> Step:
    del spec
    return PhaseReached(
        [one_of(Phase, "phases", phase) for phase in arguments.get("phases", COPIED)], arguments.get("patience", 600.0)
    )


def _lag(spec: ClusterSpec, arguments: Arguments) -> Step:
    return LagSmall(_whole("limit", arguments.get("limit", 10)), spec.policy.copy_timeout)


def _leaders(spec: ClusterSpec, arguments: Arguments) -> Step:
    del arguments
    # Small batches pay only if followers come back quickly (measured); otherwise they multiply the stall.
    return PreferredLeaders(spec.policy.elect_batch if spec.policy.fast_failover else 1_000_000)


def _soak(spec: ClusterSpec, arguments: Arguments) -> Step:
    return Soak(arguments.get("seconds", spec.policy.min_soak))


def _switch(spec: ClusterSpec, arguments: Arguments) -> Step:
    group = group_of(spec, arguments.get("group"))
    instance = instance_of(group, arguments.get("instance"))
    bake = group.bake if arguments.get("bake") else 0.0
    return SwitchInstance(group, instance, one_of(MemberKind, "target", arguments.get("target")), bake=bake)


def _watch_group(spec: ClusterSpec, arguments: Arguments) -> Step:
    group = group_of(spec, arguments.get("group"))
    return GroupWatched(group, group.bake)


STEPS: Mapping[str, Callable[[ClusterSpec, Arguments], Step]] = {
    "provision": _provision,
    "controllers ready": lambda _spec, _arguments: ControllersReady(),
    "roll": _roll,
    "registered": _registered,
    "phase": _phase,
    "copied": lambda spec, _arguments: Copied(spec.policy.copy_timeout),
    "lag": _lag,
    "equivalent": lambda spec, _arguments: Equivalent(spec.policy.copy_timeout),
    "leaders": _leaders,
    "soak": _soak,
    "finalize": lambda spec, arguments: FinalizeController(
        node_of(spec, Role.CONTROLLER, arguments.get("node")), arguments.get("approved") or ""
    ),
    "finalized": lambda _spec, _arguments: Finalized(),
    "restore flag": _of_controller(RestoreFlag),
    "reconcile": lambda spec, _arguments: ControllerFailover(spec.controllers),
    "back": _back,
    "healed": lambda spec, arguments: EqualAfterFailover(spec.policy.copy_timeout, terms_of(spec, arguments)),
    "stop controller": _stop_controller,
    "give back": lambda spec, arguments: HandOver(spec.controllers, terms_of(spec, arguments)),
    "zookeeper leads": lambda _spec, _arguments: ZooKeeperLeads(),
    "wipe": _of_controller(WipeController),
    "rolled back": lambda _spec, _arguments: RolledBack(),
    "switch": _switch,
    "mode": lambda spec, arguments: SetMode(group_of(spec, arguments.get("group")), one_of(Mode, "mode", arguments.get("mode"))),
    "watch group": _watch_group,
    "group back": lambda spec, arguments: RollBackGroup(
        group_of(spec, arguments.get("group")), one_of(Goal, "goal", arguments.get("goal"))
    ),
    "clean up": lambda spec, arguments: CleanUp(group_of(spec, arguments.get("group"))),
}
