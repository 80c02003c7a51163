"""Approvals: an administrator decides, with the observations shown.

An answer counts only if an approver of the cluster file gave it, by Airflow's own record. It is bound to the run, to the evidence that
was shown, and to the migration under way (`core.migration.approval`). It is recorded beside the fence (`clients.records`), and every task that
needs it reads it there; the journal says who answered what, when and why.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import jinja2
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, Context, Param
from airflow.sdk.bases.xcom import BaseXCom

from airflow_provider_kmigrate.airflow_releases import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped
from airflow_provider_kmigrate.core.audit.request_figures import render_figures, render_origin
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ApproverSpec, ClusterSpec, StopPoint
from airflow_provider_kmigrate.core.migration import approval
from airflow_provider_kmigrate.core.migration.approval import ASKED, BY_CLUSTER, BY_CONF, GIVEN, Approval, ApproverAnswer, Shown
from airflow_provider_kmigrate.core.migration.plan import (
    CONTINUE,
    END,
    EXPAND,
    FINALIZE,
    KEEP,
    LEAVE,
    REMOVE,
    ROLL_BACK,
    STAY,
    Access,
)
from airflow_provider_kmigrate.core.monitoring import journal_lines
from airflow_provider_kmigrate.core.monitoring.gauges import request_gauges
from airflow_provider_kmigrate.core.shared.text import defuse_markup, printable
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.notifications.messages import ClusterNotifier, make_notifiers
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.triggers.approval import AnswerTrigger
from airflow_provider_kmigrate.utils.approval import (
    find_given_approval,
    find_plan_and_report,
    find_request_link,
    find_requester,
    hand_over,
    handed_over,
    is_finalized,
    keep_approval,
    kept_approval,
    note_approval,
    read_shown_state,
)
from airflow_provider_kmigrate.utils.dag_runs import state_of, why_no_run_begins, why_paused, why_queued
from airflow_provider_kmigrate.utils.documents import as_markdown
from airflow_provider_kmigrate.utils.step_context import FIGURES, make_gauge_exporter

_BODY = """\
**Cluster {name}** (`{cluster_id}`) runs in dual-write. Finalizing it is **irreversible**, the point of no return: nothing is
written to ZooKeeper any more, and no rollback is possible afterwards.

The answers:

* **{yes}**: restart the controllers without the migration flag, one at a time. Before each restart all of this is
  checked again; the task waits while anything is worse.
* **{no}**: change nothing. This run ends. To be asked again with fresh evidence, start a new run.
"""

_OFFER = f"""\
* **{ROLL_BACK}**: this run ends, and `kmigrate_rollback__{{name}}` begins. It gets the lock of this run and asks no second time,
  unless ZooKeeper is open to every client and the cluster file has no `approvers.signing_conn_id` (W22).
"""

_EVIDENCE = """
**What was observed:**

{evidence}
"""

_PLAN = """\
**Cluster {name}** (`{cluster_id}`) will be rolled back to ZooKeeper. Brokers restart one at a time, up to twice; clients continue.
The steps, planned from the present state of the cluster:
"""

_GROUPS_PLAN = """\
**Consumer groups of cluster {name}** (`{cluster_id}`) will be rolled back, instance by instance. What was observed, and what follows from it:
"""

_EXPANSION = """\
**`__consumer_offsets` of cluster {name}** (`{cluster_id}`) will be expanded, or an expansion undone. What was observed, and what follows from it:
"""

_CUTOVER = """\
**Consumer group {group} of cluster {name}** (`{cluster_id}`) will be cut over by hand. Are the people ready who stop and start its application?
From your answer on, the log of the task `cutover` says when to stop all instances, and when to start the new version. Each may take {seconds:.0f} s: after that
kmigrate turns back, and asks for the old version. Nothing may start an instance before it is asked for.

{plan}

* **{yes}**: begin.
* **{no}**: this run ends and changes nothing.
"""

_ANSWERS = """
{plan}

The answers:

* **{yes}**: start. An interrupted step continues where it stopped.
* **{no}**: change nothing.
"""

_STOP = """\
The migration of **cluster {name}** (`{cluster_id}`) waits after `{point}`, as the cluster file says (`stop_after`). It keeps the lock.{seen}

