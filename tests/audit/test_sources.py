"""What an audit reads: lines of files, Parquet, Kafka's own tools; and what it does with what it cannot read."""

from __future__ import annotations

import json
import os
import tracemalloc
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the audit has its own environment")
pytest.importorskip("duckdb", reason="the audit has its own environment")

import pyarrow.parquet as pq

from airflow_provider_kmigrate.applications.event_log import FileSink
from airflow_provider_kmigrate.audit.job import audit_sources, main
from airflow_provider_kmigrate.audit.kafka_source import translate_properties
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy, parse
from airflow_provider_kmigrate.audit.sources import RowKind, Source, rows_of_event, table_of
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, Level, outcome_of
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.events.model import LogExtent, Ownership, Stamp
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.text import describe_hidden
from airflow_provider_kmigrate.exceptions import Failed, Refused
from tests.audit.duckdb_audit import on_duckdb, request_for, written
from tests.core.histories import History, calm, moved_on
from tests.kit.event_rows import read_rows


def test_lines_of_a_folder(engine: Engine, tmp_path: Path) -> None:
    result = audit_sources([written(tmp_path)], AuditPolicy(), engine)
    assert result.verdict.outcome is AuditOutcome.PASS
    assert result.sources[0].facts == balance(calm().end())


_EXTENT = json.loads(encode(LogExtent(Stamp("w", 0, 1), "t", 0, 0, 5)))
_ABSURD = [{"t_ms": 10**30}, {"t_ms": 10**15}, {"partition": 2**40}, {"event_seq": 10**20}, {"writer": "\ud800"}, {"end": 2**62}]


@pytest.mark.parametrize(
    "line",
    ["", "{", "[1]", '{"name":"startup_complete"}', '{"v":2,"kind":"telepathy"}', '{"v":2,"kind":"delivery"}', "[" * 100_000]
    + [json.dumps(_EXTENT | absurd) for absurd in _ABSURD],
    ids=lambda line: line[:200],
)
def test_what_is_no_event_is_counted_kept_and_shown(duck: Engine, tmp_path: Path, line: str) -> None:
    result = audit_sources([written(tmp_path, line, line, "the last line has no end")], AuditPolicy(), duck)
    assert result.verdict.outcome is AuditOutcome.INCONCLUSIVE
    shown = describe_hidden(len(line), sha256(line.encode()).hexdigest())
    assert [refused for _, refused in result.sources[0].refused] == [shown, shown]
    assert {AuditCause.BAD_LINES, AuditCause.MALFORMED} <= {finding.reason.cause for finding in result.verdict.findings}


def test_an_unknown_version_is_refused_by_name(engine: Engine, tmp_path: Path) -> None:
    source = written(tmp_path, '{"v":7,"kind":"delivery"}', "")
    with pytest.raises(Refused) as caught:
        audit_sources([source], AuditPolicy(), engine)
    assert caught.value.reasons[0].cause == AuditCause.SCHEMA_UNKNOWN
    assert "more.jsonl" in str(caught.value)
    assert "version 7" in str(caught.value)


def test_a_torn_last_line_is_left_for_later(duck: Engine, tmp_path: Path) -> None:
    source = written(tmp_path)
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write('{"v":2,"kind":"heart')
    assert audit_sources([source], AuditPolicy(), duck).verdict.outcome is AuditOutcome.PASS


