"""Statuses as Airflow stores them: checked, and put together to one picture of each cluster, in which each part has its writer and its age.

Who may write XComs of a DAG may forge one, so nothing decides by a status; what cannot be a task's own is shown as such. Who wrote it and
when is Airflow's record, never the document's own word. A DAG `kmigrate_...__<cluster>` speaks of that cluster only.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_kmigrate.core.migration.phase import Phase
from airflow_provider_kmigrate.core.monitoring.status import AT_REST, DOCUMENT_KIND, MOST_BYTES, VERSION
from airflow_provider_kmigrate.core.shared.text import count_of, format_duration, format_minutes, printable

STALE_MS: Final = 3_600_000
"""Milliseconds after which a status says nothing of now."""
NO_STATE: Final = "none"
"""The state of a task that was cleared, and does not run yet."""
_TRIED_AGAIN: Final = frozenset(
    {NO_STATE, "scheduled", "queued", "restarting", "running", "deferred", "up_for_retry", "up_for_reschedule"}
)
"""States of a task that runs, or will: what it wrote last may be of an earlier try."""
_AGAIN: Final = "It failed, and Airflow runs it again."
_OVER: Final = frozenset({"skipped", "removed", "upstream_failed", "success"})
"""States of a task that waits for nothing and has not failed, whatever it wrote last: it may have been marked."""
WAITING_STATES: Final = frozenset({"awaiting_input", "deferred", "running"})
"""States of a task whose request waits for an answer; Airflow 3.1 and 3.2 defer it."""
_CLOCKS_DIFFER_MS: Final = 600_000  # a worker's clock and Airflow's database may differ by so much
_CLUSTER_DAG: Final = re.compile(r"^kmigrate_[a-z_]+?__(?P<cluster>.+)$")
_OWN_DAG: Final = "DAG "  # a cluster's name has no blank
_Text = Annotated[str, Field(max_length=MOST_BYTES)]
_Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
_SecondsLeft = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]  # less than none, if it takes longer than expected
_Time = Annotated[int, Field(ge=0, le=253_402_300_799_000)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class CodedText(_Part):
    """A reason with its code of the runbook."""

    code: str = Field(pattern=r"^([A-Z]{1,2}\d{1,3}[a-z]?)?$")
    text: _Text


class RollbackReason(CodedText):
    """Why a rollback is not assured."""

    fixed_by: _Text


class Alarm(CodedText):
    """What an operator must know."""

    means: _Text
    do: _Text
    is_certain: bool


class StepReason(CodedText):
    """What a step waits for, or why it has failed; `do` is empty unless it has."""

    do: _Text


class Rollback(_Part):
    """Whether a rollback is possible, what it takes and what it loses."""

    level: Literal["ready", "degraded", "lost"]
    text: _Text
    seconds: _Seconds
    loses: list[_Text]
    reasons: list[RollbackReason]


class StatusProgress(_Part):
    """Starts and restarts of a migration's plan. `stage`: the first with one that is left; empty: none is."""

    done: int
    of: int
    next: _Text
    stage: _Text
    seconds_left: _SecondsLeft
    soak_seconds: _Seconds


class StatusOwner(_Part):
    """The run that owns the cluster."""

    run: _Text
    is_alive: bool


class NodeAct(_Part):
    """What kmigrate does to a node."""

    node: _Text
    text: _Text


class NodeStatus(_Part):
    """A node: `mode` None if it does not answer, `file` None if it was not read."""

    node: _Text
    mode: _Text | None
    file: _Text | None
    unit: _Text
    state: _Text
    is_well: bool


class StepStatus(_Part):
    """What a task does, or what it waits for."""

    name: _Text
    doing: Literal["acts", "waits", "done", "failed"]
    text: _Text
    reasons: list[StepReason]
    since_ms: _Time
    usual_seconds: _Seconds | None
    alarm_seconds: _Seconds | None
    seconds_left: _SecondsLeft | None


