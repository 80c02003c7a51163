"""A job of any kind that two commands hold and release: what counts is where it stands, never what a command says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.applications.spark_hold import LocalFiles
from airflow_provider_kmigrate.core.cluster_state.spec import SparkJobSpec
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.spark.hold import HELD, HOLD
from airflow_provider_kmigrate.exceptions import Failed, Refused, TimedOut
from airflow_provider_kmigrate.steps.spark_jobs import CommandedJobControl
from tests.sparkjobs.fakes import FakeClock

FILES = LocalFiles()
PARTITION = TopicPartition("t", 0)
HOLD_COMMAND, RELEASE_COMMAND = ("job", "pause"), ("job", "resume")


@dataclass
class Job:
    """A job that reads one partition, one record a tick, and is told by commands. `deaf`: it says yes and reads on."""

    read: int = 5
    end: int = 1_000
    runs: bool = True
    deaf: bool = False
    topic_id: str = "id"
    broken: set[Sequence[str]] = field(default_factory=set)
    calls: list[Sequence[str]] = field(default_factory=list)

    def call(self, command: Sequence[str]) -> None:
        self.calls.append(command)
        if command in self.broken:
            raise Failed(f"{command[1]} ended with exit code 3")
        self.runs = command == RELEASE_COMMAND or self.deaf

    def tick(self) -> None:
        self.read += self.runs and self.read < self.end

    def logs(self, _: Iterable[str]) -> dict[TopicPartition, LogMark]:
        return {PARTITION: LogMark(0, self.end, topic_id=self.topic_id)}


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def control(job: Job, tmp_path: Path) -> CommandedJobControl:
    spec = SparkJobSpec(
        "sink", "", hold_folder=str(tmp_path), hold_command=HOLD_COMMAND, release_command=RELEASE_COMMAND, quiet=20.0
    )
    clock: Any = FakeClock(on_tick=[job.tick])
    return CommandedJobControl(
        spec,
        FILES,
        lambda _: None,
        clock,
        call=job.call,
        committed=lambda: {PARTITION: job.read},
        logs=job.logs,
    )


def files_of(control: CommandedJobControl) -> set[str]:
    return set(FILES.names(control.job.hold_folder))


def codes(act: Callable[[], object]) -> list[str]:
    with pytest.raises(Refused) as caught:
        act()
    return [reason.code for reason in caught.value.reasons]


def test_a_job_is_held_where_it_stands_and_reads_on_from_there(control: CommandedJobControl, job: Job) -> None:
    assert control.hold("dag/run", "roll") == "The job is held: 995 records wait, and it moved in none of 1 partition."
    assert control.hold("dag/run", "roll") == "The job is held.", "asked again after a kill"
    assert files_of(control) == {HOLD, HELD}
    assert control.wait_for_progress().startswith("The job is held")
    assert control.resume("dag/run", job.logs) == "The job reads on from where it stopped."
    assert (files_of(control), job.calls) == (set(), [HOLD_COMMAND, HOLD_COMMAND, RELEASE_COMMAND])
    assert control.resume("dag/run", job.logs) == "The job was not held.", "a job that runs is left alone"
    assert len(job.calls) == 3


def test_a_job_that_reads_on_after_yes_is_refused_and_released(control: CommandedJobControl, job: Job) -> None:
    job.deaf = True
    assert codes(lambda: control.hold("dag/run", "roll")) == ["J14"]
    assert (files_of(control), job.calls) == (set(), [HOLD_COMMAND, RELEASE_COMMAND])


def test_without_waiting_records_the_sentence_says_that_nothing_shows_it(control: CommandedJobControl, job: Job) -> None:
    job.end = job.read
    assert "rests on its command" in control.hold("dag/run", "roll")
    assert "nothing shows yet that it reads" in control.resume("dag/run", job.logs)


@pytest.mark.parametrize("needed", [True, False])
def test_a_failed_hold_is_released_and_only_a_rollback_goes_on(control: CommandedJobControl, job: Job, needed: bool) -> None:
    job.broken = {HOLD_COMMAND}
    if needed:
        with pytest.raises(Failed, match="exit code 3"):
            control.hold("dag/run", "roll")
    else:
        assert "could not be held: pause ended" in control.hold("dag/run", "roll", needed=False)
    assert (files_of(control), job.calls) == (set(), [HOLD_COMMAND, RELEASE_COMMAND])


def test_a_release_that_fails_is_tried_again_by_the_task_that_resumes(control: CommandedJobControl, job: Job) -> None:
    job.broken, job.deaf = {RELEASE_COMMAND}, True
    assert codes(lambda: control.hold("dag/run", "roll")) == ["J14"]
    assert files_of(control) == {HOLD}
    with pytest.raises(Failed):
        control.resume("dag/run", job.logs)
    job.broken = set()
    assert "was not in effect" in control.resume("dag/run", job.logs)
    assert (files_of(control), job.runs) == (set(), True)


def test_a_task_that_is_ended_in_the_middle_releases(control: CommandedJobControl, job: Job) -> None:
    with pytest.raises(TimedOut):
        replace(control, killed=lambda: True).hold("dag/run", "roll")
    assert (files_of(control), job.runs) == (set(), True)


def test_a_hold_in_effect_is_not_released_by_a_command_that_fails_later(control: CommandedJobControl, job: Job) -> None:
    control.hold("dag/run", "roll")
    job.broken = {HOLD_COMMAND}
    with pytest.raises(Failed):
        control.hold("dag/run", "roll")
    assert (files_of(control), job.runs) == ({HOLD, HELD}, False)


def test_two_runs_do_not_hold_one_job(control: CommandedJobControl, job: Job) -> None:
    control.hold("dag/one", "roll")
    for act in (lambda: control.hold("dag/two", "roll"), lambda: control.resume("dag/two", job.logs)):
        assert codes(act) == ["J13"]
    assert not job.runs


def test_a_job_is_not_released_beside_what_moved_its_offsets_or_replaced_its_topic(
    control: CommandedJobControl, job: Job
) -> None:
    control.hold("dag/run", "roll")
    job.read += 1
    assert codes(lambda: control.resume("dag/run", job.logs)) == ["J09"]
    job.read, job.topic_id = job.read - 1, "other"
    assert codes(lambda: control.resume("dag/run", job.logs)) == ["J04"]
    assert (job.runs, files_of(control)) == (False, {HOLD, HELD})


def test_a_job_that_does_not_read_after_its_release_is_named(control: CommandedJobControl, job: Job) -> None:
    control.hold("dag/run", "roll")
    control.clock.on_tick.clear()  # type: ignore[attr-defined]
    with pytest.raises(TimedOut, match="J11"):
        control.resume("dag/run", job.logs)
    assert files_of(control) == {HELD}, "released, and its next try waits on"


def test_a_job_that_went_back_is_named(control: CommandedJobControl, job: Job) -> None:
    control.hold("dag/run", "roll")
    control.clock.on_tick.append(lambda: setattr(job, "read", 3))  # type: ignore[attr-defined]
    job.read = 5
    assert codes(lambda: control.resume("dag/run", job.logs)) == ["J12"]


def test_a_job_that_has_no_offset_is_not_held(control: CommandedJobControl, job: Job) -> None:
    assert codes(lambda: replace(control, committed=dict).hold("dag/run", "roll")) == ["J05"]
    assert HOLD_COMMAND not in job.calls


def test_a_checkpoint_shows_it_too(control: CommandedJobControl, job: Job, tmp_path: Path) -> None:
    for log in ("offsets", "commits"):
        (tmp_path / "cp" / log).mkdir(parents=True)
        (tmp_path / "cp" / log / "0").write_text('v1\n{}\n{"t":{"0":5}}')
    by_checkpoint = replace(control, job=replace(control.job, checkpoint=str(tmp_path / "cp")), committed=None)
    assert by_checkpoint.hold("dag/run", "roll").startswith("The job is held: ")
    job.end = 5
    assert by_checkpoint.resume("dag/run", job.logs).startswith("The job is released")
    (tmp_path / "cp" / "offsets" / "1").write_text('v1\n{}\n{"t":{"0":9}}')
    assert codes(lambda: by_checkpoint.hold("dag/run", "roll")) == ["J02"], "a batch is half done"
    assert job.runs
