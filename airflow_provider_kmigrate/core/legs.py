"""What the order of a way is made of, forward and back: a DAG's tasks are held to it, and it is what runs a way in one task."""

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