@pytest.mark.parametrize("name", ["host2/m.jsonl", "m.jsonl.1", "old/m.jsonl.gz"])
def test_events_that_are_not_read_are_named(duck: Engine, tmp_path: Path, name: str) -> None:
    source = written(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("what it says is unknown")
    result = audit_sources([source], AuditPolicy(), duck)
    (reason,) = result.sources[0].facts.reasons
    assert (result.verdict.outcome, reason.cause) == (AuditOutcome.INCONCLUSIVE, AuditCause.BAD_LINES)
    assert str(tmp_path / name) in reason.text


def test_a_folder_that_is_named_is_read(duck: Engine, tmp_path: Path) -> None:
    below = tmp_path / "host2"
    below.mkdir()
    written(below)
    source = Source(Level.CONSUMER, lines=(str(tmp_path), str(below)))
    assert audit_sources([source], AuditPolicy(), duck).verdict.outcome is AuditOutcome.PASS


@pytest.mark.parametrize("overlap", [True, False])
def test_a_folder_for_each_machine(duck: Engine, tmp_path: Path, overlap: bool) -> None:
    """Each member's ownership lies in a file of its own, so that only time orders them."""
    sinks = {name: FileSink(tmp_path / name) for name in ("a", "b")}
    for event in moved_on(overlap=overlap).end():
        sink = sinks[event.stamp.writer]
        if isinstance(event, Ownership):
            sink.write_ownership(event)
        else:
            sink.append(event.stamp.writer, [encode(event)])
    source = Source(Level.CONSUMER, lines=tuple(str(tmp_path / name) for name in sinks))
    facts = audit_sources([source], AuditPolicy(), duck).sources[0].facts
    assert facts.double_owned.count == (1_000 if overlap else 0)


def test_a_file_read_twice_counts_once(engine: Engine, tmp_path: Path) -> None:
    source = written(tmp_path)
    twice = Source(Level.CONSUMER, lines=(*source.lines, str(tmp_path / "m.jsonl")))
    assert audit_sources([twice], AuditPolicy(), engine).sources[0].facts == balance(calm().end())


def test_a_ledger_in_parquet_with_a_folder_a_pile(engine: Engine, tmp_path: Path) -> None:
    """As the streaming job writes it, with what is not there yet still in lines."""
    events = calm().end()
    table = table_of(row for event in events[:-3] for row in rows_of_event(event))
    pq.write_to_dataset(table, tmp_path / "ledger", partition_cols=["row_kind"])
    source = Source(Level.CONSUMER, ledgers=(str(tmp_path / "ledger"),), events=tuple(events[-3:]))
    result = audit_sources([source], AuditPolicy(), engine)
    assert (result.verdict.outcome, result.sources[0].facts) == (AuditOutcome.PASS, balance(events))


def test_a_ledger_of_an_older_release_names_no_generation_and_excuses_nothing(spark: Engine, tmp_path: Path) -> None:
    history = calm()
    history.deliver("g", "m", 0, 25, 5, 25)
    rows = table_of(row for event in history.end() for row in rows_of_event(event)).drop_columns(["generation"])
    pq.write_table(rows, tmp_path / "0.parquet")
    facts = audit_sources([Source(Level.CONSUMER, ledgers=(str(tmp_path),))], AuditPolicy(), spark).sources[0].facts
    assert (facts.redelivered.count, facts.client_repeats.count) == (5, 0)


def test_rows_say_what_an_event_is_about() -> None:
    history = History()
    history.commit("g", "m", 0, 10)
    history.commit("g", "m", 0, 10, ok=False)
    history.deliver("g", "m", 3, 5, 2, 7)
    commit, refused, delivery = (row for event in history.events for row in rows_of_event(event))
    assert (commit["row_kind"], commit["lo"], commit["hi"]) == (RowKind.COMMIT, 10, 9)
    assert (refused["row_kind"], "topic" in refused) == (RowKind.SIGN, False)
    assert (delivery["row_kind"], delivery["part"], delivery["lo"], delivery["hi"], delivery["producer_seq"]) == (
        RowKind.DELIVERY,
        3,
        5,
        6,
        7,
    )


def test_what_cannot_be_read_fails_in_words(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="nowhere"):
        audit_sources([Source(Level.CONSUMER, lines=(str(tmp_path / "nowhere.jsonl"),))], AuditPolicy(), engine)
    with pytest.raises(Failed):
        audit_sources([Source(Level.CONSUMER, ledgers=(str(tmp_path / "nowhere"),))], AuditPolicy(), engine)


def test_the_program_leaves_its_verdict(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    source = written(tmp_path / "events", "no event", "")
    (tmp_path / "request.json").write_text(json.dumps(request_for(source)))
    assert main([str(tmp_path / "request.json"), str(tmp_path / "out" / "deep")], on_duckdb) == 0
    out = tmp_path / "out" / "deep"
    assert outcome_of(json.loads((out / "verdict.json").read_text())) is AuditOutcome.INCONCLUSIVE
    assert json.loads((out / "facts.json").read_text())["sources"][0]["acked"] == 30
    assert json.loads((out / "refused.jsonl").read_text())["line"] == describe_hidden(8, sha256(b"no event").hexdigest())
    assert {path.name for path in out.iterdir()} == {"verdict.json", "facts.json", "refused.jsonl"}


def test_the_program_without_a_verdict_leaves_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Source(Level.CONSUMER, lines=(str(tmp_path / "gone.jsonl"),))
    (tmp_path / "request.json").write_text(json.dumps(request_for(source)))
    assert main([str(tmp_path / "request.json"), str(tmp_path / "out")], on_duckdb) == 2
    assert "gone.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"sources": "all"},
        {"sources": [{"level": "L9"}]},
        {"sources": [{"level": "L2", "line": []}]},
        {"sources": [{"level": "L2", "records": "x"}]},
        {"sources": [], "engine": "abacus"},
        {"sources": [], "policy": {"patience": 1}},
        {"sources": [], "policy": {"required": "L0"}},
        {"sources": [], "policy": {"max_cases": 0}},
        {"sources": [], "policy": {"skew_ms": "much"}},
        {"sources": [], "policy": {"required_evidence": {"since": "soon"}}},
        {"sources": [], "spark": {"jars": "a.jar"}},
    ],
)
def test_a_request_that_makes_no_sense_is_refused(document: object) -> None:
    with pytest.raises(Refused) as caught:
        parse(document)
    assert caught.value.reasons[0].cause == AuditCause.REQUEST_WRONG


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_pem_file_that_the_driver_does_not_have_is_named(tmp_path: Path, content: bytes | None) -> None:
    place = tmp_path / "ca.pem"
    if content is not None:
        place.write_bytes(content)
    with pytest.raises(Failed, match=r"driver cannot read .*ca\.pem"):
        translate_properties({"bootstrap.servers": "b:9092", "security.protocol": "SSL", "ssl.ca.location": str(place)})


