"""The audit's tables for other programs: Parquet that Spark SQL, DuckDB and Trino read, described in `docs/tables.md`.

::

    <folder>/v1/events/audit=<id>/level=L3/00000001.parquet …   the evidence, as it was audited (`sources.EVENTS`)
    <folder>/v1/completeness/audit=<id>/rows.parquet            COMPLETENESS
    <folder>/v1/restarts/audit=<id>/rows.parquet                RESTARTS
    <folder>/v1/findings/audit=<id>/rows.parquet                FINDINGS
    <folder>/v1/verdicts/audit=<id>/rows.parquet                VERDICTS, last: what has no verdict is not complete

Each audit adds its own rows and changes no others. Verdicts and findings stay; of the other tables the two newest audits are kept. A change
that a reader would misunderstand goes to a folder of another version.
"""

# ruff: noqa: S608  # only numbers of ours are put into the texts

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_kmigrate.audit.curves import DrawnSource, lag_steps
from airflow_provider_kmigrate.audit.figures import LATE, MINUTE_MS, SECOND_MS, Figures, attach_figures, figure_query
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.sources import EVENTS
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.audit.restarts import StepRestart
from airflow_provider_kmigrate.core.audit.verdict import AuditVerdict, Level
from airflow_provider_kmigrate.core.ledger import Facts
from airflow_provider_kmigrate.core.shared.text import format_date
from airflow_provider_kmigrate.exceptions import Failed

VERSION: Final = 1
_KEPT: Final = 2
_ABANDONED_S: Final = 86_400.0  # without a verdict: until then its audit may still write
_ROWS: Final = "rows.parquet"
_LATE: Final = [(name, pa.int64()) for name in LATE]