* **{yes}**: begin the next stage.
* **{no}**: this run ends and changes nothing. A later run does what is left. A rollback may begin now: start `kmigrate_rollback__{name}`.
"""

_CLEAN_UP = """\
What migrations and rollbacks of **cluster {name}** (`{cluster_id}`) have left behind:

{left}

* **{yes}**: remove what the table says, for good. If anything is different by then, nothing is removed.
* **{no}**: change nothing.
"""

_WHO = """
Who may answer: {users}. {required} must approve. Other users' answers do not count.{reason} If an answer does not count, the
log of this task says why, and the request stays open.
"""

_STALE = (
    "This run has asked before, and Airflow would show that text again instead of what is observed now. Start a new run of this DAG: it "
    "does only what is left, and asks with the present text."
)
_REASON = " An answer needs a reason."
_WHY = "Why you answer so. It is written into the journal of the run."


class _ApproveOperator(HITLOperator):
    """Ask an administrator one question.

    Never retried: a retry would ask again. Killed, it leaves nothing to stop or release: it only waits for the answer.

    :param cluster: name of the cluster, as it is shown.
    :param cluster_id: id of the cluster.
    :param cluster_file: path of the cluster file: the record of the approval is in that cluster's ZooKeeper. (templated)
    :param approvers: who may answer; None: every user who may edit the DAG.
    :param rehearsal: a run whose conf gives the cluster id continues without asking. Any other text there is no approval.
    :param evidence_tasks: ids of the tasks whose results the request shows.
    :param notifiers: Airflow's, for the request when it waits.
    """

    template_fields: Sequence[str] = (*HITLOperator.template_fields, "cluster_file")
    request_link = ""  # Airflow's page of the request that waits; set when it is asked
    given_as = ""  # the param of the run that approves beforehand
    question: str  # in it and in both texts are {name}, {cluster_id}, {yes}, {no} and the `words`
    text: str
    evidence_text = ""  # behind the answers and who may give them: it may be long
    yes: str
    no: str
    others: tuple[str, ...] = ()  # further answers
    refused: str
    access = Access.ASK
    of_migration = False  # no approver is asked once it is finalized
    required = 1  # different approvers that the answer `yes` needs, at most; the cluster file may ask for fewer

    def __init__(
        self,
        *,
        cluster: str,
        cluster_id: str,
        words: Mapping[str, str],
        cluster_file: str,
        approvers: ApproverSpec | None = None,
        rehearsal: bool = False,
        evidence_tasks: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        self.cluster, self.cluster_id, self.cluster_file, self.approvers = cluster, cluster_id, cluster_file, approvers
        self.rehearsal, self.evidence_tasks = rehearsal, tuple(evidence_tasks)
        placeholders = {"name": cluster, "cluster_id": cluster_id, "yes": self.yes, "no": self.no, **words}
        texts = {
            "subject": self.question.format(**placeholders),
            "body": self.text.format(**placeholders) + self._describe_approvers() + self.evidence_text.format(**placeholders),
        }
        options = [self.no, *self.others, self.yes]
        form = {"reason": Param(None, type=["null", "string"], title="Reason", description=_WHY)}
        hitl_arguments: dict[str, Any] = {**texts, "retries": 0, **self._build_hitl_arguments(), **kwargs}
        hitl_arguments.pop("params", None)  # the DAG's: Airflow's metaclass puts them there, and they would replace the form's
        super().__init__(params=form, options=options, **hitl_arguments)

    def render_template_fields(self, context: Context, jinja_env: jinja2.Environment | None = None) -> None:
        """As Airflow does; a document that a task returned becomes Markdown, by itself or by the filter `as_markdown`."""
        environment = jinja_env or self.get_template_env()
        environment.filters["as_markdown"] = environment.finalize = as_markdown
        super().render_template_fields(context, environment)

    def _build_hitl_arguments(self) -> dict[str, Any]:
        """What Airflow itself does for approvers: it refuses the answers of others, and ends a request that is too old."""
        if self.approvers is None:
            return {}
        users = [{"id": user, "name": user} for user in self.approvers.users]
        return {"assigned_users": users, "response_timeout": timedelta(seconds=self.approvers.expires)}

    def _describe_approvers(self) -> str:
        if self.approvers is None:
            return ""
        required = min(self.required, self.approvers.required)
        return _WHO.format(
            users=", ".join(self.approvers.users),
            required="One of them" if required == 1 else f"{required} different ones",
            reason=_REASON if self.approvers.reason else "",
        )

    @property
    def serialized_params(self) -> dict[str, dict[str, Any]]:
        """The form. If a reason is required, the page sends no answer without one; `execute_complete` judges what others send."""
        form: dict[str, dict[str, Any]] = super().serialized_params
        field = form["reason"]
        if self.approvers and self.approvers.reason and isinstance(field, dict):  # Airflow before 3.1.3 has only its value
            return {"reason": {**field, "schema": {**field["schema"], "type": "string", "minLength": 1}}}
        return form

    def validate_params_input(self, params_input: Mapping[str, Any]) -> None:
        """Accept any: a client of Airflow's API may send what the form would not, and its answer must not fail the task."""

    def execute(self, context: Context) -> Any:
        """Ask for approval, unless it was given beforehand."""
        self.body = f"{self.describe_request(context)}\n\n{self.body or ''}"
        self.body = defuse_markup(printable(self.body, "\n\t"))  # what earlier tasks returned names what others have named
        shown = self._read_shown_state(context)
        if (prior_approval := self.find_prior_approval(context, shown)) is not None:
            return self._record_approval(context, prior_approval, self.yes)
        return self._ask(context, shown)

    def describe_request(self, context: Context) -> str:
        """What the request says first, as Markdown; the same whenever it is asked in a run."""
        return render_origin(find_requester(context), *find_plan_and_report(context))

    def _ask(self, context: Context, shown: Shown) -> Any:
        """Ask, unless the page would show another text: Airflow keeps the first one of a run's request, whatever is cleared (H06)."""
        earlier, text = self._load_approval(context), approval.hash_text(self.body)
        if earlier and earlier.request not in ("", text):
            raise AirflowFailException(format_reasons((Reason("H06", _STALE),)))
        self._note_in_journal(context, journal_lines.ASKED, f"{self.subject} Waiting for an answer.")
        self._save_approval(context, Approval(shown, (), self.task_id, text, ASKED))
        self._load_approval(context)  # a record that would not be believed is known before an approver is asked
        self.request_link = find_request_link(self, context)
        make_gauge_exporter(self.cluster)(request_gauges([time.time()], time.time()))
        return super().execute(context)

    def find_prior_approval(self, context: Context, shown: Shown) -> Approval | None:
        """The approval that was given before this task; None: it must ask. No approver is asked once the migration is finalized."""
        if self.of_migration and is_finalized(self.cluster_file, context, self.log.info):
            self.log.info("The migration is finalized already: no approver is asked, and this run does what is left of it.")
            return self._build_automatic_approval(context, shown, BY_CLUSTER)
        named_cluster_id = context["params"].get(self.given_as) if self.given_as else None
        if not named_cluster_id:
            return None
        if named_cluster_id != self.cluster_id or not self.rehearsal:
            wrong = (
                f"{named_cluster_id!r} is not this cluster ({self.cluster_id})"
                if named_cluster_id != self.cluster_id
                else "this cluster is no `rehearsal`"
            )
            self.log.warning("The run's conf approves beforehand, but %s: asking.", wrong)
            return None
        self.log.info("Approved by the run's conf: it names cluster id %s.", named_cluster_id)
        return self._build_automatic_approval(context, shown, BY_CONF)

    def _build_automatic_approval(self, context: Context, shown: Shown, by: str) -> Approval:
        """An approval that no user gave; Airflow's page may show a request of this run from before."""
        earlier = self._load_approval(context)
        answer = ApproverAnswer(self.yes, by, by, datetime.now(UTC).isoformat())
        return Approval(shown, (answer,), self.task_id, earlier.request if earlier else "")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Have Airflow's own record of the answer read: the event only says that there is one."""
        super().execute_complete(context, event)
        self.defer(trigger=AnswerTrigger(str(context["ti"].id)), method_name="judge")

    def judge(self, context: Context, event: dict[str, Any]) -> Any:
        """Judge the answer: it counts, it is asked for again, or it ends the run."""
        answer = self._read_answer(event)
        self.log.info("Answered %s by %s.", answer.option, answer.name)
        recorded_approval = self._load_approval(context)
        if recorded_approval is None:
            raise AirflowFailException(format_reasons((Reason("H06", "What the request showed was not recorded."),)))
        approves, asked_by = answer.option != self.no, find_requester(context)
        if why := approval.why_not_counted(
            answer, self.approvers, recorded_approval.answers, approves=approves, asked_by=asked_by
        ):
            self._note_in_journal(context, "answer refused", f"{answer} {why}")
            return self._ask_again(context, f"The answer does not count; asking again. {why}")
        if not approves:
            self._note_in_journal(context, "answered", str(answer))
            self._save_approval(context, replace(recorded_approval, answers=()))
            raise AirflowFailException(self.refused)
        answered_approval = replace(
            recorded_approval, answers=(*recorded_approval.answers, answer) if answer.option == self.yes else (answer,)
        )
        if self._read_shown_state(context) != recorded_approval.shown:
            raise AirflowFailException(format_reasons((Reason("H06", "What was shown with the request has changed since."),)))
        if answer.option == self.yes and self._needs_another_approver(answered_approval):
            self._note_in_journal(context, "answered", f"{answer}; another approver must approve.", **answered_approval.to_json())
            self._save_approval(context, answered_approval)
            return self._ask_again(context, f"{answer.name} has approved; another approver must.")
        return self._record_approval(context, answered_approval, answer.option)

    def _read_answer(self, event: Mapping[str, Any]) -> ApproverAnswer:
        """The answer as Airflow's database has it. Fails (H06) if it was not read, or is none to this request."""
        if "error" in event or len(event["options"]) != 1 or event["options"][0] not in (self.no, *self.others, self.yes):
            problem = event.get("error") or f"its record has {event['options']!r}"
            text = f"Airflow did not say what was answered ({problem}). Clear this task to be asked again."
            raise AirflowFailException(format_reasons((Reason("H06", text),)))
        return ApproverAnswer(event["options"][0], *(str(event[name]) for name in ("user", "name", "at", "reason")))

    def _ask_again(self, context: Context, why: str) -> Any:
        """Ask with the same request. Its page keeps its text (Airflow never changes it), so the log and the message say `why`."""
        self.log.warning(why)
        self.body = defuse_markup(f"{why}\n\n{self.body}")
        self.request_link = find_request_link(self, context)
        return super().execute(context)

    def _needs_another_approver(self, answered_approval: Approval) -> bool:
        """Whether another approver must approve."""
        return self.required > 1 and approval.count_missing_answers(answered_approval.answers, self.approvers) > 0

    def _record_approval(self, context: Context, granted_approval: Approval, option: str) -> dict[str, Any]:
        """Record the approval, which later tasks of the run demand; what is returned is only for the reader."""
        granted_approval = replace(granted_approval, status=GIVEN)
        self._note_in_journal(context, "approval", str(granted_approval), **granted_approval.to_json())
        self._save_approval(context, granted_approval)
        make_gauge_exporter(self.cluster)(request_gauges([], time.time()))
        return {"chosen_options": [option], "approval": granted_approval.to_json()}

    def _read_shown_state(self, context: Context) -> Shown:
        try:
            return read_shown_state(
                self.cluster_file, context, self.log.info, self.evidence_tasks, over_waiting=self.access.is_over_waiting
            )
        except KMigrateError as error:
            raise AirflowFailException(str(error)) from None

    def _note_in_journal(self, context: Context, kind: str, text: str, **facts: object) -> None:
        note_approval(self.cluster_file, context, kind, text, **facts)

    def _save_approval(self, context: Context, approval_record: Approval) -> None:
        try:
            keep_approval(self.cluster_file, context, approval_record, over_waiting=self.access.is_over_waiting)
        except KMigrateError as error:
            raise AirflowFailException(str(error)) from None

    def _load_approval(self, context: Context) -> Approval | None:
        try:
            return kept_approval(self.cluster_file, context, self.task_id)
        except KMigrateError as error:
            raise AirflowFailException(str(error)) from None


