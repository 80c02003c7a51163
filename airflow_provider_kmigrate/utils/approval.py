"""What an approval is bound to and where it is kept: evidence in XCom, the cluster's fingerprint, the journal, the record beside the fence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlparse

from airflow.sdk import Context

from airflow_provider_kmigrate.airflow_releases import AirflowFailException
from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.clients.journal_heads import JournalHead
from airflow_provider_kmigrate.clients.records import Records
from airflow_provider_kmigrate.core.cluster_state.model import Fields, Reason, could_not_read
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration.approval import GIVEN, Approval, Shown, approval_unchanged, fingerprint, hash_text
from airflow_provider_kmigrate.core.migration.gates import not_yet_if
from airflow_provider_kmigrate.core.migration.waits import is_migration_finalized
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, Refused
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.run import require_gate
from airflow_provider_kmigrate.utils.step_context import (
    FIGURES,
    JUDGED_AT,
    PLAN,
    RESTS_ON,
    OpenCluster,
    asking_context,
    dag_run_name,
    make_finished_check,
    open_journal,
    opener,
)

if TYPE_CHECKING:
    from airflow.providers.standard.operators.hitl import HITLOperator

_CONF: Final = "the run's conf"


def read_shown_state(
    cluster_file: str, context: Context, say: Callable[[str], None], evidence: Sequence[str], *, over_waiting: bool
) -> Shown:
    """What an approval is bound to now. `evidence`: tasks of this run that returned it; `over_waiting`: as in `make_finished_check`.

    Raises `Fenced` if another run holds the cluster by now: an answer to this one would be too late. Raises `Unavailable` if ZooKeeper is
    not read: an approval that is bound to no migration would hold for each.
    """
    cluster = ""
    if cluster_file:
        with asking_context(cluster_file, context, say, over_waiting=over_waiting) as step_context:
            cluster = fingerprint(step_context.observer.observe(Fields.POSITION), step_context.spec.cluster_id)
        require_gate(not_yet_if(not cluster, could_not_read("ZooKeeper, which shows to which migration an approval belongs")))
    return Shown(dag_run_name(context), cluster, _digest_evidence(context, evidence))


def is_finalized(cluster_file: str, context: Context, say: Callable[[str], None]) -> bool:
    """Whether the migration is finalized, so that nothing is left to approve. Raises as `read_shown_state`."""
    with asking_context(cluster_file, context, say, over_waiting=False) as step_context:
        return is_migration_finalized(step_context.observer.observe(Fields.POSITION), step_context.spec)


def _digest_evidence(context: Context, tasks: Sequence[str]) -> dict[str, str]:
    """The digest of what each of these tasks of the run left for a gate, and of the run's conf, which has the terms of a rollback."""
    ti: Any = context["ti"]
    task_results = {
        task: [ti.xcom_pull(task_ids=task), *(ti.xcom_pull(task_ids=task, key=key) for key in _LEFT)] for task in tasks
    }
    conf = json.dumps(context["dag_run"].conf or {}, sort_keys=True, default=str)
    return {task: hash_text(json.dumps(results, sort_keys=True, default=str)) for task, results in task_results.items()} | {
        _CONF: hash_text(conf)
    }


_LEFT = (RESTS_ON, JUDGED_AT, FIGURES)


def find_requester(context: Context) -> str | None:
    """The user who started this run; empty: no user did, None: Airflow does not say."""
    run = context["dag_run"]
    return run.triggering_user_name or ("" if run.run_type == "scheduled" else None)


def find_request_link(task: HITLOperator, context: Context) -> str:
    """The address of Airflow's page on which this task's request waits; empty if Airflow does not know its own (`[api] base_url`).

    A run's id may hold anything: what is no sign of an address is quoted, so that mails and chats take the whole of it for one.
    """
    try:
        link = task.generate_link_to_ui_from_context(context=context)
    except (AttributeError, ValueError):  # an older provider; no address is configured
        return ""
    return quote(link, safe="/:?&=%+-_.~") if urlparse(link).scheme in {"http", "https"} else ""


def find_plan_and_report(context: Context) -> tuple[str, str]:
    """The fingerprint of the run's plan, and the path of the last report that a task of the run left; empty if there is none."""
    ti: Any = context["ti"]
    plan = ti.xcom_pull(task_ids=_PREFLIGHT, key=PLAN)
    figures = ti.xcom_pull(task_ids=_LAST_AUDIT, key=FIGURES)
    plan_facts, audit_figures = (value if isinstance(value, dict) else {} for value in (plan, figures))
    return str(plan_facts.get("fingerprint", "")), str(audit_figures.get("page") or plan_facts.get("page", ""))


