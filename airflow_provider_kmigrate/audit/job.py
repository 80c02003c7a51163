"""The audit from end to end: `run(sources, policy, engine)`; as a program, `python -m airflow_provider_kmigrate.audit.job`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_kmigrate import __version__
from airflow_provider_kmigrate.audit import fingerprint, offsets_history, report, request, settling, stream, tables
from airflow_provider_kmigrate.audit.canary import compare as compare_canary
from airflow_provider_kmigrate.audit.curves import DrawnSource, join_books, measure_sources
from airflow_provider_kmigrate.audit.event_store import Evidence, check_parts_after_failure, read_source
from airflow_provider_kmigrate.audit.figures import Figures, carry_figures
from airflow_provider_kmigrate.audit.judge import ControlEvents, Judged, judge_source
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import (
    AuditPolicy,
    AuditRequest,
    LogsRequest,
    OffsetsRequest,
    ReportRequest,
    StreamRequest,
)
from airflow_provider_kmigrate.audit.session import SparkEngine, start_session
from airflow_provider_kmigrate.audit.settling import open_evidence
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hadoop_files import HadoopFiles
from airflow_provider_kmigrate.core.audit import commit_copies
from airflow_provider_kmigrate.core.audit.canary import CanaryPlan
from airflow_provider_kmigrate.core.audit.commit_copies import OffsetsFacts
from airflow_provider_kmigrate.core.audit.events_kept import check_retention
from airflow_provider_kmigrate.core.audit.report_facts import Ledger, Subject, collect_report_facts
from airflow_provider_kmigrate.core.audit.restarts import list_restarts
from airflow_provider_kmigrate.core.audit.settled import SettledKey
from airflow_provider_kmigrate.core.audit.verdict import (
    AuditFinding,
    AuditOutcome,
    AuditVerdict,
    CanaryVerdict,
    Level,
    LevelHealth,
    as_dict,
    combine,
    findings_from_facts,
)
from airflow_provider_kmigrate.core.ledger import Facts
from airflow_provider_kmigrate.core.monitoring import journal_lines
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError

LevelFindings = tuple[tuple[AuditFinding, ...], LevelHealth]  # the findings about something, and how complete their evidence is
_say = partial(print, flush=True)  # a program's own words, at once in the log of its driver


@dataclass(frozen=True, slots=True)
class Audited:
    """The result for one source. `drawn`: for a report's page; `refused`: lines that are no events, each with the reason.

    Of its `partitions` the `suspects` were judged event by event.
    """

    level: Level
    facts: Facts
    findings: tuple[AuditFinding, ...]
    health: LevelHealth
    drawn: DrawnSource
    refused: tuple[tuple[str, str], ...] = ()
    canary: CanaryVerdict | None = None
    partitions: int = 0
    suspects: int = 0
    judged: Judged | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict over all sources, and its evidence."""

    verdict: AuditVerdict
    sources: tuple[Audited, ...]


def audit_sources(
    sources: Iterable[Source],
    policy: AuditPolicy,
    engine: Engine,
    *,
    also: Sequence[LevelFindings] = (),
    notes: Sequence[AuditFinding] = (),
    canary: CanaryPlan | None = None,
    settled: SettledKey | None = None,
) -> Result:
    """Audit every source and conclude, also from `also` and from `notes`, which are about no level.

    `settled`: read only what came after the cuts of this key, if there are any; None: read everything. `canary`: compare its group's members. Raises `Refused` if a schema version or a name is unknown, `Failed` if a source cannot be
    read. No source, or an empty one, is INCONCLUSIVE.
    """
    audited = tuple(audit_source(source, policy, engine, canary=canary, settled=settled) for source in sources)
    level_findings = [*also, *((source.findings, source.health) for source in audited)]
    accounts = [health for _, health in level_findings]
    findings = [*notes, *(finding for findings_of_level, _ in level_findings for finding in findings_of_level)]
    judged = next((source.canary for source in audited if source.canary is not None), None)
    return Result(combine(findings, accounts, judged), audited)


def audit_source(
    source: Source,
    policy: AuditPolicy,
    engine: Engine,
    *,
    canary: CanaryPlan | None = None,
    settled: SettledKey | None = None,
) -> Audited:
    """One source's facts and their meaning. Our own probe writes every partition all the time, so each must have evidence."""
    if source.level is Level.PROBE:
        policy = replace(policy, required_evidence=replace(policy.required_evidence, everywhere=True))
    evidence = read_source(source)
    with check_parts_after_failure(evidence.stored):
        return _judge_evidence(source.level, evidence, policy, engine, canary=canary, settled=settled)


