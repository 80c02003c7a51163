"""The order of the way forward, once; without what only looks before it (preflight, backup), and the approval in it."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster import Role
from airflow_provider_kmigrate.core.legs import Leg
from airflow_provider_kmigrate.core.model import BrokerMode

WAY_FORWARD = (
    Leg("controllers", "provision", Role.CONTROLLER),
    Leg("controllers", "controllers ready"),
    Leg("first_roll", "roll", Role.BROKER, BrokerMode.MIGRATION, rest=True),
    Leg("first_roll", "leaders"),
    Leg("first_roll", "registered"),
    Leg("copy", "copied"),
    Leg("copy", "phase"),
    Leg("copy", "lag"),
    Leg("copy", "equivalent"),
    Leg("second_roll", "roll", Role.BROKER, BrokerMode.KRAFT, rest=True),
    Leg("second_roll", "leaders"),
    Leg("second_roll", "registered"),
    Leg("", "soak"),
    Leg("before_approval", "lag"),
    Leg("before_approval", "equivalent"),
    Leg("finalize", "finalize", Role.CONTROLLER, rest=True),
    Leg("finalize", "finalized"),
)
