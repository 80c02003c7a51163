"""Who may approve an irreversible step, whether an answer counts, and whether an approval still holds when it is used.

An approval belongs to one run, to the evidence that was shown with the request, and to the state of the cluster at that time. It is
used only while all three are the same, and only for as long as the cluster file says. Its record is with the fence, where users of
Airflow cannot write (`clients.records`); what a task returned is never taken for one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ApproverSpec, StopPoint
from airflow_provider_kmigrate.core.migration.beside import BESIDE, OVER
from airflow_provider_kmigrate.core.migration.gates import MET, Gate, never
from airflow_provider_kmigrate.core.shared.text import count_of, summarize

BY_CONF = "the run's conf"
"""The user of an approval that the conf of a rehearsal's run gave beforehand."""
BY_CLUSTER = "the cluster, which is finalized already"
"""The user of an approval of steps that only complete a finalization that has happened; it approves nothing else (`may_begin_finalization`)."""
ASKED, GIVEN = "asked", "given"
_STOP_TASKS = (f"stop_after_{point}" for point in StopPoint)
#: Task -> the states in which it only waits.
_WAITING = {
    "soak": frozenset({"deferred"}),
    **dict.fromkeys(("approve", *_STOP_TASKS), frozenset({"awaiting_input", "deferred"})),
}


@dataclass(frozen=True, slots=True)
class ApproverAnswer:
    """One user's answer to a request. `at`: ISO 8601 in UTC."""

    option: str
    user: str
    name: str
    at: str
    reason: str = ""

    def __str__(self) -> str:
        why = f", because: {self.reason}" if self.reason else ""
        return f"{self.option} by {self.name} ({self.user}) at {self.at}{why}"


@dataclass(frozen=True, slots=True)
class Shown:
    """What an approval is bound to. `cluster`: its fingerprint, empty: none; `evidence`: task -> SHA-256 of what it returned."""

    run: str
    cluster: str
    evidence: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Approval:
    """The answers that were given, and what was shown to those who gave them.

    `task`: the one that asked, whose record it is; `request`: the SHA-256 of the text that Airflow's page shows; `status`: `ASKED` until
    enough approvers have answered, then `GIVEN`.
    """

    shown: Shown
    answers: tuple[ApproverAnswer, ...]
    task: str = ""
    request: str = ""
    status: str = "given"

    def to_json(self) -> dict[str, Any]:
        """JSON values, for its record and the journal."""
        return asdict(self) | {"answers": [asdict(answer) for answer in self.answers]}

    def __str__(self) -> str:
        return " | ".join(map(str, self.answers))


def parse_approval(stored: object) -> Approval | None:
    """The approval of these JSON values; None unless each field is there, has its type, and is known."""
    try:
        whole = _require_fields(stored, Approval)
        shown = _require_fields(whole["shown"], Shown)
        if not isinstance(whole["answers"], list) or not isinstance(shown["evidence"], dict):
            return None
        answers = [_require_fields(answer_fields, ApproverAnswer) for answer_fields in whole["answers"]]
        texts = [*(whole[name] for name in _TEXTS), shown["run"], shown["cluster"], *shown["evidence"].values()]
        texts += [text for answer in answers for text in answer.values()]
    except TypeError:
        return None
    if not all(isinstance(text, str) for text in texts):
        return None
    return Approval(
        Shown(**shown), tuple(ApproverAnswer(**answer_fields) for answer_fields in answers), *(whole[name] for name in _TEXTS)
    )


_TEXTS = ("task", "request", "status")


def _require_fields(stored: object, kind: type[Any]) -> dict[str, Any]:
    """Raises TypeError unless they are exactly those of the class."""
    if not isinstance(stored, dict) or stored.keys() != {field.name for field in fields(kind)}:
        raise TypeError(kind)
    return stored