def _judge_evidence(
    level: Level,
    evidence: Evidence,
    policy: AuditPolicy,
    engine: Engine,
    *,
    canary: CanaryPlan | None,
    settled: SettledKey | None,
) -> Audited:
    opened = open_evidence(engine, evidence, settled)
    control = ControlEvents.read(engine)
    judged = judge_source(engine, opened, control, policy)
    screened = judged.screened
    findings, health = findings_from_facts(judged.facts, level, policy.allow)
    canary = None if level is Level.PROBE else canary  # not about the users' consumers
    if canary and judged.opened.settled is not None:
        engine.attach("events", evidence.data)  # it compares the whole time
    return Audited(
        level,
        judged.facts,
        findings,
        replace(health, malformed=len(control.refused)),
        DrawnSource(evidence.data, judged.book, screened.readings),
        tuple(control.refused),
        compare_canary(engine, control, canary, findings, policy.required_evidence.since) if canary else None,
        len(screened.clean) + len(screened.suspects),
        len(screened.suspects),
        judged,
    )


def main(
    arguments: Sequence[str] | None = None, open_engine: Callable[[AuditRequest], AbstractContextManager[Engine]] | None = None
) -> int:
    """`job REQUEST FOLDER`: leave `verdict.json`, `facts.json` and `refused.jsonl` in the folder, and the report if requested.

    A PASS over logs leaves `fingerprint.json` too, for the next audit to compare with. Report and tables come last, and the verdict does not
    depend on them: if they cannot be made, the reason is printed. Returns 0 whatever the verdict is; 2: nothing could be concluded,
    for the reason printed. `open_engine` None: Spark.
    """
    parser = argparse.ArgumentParser(description="Audits deliveries and leaves a verdict.")
    parser.add_argument("request", type=Path, help="JSON, see request.py")
    parser.add_argument("folder", type=Path, help="folder for the result; it is created")
    parser.add_argument("--whole", action="store_true", help="read all events, also what earlier audits settled")
    options = parser.parse_args(arguments)
    try:
        audit_request = request.load(options.request)
        audit_request = replace(audit_request, whole=audit_request.whole or options.whole)
        with (open_engine or _open_spark_engine)(audit_request) as engine:
            concluded = run_audit(audit_request, engine, options.folder)
            _say(concluded.headline)
            concluded.try_settle()
            concluded.try_report(options.folder)
            concluded.try_tables()
    except KMigrateError as error:
        _say(f"no verdict: {error}", file=sys.stderr)
        return 2
    return 0


@dataclass(frozen=True, slots=True)
class Concluded:
    """An audit whose verdict is in its folder, and whose report and tables are still to be made, if they are wanted."""

    headline: str
    write_report: Callable[[Path], None] | None
    write_tables: Callable[[], None] | None = None
    settle: Callable[[], list[str]] | None = None

    def try_settle(self) -> None:
        """Keep what the next audit need not read again; if it cannot be done the reason is printed, and that audit reads more."""
        try:
            texts = self.settle() if self.settle else []
        except KMigrateError as error:
            texts = [f"nothing is settled: {error}"]
        for text in texts:
            _say(text)

    def try_report(self, folder: Path) -> bool:
        """Write the report into the folder; False: there is none, and if it could not be made the reason is printed."""
        if self.write_report is None:
            return False
        try:
            self.write_report(folder)
        except KMigrateError as error:
            _say(f"no report: {error}", file=sys.stderr)
            return False
        return True

    def try_tables(self) -> None:
        """Add the audit to the tables; if it cannot be done the reason is printed."""
        if self.write_tables is None:
            return
        try:
            self.write_tables()
        except KMigrateError as error:
            _say(f"no tables: {error}", file=sys.stderr)


