"""The order of the way back, once: what the DAG's tasks are made in, and what runs it in one task. Why it is so says `core.back.rollback`."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster import Role
from airflow_provider_kmigrate.core.legs import Leg
from airflow_provider_kmigrate.core.model import BrokerMode

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
