"""Who may approve an irreversible step, whether an answer counts, and whether an approval still holds when it is used.

An approval belongs to one run, to the evidence that was shown with the request, and to the state of the cluster at that time. It is
used only while all three are the same, and only for as long as the cluster file says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from airflow_provider_kmigrate.core.cluster import ApproverSpec, StopPoint
from airflow_provider_kmigrate.core.gates import MET, Gate, never
from airflow_provider_kmigrate.core.model import ClusterView, Reason
from airflow_provider_kmigrate.core.text import summarize

BY_CONF = "the run's conf"
"""The user of an approval that the conf of a rehearsal's run gave beforehand."""
BY_CLUSTER = "the cluster, which is finalized already"
"""The user of an approval of steps that only complete a finalization that has happened; it approves nothing else (`may_begin`)."""
_STOPS = (f"stop_after_{point}" for point in StopPoint)
#: Task -> the states in which it only waits.
_WAITING = {"soak": frozenset({"deferred"}), **dict.fromkeys(("approve", *_STOPS), frozenset({"awaiting_input", "deferred"}))}
_OVER = {"success", "failed", "skipped", "upstream_failed", "removed"}


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
    """The answers that were given, and what was shown to those who gave them."""

    shown: Shown
    answers: tuple[ApproverAnswer, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON values, for XCom and for the record of a handed-over lock."""
        return {"shown": asdict(self.shown), "answers": [asdict(answer) for answer in self.answers]}

    def __str__(self) -> str:
        return " | ".join(map(str, self.answers))


def from_json(stored: object) -> Approval | None:
    """The approval of these JSON values; None if they are none, such as those of a task that was marked as success."""
    try:
        fields: Any = stored
        shown = Shown(fields["shown"]["run"], fields["shown"]["cluster"], dict(fields["shown"]["evidence"]))
        return Approval(shown, tuple(ApproverAnswer(**each) for each in fields["answers"]))
    except (KeyError, TypeError, ValueError):
        return None


def digest(text: object) -> str:
    """The SHA-256 of a task's evidence, in hex."""
    return hashlib.sha256(str(text).encode()).hexdigest()


def fingerprint(view: ClusterView, cluster_id: str) -> str:
    """Which migration of which cluster this is: each one creates `/migration` again, and a rollback deletes it.

    Empty if ZooKeeper was not read.
    """
    created = view.migration.created_at if view.migration else 0.0
    return f"{cluster_id}, /migration of {created:.3f}" if view.zk is not None else ""


def not_counting(
    answer: ApproverAnswer, approvers: ApproverSpec | None, earlier: Sequence[ApproverAnswer], *, approves: bool
) -> Reason | None:
    """Why an answer does not count (H10); None if it does. `earlier`: those that counted; `approves`: it lets something begin."""
    if approvers is None:
        return None
    if answer.user not in approvers.users:
        return Reason("H10", f"{answer.name} ({answer.user or 'no user id'}) is not an approver of this cluster.")
    if approves and approvers.reason and not answer.reason.strip():
        return Reason("H10", f"{answer.name} ({answer.user}) gave no reason.")
    if any((each.user, each.option) == (answer.user, answer.option) for each in earlier):  # an answer may be changed
        return Reason("H10", f"{answer.name} ({answer.user}) has approved already; another approver must.")
    return None


def missing_answers(answers: Sequence[ApproverAnswer], approvers: ApproverSpec | None) -> int:
    """How many more different approvers must approve before a finalization."""
    required = approvers.required if approvers else 1
    return max(0, required - len({answer.user for answer in answers}))


def still_holds(approval: Approval | None, now: Shown, approvers: ApproverSpec | None, at: datetime) -> Gate:
    """H06: the approval is of this run, of what is shown now, by enough approvers, and not too old."""
    if approval is None:
        return never(Reason("H06", "No approval was recorded."))
    found = [*_changed(approval.shown, now), *_not_enough(approval, approvers, at)]
    return never(*(Reason("H06", text) for text in found)) if found else MET


def _changed(then: Shown, now: Shown) -> list[str]:
    tasks = sorted(task for task in {*then.evidence, *now.evidence} if then.evidence.get(task) != now.evidence.get(task))
    return [
        *([f"The approval is of run {then.run}, this is run {now.run}."] if then.run != now.run else []),
        *([f"The approval is of another migration: {then.cluster} then, {now.cluster or 'unread'} now."]
          if then.cluster and then.cluster != now.cluster else []),
        *([f"What was shown with the request has changed since: {summarize(tasks)}."] if tasks else []),
    ]  # fmt: skip


def _not_enough(approval: Approval, approvers: ApproverSpec | None, at: datetime) -> list[str]:
    """Why the answers do not suffice by the cluster file as it is now; a conf's answer is checked where it is given."""
    if approvers is None or [answer.user for answer in approval.answers] == [BY_CONF]:
        return []
    strangers = [answer.name for answer in approval.answers if answer.user not in approvers.users]
    age = max(((at - datetime.fromisoformat(answer.at)).total_seconds() for answer in approval.answers), default=0.0)
    missing = missing_answers(approval.answers, approvers)
    return [
        *([f"No approver of this cluster any more: {summarize(strangers)}."] if strangers else []),
        *([f"{missing} more approver must approve."] if missing else []),
        *([f"The approval is {age / 3600:.1f} h old, more than approvers.expires ({approvers.expires / 3600:g} h)."]
          if age > approvers.expires else []),
    ]  # fmt: skip


def only_waits(states: Mapping[str, str | None]) -> bool:
    """Whether a run only waits for an answer or for time: a rollback may take its lock. `states`: of its tasks, by id.

    A task that has begun and is not over must be one that only waits, and there must be one.
    """
    begun = {task: state for task, state in states.items() if state and state not in _OVER}
    return bool(begun) and all(state in _WAITING.get(task.rpartition(".")[2], ()) for task, state in begun.items())
