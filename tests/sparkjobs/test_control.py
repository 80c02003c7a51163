"""The operator's side of a held job: asked for, withdrawn, taken over, let go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.applications.spark_hold import BatchGate, LocalFiles, keep_running
from airflow_provider_kmigrate.core.cluster_state.spec import SparkJobSpec
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.spark import hold as spark_hold
from airflow_provider_kmigrate.core.spark.hold import HELD, HOLD, STATE, JobState
from airflow_provider_kmigrate.exceptions import Refused, TimedOut, Unavailable
from airflow_provider_kmigrate.steps.spark_jobs import JobControl
from tests.sparkjobs.fakes import FakeClock, FakeStream

FILES = LocalFiles()


def logs_to(end: int, topic_id: str = "id") -> Callable[[Iterable[str]], dict[TopicPartition, LogMark]]:
    return lambda _: {TopicPartition("t", 0): LogMark(0, end, topic_id=topic_id)}


class TestControl:
    """Job and operator in one thread: the job's loop runs in the operator's sleeps."""

    @pytest.fixture
    def job(self, tmp_path: Path) -> SparkJobSpec:
        return SparkJobSpec("orders", str(tmp_path / "checkpoint"), hold_timeout=30.0)

    @pytest.fixture
    def stream(self, tmp_path: Path) -> FakeStream:
        return FakeStream(tmp_path / "checkpoint")

    @pytest.fixture
    def control(self, job: SparkJobSpec, stream: FakeStream) -> Iterator[JobControl]:
        beside = Beside(stream)
        yield JobControl(job, FILES, lambda _: None, beside)
        beside.end()

    def test_held_and_let_go(self, control: JobControl, stream: FakeStream) -> None:
        for _ in range(3):
            stream.end += 5
            control.hold("dag/run", "roll")
            assert control.hold("dag/run", "roll"), "asked again after a kill"
            held = len(stream.sink)
            stream.end += 5
            control.clock.sleep(1)
            assert len(stream.sink) == held
            control.resume("dag/run", logs_to(stream.end))
        control.clock.sleep(5)
        assert stream.sink == list(range(stream.end))
        assert FILES.names(str(stream.folder / "_kmigrate")) == [STATE]

    def test_a_job_that_does_not_answer_is_not_stopped_later(self, job: SparkJobSpec) -> None:
        with pytest.raises(TimedOut, match="J05"):
            JobControl(job, FILES, lambda _: None, FakeClock()).hold("dag/run", "roll")
        assert FILES.names(job.checkpoint + "/_kmigrate") == []

    def test_a_rollback_continues_without_a_job_that_does_not_run(self, job: SparkJobSpec, stream: FakeStream) -> None:
        """It may come up in the middle of the roll, and must find the hold then; let go, it was not held."""
        alone = JobControl(replace(job, hold_timeout=300.0), FILES, lambda _: None, FakeClock())
        assert "J05" in alone.hold("dag/run", "way back", needed=False)
        assert FILES.names(job.checkpoint + "/_kmigrate") == [HOLD]
        beside = Beside(stream)
        beside.sleep(5)
        assert stream.query is None
        assert replace(alone, clock=beside).resume("dag/run", logs_to(stream.end)) == "The job was not held."
        beside.sleep(5)
        assert stream.query is not None
        beside.end()

    def test_a_hold_in_effect_is_not_withdrawn_when_its_job_stops_responding(
        self, control: JobControl, stream: FakeStream
    ) -> None:
        """Its application dies while it is held; another run takes the hold over, in the middle of a roll."""
        control.hold("dag/one", "roll")
        folder = str(stream.folder / "_kmigrate")
        record = FILES.read(f"{folder}/{HELD}")
        dead = JobControl(control.job, FILES, lambda _: None, FakeClock(control.clock.now() + 600), over=lambda _: True)
        assert "J05" in dead.hold("dag/two", "way back")
        assert spark_hold.read_hold(FILES.read(f"{folder}/{HOLD}") or "").by == "dag/two"
        assert FILES.read(f"{folder}/{HELD}") == record, "where it stood when it was held is what counts"

    def test_a_long_batch_does_not_withdraw_a_hold_in_effect_either(self, control: JobControl, stream: FakeStream) -> None:
        control.hold("dag/run", "roll")
        folder = str(stream.folder / "_kmigrate")
        reported = spark_hold.read_report(FILES.read(f"{folder}/{STATE}") or "")
        running = replace(reported, state=JobState.RUNNING, at_ms=round(1000 * control.clock.now()) + 40_000)
        FILES.write(f"{folder}/{STATE}", spark_hold.report_text(running))
        with pytest.raises(TimedOut, match="J01"):
            replace(control, clock=FakeClock(control.clock.now())).hold("dag/run", "roll")
        assert FILES.read(f"{folder}/{HOLD}")

    def test_two_runs_do_not_hold_one_job(self, control: JobControl) -> None:
        control.hold("dag/one", "roll")
        for act in (lambda: control.hold("dag/two", "roll"), lambda: control.resume("dag/two", lambda _: {})):
            with pytest.raises(Refused) as caught:
                act()
            assert [reason.code for reason in caught.value.reasons] == ["J13"]

    def test_a_run_takes_over_what_a_run_that_is_over_holds(self, control: JobControl, stream: FakeStream) -> None:
        control.hold("dag/one", "roll")
        second = replace(control, over=lambda run: run == "dag/one")
        assert second.hold("dag/two", "roll")
        stream.end += 5
        second.resume("dag/two", logs_to(stream.end))
        control.clock.sleep(5)
        assert stream.sink == list(range(stream.end))

    def test_a_task_that_is_being_ended_waits_for_no_job(self, job: SparkJobSpec) -> None:
        endless = replace(job, hold_timeout=1e9)
        clock = FakeClock(on_tick=[lambda: pytest.fail("it waits") if clock.t > 2_000 else None])
        with pytest.raises(TimedOut, match="Airflow ends this task"):
            JobControl(endless, FILES, lambda _: None, clock, killed=lambda: True).hold("dag/run", "roll")
        assert FILES.names(job.checkpoint + "/_kmigrate") == [], "the job would stop later, and no task would resume it"

    def test_progress_is_asked_of_a_job_that_is_not_held(self, control: JobControl, stream: FakeStream) -> None:
        stream.end += 5
        assert control.wait_for_progress()
        assert control.wait_for_progress(), "on a quiet topic its helper says that it asked the brokers"
        control.hold("dag/run", "roll")
        assert "held" in control.wait_for_progress()
        control.resume("dag/run", logs_to(stream.end))

    def test_a_query_that_shows_nothing_is_reported(self, job: SparkJobSpec, stream: FakeStream) -> None:
        with pytest.raises(TimedOut, match="J11"):
            JobControl(job, FILES, lambda _: None, FakeClock()).wait_for_progress()

    def test_a_truncated_log_keeps_the_job_held(self, control: JobControl, stream: FakeStream) -> None:
        stream.end = 10
        control.clock.sleep(5)
        control.hold("dag/run", "roll")
        with pytest.raises(Refused) as caught:
            control.resume("dag/run", logs_to(9))
        assert [reason.code for reason in caught.value.reasons] == ["J03"]
        control.clock.sleep(5)
        assert not stream.query or not stream.query.isActive

    def test_a_topic_that_was_made_again_keeps_the_job_held(self, control: JobControl, stream: FakeStream) -> None:
        """It has grown past the job's place meanwhile."""
        stream.end = 10
        control.clock.sleep(5)
        control.hold("dag/run", "roll", logs_to(10))
        with pytest.raises(Refused) as caught:
            control.resume("dag/run", logs_to(900, "another"))
        assert [reason.code for reason in caught.value.reasons] == ["J04"]
        control.resume("dag/run", logs_to(900))

    def test_a_hold_does_not_fail_because_the_logs_are_not_read(self, control: JobControl, stream: FakeStream) -> None:
        def unresponsive(_: object) -> dict[TopicPartition, LogMark]:
            raise Unavailable("no broker answers")

        assert control.hold("dag/run", "roll", unresponsive)
        control.resume("dag/run", logs_to(stream.end))

    def test_a_job_that_was_never_held_is_let_go_at_once(self, job: SparkJobSpec) -> None:
        assert JobControl(job, FILES, lambda _: None, FakeClock()).resume("dag/run", lambda _: {})

    def test_a_resume_that_was_killed_continues_where_it_was(self, control: JobControl, stream: FakeStream) -> None:
        control.hold("dag/run", "roll")
        FILES.delete(str(stream.folder / "_kmigrate" / HOLD))  # killed right after this

        def must_not_ask(_: object) -> dict[TopicPartition, LogMark]:
            raise AssertionError("the job may have gone on; its old place says nothing any more")

        stream.end += 5
        control.resume("dag/run", must_not_ask)
        assert stream.query is not None
        assert stream.query.isActive


class Beside:
    """A job in a thread that moves only while the operator sleeps, and the operator only while the job sleeps: no race, no waiting."""

    def __init__(self, stream: FakeStream) -> None:
        self._job, self._operator = threading.Semaphore(0), threading.Semaphore(0)
        self._over = False
        self._t = 1_000.0
        self._stream = stream
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._job.acquire()
        gate = BatchGate()
        self._stream.write = gate(self._stream.append)
        clock = FakeClock(self._t, [self._handed_over])
        clock.now = lambda: self._t  # type: ignore[method-assign]
        folder = str(self._stream.folder)
        keep_running(self._stream.start, folder, gate=gate, files=FILES, stop=lambda: self._over, poll=0.1, clock=clock)
        self._operator.release()

    def _handed_over(self) -> None:
        self._stream.tick()
        self._operator.release()
        self._job.acquire()

    def now(self) -> float:
        return self._t

    def sleep(self, seconds: float) -> None:
        for _ in range(6):
            self._t += seconds / 6
            self._job.release()
            assert self._operator.acquire(timeout=10), "the job's thread is stuck"

    def end(self) -> None:
        """Let the job drain and end."""
        self._over = True
        while self._thread.is_alive():
            self._job.release()
            self._thread.join(0.01)