class ApproveFinalizationOperator(_ApproveOperator):
    """Ask an administrator before the point of no return. Further arguments as `_ApproveOperator`'s.

    :param evidence: Markdown with what was observed; its templates are rendered, and documents that earlier tasks returned.
    :param rollback_task: id of a `StartRollbackOperator` behind it; the request then also offers to roll back. It is not made while the
        DAG of the rollback is paused (H11).
    :param readiness_task: id of the task whose verdict has the time that a rollback takes; empty: none.
    :param audit_task: id of the `SparkAuditOperator` whose figures the request shows; empty: none.
    """

    of_migration = True
    given_as, yes, no = "approve_finalization", FINALIZE, STAY
    question, text = "Finalize the migration of Kafka cluster {name} to KRaft? This is irreversible.", _BODY
    evidence_text = _EVIDENCE
    refused = "Left in dual-write: nothing was changed. Start a new run to be asked again."
    required = 2

    def __init__(
        self, *, evidence: str, rollback_task: str = "", readiness_task: str = "", audit_task: str = "", **kwargs: Any
    ) -> None:
        self.rollback_task, self.readiness_task, self.audit_task = rollback_task, readiness_task, audit_task
        if rollback_task:
            self.others, self.text = (ROLL_BACK,), _BODY + _OFFER
        super().__init__(words={"evidence": evidence}, **kwargs)

    def describe_request(self, context: Context) -> str:
        """The four figures that an approver asks for, then who started the run."""
        ti: Any = context["ti"]
        audit = ti.xcom_pull(task_ids=self.audit_task, key=FIGURES) if self.audit_task else None
        assurance = ti.xcom_pull(task_ids=self.readiness_task) if self.readiness_task else None
        return f"{render_figures(audit, assurance)}\n\n{super().describe_request(context)}"

    def _ask(self, context: Context, shown: Shown) -> Any:
        """Ask, if a run of the rollback would begin."""
        if self.rollback_task:
            _refuse_if(why_paused(context["ti"], rollback_dag_id(self.cluster)))
        return super()._ask(context, shown)

    def _record_approval(self, context: Context, granted_approval: Approval, option: str) -> dict[str, Any]:
        """Return the answer; if it is to roll back, skip all that follows but the task that starts the rollback."""
        task_result = super()._record_approval(context, granted_approval, option)
        if option == ROLL_BACK:
            ti: Any = context["ti"]
            ti.xcom_push(
                key=BaseXCom.XCOM_RETURN_KEY, value=task_result
            )  # Airflow stores no return value of a task that skips others
            start_task = self.get_dag().get_task(self.rollback_task)  # type: ignore[union-attr]
            downstream_ids = (
                self.get_flat_relative_ids(upstream=False)
                - {self.rollback_task}
                - start_task.get_flat_relative_ids(upstream=False)
            )
            raise DownstreamTasksSkipped(tasks=sorted(downstream_ids))  # type: ignore[no-untyped-call]
        return task_result


