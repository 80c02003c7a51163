"""Approvals: an administrator decides, with the observations shown.

An answer counts only if an approver of the cluster file gave it, by Airflow's own record. It is bound to the run, to the evidence that
was shown, and to the migration under way (`core.approval`). It is recorded beside the fence (`clients.records`), and every task that
needs it reads it there; the journal says who answered what, when and why.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, Context, Param
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped

from airflow_provider_kmigrate.core import approval
from airflow_provider_kmigrate.core.approval import ASKED, BY_CLUSTER, BY_CONF, GIVEN, Approval, ApproverAnswer, Shown
from airflow_provider_kmigrate.core.cluster import ApproverSpec, ClusterSpec, StopPoint
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.text import printable, unmarked
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.hooks.approval import (
    approval_of,
    hand_over,
    handed_over,
    is_finalized,
    keep_approval,
    kept_approval,
    note_approval,
    requester_of,
    shown_now,
)
from airflow_provider_kmigrate.hooks.dag_runs import state_of, why_no_run_begins, why_paused, why_queued
from airflow_provider_kmigrate.hooks.notify import ClusterNotifier, notifiers_of
from airflow_provider_kmigrate.operators.step import CONTINUE, END, EXPAND, FINALIZE, KEEP, LEAVE, REMOVE, ROLL_BACK, STAY
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.triggers.approval import AnswerTrigger

_BODY = """\
**Cluster {name}** (`{cluster_id}`) runs in dual-write. Finalizing it is the **point of no return**: nothing is written to
ZooKeeper any more, and no rollback is possible afterwards.

{evidence}

The answers:

* **{yes}**: restart the controllers without the migration flag, one at a time. Before each restart all of this is
  checked again; the task waits while anything is worse.
