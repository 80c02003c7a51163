"""Every step by name and plain arguments, so that a trigger in another process can make the same step again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_kmigrate.core.back.losses import Terms, misstated
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec, Role
from airflow_provider_kmigrate.core.coordination.group_seen import MemberKind
from airflow_provider_kmigrate.core.coordination.registration import Mode
from airflow_provider_kmigrate.core.forward.waiting import COPIED
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.core.phase import Phase
from airflow_provider_kmigrate.core.progress import FRESH, StepProgress
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.brokers import BringBack, RollBroker
from airflow_provider_kmigrate.steps.controllers import FinalizeController, ProvisionController
from airflow_provider_kmigrate.steps.groups import CleanUp, GroupBack, GroupWatched, SetMode, SwitchInstance
from airflow_provider_kmigrate.steps.rollback import (
    GiveBack,
    Healed,
    Reconcile,
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


def build(spec: ClusterSpec, kind: str, arguments: Arguments, progress: StepProgress = FRESH) -> Step:
    """Build the step `kind` for this cluster; `arguments` hold JSON values, `progress` what earlier lives of the step have learned.

    Raises KeyError for a name that is not in `STEPS`.
    """
    return STEPS[kind](spec, arguments).resume(progress)


def _roll(spec: ClusterSpec, arguments: Arguments) -> Step:
    node = spec.node(Role.BROKER, arguments["node"])
    return RollBroker(node, BrokerMode(arguments["target"]), spec.policy)


def _provision(spec: ClusterSpec, arguments: Arguments) -> Step:
    return ProvisionController(spec.node(Role.CONTROLLER, arguments["node"]), spec.cluster_id)


def _back(spec: ClusterSpec, arguments: Arguments) -> Step:
    node = spec.node(Role.BROKER, arguments["node"])
    return BringBack(node, BrokerMode(arguments["target"]), spec.policy)


def _of_controller(step: Callable[[NodeSpec], Step]) -> Callable[[ClusterSpec, Arguments], Step]:
    return lambda spec, arguments: step(spec.node(Role.CONTROLLER, arguments["node"]))


def terms_of(spec: ClusterSpec, arguments: Arguments) -> Terms:
    """On what terms a way back goes: `skip_failover`, and `accept_loss`, which names the cluster id.

    Raises `Refused` (G35) where `accept_loss` would not be followed as it stands.
    """
    failover, accepted = not arguments.get("skip_failover"), arguments.get("accept_loss") or ""
    if (wrong := misstated(accepted, spec.cluster_id, failover=failover)) is not None:
        raise Refused.because(wrong)
    return Terms(failover, lossy=bool(accepted))


def asked_by(spec: ClusterSpec, terms: Terms) -> dict[str, Any]:
    """The arguments that state these terms, as a run's conf does: what `terms_of` reads."""
    return {"skip_failover": not terms.failover, "accept_loss": spec.cluster_id if terms.lossy else ""}


def _stop_controller(spec: ClusterSpec, arguments: Arguments) -> Step:
    return StopController(spec.node(Role.CONTROLLER, arguments["node"]), spec.controllers, terms_of(spec, arguments))


def _registered(spec: ClusterSpec, arguments: Arguments) -> Step:
    del arguments
    return BrokersRegistered([node.id for node in spec.brokers])


def _phase(spec: ClusterSpec, arguments: Arguments) -> Step:
    del spec
    return PhaseReached([Phase(phase) for phase in arguments.get("phases", COPIED)], arguments.get("patience", 600.0))


def _lag(spec: ClusterSpec, arguments: Arguments) -> Step:
    return LagSmall(arguments.get("limit", 10), spec.policy.copy_timeout)


def _leaders(spec: ClusterSpec, arguments: Arguments) -> Step:
    del arguments
    # Small batches pay only where followers come back quickly (measured); otherwise they multiply the stall.
    return PreferredLeaders(spec.policy.elect_batch if spec.policy.fast_failover else 1_000_000)


def _soak(spec: ClusterSpec, arguments: Arguments) -> Step:
    return Soak(arguments.get("seconds", spec.policy.min_soak))


def _switch(spec: ClusterSpec, arguments: Arguments) -> Step:
    group = spec.group(arguments["group"])
    bake = group.bake if arguments.get("bake") else 0.0
    return SwitchInstance(group, arguments["instance"], MemberKind(arguments["target"]), bake=bake)


def _watch_group(spec: ClusterSpec, arguments: Arguments) -> Step:
    group = spec.group(arguments["group"])
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
        spec.node(Role.CONTROLLER, arguments["node"]), arguments.get("approved") or ""
    ),
    "finalized": lambda _spec, _arguments: Finalized(),
    "restore flag": _of_controller(RestoreFlag),
    "reconcile": lambda spec, _arguments: Reconcile(spec.controllers),
    "back": _back,
    "healed": lambda spec, arguments: Healed(spec.policy.copy_timeout, terms_of(spec, arguments)),
    "stop controller": _stop_controller,
    "give back": lambda spec, arguments: GiveBack(spec.controllers, terms_of(spec, arguments)),
    "zookeeper leads": lambda _spec, _arguments: ZooKeeperLeads(),
    "wipe": _of_controller(WipeController),
    "rolled back": lambda _spec, _arguments: RolledBack(),
    "switch": _switch,
    "mode": lambda spec, arguments: SetMode(spec.group(arguments["group"]), Mode(arguments["mode"])),
    "watch group": _watch_group,
    "group back": lambda spec, arguments: GroupBack(spec.group(arguments["group"]), Goal(arguments["goal"])),
    "clean up": lambda spec, arguments: CleanUp(spec.group(arguments["group"])),
}
