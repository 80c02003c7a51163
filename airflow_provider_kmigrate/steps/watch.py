"""One look at a migration that no task looks at: while its run is red, waits for a person, or has been left."""

from __future__ import annotations

from airflow_provider_kmigrate.core.decision import Done
from airflow_provider_kmigrate.core.forward import watch
from airflow_provider_kmigrate.core.model import Fields
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.lacking import rollback_prerequisites
from airflow_provider_kmigrate.steps.run import StepContext


def run_watch(world: StepContext) -> Done:
    """Say where the cluster stands; changes nothing.

    Raises `Refused` for what a person must hear of at once: an alarm, a hybrid that lasts too long, a way back that is lost (backup, commands).
    Raises `Unavailable` where nodes of a migration under way do not answer, or kmigrate's own finalization has only begun: look again.
    """
    view, now = world.observer.look(Fields.POSITION), world.clock.now()
    lost = rollback_prerequisites(world.spec, world.backup, world.spec.brokers) if watch.needs_way_back(view) else ()
    reasons = (*watch.at_once(view, world.spec.policy.max_hybrid, now), *lost)
    stands = watch.stands(view, now)
    world.say(stands)
    if reasons:
        world.journal.write("alarm", "watch", format_reasons(reasons))
        raise Refused(f"watch: {stands} {format_reasons(reasons)}", reasons)
    if silent := watch.if_it_stays(view):
        raise Unavailable(f"watch: {stands} {format_reasons(silent)}")
    return Done(stands)
