"""Tasks that run beside a run's steps, as long as the run has any to do, and never act on the cluster: when they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.model import Reason

AUDIT_SESSION, PROBE = "audit_session", "probe"
AUDIT_SESSION_ENDED, PROBE_ENDED = "audit_session_ended", "probe_ended"
"""Behind each of the two, whatever becomes of it, so that the run's outcome does not depend on it."""
BESIDE: Final = frozenset({AUDIT_SESSION, AUDIT_SESSION_ENDED, PROBE, PROBE_ENDED})
OVER: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
_FAILED: Final = OVER - {"success"}
_WAITING: Final = frozenset({"scheduled", "queued"})


def is_run_over(states: Mapping[str, str | None]) -> bool:
    """Whether none of these tasks is left to do. `states`: of all but those beside the steps; a task without a state is to come."""
    return all(state in OVER for state in states.values())


def waits_for_worker(states: Mapping[str, str | None]) -> bool:
    """Whether tasks of the run wait for a slot and none runs: a task beside them may hold the only one that there is."""
    return bool(_WAITING.intersection(states.values())) and "running" not in states.values()


def probe_holds_only_slot_reason(seconds: float) -> Reason:
    """Y09: the probe's task ended, so that the others can run."""
    text = f"Tasks of this run have waited {seconds:.0f} s for a slot of a worker, and none runs: the probe's task holds the only slot, and ends now. "
    return Reason("Y09", f"{text}The run needs at least two slots, or `probe: false` under `audit`.")


def find_no_flow_reason(probe_state: str | None, waited: float, patience: float) -> Reason | None:
    """Y09: why no record of the probe can be waited for any longer; None: it may still begin.

    `probe_state`: of the probe's task, None if it has none or Airflow does not answer; `waited` and `patience`: seconds.
    """
    if probe_state in _FAILED:
        return Reason("Y09", f"The task `{PROBE}` is {probe_state}: its log says why. No record of the probe arrives.")
    if waited < patience:
        return None
    if probe_state in _WAITING:
        return Reason(
            "Y09",
            f"The task `{PROBE}` is {probe_state} for {waited:.0f} s: no worker has a free slot for it. It needs one beside the steps, for the whole run.",
        )
    return Reason(
        "Y09", f"The task `{PROBE}` is {probe_state or 'without a state'}, and its files show nothing new for {waited:.0f} s."
    )
