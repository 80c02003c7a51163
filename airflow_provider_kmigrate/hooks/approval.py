"""What an approval is bound to and where it is kept: evidence in XCom, the cluster's fingerprint, the journal, the record of the lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.core.approval import Approval, Shown, digest, fingerprint, from_json, still_holds
from airflow_provider_kmigrate.core.gates import not_yet_if
from airflow_provider_kmigrate.core.migration.waits import is_over
from airflow_provider_kmigrate.core.model import Fields, Reason, could_not_read
from airflow_provider_kmigrate.hooks.step_context import asking, open_journal, opener, run_of
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.run import require_gate


def shown_now(
    cluster_file: str, context: Context, say: Callable[[str], None], evidence: Sequence[str], *, over_waiting: bool
) -> Shown:
    """What an approval is bound to now. `evidence`: tasks of this run that returned it; `over_waiting`: as in `finished_of`.

    Raises `Fenced` if another run holds the cluster by now: an answer to this one would be too late. Raises `Unavailable` if ZooKeeper is
    not read: an approval that is bound to no migration would hold for each.
    """
    cluster = ""
    if cluster_file:
        with asking(cluster_file, context, say, over_waiting=over_waiting) as step_context:
            cluster = fingerprint(step_context.observer.observe(Fields.POSITION), step_context.spec.cluster_id)
        require_gate(not_yet_if(not cluster, could_not_read("ZooKeeper, which shows to which migration an approval belongs")))
    return Shown(run_of(context), cluster, _evidence(context, evidence))


def is_finalized(cluster_file: str, context: Context, say: Callable[[str], None]) -> bool:
    """Whether the migration is finalized, so that nothing is left to approve. Raises as `shown_now`."""
    with asking(cluster_file, context, say, over_waiting=False) as step_context:
        return is_over(step_context.observer.observe(Fields.POSITION), step_context.spec)


def _evidence(context: Context, tasks: Sequence[str]) -> dict[str, str]:
    """The digest of what each of these tasks of the run returned."""
    ti: Any = context["ti"]
    return {task: digest(ti.xcom_pull(task_ids=task)) for task in tasks}


def note_approval(cluster_file: str, context: Context, kind: str, text: str, **facts: object) -> None:
    """Write who answered what, when and why into the journal of the run."""
    open_journal(load(cluster_file), run_of(context)).write(kind, context["ti"].task_id, text, **facts)


def hand_over(cluster_file: str, context: Context, run: str, approval: Approval) -> None:
    """Hand the cluster over to another run, with the approval by which it acts; nothing to do if that run owns it already."""
    spec = load(cluster_file)
    with opener.get()(spec) as access:
        fence = Fence(access.tools.zk, spec.cluster_id, run_of(context))
        held = fence.holder()
        if held is None or held.owner != run:
            with fence:
                fence.hand_over(run, approval.to_json())
            open_journal(spec, run_of(context)).write("handed over", "lock", f"Run {run} owns the cluster now. {approval}")


def handed_over(cluster_file: str, context: Context) -> Approval | None:
    """The approval with which another run handed the cluster over to this one; None if none did."""
    spec = load(cluster_file)
    with opener.get()(spec) as access:
        held = Fence(access.tools.zk, spec.cluster_id, run_of(context)).holder()
    return from_json(held.approved) if held and held.owner == run_of(context) else None


def approval_of(context: Context, task: str) -> Approval | None:
    """The approval that `task` of this run left; None if it left none, as one that was skipped or marked as success."""
    answer = context["ti"].xcom_pull(task_ids=task)
    return from_json(answer.get("approval")) if isinstance(answer, dict) else None


def demand_answer(context: Context, task: str, wanted: str) -> Approval:
    """The approval that `task` of this run left. Raises (H06) unless its answer is `wanted`, for this run and what was shown with it."""
    found = approval_of(context, task)
    if found is None or {answer.option for answer in found.answers} != {wanted}:
        raise AirflowFailException(
            format_reasons((Reason("H06", f"Task {task!r} of this run left no approval to {wanted.lower()}."),))
        )
    shown = Shown(run_of(context), found.shown.cluster, _evidence(context, tuple(found.shown.evidence)))
    gate = still_holds(found, shown, None, datetime.now(UTC))
    if not gate.met:
        raise AirflowFailException(format_reasons(gate.reasons))
    return found