class ContinueOperator(_ApproveOperator):
    """Wait behind a stage of the migration until an administrator lets it continue. Further arguments as `_ApproveOperator`'s.

    :param point: the stage.
    :param seen: Markdown with what was observed; its templates are rendered.
    """

    of_migration = True
    yes, no = CONTINUE, END
    question, text = "Continue the migration of Kafka cluster {name} after {point}?", _STOP
    refused = "Ended at the stop point: nothing was changed. A later run does what is left."

    def __init__(self, *, point: StopPoint, seen: str = "", **kwargs: Any) -> None:
        super().__init__(words={"point": str(point), "seen": f"\n\n{seen}" if seen else ""}, **kwargs)


class ApproveCutoverOperator(_ApproveOperator):
    """Wait until an approver confirms that a group's application can be stopped and started by hand now. Further arguments as `_ApproveOperator`'s.

    :param group: name of the group, of `way: cutover` and `by_hand`.
    :param seconds: how long people may take for the stop, and for the start.
    :param plan: Markdown, or the template of what `GroupPlanOperator` returned; its templates are rendered.
    """

    given_as, yes, no = "approve_cutover", CONTINUE, END
    question, text = "Stop the application of group {group} of Kafka cluster {name} by hand?", _CUTOVER
    refused = "Not cut over: nothing was changed. Start a new run to be asked again."

    def __init__(self, *, group: str, seconds: float, plan: str = "", **kwargs: Any) -> None:
        super().__init__(words={"group": group, "seconds": seconds, "plan": plan}, **kwargs)  # type: ignore[dict-item]