* **{no}**: change nothing. This run ends. To be asked again with fresh evidence, start a new run.
"""

_OFFER = f"""\
* **{ROLL_BACK}**: this run ends, and `kmigrate_rollback__{{name}}` begins. It gets the lock of this run and asks no second time,
  unless ZooKeeper is open to every client and the cluster file has no `approvers.signing_conn_id` (W22).
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
Who may answer: {users}. {required} different approvers must approve. Other users' answers do not count.{reason} If an answer does not count, the
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
    given_as = ""  # the param of the run that approves beforehand
    question: str  # in it and in `text` are {name}, {cluster_id}, {yes}, {no} and the `words`
    text: str
    yes: str
    no: str
    others: tuple[str, ...] = ()  # further answers
    refused: str
    over_waiting = of_migration = False  # `of_migration`: nobody is asked once it is finalized
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
        places = {"name": cluster, "cluster_id": cluster_id, "yes": self.yes, "no": self.no, **words}
        texts = {"subject": self.question.format(**places), "body": self.text.format(**places) + self._who()}
        asked = {**texts, "options": [self.no, *self.others, self.yes], "retries": 0}
        form = {"reason": Param(None, type=["null", "string"], title="Reason", description=_WHY)}
        # `kwargs` has the DAG's params: Airflow's metaclass puts them there, and they would replace the form's
        super().__init__(**{**asked, **self._airflows_own(), **kwargs, "params": form})

    def _airflows_own(self) -> dict[str, Any]:
        """What Airflow itself does for approvers: it refuses the answers of others, and ends a request that is too old."""
        if self.approvers is None:
            return {}
        users = [{"id": user, "name": user} for user in self.approvers.users]
        return {"assigned_users": users, "response_timeout": timedelta(seconds=self.approvers.expires)}

    def _who(self) -> str:
        if self.approvers is None:
            return ""
        places = {"users": ", ".join(self.approvers.users), "required": min(self.required, self.approvers.required)}
        return _WHO.format(**places, reason=_REASON if self.approvers.reason else "")

    @property
    def serialized_params(self) -> dict[str, dict[str, Any]]:
        """The form. If a reason is required, the page sends no answer without one; `execute_complete` judges what others send."""
        form: dict[str, dict[str, Any]] = super().serialized_params
        if self.approvers and self.approvers.reason:
            field = form["reason"]
            return {"reason": {**field, "schema": {**field["schema"], "type": "string", "minLength": 1}}}
        return form

    def validate_params_input(self, params_input: Mapping[str, Any]) -> None:
        """Accept any: a client of Airflow's API may send what the form would not, and its answer must not fail the task."""

    def execute(self, context: Context) -> Any:
        """Ask for approval, unless it was given beforehand."""
        self.body = unmarked(printable(self.body or "", "\n\t"))  # what earlier tasks returned names what others have named
        shown = self._shown(context)
        if (given := self.given(context, shown)) is not None:
            return self._approved(context, given, self.yes)
        return self._ask(context, shown)

    def _ask(self, context: Context, shown: Shown) -> Any:
        """Ask, unless the page would show another text: Airflow keeps the first one of a run's request, whatever is cleared (H06)."""
        earlier, text = self._kept(context), approval.digest(self.body)
        if earlier and earlier.request not in ("", text):
            raise AirflowFailException(format_reasons((Reason("H06", _STALE),)))
        self._keep(context, Approval(shown, (), self.task_id, text, ASKED))
        self._kept(context)  # a record that would not be believed is known before anybody is asked
        return super().execute(context)

    def given(self, context: Context, shown: Shown) -> Approval | None:
        """The approval that was given before this task; None: it must ask. Nobody is asked once the migration is finalized."""
        if self.of_migration and is_finalized(self.cluster_file, context, self.log.info):
            self.log.info("The migration is finalized already: nobody is asked, and this run does what is left of it.")
            return self._beforehand(context, shown, BY_CLUSTER)
        said = context["params"].get(self.given_as) if self.given_as else None
        if not said:
            return None
        if said != self.cluster_id or not self.rehearsal:
            wrong = (
                f"{said!r} is not this cluster ({self.cluster_id})"
                if said != self.cluster_id
                else "this cluster is no `rehearsal`"
            )
            self.log.warning("The run's conf approves beforehand, but %s: asking.", wrong)
            return None
        self.log.info("Approved by the run's conf: it names cluster id %s.", said)
        return self._beforehand(context, shown, BY_CONF)

    def _beforehand(self, context: Context, shown: Shown, by: str) -> Approval:
        """An approval that no user gave; Airflow's page may show a request of this run from before."""
        earlier = self._kept(context)
        answer = ApproverAnswer(self.yes, by, by, datetime.now(UTC).isoformat())
        return Approval(shown, (answer,), self.task_id, earlier.request if earlier else "")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Have Airflow's own record of the answer read: the event only says that there is one."""
        super().execute_complete(context, event)
        self.defer(trigger=AnswerTrigger(str(context["ti"].id)), method_name="judge")

    def judge(self, context: Context, event: dict[str, Any]) -> Any:
        """Judge the answer: it counts, it is asked for again, or it ends the run."""
        answer = self._answer(event)
        self.log.info("Answered %s by %s.", answer.option, answer.name)
        before = self._kept(context)
        if before is None:
            raise AirflowFailException(format_reasons((Reason("H06", "What the request showed was not recorded."),)))
        approves, asked_by = answer.option != self.no, requester_of(context)
        if why := approval.not_counting(answer, self.approvers, before.answers, approves=approves, asked_by=asked_by):
            self._note(context, "answer refused", f"{answer} {why}")
            return self._ask_again(context, f"The answer does not count; asking again. {why}")
        if not approves:
            self._note(context, "answered", str(answer))
            self._keep(context, replace(before, answers=()))
            raise AirflowFailException(self.refused)
        given = replace(before, answers=(*before.answers, answer) if answer.option == self.yes else (answer,))
        if self._shown(context) != before.shown:
            raise AirflowFailException(format_reasons((Reason("H06", "What was shown with the request has changed since."),)))
        if answer.option == self.yes and self._missing(given):
            self._note(context, "answered", f"{answer}; another approver must approve.", **given.to_json())
            self._keep(context, given)
            return self._ask_again(context, f"{answer.name} has approved; another approver must.")
        return self._approved(context, given, answer.option)

    def _answer(self, event: Mapping[str, Any]) -> ApproverAnswer:
        """The answer as Airflow's database has it. Fails (H06) if it was not read, or is none to this request."""
        if "error" in event or len(event["options"]) != 1 or event["options"][0] not in (self.no, *self.others, self.yes):
            seen = event.get("error") or f"its record has {event['options']!r}"
            text = f"Airflow did not say what was answered ({seen}). Clear this task to be asked again."
            raise AirflowFailException(format_reasons((Reason("H06", text),)))
        return ApproverAnswer(event["options"][0], *(str(event[name]) for name in ("user", "name", "at", "reason")))

    def _ask_again(self, context: Context, why: str) -> Any:
        """Ask with the same request. Its page keeps its text (Airflow never changes it), so the log and the message say `why`."""
        self.log.warning(why)
        self.body = unmarked(f"{why}\n\n{self.body}")
        return super().execute(context)

    def _missing(self, given: Approval) -> bool:
        """Whether another approver must approve."""
        return self.required > 1 and approval.missing_answers(given.answers, self.approvers) > 0

    def _approved(self, context: Context, given: Approval, option: str) -> dict[str, Any]:
        """Record the approval, which later tasks of the run demand; what is returned is only for the reader."""
        given = replace(given, status=GIVEN)
        self._note(context, "approval", str(given), **given.to_json())
        self._keep(context, given)
        return {"chosen_options": [option], "approval": given.to_json()}

    def _shown(self, context: Context) -> Shown:
        try:
            return shown_now(self.cluster_file, context, self.log.info, self.evidence_tasks, over_waiting=self.over_waiting)
        except KMigrateError as error:
            raise AirflowFailException(str(error)) from None

    def _note(self, context: Context, kind: str, text: str, **facts: object) -> None:
        note_approval(self.cluster_file, context, kind, text, **facts)

    def _keep(self, context: Context, given: Approval) -> None:
        try:
            keep_approval(self.cluster_file, context, given, over_waiting=self.over_waiting)
        except KMigrateError as error:
            raise AirflowFailException(str(error)) from None

    def _kept(self, context: Context) -> Approval | None:
        try:
            return kept_approval(self.cluster_file, context, self.task_id)
        except KMigrateError as error:
            raise AirflowFailException(str(error)) from None