class StatusDocument(_Part):
    """One status of a cluster, as a task, the watch or `kmigrate status` makes it. What it does not know is null."""

    kind: Literal["status"] = Field(description=f"always {DOCUMENT_KIND!r}")
    version: Literal[3] = Field(description=f"always {VERSION}")
    cluster: _Text
    cluster_id: _Text
    at_ms: _Time
    phase: _Text | None
    phase_text: _Text | None
    lag: int | None
    nodes: list[NodeStatus] | None
    rollback: Rollback | None
    progress: StatusProgress | None
    owner: StatusOwner | None
    under_way: list[NodeAct] | None
    alarms: list[Alarm] | None
    unread: list[_Text] | None
    step: StepStatus | None
    left_out: int = Field(ge=0, description="nodes and list items that did not fit")


def status_schema() -> dict[str, Any]:
    """The JSON schema of a status; `pages/status_schema.json`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | StatusDocument.model_json_schema()


@dataclass(frozen=True, slots=True)
class StoredStatus:
    """An XCom as Airflow has it. `stored_ms`: when, by Airflow's database. `state`: of its task now, as Airflow names it, `none` if it was cleared;
    empty: not read.
    """

    dag_id: str
    run_id: str
    task_id: str
    stored_ms: int
    value: Any
    state: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored status that was checked: `document`, or `problem` with it. `is_tried_again`: its task has failed, and Airflow runs it again."""

    stored: StoredStatus
    document: StatusDocument | None = None
    problem: str = ""

    is_tried_again: bool = False

    def correct_step(self) -> Entry:
        """The entry with what its task does by Airflow's record: a task that was killed, cleared or marked has not written that itself."""
        step, state = self.document.step if self.document else None, self.stored.state
        is_tried_again = step is not None and step.doing == "failed" and state in _TRIED_AGAIN
        if self.document is None or step is None:
            return self
        if is_tried_again:
            reasons = [reason.model_copy(update={"do": ""}) for reason in step.reasons]
            times = {"usual_seconds": None, "alarm_seconds": None, "seconds_left": None}
            change: dict[str, Any] = {"doing": "waits", "text": _AGAIN, "reasons": reasons, **times}
        elif state == "failed" and step.doing != "failed":
            text = f"Airflow ended it without a word of its own. The last one was: {step.text or step.doing}"
            change = {"doing": "failed", "text": text, "reasons": []}
        elif state in _OVER and step.doing != "done":
            change = {"doing": "done", "text": f"Airflow has it as {state}.", "reasons": []}
        else:
            return self
        corrected = self.document.model_copy(update={"step": step.model_copy(update=change)})
        return replace(self, document=corrected, is_tried_again=is_tried_again)

    @property
    def writer(self) -> str:
        """Who wrote it, by Airflow's record."""
        return f"{self.stored.dag_id}/{self.stored.task_id}"


def cluster_of_dag(dag_id: str) -> str:
    """The cluster that a DAG belongs to; for one of a user's own, a name that no cluster can have: it may be called as a cluster is."""
    match = _CLUSTER_DAG.match(dag_id)
    return match["cluster"] if match else f"{_OWN_DAG}{dag_id}"


def is_row_of(dag_id: str, name: str) -> bool:
    """Whether the row of this DAG is meant by a name that a user writes: of a cluster, or of the user's own DAG."""
    return name in {cluster_of_dag(dag_id), dag_id}


def check_stored(stored: StoredStatus, now_ms: int) -> Entry:
    """Check one stored status. A problem says what is wrong with it; nothing of it is shown then."""
    value = stored.value
    try:
        if isinstance(value, str):
            value = json.loads(value)
        if len(json.dumps(value).encode()) > MOST_BYTES:
            return Entry(stored, problem=f"It is larger than {MOST_BYTES} bytes.")
        document = StatusDocument.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = printable(".".join(str(part) for part in first["loc"]))[:80]
        return Entry(stored, problem=f"It is malformed at {place or 'its top'}: {first['msg']}.")
    except (ValueError, TypeError, RecursionError):
        return Entry(stored, problem="It is no JSON document, or Airflow's XCom backend keeps it elsewhere.")
    if _CLUSTER_DAG.match(stored.dag_id) and document.cluster != cluster_of_dag(stored.dag_id):
        return Entry(stored, problem="It names another cluster than its DAG.")
    if abs(document.at_ms - stored.stored_ms) > _CLOCKS_DIFFER_MS or stored.stored_ms - now_ms > _CLOCKS_DIFFER_MS:
        return Entry(stored, problem="Its own time and the time at which Airflow stored it differ by more than 10 min.")
    return Entry(stored, document).correct_step()


