"""What a look is for while no step makes one: a run that is red, or waits for a person, watches nothing, and time goes on all the same."""

from __future__ import annotations

from airflow_provider_kmigrate.core import gates
from airflow_provider_kmigrate.core.forward.hybrid import hybrid_overdue
from airflow_provider_kmigrate.core.model import BrokerMode, Cause, ClusterView, Migration, Reason
from airflow_provider_kmigrate.core.phase import Phase, alarms, ended, flags_taken_by_us, silence, where

_QUIET = frozenset({Phase.ZOOKEEPER, Phase.PRE_MIGRATION, Phase.FINALIZED})


def alarming(view: ClusterView, max_hybrid: float, now: float) -> tuple[Reason, ...]:
    """What a person must hear at once, whatever is under way: states that must never be, and a hybrid that lasts for too long (seconds)."""
    late = hybrid_overdue(view, max_hybrid, now)
    return (*alarms(view), *([late] if late else []))


def at_once(view: ClusterView, max_hybrid: float, now: float) -> tuple[Reason, ...]:
    """`alarming` for whoever does not know which step is under way: without the flags that kmigrate's own finalization takes."""
    own = flags_taken_by_us(view)
    return tuple(reason for reason in alarming(view, max_hybrid, now) if not (own and reason.cause is Cause.UNFLAGGED_CONTROLLER))


def if_it_stays(view: ClusterView) -> tuple[Reason, ...]:
    """What is a restart for a minute, and for longer is not: who does not answer in the middle of a migration, a finalization left half-way."""
    if where(view).phase in _QUIET:
        return ()
    flags = tuple(reason for reason in alarms(view) if reason.cause is Cause.UNFLAGGED_CONTROLLER and flags_taken_by_us(view))
    controllers = tuple(reason for reason in gates.all_flagged(view).reasons if reason.cause is Cause.CONTROLLER_UNRESPONSIVE)
    unknown = (*where(view).reasons, *view.unknowns) if where(view).phase is Phase.UNKNOWN else ()
    return (*silence(view), *controllers, *flags) or unknown


def needs_way_back(view: ClusterView) -> bool:
    """Whether brokers have moved and may still be taken back: then what the way back needs must be there."""
    return where(view).phase not in _QUIET and not ended(view)


def stands(view: ClusterView, now: float) -> str:
    """Where the cluster is, since when, and how far ZooKeeper is behind, in one sentence; `now` in seconds since the epoch."""
    modes = {mode: sum(broker.mode is mode for broker in view.brokers.values()) for mode in BrokerMode}
    counted = ", ".join(f"{count} in {mode} mode" for mode, count in modes.items() if count)
    migration = view.zk.migration if view.zk else None
    since = ""
    if needs_way_back(view) and isinstance(migration, Migration) and migration.created_at:
        lag = gates.dual_write_lag(view)
        behind = f"; ZooKeeper is {lag} records behind" if lag is not None else ""
        since = f", {(now - migration.created_at) / 3600:.1f} h after the controllers came{behind}"
    if ended(view) and where(view).phase is Phase.FINALIZING:
        since = ": a controller without the flag leads, so it is finalized and there is no way back (P12); finalize takes the flags that are left"
    return f"The cluster is in phase '{where(view).phase}'{since}. Brokers: {counted or 'none answers'}."
