"""What an approval is bound to and where it is kept: evidence in XCom, the cluster's fingerprint, the journal, the record beside the fence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.clients.journal_heads import JournalHead
from airflow_provider_kmigrate.clients.records import Records
from airflow_provider_kmigrate.core.approval import GIVEN, Approval, Shown, digest, fingerprint, is_as_given
from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.core.gates import not_yet_if
from airflow_provider_kmigrate.core.migration.waits import is_over
from airflow_provider_kmigrate.core.model import Fields, Reason, could_not_read
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, Refused
from airflow_provider_kmigrate.hooks.step_context import (
    JUDGED_AT,
    RESTS_ON,
    Access,
    asking,
    finished_of,
    open_journal,
    opener,
    run_of,
)
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.run import require_gate

_CONF: Final = "the run's conf"


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
    """The digest of what each of these tasks of the run left for a gate, and of the run's conf, which has the terms of a rollback."""
    ti: Any = context["ti"]
    left = {task: [ti.xcom_pull(task_ids=task), *(ti.xcom_pull(task_ids=task, key=key) for key in _LEFT)] for task in tasks}
    conf = json.dumps(context["dag_run"].conf or {}, sort_keys=True, default=str)
    return {task: digest(json.dumps(found, sort_keys=True, default=str)) for task, found in left.items()} | {_CONF: digest(conf)}


_LEFT = (RESTS_ON, JUDGED_AT)


def requester_of(context: Context) -> str | None:
    """The user who started this run; empty: nobody did, None: Airflow does not say."""
    run = context["dag_run"]
    return run.triggering_user_name or ("" if run.run_type == "scheduled" else None)


def note_approval(cluster_file: str, context: Context, kind: str, text: str, **facts: object) -> None:
    """Write who answered what, when and why into the journal of the run."""
    open_journal(load(cluster_file), run_of(context)).write(kind, context["ti"].task_id, text, **facts)


@contextmanager
def _records(cluster_file: str) -> Iterator[tuple[ClusterSpec, Access, Records]]:
    spec = load(cluster_file)
    with opener.get()(spec) as access:
        yield spec, access, Records(access.tools.zk, spec.cluster_id, access.tools.signing_key)


def keep_approval(cluster_file: str, context: Context, given: Approval, *, over_waiting: bool) -> None:
    """Write the record of an approval, as it is now. Raises `Fenced` if another run holds the cluster."""
    with _records(cluster_file) as (spec, access, records):
        fence = Fence(access.tools.zk, spec.cluster_id, run_of(context), finished=finished_of(context, over_waiting=over_waiting))
        fence.join()
        records.write(given, JournalHead(run_of(context), *open_journal(spec, run_of(context)).link()), fence)


def kept_approval(cluster_file: str, context: Context, task: str) -> Approval | None:
    """What the request of a task of this run has recorded; None: nothing. Raises `Refused` (H13) if its record is not believed."""
    with _records(cluster_file) as (_, _, records):
        return records.approval(run_of(context), task)


def hand_over(cluster_file: str, context: Context, run: str, approval: Approval) -> None:
    """Hand the cluster over to another run, with the approval by which it acts; nothing to do if that run owns it already."""
    with _records(cluster_file) as (spec, access, records):
        fence = Fence(access.tools.zk, spec.cluster_id, run_of(context))
        held = fence.holder()
        if held is None or held.owner != run:
            with fence:
                fence.hand_over(run, records.to_hand_over(approval, run))
            open_journal(spec, run_of(context)).write("handed over", "lock", f"Run {run} owns the cluster now. {approval}")


def handed_over(cluster_file: str, context: Context) -> Approval | None:
    """The approval with which another run handed the cluster over to this one; None if none did.

    Raises `Refused` (H13) if it is not believed: here also if any client of ZooKeeper could have written it.
    """
    with _records(cluster_file) as (_, _, records):
        return records.handed_over(run_of(context))


def approval_of(cluster_file: str, context: Context, task: str) -> Approval | None:
    """The approval that `task` of this run was given; None: none, as if it was skipped or marked as success."""
    return _given(kept_approval(cluster_file, context, task))


def _given(found: Approval | None) -> Approval | None:
    return found if found and found.status == GIVEN else None


def demand_answer(cluster_file: str, context: Context, task: str, wanted: str) -> Approval:
    """The approval that `task` of this run was given. Fails (H06, H13) unless its answer is `wanted`, for this run and what was shown with it.

    Raises `Unavailable` if ZooKeeper does not answer: a retry may read it.
    """
    try:
        with _records(cluster_file) as (spec, _, records):
            found = _given(records.approval(run_of(context), task))
    except (Refused, AuthenticationFailed, Failed) as error:
        raise AirflowFailException(str(error)) from None
    if found is None or {answer.option for answer in found.answers} != {wanted}:
        text = f"Task {task!r} of this run was given no approval to {wanted.lower()}."
        raise AirflowFailException(format_reasons((Reason("H06", text),)))
    evidence = _evidence(context, [task for task in found.shown.evidence if task != _CONF])
    shown = Shown(run_of(context), found.shown.cluster, evidence)
    gate = is_as_given(found, shown, datetime.now(UTC), rehearsal=spec.rehearsal)
    if not gate.met:
        raise AirflowFailException(format_reasons(gate.reasons))
    return found
