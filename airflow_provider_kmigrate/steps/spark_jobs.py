"""The other side of `keep_running`: hold a job, and resume it if nothing speaks against it.

Both may be killed at any instant and run again: their state is in the hold folder.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from airflow_provider_kmigrate.applications.spark_hold import FOLDER, Files, JobClock, join_path, read_checkpoint
from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Reason, headlines
from airflow_provider_kmigrate.core.cluster_state.spec import SparkJobSpec
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.core.spark import hold as spark_hold
from airflow_provider_kmigrate.core.spark.hold import (
    HELD,
    HOLD,
    STATE,
    Checkpoint,
    HeldRecord,
    JobReport,
    JobState,
    Signs,
    SparkHold,
)
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused, TimedOut
from airflow_provider_kmigrate.steps.journal import format_reasons

Found = TypeVar("Found")
Logs = Callable[[Iterable[str]], Mapping[TopicPartition, LogMark]]
"""The logs of these topics now, without partitions that do not exist. Raises ours."""

_POLL = 0.5  # seconds


@dataclass(frozen=True)
class JobControl:
    """One job of the cluster file. `say` gets a sentence for each change of what is waited for.

    `over`: whether the run of that name has ended; the next run takes over its holds. `killed`: whether this task is being ended;
    a wait then ends as at its timeout.
    """

    job: SparkJobSpec
    files: Files
    say: Callable[[str], None]
    clock: JobClock = field(default_factory=JobClock)
    over: Callable[[str], bool] = lambda _: False
    killed: Callable[[], bool] = lambda: False

    def hold(self, by: str, why: str, logs: Logs | None = None, *, needed: bool = True) -> str:
        """Hold the job; returns what is now so. The same `by` may ask again. `logs` identifies its topics.

        Not `needed`: continue without a job that has not responded for a minute. Raises `Refused` (J13) if another holder
        holds it, and `TimedOut` if it is not held after `job.hold_timeout`; the request is withdrawn then, so that the job does
        not stop later, when no task is left to resume it. A hold in effect is never withdrawn, nor its record rewritten.
        """
        hold, record = self._request_hold(by, why), self._read_record()
        in_effect = record is not None and record.hold == hold.id
        try:
            outcome = self._wait_until_done(
                lambda: spark_hold.decide_held(hold, self._read_report(), self._now_ms(), in_effect=in_effect, needed=needed)
            )
        except TimedOut:
            if not in_effect:
                self.files.delete(self._file_path(HOLD))
            raise
        return outcome if in_effect else self._record_hold(hold, outcome, logs)

    def _record_hold(self, hold: SparkHold, outcome: str, logs: Logs | None) -> str:
        report, checkpoint = self._read_report(), read_checkpoint(self.files, self.job.checkpoint)
        if report is None or (report.state is JobState.RUNNING and spark_hold.fresh_report(report, self._now_ms()) is None):
            return outcome  # no job runs that could be held
        record = HeldRecord(hold.id, self._now_ms(), report.state, checkpoint, _read_topic_ids(checkpoint, logs))
        self.files.write(self._file_path(HELD), spark_hold.held_text(record))
        return f"{outcome} {_describe_decision(self._judge_quiescence(checkpoint))}"

    def resume(self, by: str, logs: Logs) -> str:
        """Resume the job and wait for progress; returns what is now so.

        Raises `Refused` if its checkpoint or the logs are not as they must be, or if another holder holds it (J13): the job stays
        held. `TimedOut` if it shows no progress within `job.hold_timeout`.
        """
        hold = self._read_own_hold(by)
        record = self._read_record()
        if record is None or (hold and hold.id != record.hold):
            self.files.delete(self._file_path(HOLD))
            return "The job was not held."
        if hold:
            self.say(self._wait_until_done(lambda: self._decide_resume(record, logs)))
            self.files.delete(self._file_path(HOLD))
        outcome = self._wait_until_done(lambda: spark_hold.decide_resumed(record, self._read_report(), self._now_ms()))
        self.files.delete(self._file_path(HELD))
        return outcome

    def wait_for_progress(self) -> str:
        """Wait until the query has progressed since this call; returns what is now so. A held job is left alone.

        Raises `Refused` if the query has failed (J11), and `TimedOut` if it shows no progress within `job.hold_timeout`.
        """
        if self.files.read(self._file_path(HOLD)) is not None:
            return "The job is held; its progress is checked when it resumes."
        before = self._read_signs()
        return self._wait_until_done(lambda: spark_hold.decide_progress(before, self._read_signs()))

    def _read_signs(self) -> Signs:
        checkpoint = read_checkpoint(self.files, self.job.checkpoint)
        return Signs(self._now_ms(), self._read_report(), checkpoint.planned, checkpoint.committed)

    def _read_own_hold(self, by: str) -> SparkHold | None:
        hold = self._read_file(HOLD, spark_hold.read_hold)
        if hold and hold.by != by and not self.over(hold.by):
            raise Refused.because(Reason("J13", f"Job {self.job.name} is held by {hold.by}: {hold.why}"))
        return hold

    def _request_hold(self, by: str, why: str) -> SparkHold:
        earlier_hold = self._read_own_hold(by)
        hold = replace(earlier_hold, by=by, why=why) if earlier_hold else SparkHold(uuid.uuid4().hex, by, why, self._now_ms())
        self.files.write(self._file_path(HOLD), spark_hold.hold_text(hold))
        return hold

    def _decide_resume(self, record: HeldRecord, logs: Logs) -> Decision:
        now = read_checkpoint(self.files, self.job.checkpoint)
        if record.state is not JobState.HELD:
            return spark_hold.may_resume(now, now, logs({topic_partition.topic for topic_partition in now.offsets}))
        quiescence = self._judge_quiescence(now)
        if isinstance(quiescence, Refuse):
            return quiescence
        return spark_hold.may_resume(
            record.checkpoint, now, logs({topic_partition.topic for topic_partition in now.offsets}), record.topic_ids
        )

    def _judge_quiescence(self, checkpoint: Checkpoint) -> Decision:
        return spark_hold.decide_quiescent(checkpoint, self._read_report(), idempotent_sink=self.job.idempotent_sink)

    def _wait_until_done(self, decide: Callable[[], Decision]) -> str:
        deadline = self.clock.now() + self.job.hold_timeout
        reported: tuple[object, ...] = ()
        while True:
            decision = decide()
            if isinstance(decision, Done):
                return decision.text
            if isinstance(decision, Refuse):
                raise Refused.because(*decision.reasons)
            if self.killed():
                raise TimedOut(f"Airflow ends this task while it waits for job {self.job.name}; its next try continues.")
            if self.clock.now() >= deadline:
                raise TimedOut(
                    f"Job {self.job.name}: gave up after {self.job.hold_timeout:.0f} s. {_describe_decision(decision)}"
                )
            now = headlines(decision.reasons) if isinstance(decision, Wait) else ()
            if now != reported:
                reported = now
                self.say(_describe_decision(decision))
            self.clock.sleep(_POLL)

    def _read_report(self) -> JobReport | None:
        return self._read_file(STATE, spark_hold.read_report)

    def _read_record(self) -> HeldRecord | None:
        return self._read_file(HELD, spark_hold.read_held)

    def _read_file(self, name: str, parse: Callable[[str], Found]) -> Found | None:
        text = self.files.read(self._file_path(name))
        return None if text is None else parse(text)

    def _file_path(self, name: str) -> str:
        return join_path(self.job.hold_folder or join_path(self.job.checkpoint, FOLDER), name)

    def _now_ms(self) -> int:
        return round(1000 * self.clock.now())


@dataclass(frozen=True, kw_only=True)
class CommandedJobControl(JobControl):
    """A job of any kind that its hold and release commands control; what counts is where it stands, not what they say.

    `call` runs a command, and raises ours. `committed`: the offsets of its group; None: its checkpoint shows where it stands.
    `logs`: of its topics.
    """

    call: Callable[[Sequence[str]], None]
    committed: Callable[[], Mapping[TopicPartition, int]] | None
    logs: Logs

    def hold(self, by: str, why: str, logs: Logs | None = None, *, needed: bool = True) -> str:
        """Run the hold command, and wait until the job processes nothing. As `JobControl.hold`, but for this:

        If anything fails before the hold is in effect, the release command is run. The request stays if that fails too, so that
        the operator who resumes the job runs it again. Not `needed`: continue without a job that could not be held.
        """
        hold, record = self._request_hold(by, why), self._read_record()
        is_held = record is not None and record.hold == hold.id
        try:
            if is_held:
                self.call(self.job.hold_command)
                return "The job is held."
            checkpoint = self._stop_reading()
            topic_ids = _read_topic_ids(checkpoint, logs or self.logs)
            record = HeldRecord(hold.id, self._now_ms(), JobState.HELD, checkpoint, topic_ids)
            self.files.write(self._file_path(HELD), spark_hold.held_text(record))
            is_held = True
            return self._describe_proof(checkpoint)
        except KMigrateError as error:
            if needed:
                raise
            return f"Continuing without the job, which could not be held: {error}"
        finally:
            if not is_held:
                self._release_after_failure()

    def _stop_reading(self) -> Checkpoint:
        """Run the command; returns where the job stands since."""
        if not self._read_position().offsets:
            where = f"Group {self.job.group}" if self.committed else f"The checkpoint {self.job.checkpoint}"
            raise Refused.because(Reason("J05", f"{where} has no offset: nothing would show whether the job reads."))
        self.call(self.job.hold_command)
        said_ms, still = self._now_ms(), spark_hold.Stillness(self._read_position(), self._now_ms())

        def decide() -> Decision:
            nonlocal still
            still = still.observe(self._read_position(), self._now_ms())
            return spark_hold.decide_still(still, said_ms, self._now_ms(), round(1000 * self.job.quiet))

        self._wait_until_done(decide)
        quiescence = spark_hold.decide_quiescent(still.checkpoint, None, idempotent_sink=self.job.idempotent_sink)
        if isinstance(quiescence, Refuse):
            raise Refused.because(*quiescence.reasons)
        return still.checkpoint

    def _describe_proof(self, checkpoint: Checkpoint) -> str:
        with suppress(KMigrateError):
            marks = self.logs({topic_partition.topic for topic_partition in checkpoint.offsets})
            if waiting := spark_hold.count_waiting(checkpoint.offsets, marks):
                return f"The job is held: {count_of(waiting, 'record waits', 'records wait')}, and it moved in none of {count_of(len(checkpoint.offsets), 'partition')}."
        return "The job stands still. No record is known to wait for it, so this rests on its command."

    def _release_after_failure(self) -> None:
        try:
            self.call(self.job.release_command)
            self.files.delete(self._file_path(HOLD))
        except KMigrateError as error:
            self.say(f"Job {self.job.name} could not be released again: {error} Its resume task tries it once more.")

    def resume(self, by: str, logs: Logs) -> str:
        """Run the release command unless the job or its logs moved meanwhile, and wait until it reads. As `JobControl.resume`."""
        hold, record = self._read_own_hold(by), self._read_record()
        if hold and (record is None or hold.id != record.hold):
            self.call(self.job.release_command)
            self.files.delete(self._file_path(HOLD))
            return "The hold was not in effect; the release command was run."
        if record is None:
            return "The job was not held."
        if hold:
            self.say(self._wait_until_done(lambda: self._decide_resume(record, logs)))
            self.call(self.job.release_command)
            self.files.delete(self._file_path(HOLD))
        outcome = self._wait_until_moved(record.checkpoint.offsets)
        self.files.delete(self._file_path(HELD))
        return outcome

    def _decide_resume(self, record: HeldRecord, logs: Logs) -> Decision:
        now = self._read_position()
        marks = logs({topic_partition.topic for topic_partition in now.offsets})
        return spark_hold.may_resume(record.checkpoint, now, marks, record.topic_ids)

    def wait_for_progress(self) -> str:
        """As `JobControl.wait_for_progress`, by where the job stands."""
        if self.files.read(self._file_path(HOLD)) is not None:
            return "The job is held; its progress is checked when it resumes."
        return self._wait_until_moved(self._read_position().offsets)

    def _wait_until_moved(self, before: Mapping[TopicPartition, int]) -> str:
        def decide() -> Decision:
            now = self._read_position().offsets
            marks = self.logs({topic_partition.topic for topic_partition in now})
            return spark_hold.decide_reads_again(before, now, marks)

        return self._wait_until_done(decide)

    def _read_position(self) -> Checkpoint:
        if self.committed is None:
            return read_checkpoint(self.files, self.job.checkpoint)
        return Checkpoint(None, None, None, self.committed())


def _read_topic_ids(checkpoint: Checkpoint, logs: Logs | None) -> dict[str, str]:
    """The topic ids that the brokers report. A missing one does not fail a hold; unknown ids are not compared."""
    with suppress(KMigrateError):
        marks = logs({topic_partition.topic for topic_partition in checkpoint.offsets}) if logs else {}
        return {topic_partition.topic: mark.topic_id for topic_partition, mark in marks.items() if mark.topic_id}
    return {}


def _describe_decision(decision: Decision) -> str:
    return format_reasons(decision.reasons) if isinstance(decision, Wait | Refuse) else decision.text
