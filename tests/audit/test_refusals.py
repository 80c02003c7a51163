"""What an audit refuses before it reads anything, and what it does not take for whole; without a session of Spark's."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("py4j", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit import event_store, fingerprint, job, kafka_source, request, stream
from airflow_provider_kmigrate.audit.judge import ControlEvents
from airflow_provider_kmigrate.audit.sources import RowKind
from airflow_provider_kmigrate.audit.stream import CheckpointProgress, EventStream, StreamPlan
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Failed, Refused, TimedOut

T0 = TopicPartition("t", 0)
WHOLE, UNREAD = {T0: LogMark(0, 9)}, {T0: LogMark(unread="no leader")}


def cause(act: Callable[[], object]) -> AuditCause | None:
    """Why it is refused; None if it is not."""
    try:
        act()
    except Refused as error:
        return error.reasons[0].cause  # type: ignore[return-value]
    return None


class TestLogs:
    @pytest.mark.parametrize(
        ("marks", "expected"), [({}, AuditCause.TOPIC_MISSING), (UNREAD, AuditCause.PARTITION_UNREAD), (WHOLE, None)]
    )
    def test_a_first_observation_has_no_gap(self, marks: dict[TopicPartition, LogMark], expected: AuditCause | None) -> None:
        assert cause(lambda: fingerprint._refuse_gaps(["t"], marks)) == expected

    @pytest.fixture
    def read(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What is read of a cluster that has everything."""
        read = list[str]()

        def commits(*_: object) -> str:
            read.append("commits")
            return ""

        for name in ("ship_package", "options_for", "hash_logs", "read_cluster_id"):
            monkeypatch.setattr(fingerprint, name, lambda *_: {})
        monkeypatch.setattr(fingerprint, "_take_commits", commits)
        return read

    @pytest.mark.parametrize(("looks", "reads"), [([UNREAD], []), ([WHOLE, UNREAD], ["commits"])])
    def test_a_gap_is_found_before_anything_is_read_and_again_at_the_end(
        self, read: list[str], monkeypatch: pytest.MonkeyPatch, looks: list[Any], reads: list[str]
    ) -> None:
        marks = iter([*looks, WHOLE])
        monkeypatch.setattr(fingerprint, "read_marks", lambda *_, **__: next(marks))
        session: Any = None
        assert cause(lambda: fingerprint.take_snapshot(session, {}, ["t"])) == AuditCause.PARTITION_UNREAD
        assert read == reads

    def test_commits_that_cannot_be_read_are_not_taken_for_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fingerprint, "read_marks", lambda *_, **__: UNREAD)
        assert cause(lambda: fingerprint.read_offsets_marks({})) == AuditCause.OFFSETS_UNREAD

    @pytest.mark.parametrize("text", ["[]", "{", "7"])
    def test_a_file_that_holds_no_object_is_named(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "file").write_text(text)
        assert cause(lambda: fingerprint._read_json_object(str(tmp_path / "file"))) == AuditCause.SNAPSHOT_DAMAGED

    def test_a_request_without_logs_takes_no_fingerprint(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "request.json").write_text('{"sources": []}')
        assert fingerprint.main([str(tmp_path / "request.json")]) == 2
        assert "The request names no logs." in capsys.readouterr().err

    def test_only_spark_reads_logs(self) -> None:
        duck: Any = object()
        with pytest.raises(TypeError, match="only Spark reads logs and topics"):
            job._require_spark_session(duck)

    def test_a_login_that_spark_does_not_know_is_refused(self) -> None:
        assert cause(lambda: kafka_source._jaas_config("OAUTHBEARER", {})) == AuditCause.MECHANISM_UNKNOWN
        assert cause(lambda: kafka_source._jaas_config("PLAIN", {})) is None


class TestRequest:
    def test_a_request_that_is_no_json_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "request.json").write_text("{")
        assert cause(lambda: request.load(tmp_path / "request.json")) == AuditCause.REQUEST_WRONG

    @pytest.mark.parametrize(
        "document",
        [{"sources": {}}, {"sources": "none"}, {"sources": [], "policy": {"max_cases": 0}}],
        ids=["an object for a list", "a text for a list", "findings without a case"],
    )
    def test_a_request_that_makes_no_sense_is_refused(self, document: dict[str, Any]) -> None:
        assert cause(lambda: request.parse(document)) == AuditCause.REQUEST_WRONG

    def test_a_file_of_events_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(Failed, match="there is no such file"):
            event_store._list_files([tmp_path / "gone.jsonl"])

    def test_events_of_another_release_are_not_left_out(self) -> None:
        rows = [{"row_kind": RowKind.VERSION, "why": "schema 99", "line": "{}", "t_ms": 0}]
        engine: Any = SimpleNamespace(ask=lambda _: SimpleNamespace(to_pylist=lambda: rows))
        assert cause(lambda: ControlEvents.read(engine)) == AuditCause.SCHEMA_UNKNOWN