class ApproveRollbackOperator(_ApproveOperator):
    """Show an administrator the plan of a rollback and ask. Further arguments as `_ApproveOperator`'s.

    A run to which the migration's own request handed the cluster over does not ask a second time.

    :param plan: Markdown, or the template of what `RollbackPlanOperator` returned; its templates are rendered.
    """

    given_as, yes, no = "approve_rollback", ROLL_BACK, LEAVE
    refused = "Left as it is: nothing was changed. To be asked again, start a new run."
    question, text = "Roll Kafka cluster {name} back to ZooKeeper?", _PLAN + _ANSWERS
    access = Access.ASK_OVER_WAITING

    def __init__(self, *, plan: str, **kwargs: Any) -> None:
        super().__init__(words={"plan": plan}, **kwargs)

    def find_prior_approval(self, context: Context, shown: Shown) -> Approval | None:
        """The approval with which a migration's run handed the cluster over, or one given beforehand."""
        try:
            handover_approval = handed_over(self.cluster_file, context)
        except KMigrateError as error:
            self.log.warning("Asking. %s", error)
            handover_approval = None
        if handover_approval is None:
            return super().find_prior_approval(context, shown)
        single_approver_spec = self.approvers and replace(self.approvers, required=1)
        now = datetime.now(UTC)  # this run may have waited: its DAG was paused
        validity = approval.approval_valid(
            handover_approval, handover_approval.shown, single_approver_spec, now, rehearsal=self.rehearsal
        )
        if validity.met:
            self.log.info(
                "Approved in the request of run %s, which handed the cluster over: %s.",
                handover_approval.shown.run,
                handover_approval,
            )
            earlier = self._load_approval(context)
            return Approval(shown, handover_approval.answers, self.task_id, earlier.request if earlier else "")
        self.log.warning(
            "The approval with which run %s handed the cluster over does not count any more: asking. %s",
            handover_approval.shown.run,
            format_reasons(validity.reasons),
        )
        return None


