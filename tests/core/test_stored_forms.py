"""What is stored outlives the release that wrote it: a migration that one began goes on with the next. Each form is pinned, as it is written and as it is read.

A failure here means that a run, a note or a file of the release before reads otherwise. Raise the form's version, read the former one too (or have it
refused by name), and only then change what is pinned in `stored_forms.json`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.core.audit import session_messages, settled
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, Level
from airflow_provider_kmigrate.core.cluster_state.model import Cause, FetchedOffset, Reason
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.ledger.facts import Gap
from airflow_provider_kmigrate.core.member import cutover_note, registration
from airflow_provider_kmigrate.core.member.cutover_note import CanaryPhase, CutoverNote
from airflow_provider_kmigrate.core.member.group_seen import GroupPosition, Lag
from airflow_provider_kmigrate.core.member.registration import GroupHold, GroupPaths, MemberProgress, Mode, Registration
from airflow_provider_kmigrate.core.migration import progress
from airflow_provider_kmigrate.core.migration.approval import Approval, ApproverAnswer, Shown, parse_approval
from airflow_provider_kmigrate.core.migration.group_progress import GroupsKept
from airflow_provider_kmigrate.core.monitoring.watch import Alarms, OpenAlarm
from airflow_provider_kmigrate.core.offsets_topic.expansion import Export, parse_export
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.spark import hold
from airflow_provider_kmigrate.core.spark.hold import Checkpoint, HeldRecord, JobReport, JobState, SparkHold

CORE = Path(progress.__file__).parents[1]
FORMS: dict[str, Any] = json.loads(Path(__file__).with_name("stored_forms.json").read_text())
P0 = TopicPartition("orders", 0)
KEY = settled.SettledKey("Kx1", 500, ("billing",), "0.1.0")
SESSION = session_messages.SessionKey("Kx1", "run-1", "t0k3n")


class Form(NamedTuple):
    """A value, how it is written, as text, bytes or JSON values, and how what was written is read."""

    value: Any
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def to_json(value: Any) -> Any:
    return value.to_json()


FORMS_BY_NAME = {
    "progress of a step": Form(
        progress.StepProgress(
            12.5,
            3.0,
            4.0,
            2,
            (Reason("K69", "slow"),),
            (Reason("G00", "not read", cause=Cause.BROKER_UNRESPONSIVE),),
            restart_begun=True,
            member_restarts=1,
            recoveries=1,
        ),
        to_json,
        progress.from_json,
    ),
    "cutover": Form(
        CutoverNote("run-1", 5, frozenset({P0}), True, 9, (("K93", "no progress"),), 0.0, CanaryPhase.PASSED, frozenset({P0})),
        cutover_note.write_cutover,
        cutover_note.read_cutover,
    ),
    "registration of a member": Form(
        Registration("static", {"orders": 2}, "17"), registration.write_registration, registration.read_registration
    ),
    "progress of a member": Form(
        MemberProgress(7, Mode.KAFKA, settled=True),
        lambda value: registration.write_progress(Registration("static", {"orders": 2}, "17"), value),
        registration.read_progress,
    ),
    "hold of a group": Form(GroupHold("run-1", "K93"), registration.write_hold, registration.read_hold),
    "hold of a job": Form(SparkHold("h1", "run-1", "a roll", 5), hold.hold_text, hold.read_hold),
    "report of a job": Form(
        JobReport(JobState.HELD, 5, "h1", "q1", 3, 4, begun=False, progress_ms=6, resumed_at={P0: 8}, error="none"),
        hold.report_text,
        hold.read_report,
    ),
    "record of a hold": Form(
        HeldRecord("h1", 5, JobState.HELD, Checkpoint("q1", 3, 3, {P0: 8}), {"orders": "id"}), hold.held_text, hold.read_held
    ),
    "exported offsets": Form(
        Export(("billing",), {"billing": {P0: FetchedOffset(8, 2, "by hand")}}, 3, {GroupPartition("billing", *P0): 4}),
        to_json,
        parse_export,
    ),
    "groups between restarts": Form(
        GroupsKept(
            {"billing": frozenset({"orders-0"})},
            {"billing": GroupPosition({P0: Lag(8, 9)})},
            5.5,
            {"billing": ("app on /10.0.0.1",)},
        ),
        to_json,
        GroupsKept.from_json,
    ),
    "approval": Form(
        Approval(
            Shown("run-1", "Kx1", {"audit": "ab"}),
            (ApproverAnswer("Finalize", "7", "ann", "2026-12-04T03:00:00Z", "ok"),),
            "approve",
            "cd",
        ),
        to_json,
        parse_approval,
    ),
    "alarms": Form(Alarms({"G05": OpenAlarm(5.0, "[G05] no flag")}, "dual-write", 4.0, 6.0), to_json, Alarms.from_json),
    "settled cuts": Form(
        settled.Settled(
            KEY,
            {"w": settled.SettledWriter(1, 2, 3, None, (4,))},
            frozenset({("w", "billing", "m")}),
            {
                P0: settled.SettledPartition(
                    9,
                    {"p": settled.SettledProducer(5, 1, 2, 3, 4, 6, 7, 8)},
                    {
                        "billing": settled.GroupPrefix(
                            0, 9, 10, "m", {("w", "m"): 5}, Gap("billing", "orders", 0, 4, 1, 5, ("m",), False)
                        )
                    },
                    {"billing": "[]"},
                )
            },
        ),
        settled.as_document,
        lambda text: settled.parse_document(text, KEY),
    ),
    "lease of a session": Form(
        session_messages.SessionLease(SESSION, 3, ended=True),
        session_messages.encode_message,
        lambda text: session_messages.decode_message(session_messages.SessionLease, text),
    ),
    "pulse of a session": Form(
        session_messages.SessionPulse(SESSION, 3, "r1"),
        session_messages.encode_message,
        lambda text: session_messages.decode_message(session_messages.SessionPulse, text),
    ),
    "request to a session": Form(
        session_messages.SessionRequest(SESSION, "r1", "job", {"version": 3}, "/results"),
        session_messages.encode_message,
        lambda text: session_messages.decode_message(session_messages.SessionRequest, text),
    ),
    "answer of a session": Form(
        session_messages.SessionAnswer(SESSION, "r1", 0, "PASS", {"verdict.json": "ab"}),
        session_messages.encode_message,
        lambda text: session_messages.decode_message(session_messages.SessionAnswer, text),
    ),
}
#: Whose values are stored, and by which a reader decides. New ones may come; one that goes or gets another spelling is not understood any more.
STORED_ENUMS: tuple[type[Enum], ...] = (AuditCause, AuditOutcome, CanaryPhase, Cause, JobState, Level, Mode)
PLACES = ("ROOT", "ROLLED_BACK", "REGISTERED", "UNFLAGGED", "EXPANSION", "COUNTS")


def as_values(written: Any) -> Any:
    """What was written, as JSON values; those that become text elsewhere, too."""
    return json.loads(written if isinstance(written, str | bytes) else json.dumps(written))


@pytest.mark.parametrize("name", FORMS_BY_NAME)
def test_a_value_is_stored_as_the_release_before_stored_it(name: str) -> None:
    form = FORMS_BY_NAME[name]
    assert as_values(form.write(form.value)) == FORMS["forms"][name]


@pytest.mark.parametrize("name", FORMS_BY_NAME)
def test_what_the_release_before_stored_is_read(name: str) -> None:
    form, stored = FORMS_BY_NAME[name], FORMS["forms"][name]
    is_text = isinstance(form.write(form.value), str | bytes)
    assert form.read(json.dumps(stored).encode() if is_text else stored) == form.value


@pytest.mark.parametrize("stored", STORED_ENUMS, ids=lambda kind: kind.__name__)
def test_no_stored_word_is_gone(stored: type[Enum]) -> None:
    words = {str(item.value) for item in stored}
    assert words >= {*FORMS["words"][stored.__name__]}, "a stored word is not understood any more"
    assert words <= {*FORMS["words"][stored.__name__]}, "pin what is new"


def list_places() -> dict[str, str]:
    """Where kmigrate keeps what is its own in ZooKeeper; of a group with the name g."""
    return {name: getattr(znodes, name) for name in PLACES} | {
        f"group's {name}": path for name, path in vars(GroupPaths("g")).items()
    }


def test_what_the_release_before_stored_is_looked_for_where_it_is() -> None:
    assert list_places() == FORMS["places"]


def test_each_value_that_is_stored_as_json_is_pinned() -> None:
    """But for the stages of a plan, which has a schema of its own."""
    classes = {
        node.name
        for path in CORE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(part, ast.FunctionDef) and part.name == "to_json" for part in node.body)
    }
    pinned = {type(form.value).__name__ for form in FORMS_BY_NAME.values()}
    assert classes - pinned == {"PlannedStage"}
