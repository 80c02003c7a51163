"""The order of the way back, once: what the DAG's tasks are made in, and what runs it in one task. Why it is so says `core.back.rollback`."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_kmigrate.core.cluster import Role
from airflow_provider_kmigrate.core.model import BrokerMode


@dataclass(frozen=True, slots=True)
class Leg:
    """One kind of step (a name of `steps.catalog`), in a group of tasks; `each`: of which nodes there is one, None: of the whole cluster.

    `target`: the mode that brokers are brought into. `rest`: some have their turn at the end, after all others. `heals`: left out where the
    controllers are not to be failed over.
    """

    group: str
    kind: str
    each: Role | None = None
    target: BrokerMode | None = None
    rest: bool = False
    heals: bool = False


WAY_BACK = (
    Leg("heal", "restore flag", Role.CONTROLLER, heals=True),
    Leg("heal", "reconcile", heals=True),
    Leg("heal", "healed"),
    # Nothing is waited for behind it: where ZooKeeper owns the cluster, a broker that fails in migration mode may be why one goes back.
    Leg("to_migration", "back", Role.BROKER, BrokerMode.MIGRATION),
    Leg("stop_controllers", "stop controller", Role.CONTROLLER, rest=True),
    Leg("hand_over", "give back"),
    Leg("hand_over", "zookeeper leads"),
    Leg(
        "wipe", "wipe", Role.CONTROLLER
    ),  # before any broker forgets them: with all registered, one that starts takes over at once
    Leg("to_zookeeper", "back", Role.BROKER, BrokerMode.ZOOKEEPER, rest=True),
    Leg("to_zookeeper", "leaders"),
    Leg("to_zookeeper", "registered"),
    Leg("", "rolled back"),
)