class ApproveFinalizationOperator(_ApproveOperator):
    """Ask an administrator before the point of no return. Further arguments as `_ApproveOperator`'s.

    :param evidence: Markdown with what was observed, such as what earlier tasks returned; its templates are rendered.
    :param rollback_task: id of a `StartRollbackOperator` behind it; the request then also offers to roll back. It is not made while the
        DAG of the rollback is paused (H11).
    """

    of_migration = True
    given_as, yes, no = "approve_finalization", FINALIZE, STAY
    question, text = "Finalize the migration of Kafka cluster {name} to KRaft?", _BODY
    refused = "Left in dual-write: nothing was changed. Start a new run to be asked again."
    required = 2

    def __init__(self, *, evidence: str, rollback_task: str = "", **kwargs: Any) -> None:
        self.rollback_task = rollback_task
        if rollback_task:
            self.others, self.text = (ROLL_BACK,), _BODY + _OFFER
        super().__init__(**{"words": {"evidence": evidence}, **kwargs})

    def _ask(self, context: Context, shown: Shown) -> Any:
        """Ask, if a run of the rollback would begin."""
        if self.rollback_task:
            _refuse_if(why_paused(context["ti"], rollback_dag(self.cluster)))
        return super()._ask(context, shown)

    def _approved(self, context: Context, given: Approval, option: str) -> dict[str, Any]:
        """Return the answer; if it is to roll back, skip all that follows but the task that starts the rollback."""
        found = super()._approved(context, given, option)
        if option == ROLL_BACK:
            ti: Any = context["ti"]
            ti.xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=found)  # Airflow stores no return value of a task that skips others
            starts = self.get_dag().get_task(self.rollback_task)  # type: ignore[union-attr]
            behind = (
                self.get_flat_relative_ids(upstream=False) - {self.rollback_task} - starts.get_flat_relative_ids(upstream=False)
            )
            raise DownstreamTasksSkipped(tasks=sorted(behind))  # type: ignore[no-untyped-call]
        return found


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
        super().__init__(**{"words": {"point": str(point), "seen": f"\n\n{seen}" if seen else ""}, **kwargs})


class ApproveRollbackOperator(_ApproveOperator):
    """Show an administrator the plan of a rollback and ask. Further arguments as `_ApproveOperator`'s.

    A run to which the migration's own request handed the cluster over does not ask a second time.

    :param plan: Markdown, such as what `RollbackPlanOperator` returned; its templates are rendered.
    """

    given_as, yes, no = "approve_rollback", ROLL_BACK, LEAVE
    refused = "Left as it is: nothing was changed. To be asked again, start a new run."
    question, text = "Roll Kafka cluster {name} back to ZooKeeper?", _PLAN + _ANSWERS
    over_waiting = True

    def __init__(self, *, plan: str, **kwargs: Any) -> None:
        super().__init__(**{"words": {"plan": plan}, **kwargs})

    def given(self, context: Context, shown: Shown) -> Approval | None:
        """The approval with which a migration's run handed the cluster over, or one given beforehand."""
        try:
            given = handed_over(self.cluster_file, context)
        except KMigrateError as error:
            self.log.warning("Asking. %s", error)
            given = None
        if given is None:
            return super().given(context, shown)
        one = self.approvers and replace(self.approvers, required=1)
        now = datetime.now(UTC)  # this run may have waited: its DAG was paused
        held = approval.still_holds(given, given.shown, one, now, rehearsal=self.rehearsal)
        if held.met:
            self.log.info("Approved in the request of run %s, which handed the cluster over: %s.", given.shown.run, given)
            earlier = self._kept(context)
            return Approval(shown, given.answers, self.task_id, earlier.request if earlier else "")
        self.log.warning(
            "The approval with which run %s handed the cluster over does not count any more: asking. %s",
            given.shown.run,
            format_reasons(held.reasons),
        )
        return None


