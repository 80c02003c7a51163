"""What binds a run to the plan that it began with: each later act compares what decides it with what that plan was made of.

What a difference does depends on the run. A run that goes on into new states (a migration, an expansion, groups that leave ZooKeeper) is refused
if it was bound to a plan. A rollback names the difference and goes on: it is what the operator needs when something has changed, its steps
restore originals by their hash and judge the cluster themselves, and its approval holds the terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.decision import Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.migration.plan_document import (
    NOT_READ,
    describe_changed_inputs,
    hash_values,
    list_changed_inputs,
)
from airflow_provider_kmigrate.core.shared.text import join_ids, printable, summarize

_NAMES: Final = 2_000  # characters of the changed inputs in one sentence


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """`reviewed`: the fingerprint that the run's conf names; empty: none. `inputs`: what the run's first task read, by name.

    The fingerprint is in the conf of the run, `inputs` in an XCom. Inputs that do not have the fingerprint were altered, and
    explain nothing.
    """

    reviewed: str
    inputs: Mapping[str, str]


def parse_bound_plan(reviewed: object, stored: object) -> BoundPlan | None:
    """The plan of a run, of its conf and of what its first task stored: `{"fingerprint", "inputs"}`. None if there is neither.

    `stored` is an XCom: whatever has another form counts as not stored.
    """
    inputs = stored.get("inputs") if isinstance(stored, Mapping) else None
    is_whole = isinstance(inputs, Mapping) and all(isinstance(text, str) for pair in inputs.items() for text in pair)
    bound = BoundPlan(str(reviewed or ""), dict(inputs) if is_whole and inputs else {})
    return bound if bound.reviewed or bound.inputs else None


def describe_drift_since(bound: BoundPlan, now: Mapping[str, str]) -> tuple[str, ...]:
    """What has changed since the run's first task, one sentence each; empty: nothing, or the plan that was reviewed."""
    fingerprint = hash_values(now)
    if bound.reviewed == fingerprint:
        return ()
    if bound.reviewed in ("", hash_values(bound.inputs)):
        return tuple(map(printable, describe_changed_inputs(bound.inputs, now)))
    return ("What has changed is not known: the first task of this run stored no inputs with the reviewed fingerprint.",)


def judge_drift(
    bound: BoundPlan, now: Mapping[str, str], *, is_node_stopped: bool, is_rollback: bool = False
) -> Refuse | Wait | None:
    """Whether a run that was bound to a plan may act; None: it may, as a rollback always may.

    `Wait` if inputs that were read then are not read now, and nothing else has changed. `is_node_stopped`: the node of the act is
    down, so an earlier try may have stopped it. It is started again whatever has changed: a broker that stays down is the greater harm.
    """
    drift = describe_drift_since(bound, now) if bound.reviewed else ()
    if not drift or is_node_stopped or is_rollback:
        return None
    changed = list_changed_inputs(bound.inputs, now) if hash_values(bound.inputs) == bound.reviewed else []
    if unread := [name for name in changed if now.get(name) == NOT_READ]:
        if len(unread) == len(changed):
            text = f"The run is bound to plan {bound.reviewed[:40]}, and what it rests on was not read: {join_ids(unread)}."
            return Wait((Reason("H16", printable(text)),))
        drift = describe_changed_inputs(
            bound.inputs, {**now, **{name: bound.inputs[name] for name in unread if name in bound.inputs}}
        )
    text = f"Since plan {printable(bound.reviewed)[:40]} was reviewed: {summarize(map(printable, drift), _NAMES)}"
    return Refuse((Reason("H16", text),))