class ApproveGroupsRollbackOperator(ApproveRollbackOperator):
    """Show an administrator the plan of a rollback of consumer groups and ask. Further arguments as `_ApproveOperator`'s.

    :param plan: Markdown, or the template of what `GroupPlanOperator` returned; its templates are rendered.
    """

    question, text = "Roll consumer groups of Kafka cluster {name} back?", _GROUPS_PLAN + _ANSWERS
    access = Access.ASK


class ApproveExpansionOperator(ApproveRollbackOperator):
    """Show an administrator the plan of an expansion of `__consumer_offsets` and ask. `approve_expansion: <cluster id>` answers beforehand.

    :param plan: Markdown, or the template of what `ExpansionPlanOperator` returned; its templates are rendered.
    """

    given_as, yes = "approve_expansion", EXPAND
    question, text = "Expand __consumer_offsets of Kafka cluster {name}?", _EXPANSION + _ANSWERS
    access = Access.ASK


class ApproveCleanUpOperator(_ApproveOperator):
    """Show an administrator what is left and ask before it is removed. Further arguments as `_ApproveOperator`'s.

    :param left: Markdown, or the template of what `LeftoversOperator` returned; its templates are rendered.
    """

    yes, no = REMOVE, KEEP
    question, text = "Remove what is left of the migration of Kafka cluster {name}?", _CLEAN_UP
    refused = "Nothing was removed. To be asked again, start a new run."

    def __init__(self, *, left: str, **kwargs: Any) -> None:
        super().__init__(words={"left": left}, **kwargs)


