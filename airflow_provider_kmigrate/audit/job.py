"""The audit from end to end: `run(sources, policy, engine)`; as a program, `python -m airflow_provider_kmigrate.audit.job`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from airflow_provider_kmigrate.audit import fingerprint, offsets_history, queries, report, request, stream
from airflow_provider_kmigrate.audit.canary import compare as compare_canary
from airflow_provider_kmigrate.audit.judge import ControlEvents, judge
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import (
    AuditPolicy,
    LogsRequest,
    OffsetsRequest,
    ReportRequest,
    Request,
    StreamRequest,
)
from airflow_provider_kmigrate.audit.session import SparkEngine, start
from airflow_provider_kmigrate.audit.sources import Source, attach
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hadoop_files import HadoopFiles
from airflow_provider_kmigrate.core import journal_lines
from airflow_provider_kmigrate.core.audit import commit_copies
from airflow_provider_kmigrate.core.audit.canary import CanaryPlan
from airflow_provider_kmigrate.core.audit.commit_copies import OffsetsFacts
from airflow_provider_kmigrate.core.audit.events_kept import limits
from airflow_provider_kmigrate.core.audit.report_facts import Ledger, Subject, collect
from airflow_provider_kmigrate.core.audit.verdict import (
    AuditFinding,
    AuditOutcome,
    AuditVerdict,
    CanaryVerdict,
    Level,
    LevelHealth,
    as_dict,
    combine,
    of_facts,
)
from airflow_provider_kmigrate.core.event_lines import decode
from airflow_provider_kmigrate.core.events import Event
from airflow_provider_kmigrate.core.ledger import Facts
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError

LevelFindings = tuple[tuple[AuditFinding, ...], LevelHealth]  # the findings about something, and how complete their evidence is
_MOST: Final = 300_000  # events that are kept in memory for pictures, about 1 kB each


@dataclass(frozen=True, slots=True)
class Audited:
    """The result for one source. `refused`: lines that are no events, each with the reason; `pictured`: events for a report.

    Of its `partitions` the `suspects` were judged event by event.
    """

    level: Level
    facts: Facts
    findings: tuple[AuditFinding, ...]
    health: LevelHealth
    refused: tuple[tuple[str, str], ...] = ()
    pictured: tuple[Event, ...] = ()
    canary: CanaryVerdict | None = None
    partitions: int = 0
    suspects: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict over all sources, and its evidence."""

    verdict: AuditVerdict
    sources: tuple[Audited, ...]


def run(
    sources: Iterable[Source],
    policy: AuditPolicy,
    engine: Engine,
    *,
    also: Sequence[LevelFindings] = (),
    notes: Sequence[AuditFinding] = (),
    pictured: bool = False,
    canary: CanaryPlan | None = None,
) -> Result:
    """Audit every source and conclude, also from `also` and from `notes`, which are about no level.

    `pictured`: keep events for a report. `canary`: compare its group's members. Raises `Refused` if a schema version or a name is
    unknown, `Failed` if a source cannot be read. No source, or an empty one, is INCONCLUSIVE.
    """
    audited = tuple(audit(source, policy, engine, pictured=pictured, canary=canary) for source in sources)
    found = [*also, *((source.findings, source.health) for source in audited)]
    accounts = [health for _, health in found]
    findings = [*notes, *(each for some, _ in found for each in some)]
    judged = next((source.canary for source in audited if source.canary is not None), None)
    return Result(combine(findings, accounts, judged), audited)


def audit(
    source: Source, policy: AuditPolicy, engine: Engine, *, pictured: bool = False, canary: CanaryPlan | None = None
) -> Audited:
    """One source's facts and their meaning. Our own probe writes every partition all the time, so each must have evidence."""
    if source.level is Level.PROBE:
        policy = replace(policy, required_evidence=replace(policy.required_evidence, everywhere=True))
    attach(source, engine)
    control = ControlEvents.read(engine)
    facts, screened = judge(engine, control, policy)
    findings, health = of_facts(facts, source.level, policy.allow)
    canary = None if source.level is Level.PROBE else canary  # not about the users' consumers
    return Audited(
        source.level,
        facts,
        findings,
        replace(health, malformed=len(control.refused)),
        tuple(control.refused),
        _pictured(engine) if pictured else (),
        compare_canary(engine, control, canary, findings, policy.required_evidence.since) if canary else None,
        len(screened.clean) + len(screened.suspects),
        len(screened.suspects),
    )