class Light(StrEnum):
    """One word for a cluster, what needs an operator first."""

    ACT = "act"
    ASK = "answer"
    LOOK = "look"
    OLD = "old"
    UNKNOWN = "unknown"
    WELL = "well"


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A request for an approval that waits. Times in milliseconds."""

    dag_id: str
    run_id: str
    task_id: str
    subject: str
    asked_ms: int
    users: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster as its newest statuses show it. Each part is an entry of its own, with its writer and time; None: no task has reported it.

    `cluster`: of a DAG of a user's own, `DAG` and its id. `problems`: stored statuses that cannot be a task's own.
    """

    cluster: str
    now_ms: int
    newest: Entry | None = None
    judged: Entry | None = None
    step: Entry | None = None
    seen: Entry | None = None
    problems: Sequence[Entry] = ()
    requests: Sequence[ApprovalRequest] = ()

    @property
    def observed_cluster(self) -> str:
        """The cluster of the newest status, whose DAGs an operator starts: a row of a user's own DAG is not called like it."""
        return self.newest.document.cluster if self.newest and self.newest.document else self.cluster.removeprefix(_OWN_DAG)

    def age_ms(self, entry: Entry) -> int:
        """How long ago Airflow stored it."""
        return max(0, self.now_ms - entry.stored.stored_ms)

    def is_old(self, entry: Entry | None) -> bool:
        """Whether it says nothing of now."""
        return entry is not None and self.age_ms(entry) > STALE_MS

    def describe_age(self, entry: Entry) -> str:
        """Writer and age in words."""
        old = ": older than an hour, it says nothing of now" if self.is_old(entry) else ""
        return f"{entry.writer}, {format_duration(self.age_ms(entry))} ago{old}"

    @property
    def light(self) -> Light:
        """The one light: what an operator must do comes first, and what is old or unknown is never well.

        A request waits by Airflow's own record, however old the statuses are.
        """
        is_of_now = self.newest is not None and not self.is_old(self.newest)
        if is_of_now and (self.has_failed or self.alarms):
            return Light.ACT
        if self.requests:
            return Light.ASK
        if not is_of_now:
            return Light.UNKNOWN if self.newest is None else Light.OLD
        return Light.WELL if self._is_well(self.judged.document if self.judged else None) else Light.LOOK

    @property
    def has_failed(self) -> bool:
        """Whether the newest task has failed."""
        step = self.step.document.step if self.step and self.step.document else None
        return step is not None and step.doing == "failed"

    @property
    def is_tried_again(self) -> bool:
        """Whether the newest task has failed, and Airflow runs it again."""
        return self.step is not None and self.step.is_tried_again

    @property
    def alarms(self) -> Sequence[Alarm]:
        """What an operator must act on, as far as it was judged within the hour."""
        judged = self.judged.document if self.judged and not self.is_old(self.judged) else None
        return (judged.alarms or ()) if judged else ()

    @property
    def is_without_run(self) -> bool:
        """Whether a migration is under way that no run continues: none owns the cluster, and no task has reported since that was judged."""
        if self.judged is None or self.judged.document is None:
            return False
        document, is_newest = self.judged.document, self.step is None or self.age_ms(self.judged) <= self.age_ms(self.step)
        return is_newest and document.owner is None and document.phase not in {None, Phase.UNKNOWN, *AT_REST}

    def _is_well(self, judged: StatusDocument | None) -> bool:
        seen = self.seen.document if self.seen else None
        if judged is None or judged.rollback is None or self.is_old(self.judged) or judged.unread or self.problems:
            return False
        if self.is_without_run or self.is_tried_again:
            return False
        is_over = judged.phase == "finalized"
        nodes_well = seen is None or all(node.is_well or self.is_worked_on(node.node) for node in seen.nodes or ())
        return nodes_well and (judged.rollback.level == "ready" or is_over)

    def is_worked_on(self, node: str) -> bool:
        """Whether the newest task acts on this node or waits for it: that it is not well is expected."""
        step = self.step.document.step if self.step and self.step.document and not self.is_old(self.step) else None
        is_named = step is not None and re.search(rf"\b{re.escape(node)}\b", step.name) is not None
        return step is not None and is_named and step.doing in {"acts", "waits"}


