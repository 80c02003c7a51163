"""Jobs held and let go, again and again, stopped at every possible moment: the sink holds each record once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_kmigrate.applications.spark_hold import (
    BatchGate,
    BatchNotBegun,
    LocalFiles,
    join_path,
    keep_running,
    read_checkpoint,
)
from airflow_provider_kmigrate.clients.hadoop_files import HadoopFiles
from airflow_provider_kmigrate.core.spark import hold as spark_hold
from airflow_provider_kmigrate.core.spark.hold import HOLD, STATE, JobState, SparkHold
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from tests.sparkjobs.fakes import FakeClock, FakeStream

FILES = LocalFiles()
WISH = SparkHold("h1", "dag/run", "a rehearsal", 0)


class Job:
    """A job in a fake world: the log grows and the query steps with every tick; `script` says what happens at which tick."""

    def __init__(self, folder: Path, *, gated: bool = True, files: LocalFiles | None = None) -> None:
        self.gate = BatchGate() if gated else None
        self.stream = FakeStream(folder / "checkpoint")
        if self.gate:
            self.stream.write = self.gate(self.stream.append)
        self.checkpoint = str(folder / "checkpoint")
        self.hold_file = join_path(self.checkpoint, "_kmigrate", HOLD)
        self.files, self.ticks, self.last = files or FILES, 0, 400
        self.script: dict[int, Callable[[], None]] = {}
        self.clock = FakeClock(on_tick=[self.tick])

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks < self.last - 50:
            self.stream.end += 1
        self.script.get(self.ticks, lambda: None)()
        self.stream.tick()

    def run(self) -> None:
        keep_running(
            self.stream.start,
            self.checkpoint,
            gate=self.gate,
            files=self.files,
            stop=lambda: self.ticks >= self.last,
            poll=0.2,
            clock=self.clock,
        )

    def hold(self) -> None:
        FILES.write(self.hold_file, spark_hold.hold_text(WISH))

    def release(self) -> None:
        FILES.delete(self.hold_file)

    def state(self) -> spark_hold.JobReport:
        text = FILES.read(join_path(self.checkpoint, "_kmigrate", STATE))
        assert text is not None
        return spark_hold.read_report(text)


def exactly(job: Job) -> bool:
    return job.stream.sink == list(range(job.stream.end))


class TestKeepRunning:
    @pytest.mark.parametrize("first", range(1, 12))
    def test_held_at_every_moment_of_a_batch_nothing_is_repeated_or_left_out(self, tmp_path: Path, first: int) -> None:
        job = Job(tmp_path)
        for at in range(first, 300, 37):
            job.script |= {at: job.hold, at + 20: job.release}
        job.run()
        assert exactly(job)
        assert job.stream.started > 5

    def test_a_held_job_begins_no_batch_and_gives_signs_of_life(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        seen = []

        def look() -> None:
            seen.append((len(job.stream.sink), job.state().state, job.clock.now() - job.state().at_ms / 1000))

        job.script = {50: job.hold} | dict.fromkeys(range(70, 200, 10), look) | {200: job.release}
        job.run()
        assert {length for length, _, _ in seen} == {seen[0][0]}
        assert {state for _, state, _ in seen} == {JobState.HELD}
        assert max(age for _, _, age in seen) < 15

    def test_a_query_whose_batches_follow_each_other_stops_at_a_planned_batch_that_has_not_begun(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.script = {41: job.hold}
        job.run()
        checkpoint, report = read_checkpoint(FILES, job.checkpoint), job.state()
        assert report.state is JobState.HELD
        assert (report.planned, report.committed) == (checkpoint.planned, checkpoint.committed)
        assert isinstance(spark_hold.decide_quiescent(checkpoint, report), spark_hold.Done)
        assert len(job.stream.sink) == job.stream.ends(checkpoint.committed or 0)

    def test_without_a_gate_a_batch_that_may_have_begun_is_said_to_have(self, tmp_path: Path) -> None:
        job = Job(tmp_path, gated=False)
        job.script = {41: job.hold}
        job.run()
        report = job.state()
        assert report.begun == (report.planned != report.committed)

    def test_a_job_that_starts_under_a_hold_starts_no_query(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.hold()
        job.run()
        assert job.stream.started == 0
        assert (job.state().state, job.state().hold) == (JobState.HELD, "h1")

    def test_a_hold_that_cannot_be_understood_holds(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        FILES.write(job.hold_file, "{")
        job.run()
        assert job.stream.started == 0

    def test_a_file_system_that_does_not_answer_changes_nothing(self, tmp_path: Path) -> None:
        files = Flaky()
        job = Job(tmp_path, files=files)
        job.script = {30: files.fail, 90: files.heal, 120: job.hold, 150: files.fail, 160: job.release, 180: files.heal}
        started: dict[int, int] = {}
        job.script |= {at: lambda at=at: started.update({at: job.stream.started}) for at in (89, 179)}
        job.run()
        assert started == {89: 1, 179: 1}, "running it ran on, held it stayed held"
        assert exactly(job)

    def test_a_job_that_cannot_look_for_a_hold_starts_no_query(self, tmp_path: Path) -> None:
        files = Flaky()
        files.fail()
        job = Job(tmp_path, files=files)
        job.hold()
        with pytest.raises(Unavailable, match=r"hold\.json"):
            job.run()
        assert job.stream.started == 0

    def test_what_the_query_failed_with_is_raised_and_written_down(self, tmp_path: Path) -> None:
        job = Job(tmp_path, gated=False)

        def broken(records: list[int], number: int) -> None:
            raise ValueError(f"sink of batch {number}\nmore")

        job.stream.write = broken
        with pytest.raises(ValueError, match="sink of batch 0"):
            job.run()
        assert (job.state().state, job.state().error) == (JobState.FAILED, "sink of batch 0")

    def test_a_query_that_cannot_start_is_written_down_too(self, tmp_path: Path) -> None:
        def start() -> None:
            raise OSError("no such topic")

        with pytest.raises(OSError, match="no such topic"):
            keep_running(start, str(tmp_path), files=FILES, clock=FakeClock())
        report = spark_hold.read_report(FILES.read(str(tmp_path / "_kmigrate" / STATE)) or "")
        assert report.state is JobState.FAILED

    def test_a_query_that_ends_by_itself_ends_the_job(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.script = {30: lambda: job.stream.query.stop() if job.stream.query else None}
        job.run()
        assert job.state().state is JobState.ENDED

    def test_progress_is_seen_on_a_quiet_topic_too(self, tmp_path: Path) -> None:
        job = Job(tmp_path)
        job.last = 30  # the log never grows
        job.run()
        assert job.stream.started == 1
        assert job.state().progress_ms is not None


class Flaky(LocalFiles):
    """A file system that goes away."""

    down = False

    def fail(self) -> None:
        self.down = True

    def heal(self) -> None:
        self.down = False

    def read(self, path: str) -> str | None:
        self._check(path)
        return super().read(path)

    def write(self, path: str, text: str) -> None:
        self._check(path)
        super().write(path, text)

    def names(self, folder: str) -> list[str]:
        self._check(folder)
        return super().names(folder)

    def _check(self, path: str) -> None:
        if self.down:
            raise Unavailable(path)


class TestLocalFiles:
    def test_a_file_comes_and_goes(self, tmp_path: Path) -> None:
        path = f"file://{tmp_path}/a%20b/hold.json"
        assert FILES.read(path) is None
        FILES.write(path, "é")
        FILES.write(path, "é2")
        assert (FILES.read(path), FILES.names(str(tmp_path / "a b"))) == ("é2", ["hold.json"])
        FILES.delete(path)
        FILES.delete(path)
        assert (FILES.read(path), FILES.names(str(tmp_path / "none"))) == (None, [])

    def test_what_cannot_be_read_is_unavailable_and_foreign_places_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(Unavailable):
            FILES.write(str(tmp_path / "file" / "below"), "x")
        with pytest.raises(Refused):
            FILES.read("s3://bucket/key")


def test_a_closed_gate_lets_no_batch_write() -> None:
    gate, written = BatchGate(), list[int]()
    write = gate(lambda _, number: written.append(number))
    write(None, 1)
    gate.close()
    with pytest.raises(BatchNotBegun, match="batch 2 waits"):
        write(None, 2)
    assert (written, gate.refused) == ([1], 2)
    gate.open()
    write(None, 2)
    assert written == [1, 2]


def test_a_spark_connect_session_is_refused_where_files_are_needed() -> None:
    with pytest.raises(Refused, match="J05"):
        HadoopFiles(object())