def sign_record(record: Mapping[str, Any], key: str) -> str:
    """The HMAC-SHA256 of JSON values by a secret, in hex."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def hash_text(text: object) -> str:
    """The SHA-256 of a task's evidence, in hex."""
    return hashlib.sha256(str(text).encode()).hexdigest()


def fingerprint(view: ClusterView, cluster_id: str) -> str:
    """Which migration of which cluster this is: each one creates `/migration` again, and a rollback deletes it.

    Empty if ZooKeeper was not read.
    """
    created = view.migration.created_at if view.migration else 0.0
    return f"{cluster_id}, /migration of {created:.3f}" if view.zk is not None else ""


def why_not_counted(
    answer: ApproverAnswer,
    approvers: ApproverSpec | None,
    earlier: Sequence[ApproverAnswer],
    *,
    approves: bool,
    asked_by: str | None = "",
) -> Reason | None:
    """Why an answer does not count (H10); None if it does.

    `earlier`: those that counted; `approves`: it lets something begin; `asked_by`: who started the run, empty: no user, None: unknown.
    """
    text = "" if answer.user else f"Airflow names no user for the answer {answer.option!r}."
    if not text and approvers is not None:
        text = _why_unfit(answer, approvers, earlier, approves=approves, asked_by=asked_by)
    return Reason("H10", text) if text else None


def _why_unfit(
    answer: ApproverAnswer, approvers: ApproverSpec, earlier: Sequence[ApproverAnswer], *, approves: bool, asked_by: str | None
) -> str:
    approver, barred = f"{answer.name} ({answer.user})", approves and approvers.not_requester
    names = {answer.user.casefold(), answer.name.casefold()}
    cases = (
        (answer.user not in approvers.users, f"{approver} is not an approver of this cluster."),
        (approves and approvers.reason and not any(map(str.isalnum, answer.reason)), f"{approver} gave no reason."),  # blanks may be invisible
        (barred and asked_by is None, "Airflow does not say who started this run, who may not approve it (not_requester)."),
        (barred and (asked_by or "").casefold() in names, f"{approver} started this run; another approver must approve it (not_requester)."),
        (any((other.user, other.option) == (answer.user, answer.option) for other in earlier),  # an answer may be changed
         f"{approver} has approved already; another approver must."),
    )  # fmt: skip
    return next((text for is_so, text in cases if is_so), "")


def count_missing_answers(answers: Sequence[ApproverAnswer], approvers: ApproverSpec | None) -> int:
    """How many more different approvers must approve before a finalization."""
    required = approvers.required if approvers else 1
    return max(0, required - len({answer.user for answer in answers}))


def approval_unchanged(approval: Approval | None, now: Shown, at: datetime, *, rehearsal: bool) -> Gate:
    """H06: the approval is whole, of this run, and of what is shown now."""
    if approval is None:
        return never(Reason("H06", "No approval was recorded."))
    flaws = [*_find_flaws(approval, at, rehearsal=rehearsal), *_find_changes(approval.shown, now)]
    return never(*(Reason("H06", text) for text in flaws)) if flaws else MET


def approval_valid(
    approval: Approval | None, now: Shown, approvers: ApproverSpec | None, at: datetime, *, rehearsal: bool
) -> Gate:
    """H06: as `approval_unchanged`, and by enough approvers, and not too old.

    What the cluster approved itself (`BY_CLUSTER`) is not enough: it only completes a finalization that has happened.
    """
    unchanged = approval_unchanged(approval, now, at, rehearsal=rehearsal)
    shortfalls = _find_shortfalls(approval, approvers, at) if approval is not None and unchanged.met else []
    return never(*(Reason("H06", text) for text in shortfalls)) if shortfalls else unchanged