class StartRollbackOperator(TriggerDagRunOperator):
    """Start the rollback DAG, with this run's lock, if the answer to the request was to roll back; skipped otherwise.

    Refused (H11), and nothing is handed over, if a run of that DAG would stay queued. Killed, it leaves nothing to stop: run again, it finds
    the lock handed over and the run started. `RollbackStartedOperator` behind it checks that the run has begun.

    :param cluster: name of the cluster.
    :param cluster_file: path of the cluster file. (templated)
    :param answered_by: id of the task that asked.
    """

    template_fields: Sequence[str] = (*TriggerDagRunOperator.template_fields, "cluster_file")

    def __init__(self, *, cluster: str, cluster_file: str, answered_by: str, **kwargs: Any) -> None:
        super().__init__(trigger_dag_id=rollback_dag_id(cluster), skip_when_already_exists=True, **kwargs)
        self.cluster_file, self.answered_by = cluster_file, answered_by

    def execute(self, context: Context) -> Any:
        """Hand the cluster over to a new run of the rollback; skipped after any other answer."""
        rollback_approval, ti = _require_rollback_answer(self.cluster_file, context, self.answered_by), context["ti"]
        run = _run_started_by(rollback_approval, self.trigger_dag_id)
        if state_of(ti, run):
            self.log.info("Run %s is there already.", run)
            return None
        _refuse_if(why_no_run_begins(ti, self.trigger_dag_id))
        self.trigger_run_id = run.partition("/")[2]
        try:
            hand_over(self.cluster_file, context, run, rollback_approval)
        except KMigrateError as error:
            raise AirflowFailException(str(error)) from None
        return super().execute(context)


class RollbackStartedOperator(BaseOperator):
    """Wait until the run of the rollback that a `StartRollbackOperator` made has begun; skipped after any other answer than to roll back.

    Fails (H11) with what keeps the run queued. Cleared, it checks again. Killed, it leaves nothing to stop: it only reads.

    :param cluster: name of the cluster.
    :param cluster_file: path of the cluster file. (templated)
    :param answered_by: id of the task that asked.
    """

    template_fields: Sequence[str] = ("cluster_file",)
    WITHIN = 120.0  # seconds

    def __init__(self, *, cluster: str, cluster_file: str, answered_by: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster, self.cluster_file, self.answered_by = cluster, cluster_file, answered_by

    def execute(self, context: Context) -> str:
        """Check every few seconds."""
        run = _run_started_by(
            _require_rollback_answer(self.cluster_file, context, self.answered_by), rollback_dag_id(self.cluster)
        )
        end = time.monotonic() + self.WITHIN
        while why := why_queued(context["ti"], run):
            if time.monotonic() > end:
                _refuse_if(f"{why} It owns the cluster, and begins by itself then.")
            self.log.info("Waiting for at most %.0f s. %s", self.WITHIN, why)
            time.sleep(min(5.0, self.WITHIN))
        return f"Run {run} has begun."


def rollback_dag_id(cluster: str) -> str:
    """The id of the DAG that rolls a cluster back."""
    return f"kmigrate_rollback__{cluster}"


def _require_rollback_answer(cluster_file: str, context: Context, task: str) -> Approval:
    """The answer that `task` of this run got, as it is recorded. Skips this task if it was not to roll back."""
    try:
        rollback_approval = find_given_approval(cluster_file, context, task)
    except KMigrateError as error:
        raise AirflowFailException(str(error)) from None
    if rollback_approval is None or rollback_approval.answers[-1].option != ROLL_BACK:
        raise AirflowSkipException("The answer was not to roll back.")
    return rollback_approval


def _run_started_by(rollback_approval: Approval, dag_id: str) -> str:
    """The run of a DAG that an answer starts: there is one for each answer."""
    return f"{dag_id}/approved__{rollback_approval.answers[-1].at}"


def _refuse_if(why: str) -> None:
    if why:
        raise AirflowFailException(format_reasons((Reason("H11", why),)))


def approval_arguments(spec: ClusterSpec, plan_of: str = "") -> dict[str, Any]:
    """The arguments of every approval of a cluster: who may answer, who is notified, and to what the answer is bound.

    `plan_of`: id of the task whose result the request shows as its plan.
    """
    notifiers: list[ClusterNotifier] = make_notifiers(
        spec, "kmigrate asks: {{ task.subject }}", "{{ task.body }}", "{{ task.request_link }}"
    )
    people = {"approvers": spec.approvers, "rehearsal": spec.rehearsal, "notifiers": notifiers}
    plan_arguments = {"plan": f"{{{{ ti.xcom_pull(task_ids='{plan_of}') }}}}", "evidence_tasks": [plan_of]} if plan_of else {}
    return {"cluster": spec.name, "cluster_id": spec.cluster_id, "cluster_file": spec.path, **people, **plan_arguments}
