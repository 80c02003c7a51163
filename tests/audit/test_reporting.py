"""What the program makes beside its verdict: the report, of lines and journals; and what it refuses to read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the audit has its own environment")
pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit import fingerprint
from airflow_provider_kmigrate.audit.job import main
from airflow_provider_kmigrate.audit.request import parse
from airflow_provider_kmigrate.core.audit.fingerprint import LogSample
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Failed, Refused
from tests.audit.duckdb_audit import on_duckdb, request_for, written
from tests.audit.reports import journal_text

LOGS = {"properties": "p.json", "topics": ["t"], "before": "b.json"}


def test_a_report_of_lines_and_journals(tmp_path: Path) -> None:
    events, journal = tmp_path / "events", tmp_path / "journal"
    for folder in (events, journal):
        folder.mkdir()
    (journal / "1.jsonl").write_text("\n".join(journal_text()))
    document = {**request_for(written(events)), "report": {"cluster": "prod", "run": "r1", "journals": [str(journal)]}}
    (tmp_path / "request.json").write_text(json.dumps(document))
    assert main([str(tmp_path / "request.json"), str(tmp_path / "out")], on_duckdb) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["subject"]["run"], report["verdict"]["outcome"], report["unreadable"]) == ("r1", "PASS", 1)
    assert report["phases"]
    assert report["owners"]
    assert "prod" in (tmp_path / "out" / "report.html").read_text()
    assert (tmp_path / "out" / "verdict.json").exists()


def test_a_journal_that_is_not_there_changes_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {**request_for(written(tmp_path)), "report": {"cluster": "prod", "journals": [str(tmp_path / "gone.jsonl")]}}
    (tmp_path / "request.json").write_text(json.dumps(document))
    assert main([str(tmp_path / "request.json"), str(tmp_path / "out")], on_duckdb) == 0
    said = capsys.readouterr()
    assert (said.out.startswith("PASS"), "no report: " in said.err, "gone.jsonl" in said.err) == (True, True, True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["facts.json", "refused.jsonl", "verdict.json"]


def test_logs_in_a_request() -> None:
    request = parse({"sources": [], "logs": {**LOGS, "sample": {"share": 0.5}}, "report": None})
    assert request.logs is not None
    assert (request.logs.topics, request.logs.sample, request.report) == (("t",), LogSample(share=0.5), None)


@pytest.mark.parametrize(
    "more",
    [
        {"logs": {"topics": ["t"]}},
        {"logs": {**LOGS, "topics": "t"}},
        {"logs": {**LOGS, "sample": {"pieces": "many"}}},
        {"report": {}},
    ],
)
def test_what_makes_no_sense(more: dict[str, object]) -> None:
    with pytest.raises(Refused) as caught:
        parse({"sources": [], **more})
    assert caught.value.reasons[0].cause == AuditCause.REQUEST_WRONG


def test_properties_that_are_none(tmp_path: Path) -> None:
    wanted = parse({"sources": [], "logs": {**LOGS, "properties": str(tmp_path / "p.json")}}).logs
    assert wanted is not None
    with pytest.raises(Failed):
        fingerprint.read_properties(wanted)
    (tmp_path / "p.json").write_text("secret")
    with pytest.raises(Refused) as caught:
        fingerprint.read_properties(wanted)
    assert caught.value.reasons[0].cause == AuditCause.SNAPSHOT_DAMAGED
    assert "secret" not in str(caught.value)
    (tmp_path / "p.json").write_text("[" * 20_000)  # ends the standard decoder with a RecursionError
    with pytest.raises(Refused):
        fingerprint.read_properties(wanted)
