"""A rollback's plan in words, from one look: what a person reads before saying yes. What each step does is decided in `rollback`."""

from __future__ import annotations

from airflow_provider_kmigrate.core.back import gates as back_gates
from airflow_provider_kmigrate.core.back import losses
from airflow_provider_kmigrate.core.files import directories
from airflow_provider_kmigrate.core.listing import join_ids
from airflow_provider_kmigrate.core.metadata import kinds
from airflow_provider_kmigrate.core.model import BrokerMode, ClusterView, Controller, ProcessState, Reason
from airflow_provider_kmigrate.core.phase import kraft_owns

_HEALED = "`heal` has a new leader write ZooKeeper anew, and goes on once both are the same; without a failover nobody does, and it is lost."


NOTHING = Reason(
    "P13",
    "Nothing has to be taken back: the cluster shows no trace of a migration.",
)


def plan(view: ClusterView) -> tuple[str, ...]:
    """What a rollback would do now, step by step, in words; empty where there is nothing to take back."""
    kraft, plain = back_gates.with_mode(view, BrokerMode.KRAFT), back_gates.with_mode(view, BrokerMode.ZOOKEEPER)
    owned = kraft_owns(view)
    silent = sorted(b.id for b in view.brokers.values() if b.mode is None)
    up = sorted(c.id for c in view.controllers.values() if c.answers or c.process.state is not ProcessState.STOPPED)
    unflagged = sorted(c.id for c in view.controllers.values() if c.migration_flag is False) if owned else []
    used = [c for _, c in sorted(view.controllers.items()) if not back_gates.empty(c) or c.files.meta is None]
    steps = (
        (unflagged, f"restart controllers {join_ids(unflagged)} with the migration flag"),
        (owned, "restart the active controller once, so that its successor writes ZooKeeper anew"),
        (kraft or (owned and plain), f"restart brokers {join_ids(sorted(kraft + plain if owned else kraft))} in migration mode"),
        (up, f"stop controllers {join_ids(up)}, the active one last"),
        (owned or back_gates.migration_left(view), f"hand the cluster over to ZooKeeper: {_transaction(view)}"),
        (
            not owned and not back_gates.states_in_reach(view).met,
            f"have a controller elected that can move every leader: {_transaction(view)}",
        ),
        (used, f"set the directories of controllers aside: {'; '.join(map(_wiped, used))}"),
        (len(plain) < len(view.brokers), f"restart brokers {join_ids(_not_plain(view, owned))} with their original files"),
    )
    told = tuple(text for needed, text in steps if needed)
    return (
        (*told, f"brokers that do not answer now are waited for, or started again: {join_ids(silent)}")
        if told and silent
        else told
    )


def kept(view: ClusterView) -> tuple[str, ...]:
    """What of the time since the takeover stays after a rollback, and what does not, in words; needs a view of all kinds of metadata."""
    if not losses.holds_more(view):
        return (f"Kept: everything. {losses.taken_nothing(view)}",)
    unread, lacking = kinds.unread_kinds(view), kinds.found(view)
    compared = f" Seen now: {kinds.same(view)}" if not unread and not lacking else ""
    both = "topics, settings, quotas, credentials and rules that were made or changed since the takeover"
    features = f"its features (metadata.version {view.metadata_version or 'unknown'})"
    return (
        f"Kept: all records and committed offsets; {both}, as far as ZooKeeper holds them.{compared}",
        *(f"Not known to be kept: {reason.text}" for reason in unread),
        *(f"Differs now: {reason.text} {_HEALED}" for reason in lacking),
        f"Lost: what KRaft alone has: {features}{_metrics(view)}. The controllers' log is set aside, not deleted.",
    )


def _metrics(view: ClusterView) -> str:
    if view.client_metrics is None:
        return ", and client-metrics subscriptions, which could not be read"
    return f", and the client-metrics subscriptions {', '.join(view.client_metrics)}" if view.client_metrics else ""


def _wiped(controller: Controller) -> str:
    return f"{', '.join(directories.in_use(controller)) or 'not read yet'} of {controller.id}"


def _transaction(view: ClusterView) -> str:
    gone = [*(["/migration"] if back_gates.migration_left(view) else []), "/controller"]
    if not kraft_owns(view) and back_gates.states_in_reach(view).met:
        return "delete /migration"
    return f"raise /controller_epoch, delete {' and '.join(gone)}, in one transaction"


def _not_plain(view: ClusterView, owned: bool) -> list[int]:
    return sorted(b.id for b in view.brokers.values() if owned or b.mode is not BrokerMode.ZOOKEEPER)