def main(
    arguments: Sequence[str] | None = None, open_engine: Callable[[Request], AbstractContextManager[Engine]] | None = None
) -> int:
    """`job REQUEST FOLDER`: leave `verdict.json`, `facts.json` and `refused.jsonl` in the folder, and the report if requested.

    A PASS over logs leaves `fingerprint.json` too, for the next audit to compare with. Returns 0 whatever the verdict is; 2: nothing
    could be concluded, for the reason printed. `open_engine` None: Spark.
    """
    parser = argparse.ArgumentParser(description="Audits deliveries and leaves a verdict.")
    parser.add_argument("request", type=Path, help="JSON, see request.py")
    parser.add_argument("folder", type=Path, help="folder for the result; it is created")
    options = parser.parse_args(arguments)
    try:
        wanted = request.load(options.request)
        with (open_engine or _spark_engine)(wanted) as engine:
            notes: list[AuditFinding] = []
            if wanted.stream:
                sources, notes = _ingest(wanted.stream, engine, wanted.sources)
                wanted = replace(wanted, sources=sources)
            also, leave = _logs(wanted.logs, engine, options.folder) if wanted.logs else ([], None)
            offsets = _offsets(wanted.offsets, engine) if wanted.offsets else None
            notes += commit_copies.findings(offsets) if offsets else []
            pictured = wanted.report is not None
            result = run(wanted.sources, wanted.policy, engine, also=also, notes=notes, pictured=pictured, canary=wanted.canary)
            if leave and result.verdict.outcome is AuditOutcome.PASS:
                leave()
        if wanted.report:
            write_report(wanted.report, result, options.folder, offsets)
        write(result, options.folder)
    except KMigrateError as error:
        print(f"no verdict: {error}", file=sys.stderr)  # noqa: T201  # a program's own words
        return 2
    print(result.verdict.headline)  # noqa: T201
    return 0


def _ingest(wanted: StreamRequest, engine: Engine, sources: Sequence[Source]) -> tuple[tuple[Source, ...], list[AuditFinding]]:
    """Ingest the topic's events; returns the sources, and what the topic does not keep.

    Before the first event in the topic its ledger does not exist, and is left out.
    """
    plan = stream.StreamPlan(wanted.topic, wanted.folder, wanted.checkpoint)
    session = _spark(engine)
    events = stream.EventStream(session, fingerprint.properties(wanted), plan)
    events.catch_up()
    written = any(name.startswith("row_kind=") for name in HadoopFiles(session).names(wanted.folder))
    gone = set() if written else {wanted.folder}
    left = (replace(source, ledgers=tuple(place for place in source.ledgers if place not in gone)) for source in sources)
    return tuple(left), limits(wanted.topic, events.marks())


def _logs(wanted: LogsRequest, engine: Engine, folder: Path) -> tuple[list[LevelFindings], Callable[[], None]]:
    """The findings about the logs, and the function that leaves the observation for the next audit."""
    session = _spark(engine)
    found = fingerprint.compare_since(session, wanted)
    return [(found.findings, found.health)], partial(found.leave, session, wanted, folder / "fingerprint.json")


def _offsets(wanted: OffsetsRequest, engine: Engine) -> OffsetsFacts:
    session = _spark(engine)
    count = offsets_history.read_history(session, fingerprint.properties(wanted), wanted.folder)
    return offsets_history.frames(session, session.read.parquet(wanted.folder), count).facts()


def _spark(engine: Engine) -> SparkSession:
    if not isinstance(engine, SparkEngine):
        raise TypeError("only Spark reads logs and topics")
    return engine.session


@contextmanager
def _spark_engine(wanted: Request) -> Iterator[Engine]:
    with start(wanted.spark.master, jars=wanted.spark.jars, settings=wanted.spark.settings) as session:
        yield SparkEngine(session)


def write(result: Result, folder: Path) -> None:
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


def _pictured(engine: Engine) -> tuple[Event, ...]:
    """Events of the attached source: all, or of a large one the control events."""
    few = engine.ask(queries.EVENT_COUNT)["n"][0].as_py() > _MOST
    lines = engine.ask(queries.FEW_LINES if few else queries.ALL_LINES)["line"].to_pylist()
    return tuple(map(decode, lines))


def write_report(wanted: ReportRequest, result: Result, folder: Path, offsets: OffsetsFacts | None = None) -> None:
    """Write `report.html` and `report.json` into the folder.

    Raises `Failed` if a journal is unreadable or the folder not writable.
    """
    subject = Subject(wanted.cluster, wanted.cluster_id, wanted.run, time.time_ns() // 1_000_000)
    pictured = [event for source in result.sources for event in source.pictured]
    ledgers = [Ledger(source.level, source.facts) for source in result.sources]
    try:
        journal = journal_lines.read(_lines(wanted.journals))
        found = collect(subject, result.verdict, ledgers=ledgers, journal=journal, events=pictured, offsets=offsets)
        report.write(found, folder)
    except OSError as error:
        raise Failed(f"the report cannot be written in {folder}: {error}") from error


def _lines(journals: Iterable[str]) -> Iterator[str]:
    for place in map(Path, journals):
        for path in sorted(place.glob("*.jsonl")) if place.is_dir() else [place]:
            yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


if __name__ == "__main__":
    sys.exit(main())
