"""The whole way back in one go, from wherever the cluster is: `core.back.sequence` leg by leg, as the DAG's tasks are."""

from __future__ import annotations

from airflow_provider_kmigrate.core.back.losses import SAFE, Terms
from airflow_provider_kmigrate.core.back.sequence import WAY_BACK
from airflow_provider_kmigrate.core.decision import Done
from airflow_provider_kmigrate.steps.legs import run_leg
from airflow_provider_kmigrate.steps.rollback import asked_by, run_plan
from airflow_provider_kmigrate.steps.run import World


def run_rollback(world: World, terms: Terms = SAFE) -> Done:
    """The whole way back in its order; raises as its steps do. Killed and run again it goes on; at its end it lets go of the cluster."""
    steps = run_plan(world)
    ends = [run_leg(world, leg, asked_by(world.spec, terms)) for leg in WAY_BACK if terms.failover or not leg.heals]
    world.fence.release()
    return Done(f"{getattr(ends[-1], 'text', '')} Steps taken: {len(steps)}.")
