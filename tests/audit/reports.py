"""Report facts for tests: a run in which everything went wrong, and one of the largest size that is promised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_provider_kmigrate.core.audit.commit_copies import OffsetsFacts, ShownCopies
from airflow_provider_kmigrate.core.audit.report_facts import (
    Ledger,
    OwnerTrack,
    ReportFacts,
    ReportWindow,
    Subject,
    collect_report_facts,
)
from airflow_provider_kmigrate.core.audit.verdict import (
    AuditFinding,
    AuditOutcome,
    AuditVerdict,
    CanaryVerdict,
    Level,
    LevelHealth,
    combine,
    findings_from_facts,
)
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import OwnershipChange
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.core.ledger.book import Book, GroupPartition
from airflow_provider_kmigrate.core.ledger.facts import Case
from airflow_provider_kmigrate.core.ledger.ownership import OwnerInterval
from airflow_provider_kmigrate.core.migration.coordinator import hash_group
from airflow_provider_kmigrate.core.monitoring import journal_lines
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import StoredCommit, judge_copies, sort_by_commit_time
from tests.core.histories import History

HOSTILE = '<script>alert("x")</script><img src=http://example.org/x.png onerror=alert(1)>\x00&"\''
SUBJECT = Subject("prod", "q1Sh-9_ISia_zwGINzRvyQ", "kmigrate_zk_to_kraft__prod/manual__2026-11-21", 1_795_241_479_346)
START = 1_000_000


def journal_text(start_ms: int = START) -> list[str]:
    """A run with an act without a recorded end, an alarm, and a last line that was cut."""
    rows = [
        (0, "findings", "preflight", "0 findings", ""),
        (4, "act", "provision controller 3000", "provision: it is empty", ""),
        (6, "acted", "provision controller 3000", "provision", ', "seconds": 2.0'),
        (7, "done", "provision controller 3000", "started", ', "seconds": 3.0'),
        (8, "act", "broker 0 to migration", "restart: it may stop", ""),
        (11, "act", "broker 0 to migration", "start: it is stopped with the new file", ""),
        (12, "acted", "broker 0 to migration", "start", ', "seconds": 1.0'),
        (13, "alarm", "broker 0 to migration", f"[G05] {HOSTILE!r}", ""),
        (18, "done", "broker 0 to migration", "back in every ISR", ', "seconds": 7.0'),
        (19, "done", "preferred leaders", "all are", ', "seconds": 0.5'),
    ]
    lines = [
        f'{{"at": {start_ms / 1000 + at}, "run": "r", "kind": "{kind}", "step": "{step}", "text": {_quoted(text)}{more}}}'
        for at, kind, step, text, more in rows
    ]
    return [*lines, '{"at": 12']


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def broken_history() -> History:
    """Records lost and delivered twice, and two owners at once."""
    history = History(now=START)
    history.consumer("billing-0", "billing")
    history.consumer("billing-1", "billing")
    history.producer("p")
    history.own("billing", "billing-0", OwnershipChange.ACQUIRED, (0, 1, 2))
    for first in range(0, 60, 10):
        for partition in range(3):
            history.ack("p", partition, first, first, 10)
            if (partition, first) != (1, 30):
                history.deliver("billing", "billing-0", partition, first, 10, first)
    history.own("billing", "billing-1", OwnershipChange.ACQUIRED, (2,))
    history.deliver("billing", "billing-1", 2, 40, 10, 40)
    history.own("billing", "billing-0", OwnershipChange.RELEASED, (0, 2))
    history.own("billing", "billing-1", OwnershipChange.ACQUIRED, (0,))
    return history


def broken() -> ReportFacts:
    """FAIL with everything that a page can show, and hostile text wherever text comes from outside."""
    events = broken_history().end()
    facts = balance(events)
    findings, health = findings_from_facts(facts, Level.PRODUCER)
    case = Case(HOSTILE, 3, 5, 9, 5, HOSTILE, members=(HOSTILE, "b"), from_ms=START, to_ms=START + 5, note=HOSTILE)
    hostile = AuditFinding(AuditOutcome.FAIL, Reason("A05", HOSTILE, remedy=HOSTILE), Level.CONSUMER, 5, (case,))
    accounts = [health, LevelHealth(Level.LOG, 10, owner_changes=60), LevelHealth(Level.CONSUMER, 5)]
    verdict = combine([*findings, hostile], accounts, canary())
    ledgers = [Ledger(Level.PRODUCER, facts)]
    journal = journal_lines.parse_lines(journal_text())
    found = collect_report_facts(
        replace(SUBJECT, run=HOSTILE),
        verdict,
        ledgers=ledgers,
        journal=journal,
        book=Book.of(events),
        completeness=[minute_row(number, behind=3 * (number % 2)) for number in range(4)],
        restarts=[restart_row(START + 8_000, START + 18_000), restart_row(START + 90_000, None)],
    )
    return replace(found, offsets=copies())


def minute_row(number: int, group: str = HOSTILE, **figures: int) -> dict[str, object]:
    """A row of the table `completeness`, of the minute of this number."""
    row = {
        "level": "L3",
        "topic": "t",
        "consumer_group": group,
        "minute_ms": 960_000 + 60_000 * number,
        "acked": 10,
        "delivered": 9,
    }
    return {**row, "behind": 0, "measured": 9, "late_1s": 2, "longest_delivery_ms": 1_200, "longest_ack_ms": 40, **figures}


def restart_row(began_ms: int, settled_ms: int | None) -> dict[str, object]:
    """A row of the table `restarts`."""
    row = {"step": HOSTILE, "began_ms": began_ms, "ended_ms": None, "settled_ms": settled_ms}
    return {**row, "longest_ack_ms": 30, "longest_delivery_ms": None, "late_1s": 2}


def copies() -> OffsetsFacts:
    """A group that two coordinators served in turn, and that went back."""
    key = GroupPartition(HOSTILE, HOSTILE, 3)
    places = (hash_group(HOSTILE) % 15, hash_group(HOSTILE) % 15 + 1)
    records = [
        StoredCommit(places[at % 2], at, START + at, START + at, offset, metadata=HOSTILE)
        for at, offset in enumerate((111, 999, 112, 113))
    ]
    judged = judge_copies(key, records, 15)
    return OffsetsFacts(
        15, 9, 1, 5, 2, {judged.state: 1}, 1, 1, (10,), 2, (HOSTILE,), (ShownCopies(judged, tuple(sort_by_commit_time(records))),)
    )


def canary() -> CanaryVerdict:
    return CanaryVerdict(AuditOutcome.FAIL, "delivery latency p95 ms", 1.5, 60, 60, 9, 1.9, 1.5, float("inf"), 1.4, 0.001)


def nothing() -> ReportFacts:
    """No evidence of any kind."""
    return collect_report_facts(SUBJECT, combine([], []))


def passing() -> ReportFacts:
    """Nothing to complain of, and no client that wrote anything down."""
    return collect_report_facts(
        SUBJECT, AuditVerdict(AuditOutcome.PASS, {Level.LOG: AuditOutcome.PASS, Level.PROBE: AuditOutcome.PASS})
    )


def largest(partitions: int = 1_000, changes: int = 200) -> ReportFacts:
    """Every partition with owners of its own, changing often; findings with as many examples as an audit keeps."""
    window = ReportWindow(0, 3_600_000)
    length = (window.to_ms - window.from_ms) // changes
    tracks = []
    for partition in range(partitions):
        held = [
            OwnerInterval(at * length, (at + 1) * length, (f"consumer-{(at + partition) % 40}-6f1c9e2a",))
            if at % 7
            else OwnerInterval(at * length + partition, (at + 1) * length, ("a", "b") if at % 2 else ())
            for at in range(changes)
        ]
        tracks.append(OwnerTrack("a-group-with-a-long-name", "a-topic-with-a-long-name", partition, tuple(held)))
    case = Case(
        "a-topic-with-a-long-name", 1, 5, 9, 5, "a-group-with-a-long-name", members=("consumer-1-6f1c9e2a",) * 2, from_ms=1
    )
    examples = tuple(replace(case, partition=number) for number in range(20))
    findings = [
        AuditFinding(AuditOutcome.FAIL, Reason(f"A{n:02}", "text " * 30, "why " * 30), Level.LOG, 20, examples) for n in range(12)
    ]
    verdict = combine(findings, [LevelHealth(Level.LOG, 1)], canary())
    return ReportFacts(SUBJECT, window, verdict, owners=tuple(tracks))


def write_page(facts: ReportFacts, folder: Path) -> Path:
    from airflow_provider_kmigrate.audit.report import write  # noqa: PLC0415  # core's tests read this module too

    write(facts, folder)
    return folder / "report.html"