def run_audit(audit_request: AuditRequest, engine: Engine, folder: Path) -> Concluded:
    """Conclude on a request; the verdict and its facts are in the folder. Raises ours if nothing could be concluded."""
    notes: list[AuditFinding] = []
    if audit_request.stream:
        sources, notes = _ingest_events(audit_request.stream, engine, audit_request.sources)
        audit_request = replace(audit_request, sources=sources)
    also, keep_snapshot = _compare_logs(audit_request.logs, engine, folder) if audit_request.logs else ([], None)
    offsets = _collect_offsets_facts(audit_request.offsets, engine) if audit_request.offsets else None
    notes += commit_copies.check_commits(offsets) if offsets else []
    result = audit_sources(
        audit_request.sources,
        audit_request.policy,
        engine,
        also=also,
        notes=notes,
        canary=audit_request.canary,
        settled=None if audit_request.whole else settled_key(audit_request),
    )
    for source in result.sources:
        if source.judged is not None and (text := settling.describe(source.judged.opened)):
            _say(text)
    if keep_snapshot and result.verdict.outcome is AuditOutcome.PASS:
        keep_snapshot()
    write_result(result, folder)
    wanted = audit_request.report
    collect = cache(partial(list_audited, result, engine))
    measure = cache(partial(measure_audit, engine, collect, wanted.journals if wanted else ()))
    return Concluded(
        result.verdict.headline,
        partial(write_report, wanted, result, engine, measure, offsets=offsets) if wanted else None,
        partial(write_audit_tables, wanted, result, measure) if wanted and wanted.tables else None,
        partial(_prepare_next, collect if wanted else None, partial(settle_sources, engine, result, settled_key(audit_request))),
    )


def _prepare_next(collect: Callable[[], object] | None, settle: Callable[[], list[str]]) -> list[str]:
    """Sum up before settling, which may merge the parts that this audit read."""
    if collect:
        collect()
    return settle()


def settled_key(audit_request: AuditRequest) -> SettledKey:
    """What cuts of this request belong to."""
    policy = audit_request.policy
    cluster_id = audit_request.report.cluster_id if audit_request.report else ""
    return SettledKey(cluster_id, policy.skew_ms, tuple(sorted(policy.required_evidence.mixed)), __version__)


def settle_sources(engine: Engine, result: Result, key: SettledKey) -> list[str]:
    """Settle what was found clean; returns what was done, for a log. After a FAIL nothing more is settled."""
    if result.verdict.outcome is AuditOutcome.FAIL:
        return []
    return [
        settling.settle(engine, source.judged.opened, source.judged.screened, source.judged.context, key)
        for source in result.sources
        if source.judged is not None and source.judged.opened.evidence.stored is not None
    ]


def _ingest_events(
    stream_request: StreamRequest, engine: Engine, sources: Sequence[Source]
) -> tuple[tuple[Source, ...], list[AuditFinding]]:
    """Ingest the topic's events; returns the sources, and what the topic does not keep.

    Before the first event in the topic its ledger does not exist, and is left out.
    """
    plan = stream.StreamPlan(stream_request.topic, stream_request.folder, stream_request.checkpoint)
    session = _require_spark_session(engine)
    events = stream.EventStream(session, fingerprint.read_properties(stream_request), plan)
    events.catch_up()
    written = any(name.startswith("row_kind=") for name in HadoopFiles(session).names(stream_request.folder))
    missing_ledgers = set() if written else {stream_request.folder}
    existing_sources = (
        replace(source, ledgers=tuple(ledger for ledger in source.ledgers if ledger not in missing_ledgers)) for source in sources
    )
    return tuple(existing_sources), check_retention(stream_request.topic, events.read_topic_marks())


def _compare_logs(logs_request: LogsRequest, engine: Engine, folder: Path) -> tuple[list[LevelFindings], Callable[[], None]]:
    """The findings about the logs, and the function that leaves the observation for the next audit."""
    session = _require_spark_session(engine)
    comparison = fingerprint.compare_since(session, logs_request)
    return [(comparison.findings, comparison.health)], partial(
        comparison.keep_snapshot, session, logs_request, folder / "fingerprint.json"
    )


def _collect_offsets_facts(offsets_request: OffsetsRequest, engine: Engine) -> OffsetsFacts:
    session = _require_spark_session(engine)
    count = offsets_history.read_history(session, fingerprint.read_properties(offsets_request), offsets_request.folder)
    return offsets_history.build_frames(session, session.read.parquet(offsets_request.folder), count).collect_facts()


def _require_spark_session(engine: Engine) -> SparkSession:
    if not isinstance(engine, SparkEngine):
        raise TypeError("only Spark reads logs and topics")
    return engine.session


@contextmanager
def _open_spark_engine(audit_request: AuditRequest) -> Iterator[Engine]:
    with start_session(
        audit_request.spark.master, jars=audit_request.spark.jars, settings=audit_request.spark.settings
    ) as session:
        yield SparkEngine(session)