SKEW = timedelta(minutes=5)
"""How far the clock of Airflow's API server, which dates answers, may be ahead of this machine's."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def _find_flaws(approval: Approval, at: datetime, *, rehearsal: bool) -> list[str]:
    """What makes it no approval, whatever was shown and whichever user may approve."""
    shown, answers = approval.shown, approval.answers
    return [
        *(["The approval names no run."] if not shown.run else []),
        *(["The approval is bound to no cluster."] if not shown.cluster else []),
        *(["The approval is bound to no evidence."] if not shown.evidence else []),
        *(["The approval is bound to what is no SHA-256."] if not all(map(_DIGEST.fullmatch, shown.evidence.values())) else []),
        *(["The request waits for an answer, or for another approver."] if approval.status != GIVEN else []),
        *(["The approval has no answer."] if not answers else []),
        *(["The approval has an answer without an option, or without a user."] if not all(a.option and a.user for a in answers) else []),
        *(text for answer in answers if (text := _find_date_flaw(answer, at))),
        *(["The run's conf approved, and this cluster is no rehearsal."]
          if not rehearsal and any(answer.user == BY_CONF for answer in answers) else []),
    ]  # fmt: skip


def _find_date_flaw(answer: ApproverAnswer, at: datetime) -> str:
    answered_at = _parse_date(answer)
    if answered_at is None:
        return f"The answer of {answer.name} has no date with a time zone: {answer.at[:40]!r}."
    return (
        f"The answer of {answer.name} is of the future: {answer.at}, and it is {at.isoformat()}."
        if answered_at - SKEW > at
        else ""
    )


def _parse_date(answer: ApproverAnswer) -> datetime | None:
    try:
        answered_at = datetime.fromisoformat(answer.at)
        return answered_at if answered_at.utcoffset() is not None and answered_at - SKEW else None
    except (ValueError, OverflowError):
        return None


def _find_changes(then: Shown, now: Shown) -> list[str]:
    tasks = sorted(task for task in {*then.evidence, *now.evidence} if then.evidence.get(task) != now.evidence.get(task))
    return [
        *([f"The approval is of run {then.run}, this is run {now.run}."] if then.run != now.run else []),
        *([f"The approval is of another migration: {then.cluster} then, {now.cluster or 'unread'} now."]
          if then.cluster != now.cluster else []),
        *([f"What was shown with the request has changed since: {summarize(tasks)}."] if tasks else []),
    ]  # fmt: skip


def _find_shortfalls(approval: Approval, approvers: ApproverSpec | None, at: datetime) -> list[str]:
    """Why the answers do not suffice by the cluster file as it is now; `_find_flaws` has judged a conf's answer."""
    users = [answer.user for answer in approval.answers]
    if BY_CLUSTER in users:
        return ["No approver was asked, since the migration was finalized; now it is not."]
    if approvers is None or users == [BY_CONF]:
        return []
    strangers = [answer.name for answer in approval.answers if answer.user not in approvers.users]
    age = max(((at - date).total_seconds() for date in map(_parse_date, approval.answers) if date), default=0.0)
    missing = count_missing_answers(approval.answers, approvers)
    return [
        *([f"No approver of this cluster any more: {summarize(strangers)}."] if strangers else []),
        *([f"{count_of(missing, 'more approver')} must approve."] if missing else []),
        *([f"The approval is {age / 3600:.1f} h old, more than approvers.expires ({approvers.expires / 3600:g} h)."]
          if age > approvers.expires else []),
    ]  # fmt: skip


def run_only_waits(states: Mapping[str, str | None]) -> bool:
    """Whether a run only waits for an answer or for time: a rollback may take its lock. `states`: of its tasks, by id.

    A task that has begun and is not over must be one that only waits, and there must be one. Tasks beside the steps do not count: where
    they alone are left, a failed run is over but for them.
    """
    steps = {task: state for task, state in states.items() if task not in BESIDE}
    begun = {task: state for task, state in steps.items() if state and state not in OVER}
    if not begun:
        return len(steps) < len(states) and bool(steps) and all(state in OVER for state in steps.values())
    return all(state in _WAITING.get(task.rpartition(".")[2], ()) for task, state in begun.items())