PLAN = StreamPlan("events", "/out", "/checkpoint")
MINE = json.dumps(
    {"version": stream._VERSION, "cluster_id": "c", "topic": "events", "folder": "/out", "checkpoint": "/checkpoint"}
)


class Files:
    """The checkpoint's and the output's: texts, and names by folder."""

    def __init__(self, tie: str | None, **folders: list[str]) -> None:
        self.tie, self.folders = (
            tie,
            {"/checkpoint": [], **{f"/{name.replace('_', '/')}": names for name, names in folders.items()}},
        )

    def read(self, path: str) -> str | None:
        return self.tie if path.endswith(".json") else None

    def write(self, _path: str, text: str, *, new: bool = False) -> None:
        assert new == (self.tie is None)
        self.tie = text

    def names(self, folder: str) -> list[str]:
        return self.folders.get(folder.replace("_spark_metadata", "sink"), [])


def query(files: Files) -> Any:
    """A stream with these files, and no session."""
    found: Any = object.__new__(EventStream)
    found.plan, found._files, found._cluster_id = PLAN, files, "c"
    return found


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (Files(MINE.replace('"c"', '"other"')), "belongs to another query"),
        (Files("no JSON"), "belongs to another query"),
        (Files(MINE, checkpoint_offsets=["0", "1"], checkpoint_commits=["0", "1"], out_sink=["0"]), "The output /out of"),
        (Files(None, checkpoint=["metadata"]), "which kmigrate did not start"),
        (Files(None, checkpoint=["offsets"]), "which kmigrate did not start"),
        (Files(None, out_sink=["0"]), "belongs to another checkpoint"),
    ],
)
def test_a_topic_a_checkpoint_and_an_output_that_do_not_belong_together_are_refused(files: Files, text: str) -> None:
    with pytest.raises(Refused, match=text) as refused:
        query(files)._tie_checkpoint(None)
    assert refused.value.reasons[0].cause == AuditCause.CHECKPOINT_MISMATCH


def test_a_new_checkpoint_is_tied_to_its_topic_and_output() -> None:
    files = Files(None)
    assert query(files)._tie_checkpoint("one") == "one"
    assert json.loads(files.tie or "") == {**json.loads(MINE), "topic_id": "one"}
    assert query(files)._tie_checkpoint("two") == "one", "its caller refuses the other topic"


def test_a_checkpoint_of_an_earlier_release_gets_the_topic_it_finds() -> None:
    files = Files(MINE)
    assert query(files)._tie_checkpoint(None) is None
    assert query(files)._tie_checkpoint("one") == "one"
    assert json.loads(files.tie or "") == {**json.loads(MINE), "topic_id": "one"}


class TestCatchingUp:
    @pytest.fixture
    def events(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        found = query(Files(MINE))
        found.read_progress = lambda: CheckpointProgress(None, None)
        found.stopped = False
        monkeypatch.setattr(stream, "spark_errors", lambda _: contextlib.nullcontext())
        started = SimpleNamespace(awaitTermination=lambda _: False, stop=lambda: setattr(found, "stopped", True))
        found._start_query = lambda: started
        return found

    def test_events_that_were_removed_before_they_were_read_are_not_left_out(self, events: Any) -> None:
        events._ingested_offsets = lambda: {TopicPartition("events", 0): 5}
        events.read_topic_marks = lambda: {TopicPartition("events", 0): LogMark(7, 9)}
        events._start_query = lambda: pytest.fail("it began")
        with pytest.raises(Refused, match="X12"):
            events.catch_up()

    def test_a_topic_that_is_not_read_in_time_is_not_taken_for_whole(self, events: Any) -> None:
        events._ingested_offsets = dict
        events.read_topic_marks = lambda: {TopicPartition("events", 0): LogMark(0, 9)}
        began = time.monotonic()
        with pytest.raises(TimedOut, match="the events in events were not ingested within 5 s"):
            events.catch_up(5.0)
        assert events.stopped
        assert time.monotonic() - began < 5