def combine(checked: Iterable[Entry], requests: Iterable[ApprovalRequest], now_ms: int) -> list[ClusterStatus]:
    """One picture of each cluster, by its name. A task that began later hides the step of an earlier one."""
    entries, asked = defaultdict[str, list[Entry]](list), defaultdict[str, list[ApprovalRequest]](list)
    for entry in checked:
        entries[cluster_of_dag(entry.stored.dag_id)].append(entry)
    for request in requests:
        asked[cluster_of_dag(request.dag_id)].append(request)
    return [_combine_cluster(name, entries[name], asked[name], now_ms) for name in sorted({*entries, *asked})]


def _combine_cluster(name: str, entries: Sequence[Entry], requests: Sequence[ApprovalRequest], now_ms: int) -> ClusterStatus:
    newest_first = sorted(entries, key=lambda entry: -entry.stored.stored_ms)
    valid = [(entry, entry.document) for entry in newest_first if entry.document is not None]
    return ClusterStatus(
        name,
        now_ms,
        newest=next((entry for entry, _ in valid), None),
        judged=next((entry for entry, document in valid if document.rollback is not None), None),
        step=next((entry for entry, document in valid if document.step is not None), None),
        seen=next((entry for entry, document in valid if document.nodes is not None), None),
        problems=[entry for entry in newest_first if entry.problem],
        requests=requests,
    )


def describe_row(status: ClusterStatus) -> Mapping[str, str]:
    """The cells of a cluster's row: of a table of `kmigrate status`, and of the page Fleet."""
    judged, step, seen = (entry.document if entry else None for entry in (status.judged, status.step, status.seen))
    return {
        "cluster": status.cluster,
        "light": status.light,
        "phase": (seen and seen.phase) or "not known",
        "step": _describe_step_cell(status),
        "rollback": f"{describe_rollback_cell(judged)}{' (then)' if status.is_old(status.judged) else ''}",
        "lag": "?" if seen is None or seen.lag is None else str(seen.lag),
        "left": "?" if seen is None or seen.progress is None else _describe_left(seen.progress, step),
        "waits": _describe_wait_cell(status, step),
        "age": status.describe_age(status.newest) if status.newest else "no status yet",
    }


def describe_rollback_cell(judged: StatusDocument | None) -> str:
    """Whether a rollback is possible, in a few words."""
    if judged is None or judged.rollback is None:
        return "not judged"
    rollback = judged.rollback
    takes = format_minutes(rollback.seconds) if rollback.seconds else "nothing to roll back"
    losses = f"loses {count_of(len(rollback.loses), 'thing')}" if rollback.loses else "loses nothing"
    if rollback.level == "lost":
        return "no"
    if rollback.level == "degraded":
        return f"not assured, {takes}"
    return f"yes, {takes}, {losses}" if rollback.seconds else f"yes, {takes}"


def _describe_left(progress: StatusProgress, step: StatusDocument | None) -> str:
    seconds = step.step.seconds_left if step and step.step and step.step.doing in {"acts", "waits"} else None
    if seconds is None:
        seconds = progress.seconds_left + progress.soak_seconds if progress.next else 0.0
    return format_duration(1000 * seconds) if seconds > 0 else "-"


def _describe_step_cell(status: ClusterStatus) -> str:
    document = status.step.document if status.step else None
    if document is None or document.step is None:
        return "-"
    return f"{document.step.name} ({document.step.doing})"


def _describe_wait_cell(status: ClusterStatus, step: StatusDocument | None) -> str:
    if status.requests:
        request = status.requests[0]
        return f"an answer of {', '.join(request.users) or 'a user who may edit the DAG'}: {request.subject}"
    judged = status.judged.document if status.judged else None
    codes = [alarm.code for alarm in (judged.alarms or ())] if judged and not status.is_old(status.judged) else []
    if codes:
        return f"an operator: {', '.join(codes)}"
    if step and step.step and step.step.doing in {"waits", "failed"} and step.step.reasons:
        return step.step.reasons[0].text
    return "-"