COMPLETENESS: Final = pa.schema(
    [
        ("level", pa.string()),
        ("topic", pa.string()),
        ("consumer_group", pa.string()),  # null: no group reads the topic
        ("minute", pa.string()),  # its beginning, UTC: 2026-11-21 10:31
        ("minute_ms", pa.int64()),  # the same, ms since the epoch
        ("acked", pa.int64()),  # records of the topic, acknowledged in this minute
        ("delivered", pa.int64()),  # records, delivered to the group in this minute
        ("behind", pa.int64()),  # at the end of the minute: offsets acknowledged and not yet delivered to the group
        ("measured", pa.int64()),  # of `delivered`: those whose time from sent to delivered is known
        *_LATE,  # of `measured`: delivered so many seconds, or more, after they were sent
        ("longest_delivery_ms", pa.int64()),  # from sent to delivered; null: not measured
        ("longest_ack_ms", pa.int64()),  # from sent to acknowledged, of the topic; null: not measured
    ]
)
RESTARTS: Final = pa.schema(
    [
        ("run", pa.string()),
        ("step", pa.string()),  # such as "broker 0 to migration"
        ("nodes", pa.list_(pa.string())),
        ("acts", pa.list_(pa.string())),
        ("began", pa.string()),  # UTC: 2026-11-21 10:31:07
        ("began_ms", pa.int64()),
        ("ended_ms", pa.int64()),  # the last act was carried out; null: not recorded
        ("settled_ms", pa.int64()),  # everything was healthy again; null: not yet
        # Of the acknowledgements and deliveries that came between `began_ms` and the last recorded time of the restart:
        ("longest_ack_ms", pa.int64()),
        ("longest_delivery_ms", pa.int64()),
        *_LATE,
    ]
)
_CASE: Final = pa.struct(
    [
        ("topic", pa.string()),
        ("part", pa.int32()),
        ("lo", pa.int64()),
        ("hi", pa.int64()),
        ("n", pa.int64()),
        ("consumer_group", pa.string()),
        ("producer", pa.string()),
        ("members", pa.list_(pa.string())),
        ("from_ms", pa.int64()),
        ("to_ms", pa.int64()),
        ("note", pa.string()),
    ]
)
FINDINGS: Final = pa.schema(
    [
        ("level", pa.string()),  # null: about no level
        ("outcome", pa.string()),  # what it alone makes of the verdict
        ("code", pa.string()),  # as in the runbook
        ("cause", pa.string()),
        ("text", pa.string()),
        ("n", pa.int64()),  # how many there are
        ("cases", pa.list_(_CASE)),  # the first of them
    ]
)
VERDICTS: Final = pa.schema(
    [
        ("audited_ms", pa.int64()),
        ("cluster", pa.string()),
        ("cluster_id", pa.string()),
        ("run", pa.string()),
        ("step", pa.string()),  # after which the audit was
        ("outcome", pa.string()),  # PASS, INCONCLUSIVE or FAIL
        ("headline", pa.string()),
        *((level.label.lower(), pa.string()) for level in Level),  # null: not measured
        ("acked", pa.int64()),
        ("delivered", pa.int64()),
        ("partitions", pa.int64()),
        ("suspects", pa.int64()),  # of `partitions`: judged event by event
        ("ledgers", pa.list_(pa.string())),  # folders of evidence that `events` has no copy of
    ]
)
TABLES: Final[Mapping[str, pa.Schema]] = {
    "events": EVENTS,
    "completeness": COMPLETENESS,
    "restarts": RESTARTS,
    "findings": FINDINGS,
    "verdicts": VERDICTS,
}
_SNAPSHOTS: Final = ("events", "completeness", "restarts")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditedSource:
    """What the tables need of one source. Of its `partitions` the `suspects` were judged event by event. `figures`: what is summed up of it."""

    level: Level
    facts: Facts
    drawn: DrawnSource
    partitions: int = 0
    suspects: int = 0
    figures: Figures = field(default_factory=Figures)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One audit, as the tables have it. `audited_ms`: ms since the epoch."""

    audited_ms: int
    cluster: str
    cluster_id: str
    run: str
    step: str
    verdict: AuditVerdict
    sources: tuple[AuditedSource, ...] = ()
    completeness: tuple[Row, ...] = ()
    restarts: tuple[Row, ...] = ()
    id: str = field(default_factory=lambda: os.urandom(4).hex())

    @property
    def name(self) -> str:
        """Its value of the column `audit`."""
        return f"a{self.audited_ms}-{self.id}"


def write_tables(record: AuditRecord, folder: Path) -> None:
    """Add an audit to the tables, its verdict last. Raises `Failed`; then there is no verdict, and readers see none of it."""
    home = folder / f"v{VERSION}"
    try:
        for source in record.sources:
            _link_events(source, home / "events" / f"audit={record.name}" / f"level={source.level.label}")
        _write_rows(home, "completeness", record, record.completeness)
        _write_rows(home, "restarts", record, record.restarts)
        _write_rows(home, "findings", record, list_findings(record.verdict))
        _write_rows(home, "verdicts", record, [describe_verdict(record)])
        _remove_snapshots(home)
    except OSError as error:
        raise Failed(f"the tables cannot be written in {folder}: {error}") from error


def _write_rows(home: Path, table: str, record: AuditRecord, rows: Iterable[Row]) -> None:
    file = BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=TABLES[table]), file, compression="zstd", write_page_checksum=True)
    target = home / table / f"audit={record.name}"
    atomic.make_folder(target)
    atomic.replace(target / _ROWS, file.getvalue(), mode=atomic.ALL_USERS)


def _link_events(source: AuditedSource, target: Path) -> None:
    """Keep the files of the evidence under a second name: what the store merges or removes later stays here. Ledgers elsewhere are not copied."""
    atomic.make_folder(target)
    for number, data in enumerate(source.drawn.data):
        if isinstance(data, pa.Table):
            file = BytesIO()
            pq.write_table(data, file, compression="zstd", write_page_checksum=True)
            atomic.replace(target / f"memory-{number}.parquet", file.getvalue(), mode=atomic.ALL_USERS)
        elif isinstance(data, tuple):
            for path in map(Path, data):
                _link_or_copy(path, target / f"{number}-{path.name}")


def _link_or_copy(file: Path, target: Path) -> None:
    try:
        target.hardlink_to(file)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one that has no links
        shutil.copyfile(file, target)


def _remove_snapshots(home: Path) -> None:
    """Remove all but the newest snapshots, and what audits left that never came to a verdict."""
    judged = sorted((path.name for path in (home / "verdicts").glob("audit=*")), reverse=True)
    for table in _SNAPSHOTS:
        for path in (home / table).glob("audit=*"):
            with suppress(FileNotFoundError):  # another audit removes the same
                abandoned = path.name not in judged and time.time() - path.stat().st_mtime > _ABANDONED_S
                if path.name in judged[_KEPT:] or abandoned:
                    shutil.rmtree(path)


def measure_completeness(engine: Engine, sources: Sequence[AuditedSource]) -> list[Row]:
    """Rows of `COMPLETENESS`: one for each minute of a topic and group in which anything was acknowledged or delivered."""
    rows: list[Row] = []
    for source in sources:
        attach_figures(engine, source.drawn, source.figures)
        questions = (figure_query(engine, "acked"), figure_query(engine, "delivered"), lag_steps(figure_query(engine, "reached")))
        acked, delivered, lag_changes = (engine.ask(question).to_pylist() for question in questions)
        readers = {(reading.topic, reading.consumer_group) for reading in source.drawn.readings}
        rows += [{"level": source.level.label, **row} for row in join_minutes(acked, delivered, lag_changes, readers)]
    return rows


def join_minutes(
    acked: Iterable[Row], delivered: Iterable[Row], lag_changes: Iterable[Row], readers: Iterable[tuple[str, str]]
) -> list[Row]:
    """The figures of each topic, group and minute, from those of each question; a topic that no group reads has rows without a group."""
    of_topic: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in acked:
        of_topic[row["topic"]][row["slot"]] = row
    of_group: dict[tuple[str, str | None], dict[int, Row]] = {reader: {} for reader in readers}
    for row in delivered:
        of_group.setdefault((row["topic"], row["consumer_group"]), {})[row["slot"]] = row
    changes: dict[tuple[str, str | None], dict[int, int]] = defaultdict(dict)
    for row in lag_changes:
        changes[row["topic"], row["consumer_group"]][row["slot"]] = row["step"]
    unread: dict[tuple[str, str | None], dict[int, Row]] = {
        (topic, None): {} for topic in of_topic.keys() - {topic for topic, _ in of_group}
    }
    rows = []
    for (topic, group), minutes in sorted((of_group | unread).items(), key=repr):
        behind = 0
        for slot in sorted(minutes.keys() | of_topic[topic].keys()):
            sent, came = of_topic[topic].get(slot, {}), minutes.get(slot, {})
            behind += changes[topic, group].get(slot, 0)
            rows.append(
                {
                    "topic": topic,
                    "consumer_group": group,
                    "minute": _format_time(slot * MINUTE_MS)[:-3],
                    "minute_ms": slot * MINUTE_MS,
                    "acked": sent.get("n", 0),
                    "delivered": came.get("n", 0),
                    "behind": None if group is None else behind,
                    "measured": came.get("measured") or 0,
                    **{name: came.get(name) or 0 for name, _ in _LATE},
                    "longest_delivery_ms": came.get("longest_delivery_ms"),
                    "longest_ack_ms": sent.get("longest_ack_ms"),
                }
            )
    return rows


def measure_restarts(engine: Engine, sources: Sequence[AuditedSource], restarts: Sequence[StepRestart]) -> list[Row]:
    """Rows of `RESTARTS`: each restart with the longest waits and the late records of all sources."""
    longest: dict[int, dict[str, int | None]] = defaultdict(dict)
    for source in sources if restarts else ():
        attach_figures(engine, source.drawn, source.figures)
        engine.attach("restarts", [_restart_times(restarts)])
        for row in engine.ask(stalls_query(engine)).to_pylist():
            figures = longest[row.pop("number")]
            for name, value in row.items():
                figures[name] = _join_figures(name, figures.get(name), value)
    return [
        {
            "run": restart.run,
            "step": restart.step,
            "nodes": list(restart.nodes),
            "acts": list(restart.acts),
            "began": _format_time(restart.began_ms),
            "began_ms": restart.began_ms,
            "ended_ms": restart.ended_ms,
            "settled_ms": restart.settled_ms,
            **longest[number],
        }
        for number, restart in enumerate(restarts)
    ]


def _join_figures(name: str, one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other) if name.startswith("longest") else one + other


def _restart_times(restarts: Sequence[StepRestart]) -> pa.Table:
    times = [(number, restart.began_ms, restart.until_ms) for number, restart in enumerate(restarts)]
    names = ("number", "began_ms", "until_ms")
    return pa.table([pa.array(values, pa.int64()) for values in zip(*times, strict=True)], names=names)


def list_findings(verdict: AuditVerdict) -> list[Row]:
    """Rows of `FINDINGS`, worst first."""
    return [
        {
            "level": finding.level.label if finding.level is not None else None,
            "outcome": finding.outcome.value,
            "code": finding.reason.code,
            "cause": finding.reason.cause.value if finding.reason.cause else None,
            "text": finding.reason.text,
            "n": finding.count,
            "cases": [
                {
                    "topic": case.topic,
                    "part": case.partition,
                    "lo": case.first,
                    "hi": case.last,
                    "n": case.count,
                    "consumer_group": case.group,
                    "producer": case.producer,
                    "members": list(case.members),
                    "from_ms": case.from_ms,
                    "to_ms": case.to_ms,
                    "note": case.note,
                }
                for case in finding.examples
            ],
        }
        for finding in verdict.findings
    ]


def describe_verdict(record: AuditRecord) -> Row:
    """The row of `VERDICTS`."""
    ledgers = [data for source in record.sources for data in source.drawn.data if isinstance(data, str)]
    return {
        "audited_ms": record.audited_ms,
        "cluster": record.cluster,
        "cluster_id": record.cluster_id,
        "run": record.run,
        "step": record.step,
        "outcome": record.verdict.outcome.value,
        "headline": record.verdict.headline,
        **{level.label.lower(): outcome.value for level, outcome in record.verdict.levels.items()},
        "acked": sum(source.facts.acked for source in record.sources),
        "delivered": sum(sum(source.facts.delivered.values()) for source in record.sources),
        "partitions": sum(source.partitions for source in record.sources),
        "suspects": sum(source.suspects for source in record.sources),
        "ledgers": ledgers,
    }


def _format_time(time_ms: int) -> str:
    return format_date(time_ms).removesuffix(" UTC")


def stalls_query(engine: Engine) -> str:
    """The longest waits and the late records of each of the attached `restarts`, by sums of seconds, which are few beside events."""
    return f"""
SELECT /*+ BROADCAST(restarts) */ number, max(longest_ack_ms) AS longest_ack_ms, max(longest_delivery_ms) AS longest_delivery_ms,
  {", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in LATE)}
FROM ({figure_query(engine, "second")}) AS seconds
JOIN restarts ON slot * {SECOND_MS} + {SECOND_MS - 1} >= began_ms AND slot * {SECOND_MS} <= until_ms
GROUP BY number"""