def test_a_request() -> None:
    source = {
        "level": "L3",
        "ledgers": ["s3://b/l"],
    }
    policy = {"allow": ["redelivered"], "skew_ms": 5}
    request = parse({"sources": [source], "policy": policy, "spark": {"master": "yarn", "jars": ["a.jar"]}})
    assert request.sources[0].ledgers == ("s3://b/l",)
    assert (request.policy.allow, request.policy.skew_ms) == (frozenset({"redelivered"}), 5)
    assert (request.spark.master, request.spark.jars) == ("yarn", ("a.jar",))


def _is_a_link(place: Path, secret: Path) -> None:
    place.symlink_to(secret)


def _is_a_pipe(place: Path, _: Path) -> None:
    os.mkfifo(place)


def _is_sparse(place: Path, _: Path) -> None:
    with place.open("wb") as file:
        file.truncate(200 << 20)


def _is_sparse_and_ends(place: Path, _: Path) -> None:
    with place.open("wb") as file:
        file.seek(100 << 20)
        file.write(b"\n")


def _has_empty_lines(place: Path, _: Path) -> None:
    place.write_bytes(b"\n" * 200_000)


def _copies(place: Path, secret: Path) -> None:
    place.write_bytes(secret.read_bytes())


NAMES = ("m.jsonl", "a.jsonl.1", "below/a.jsonl", "x\x1b[2J\n\u202e.jsonl", os.fsdecode(b"\xff.jsonl"))
TRAPS = (_is_a_link, _is_a_pipe, _is_sparse, _is_sparse_and_ends, _has_empty_lines, _copies)


@pytest.mark.parametrize(
    ("trap", "name"),
    [*((trap, "m.jsonl") for trap in TRAPS), *((trap, name) for name in NAMES[1:] for trap in (_is_a_link, _copies))],
)
@pytest.mark.timeout(60)  # a pipe would block for ever
def test_an_application_cannot_read_or_hold_up_anything_by_the_folder_of_events(tmp_path: Path, trap: Any, name: str) -> None:
    """The secret lines are in no row: neither in a finding nor in the file of refused lines, which all users may read."""
    secret, folder = tmp_path / "airflow.cfg", tmp_path / "events"
    secret.write_text('[core]\nfernet_key = S3CRET\n{"v": "S3CRET"}\n{"v": 2, "kind": "S3CRET"}\n')
    (folder / "below").mkdir(parents=True)
    trap(folder / name, secret)
    tracemalloc.start()
    rows = read_rows([str(folder)], tmp_path / "store")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows, "it is named"
    assert {row["row_kind"] for row in rows} <= {RowKind.REFUSED, RowKind.VERSION}
    assert "S3CRET" not in str(rows)
    assert all(row["why"].isprintable() and row["line"].isprintable() for row in rows)
    assert len(rows) <= 1_001
    assert peak < 64 << 20
    assert table_of(rows).num_rows == len(rows)


def test_lines_beyond_the_first_thousand_are_counted_and_the_events_between_are_read(tmp_path: Path) -> None:
    source = written(tmp_path, *[""] * 1_500, "")
    rows = read_rows(source.lines, tmp_path / "store")
    refused = [row for row in rows if row["row_kind"] == RowKind.REFUSED]
    assert len(refused) == 1_001
    assert any("has 500 more lines" in row["why"] for row in refused)
    assert len(rows) - len(refused) == sum(len(list(rows_of_event(event))) for event in calm().end())


def test_a_line_that_is_no_event_was_written_before_the_next_event_of_its_file(tmp_path: Path) -> None:
    events = [encode(LogExtent(Stamp("w", number, t_ms), "t", 0, 0, 5)) for number, t_ms in enumerate((100, 300, 200))]
    (tmp_path / "w.jsonl").write_text("".join(f"{line}\n" for line in ("no 1", events[0], "no 2", events[1], events[2], "no 3")))
    os.utime(tmp_path / "w.jsonl", ns=(0, 900_000_000))
    rows = [row for row in read_rows([str(tmp_path)], tmp_path / "store") if row["row_kind"] == RowKind.REFUSED]
    assert {row["line"]: row["t_ms"] for row in rows} == {
        describe_hidden(4, sha256(f"no {number}".encode()).hexdigest()): t_ms for number, t_ms in ((1, 100), (2, 200), (3, 900))
    }