def write_result(result: Result, folder: Path) -> None:
    """The result as files, each whole or not at all; the verdict last. Raises `Failed`."""
    facts = [{"level": source.level.label, **source.facts.as_dict()} for source in result.sources]
    refused = [json.dumps({"why": why, "line": line}) + "\n" for source in result.sources for why, line in source.refused]
    atomic.make_folder(folder)
    texts = {
        "refused.jsonl": "".join(refused),
        "facts.json": json.dumps({"sources": facts}),
        "verdict.json": json.dumps(as_dict(result.verdict)),
    }
    for name, text in texts.items():
        atomic.replace(folder / name, text.encode(), mode=atomic.ALL_USERS)


@dataclass(frozen=True, slots=True)
class MeasuredAudit:
    """What report and tables both say of an audit: rows of `tables.COMPLETENESS` and `tables.RESTARTS`, and the journal of the run."""

    sources: tuple[tables.AuditedSource, ...]
    journal: journal_lines.JournalLines
    completeness: tuple[tables.Row, ...]
    restarts: tuple[tables.Row, ...]


def measure_audit(
    engine: Engine, collect: Callable[[], tuple[tables.AuditedSource, ...]], journals: Sequence[str]
) -> MeasuredAudit:
    """Ask for what report and tables need. `collect`: as `list_audited`. Raises `Failed` if a journal is unreadable or the engine does not answer."""
    sources = collect()
    try:
        journal = journal_lines.parse_lines(_read_journals(journals))
    except OSError as error:
        raise Failed(f"the journal cannot be read: {error}") from error
    restarts = list_restarts(journal_lines.list_acts(journal.lines))
    completeness = tables.measure_completeness(engine, sources)
    return MeasuredAudit(sources, journal, tuple(completeness), tuple(tables.measure_restarts(engine, sources, restarts)))


def write_report(
    report_request: ReportRequest,
    result: Result,
    engine: Engine,
    measure: Callable[[], MeasuredAudit],
    folder: Path,
    *,
    offsets: OffsetsFacts | None = None,
) -> None:
    """Write `report.html` and `report.json` into the folder. `measure`: as `measure_audit`.

    Raises `Failed` as it does, and if the folder is not writable.
    """
    subject = Subject(report_request.cluster, report_request.cluster_id, report_request.run, time.time_ns() // 1_000_000)
    drawn = [source.drawn for source in result.sources]
    measured = measure()
    facts = collect_report_facts(
        subject,
        result.verdict,
        ledgers=[Ledger(source.level, source.facts) for source in result.sources],
        journal=measured.journal,
        book=join_books(source.book for source in drawn),
        measure=partial(measure_sources, engine, drawn),
        offsets=offsets,
        completeness=measured.completeness,
        restarts=measured.restarts,
    )
    try:
        report.write(facts, folder)
    except OSError as error:
        raise Failed(f"the report cannot be written in {folder}: {error}") from error


def write_audit_tables(report_request: ReportRequest, result: Result, measure: Callable[[], MeasuredAudit]) -> None:
    """Add the audit to the tables of its cluster. Raises `Failed` as `measure_audit`, and if they cannot be written."""
    measured = measure()
    record = tables.AuditRecord(
        time.time_ns() // 1_000_000,
        report_request.cluster,
        report_request.cluster_id,
        report_request.run,
        report_request.step,
        result.verdict,
        measured.sources,
        measured.completeness,
        measured.restarts,
    )
    tables.write_tables(record, Path(report_request.tables))


def list_audited(result: Result, engine: Engine) -> tuple[tables.AuditedSource, ...]:
    """What report and tables need of each source. What is new in its store is summed up, and kept for the next audit."""
    return tuple(
        tables.AuditedSource(
            source.level, source.facts, source.drawn, source.partitions, source.suspects, _carry_figures(source, engine)
        )
        for source in result.sources
    )


def _carry_figures(source: Audited, engine: Engine) -> Figures:
    stored = source.judged.opened.evidence.stored if source.judged else None
    with check_parts_after_failure(stored):
        return Figures() if stored is None else carry_figures(engine, source.drawn, stored)


def _read_journals(journals: Iterable[str]) -> Iterator[str]:
    for folder_or_file in map(Path, journals):
        for path in sorted(folder_or_file.glob("*.jsonl")) if folder_or_file.is_dir() else [folder_or_file]:
            yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


if __name__ == "__main__":
    sys.exit(main())