class ApproveGroupsRollbackOperator(ApproveRollbackOperator):
    """Show an administrator the plan of a rollback of consumer groups and ask. Further arguments as `_ApproveOperator`'s.

    :param plan: Markdown, such as what `GroupPlanOperator` returned; its templates are rendered.
    """

    question, text = "Roll consumer groups of Kafka cluster {name} back?", _GROUPS_PLAN + _ANSWERS
    over_waiting = False


class ApproveExpansionOperator(ApproveRollbackOperator):
    """Show an administrator the plan of an expansion of `__consumer_offsets` and ask. `approve_expansion: <cluster id>` answers beforehand.

    :param plan: Markdown, such as what `ExpansionPlanOperator` returned; its templates are rendered.
    """

    given_as, yes = "approve_expansion", EXPAND
    question, text = "Expand __consumer_offsets of Kafka cluster {name}?", _EXPANSION + _ANSWERS
    over_waiting = False


class ApproveCleanUpOperator(_ApproveOperator):
    """Show an administrator what is left and ask before it is removed. Further arguments as `_ApproveOperator`'s.

    :param left: Markdown, such as what `LeftoversOperator` returned; its templates are rendered.
    """

    yes, no = REMOVE, KEEP
    question, text = "Remove what is left of the migration of Kafka cluster {name}?", _CLEAN_UP
    refused = "Nothing was removed. To be asked again, start a new run."

    def __init__(self, *, left: str, **kwargs: Any) -> None:
        super().__init__(**{"words": {"left": left}, **kwargs})


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
        super().__init__(**{"trigger_dag_id": rollback_dag(cluster), "skip_when_already_exists": True, **kwargs})
        self.cluster_file, self.answered_by = cluster_file, answered_by

    def execute(self, context: Context) -> Any:
        """Hand the cluster over to a new run of the rollback; skipped after any other answer."""
        given, ti = _answered_to_roll_back(self.cluster_file, context, self.answered_by), context["ti"]
        run = _started_by(given, self.trigger_dag_id)
        if state_of(ti, run):
            self.log.info("Run %s is there already.", run)
            return None
        _refuse_if(why_no_run_begins(ti, self.trigger_dag_id))
        self.trigger_run_id = run.partition("/")[2]
        try:
            hand_over(self.cluster_file, context, run, given)
        except KMigrateError as error:
            raise AirflowFailException(str(error)) from None
        return super().execute(context)


class RollbackStartedOperator(BaseOperator):
    """Wait until the run of the rollback that a `StartRollbackOperator` made has begun; skipped after any other answer than to roll back.

    Fails (H11) with what keeps the run queued. Cleared, it looks again. Killed, it leaves nothing to stop: it only reads.

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
        """Look every few seconds."""
        run = _started_by(_answered_to_roll_back(self.cluster_file, context, self.answered_by), rollback_dag(self.cluster))
        end = time.monotonic() + self.WITHIN
        while why := why_queued(context["ti"], run):
            if time.monotonic() > end:
                _refuse_if(f"{why} It owns the cluster, and begins by itself then.")
            self.log.info("Waiting for at most %.0f s. %s", self.WITHIN, why)
            time.sleep(min(5.0, self.WITHIN))
        return f"Run {run} has begun."


def rollback_dag(cluster: str) -> str:
    """The id of the DAG that rolls a cluster back."""
    return f"kmigrate_rollback__{cluster}"


def _answered_to_roll_back(cluster_file: str, context: Context, task: str) -> Approval:
    """The answer that `task` of this run got, as it is recorded. Skips this task if it was not to roll back."""
    try:
        given = approval_of(cluster_file, context, task)
    except KMigrateError as error:
        raise AirflowFailException(str(error)) from None
    if given is None or given.answers[-1].option != ROLL_BACK:
        raise AirflowSkipException("The answer was not to roll back.")
    return given


def _started_by(given: Approval, dag_id: str) -> str:
    """The run of a DAG that an answer starts: there is one for each answer."""
    return f"{dag_id}/approved__{given.answers[-1].at}"


def _refuse_if(why: str) -> None:
    if why:
        raise AirflowFailException(format_reasons((Reason("H11", why),)))


def asked_of(spec: ClusterSpec, plan_of: str = "") -> dict[str, Any]:
    """The arguments of every approval of a cluster: who may answer, who is notified, and to what the answer is bound.

    `plan_of`: id of the task whose result the request shows as its plan.
    """
    notifiers: list[ClusterNotifier] = notifiers_of(spec, "kmigrate asks: {{ task.subject }}", "{{ task.body }}")
    people = {"approvers": spec.approvers, "rehearsal": spec.rehearsal, "notifiers": notifiers}
    shown = {"plan": f"{{{{ ti.xcom_pull(task_ids='{plan_of}') }}}}", "evidence_tasks": [plan_of]} if plan_of else {}
    return {"cluster": spec.name, "cluster_id": spec.cluster_id, "cluster_file": spec.path, **people, **shown}