_PREFLIGHT, _LAST_AUDIT = "preflight", "audit_before_approval.audit"


def note_approval(cluster_file: str, context: Context, kind: str, text: str, **facts: object) -> None:
    """Write who answered what, when and why into the journal of the run."""
    open_journal(load(cluster_file), dag_run_name(context)).write(kind, context["ti"].task_id, text, **facts)


@contextmanager
def _open_records(cluster_file: str) -> Iterator[tuple[ClusterSpec, OpenCluster, Records]]:
    spec = load(cluster_file)
    with opener.get()(spec) as access:
        yield spec, access, Records(access.tools.zk, spec.cluster_id, access.tools.signing_key)


def keep_approval(cluster_file: str, context: Context, approval: Approval, *, over_waiting: bool) -> None:
    """Write the record of an approval, as it is now. Raises `Fenced` if another run holds the cluster."""
    with _open_records(cluster_file) as (spec, access, records):
        fence = Fence(
            access.tools.zk,
            spec.cluster_id,
            dag_run_name(context),
            finished=make_finished_check(context, over_waiting=over_waiting),
        )
        fence.use_current_token()
        records.write(approval, JournalHead(dag_run_name(context), *open_journal(spec, dag_run_name(context)).read_link()), fence)


def kept_approval(cluster_file: str, context: Context, task: str) -> Approval | None:
    """What the request of a task of this run has recorded; None: nothing. Raises `Refused` (H13) if its record is not believed."""
    with _open_records(cluster_file) as (_, _, records):
        return records.approval(dag_run_name(context), task)


def hand_over(cluster_file: str, context: Context, run: str, approval: Approval) -> None:
    """Hand the cluster over to another run, with the approval by which it acts; nothing to do if that run owns it already."""
    with _open_records(cluster_file) as (spec, access, records):
        fence = Fence(access.tools.zk, spec.cluster_id, dag_run_name(context))
        lock_holder = fence.holder()
        if lock_holder is None or lock_holder.owner != run:
            with fence:
                fence.hand_over(run, records.handover_operation(approval, run))
            open_journal(spec, dag_run_name(context)).write("handed over", "lock", f"Run {run} owns the cluster now. {approval}")


def handed_over(cluster_file: str, context: Context) -> Approval | None:
    """The approval with which another run handed the cluster over to this one; None if none did.

    Raises `Refused` (H13) if it is not believed: here also if any client of ZooKeeper could have written it.
    """
    with _open_records(cluster_file) as (_, _, records):
        return records.handover_approval(dag_run_name(context))


def find_given_approval(cluster_file: str, context: Context, task: str) -> Approval | None:
    """The approval that `task` of this run was given; None: none, as if it was skipped or marked as success."""
    return _only_if_given(kept_approval(cluster_file, context, task))


def _only_if_given(approval: Approval | None) -> Approval | None:
    return approval if approval and approval.status == GIVEN else None


def demand_answer(cluster_file: str, context: Context, task: str, required_answer: str) -> Approval:
    """As `require_answer`; a refusal fails the task without retries."""
    try:
        return require_answer(cluster_file, context, task, required_answer)
    except (Refused, AuthenticationFailed, Failed) as error:
        raise AirflowFailException(str(error)) from None


def require_answer(cluster_file: str, context: Context, task: str, required_answer: str) -> Approval:
    """The approval that `task` of this run was given. Raises `Refused` (H06, H13) unless its answer is `required_answer`, for this run and what was shown
    with it.

    Raises `Unavailable` if ZooKeeper does not answer: a retry may read it.
    """
    with _open_records(cluster_file) as (spec, _, records):
        approval = _only_if_given(records.approval(dag_run_name(context), task))
    if approval is None or {answer.option for answer in approval.answers} != {required_answer}:
        text = f"Task {task!r} of this run was given no approval to {required_answer.lower()}."
        raise Refused.because(Reason("H06", text))
    evidence = _digest_evidence(context, [task for task in approval.shown.evidence if task != _CONF])
    shown = Shown(dag_run_name(context), approval.shown.cluster, evidence)
    gate = approval_unchanged(approval, shown, datetime.now(UTC), rehearsal=spec.rehearsal)
    if not gate.met:
        raise Refused.because(*gate.reasons)
    return approval
