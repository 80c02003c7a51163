"""Steps that move a simulated group, and runs of them."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.steps.groups import CleanUp, SetMode, SwitchInstance
from airflow_provider_kmigrate.steps.run import Step, StepContext, run_step
from tests.steps.sim_group import MIGRATING, PLAIN, SimGroup

Steps = list[Callable[[], Step]]


def forward(group: SimGroup) -> Steps:
    """The whole way, as the DAG has it."""
    spec, names = group.spec, list(group.instances)
    to_migrating: Steps = [lambda name=name: SwitchInstance(spec, name, MIGRATING) for name in names]  # type: ignore[misc]
    to_plain: Steps = [lambda name=name: SwitchInstance(spec, name, PLAIN) for name in names]  # type: ignore[misc]
    return [*to_migrating, lambda: SetMode(spec, Mode.KAFKA), *to_plain, lambda: CleanUp(spec)]


def run(context: StepContext, steps: Steps) -> None:
    for step in steps:
        run_step(step(), context)


def gone(group: SimGroup, far: int) -> SimGroup:
    """After the first `far` steps of the way."""
    run(group.context(), forward(group)[:far])
    return group
