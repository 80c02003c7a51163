"""Holding a job: what is read from its checkpoint, and every decision about it. Reason codes are compared, not sentences."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.events.model import LogMark, TopicPartition
from airflow_provider_kmigrate.core.spark import hold as spark_hold
from airflow_provider_kmigrate.core.spark import hold as spark_resume
from airflow_provider_kmigrate.core.spark.hold import Checkpoint, HeldRecord, JobReport, JobState, Signs, SparkHold
from airflow_provider_kmigrate.exceptions import Refused

HOLD = SparkHold("h1", "dag/run", "the rollback", 1_000)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SETTLED = Checkpoint("q", 7, 7, {T0: 100, T1: 50})
HELD = JobReport(JobState.HELD, 10_000, "h1", "q", 7, 7, begun=False)
RECORD = HeldRecord("h1", 9_000, JobState.HELD, SETTLED)
NOW = 11_000


def kind(decision: Decision) -> str:
    return type(decision).__name__ + "".join(f" {reason.code}" for reason in getattr(decision, "reasons", ()))


class TestReading:
    def test_a_batch_of_two_sources_as_spark_4_writes_it(self) -> None:
        text = 'v1\n{"batchWatermarkMs":0,"conf":{"a":"b"}}\n{"t":{"0":100,"1":50}}\n{"t":{"0":90},"u":{"0":1}}'
        assert spark_hold.batch_offsets(text) == {T0: 90, T1: 50, TopicPartition("u", 0): 1}

    def test_version_2_names_its_sources(self) -> None:
        text = 'v2\n{"batchWatermarkMs":0}\n0:{"t":{"0":100}}\nother:-'
        assert spark_hold.batch_offsets(text) == {T0: 100}

    @pytest.mark.parametrize("line", ["-", "42", '{"logOffset":5}', "[1]", '"x"', '{"t":5}', "not json"])
    def test_other_sources_are_left_out(self, line: str) -> None:
        assert spark_hold.batch_offsets(f'v1\n{{}}\n{line}\n{{"t":{{"0":1}}}}') == {T0: 1}

    @pytest.mark.parametrize("text", ["", "v1", "v3\n{}\n-", "{}"])
    def test_a_format_that_is_not_known_is_refused(self, text: str) -> None:
        with pytest.raises(Refused) as caught:
            spark_hold.batch_offsets(text)
        assert [reason.code for reason in caught.value.reasons] == ["J05"]

    def test_batches_are_the_files_with_a_number(self) -> None:
        assert spark_hold.batch_numbers(["10", "9", ".9.crc", "8.tmp", "11.compact", "²", ""]) == [9, 10]

    def test_the_query_is_in_the_metadata(self) -> None:
        assert spark_hold.query_id('{"id":"6f1c"}') == "6f1c"
        with pytest.raises(Refused):
            spark_hold.query_id("{}")


class TestFiles:
    def test_everything_comes_back_as_it_was_written(self) -> None:
        report = replace(HELD, resumed_at={T0: 5}, error="x\ny", progress_ms=3)
        assert spark_hold.read_hold(spark_hold.hold_text(HOLD)) == HOLD
        assert spark_hold.read_report(spark_hold.report_text(report)) == report
        assert spark_hold.read_held(spark_hold.held_text(RECORD)) == RECORD

    @given(
        st.text(max_size=40) | st.sampled_from(['{"version": 2}', '{"version": 1}', "[]", '{"version":1,"id":1,"since_ms":"x"}'])
    )
    def test_anything_else_is_refused(self, text: str) -> None:
        for read in (spark_hold.read_hold, spark_hold.read_report, spark_hold.read_held):
            with pytest.raises(Refused) as caught:
                read(text)
            assert [reason.code for reason in caught.value.reasons] == ["J05"]

    @pytest.mark.parametrize("version", [spark_hold.VERSION + 1, str(spark_hold.VERSION), None])
    def test_a_whole_text_of_another_version_is_refused(self, version: object) -> None:
        files = [(spark_hold.read_hold, spark_hold.hold_text(HOLD)), (spark_hold.read_report, spark_hold.report_text(HELD))]
        for read, text in (*files, (spark_hold.read_held, spark_hold.held_text(RECORD))):
            with pytest.raises(Refused, match="is not of version"):
                read(json.dumps(json.loads(text) | {"version": version}))


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (None, "Wait J05"),
        (replace(HELD, at_ms=NOW - 60_001), "Wait J05"),
        (replace(HELD, state=JobState.RUNNING, hold=None), "Wait J01"),
        (replace(HELD, hold="an earlier one"), "Wait J01"),
        (HELD, "Done"),
        (replace(HELD, state=JobState.ENDED, at_ms=0), "Done"),
        (replace(HELD, state=JobState.FAILED, at_ms=0), "Done"),
    ],
)
def test_a_job_is_held_when_it_says_so_or_runs_no_more(report: JobReport | None, expected: str) -> None:
    assert kind(spark_hold.decide_held(HOLD, report, NOW + (report is None) * 0)) == expected


@pytest.mark.parametrize(
    ("in_effect", "needed", "waited_ms", "expected"),
    [
        (False, True, 900_000, "Wait J05"),
        (True, True, 0, "Done"),
        (False, False, 60_000, "Wait J05"),
        (False, False, 60_001, "Done"),
    ],
)
def test_an_unresponsive_job_stops_no_run_if_it_was_held_or_need_not_be(
    in_effect: bool, needed: bool, waited_ms: int, expected: str
) -> None:
    hold = replace(HOLD, since_ms=NOW - waited_ms)
    for report in (None, replace(HELD, at_ms=NOW - 60_001), replace(HELD, state=JobState.RUNNING, at_ms=NOW - 60_001)):
        assert kind(spark_hold.decide_held(hold, report, NOW, in_effect=in_effect, needed=needed)) == expected
    running = replace(HELD, state=JobState.RUNNING)
    assert kind(spark_hold.decide_held(hold, running, NOW, in_effect=in_effect, needed=needed)) == "Wait J01"


@pytest.mark.parametrize(
    ("planned", "committed", "begun", "reported", "harmless", "expected"),
    [
        (7, 7, True, 7, False, "Done"),
        (None, None, True, None, False, "Done"),
        (8, 7, False, 8, False, "Done"),
        (0, None, False, 0, False, "Done"),
        (8, 7, True, 8, False, "Refuse J02"),
        (8, 7, False, 7, False, "Refuse J02"),
        (8, 7, True, 8, True, "Done"),
        (9, 7, False, 9, True, "Refuse J02"),
    ],
)
def test_nothing_may_be_half_done(  # noqa: PLR0917
    planned: int | None, committed: int | None, begun: bool, reported: int | None, harmless: bool, expected: str
) -> None:
    report = replace(HELD, planned=reported, begun=begun)
    found = spark_hold.decide_quiescent(Checkpoint("q", planned, committed), report, idempotent_sink=harmless)
    assert kind(found) == expected


def test_without_the_jobs_word_a_planned_batch_may_have_begun() -> None:
    assert kind(spark_hold.decide_quiescent(Checkpoint("q", 8, 7), None)) == "Refuse J02"


LOGS = {T0: LogMark(0, 100, topic_id="id"), T1: LogMark(40, 70, topic_id="id")}
ONE_UNREAD = LogMark(unread="no leader")


@pytest.mark.parametrize(
    ("now", "logs", "expected"),
    [
        (SETTLED, LOGS, "Done"),
        (SETTLED, {**LOGS, T0: LogMark(0, 99)}, "Refuse J03"),
        (SETTLED, {T0: LOGS[T0]}, "Refuse J04"),
        (SETTLED, {T1: LogMark(0, 40)}, "Refuse J04 J03"),
        (SETTLED, {**LOGS, T0: ONE_UNREAD}, "Wait J05"),
        (SETTLED, {T0: ONE_UNREAD, T1: LogMark(0, 40)}, "Refuse J03"),
        (SETTLED, {**LOGS, T0: LogMark(101, 900)}, "Refuse J04"),
        (SETTLED, {**LOGS, T0: LogMark(100, 900)}, "Done"),
        (SETTLED, {where: replace(log, topic_id="other") for where, log in LOGS.items()}, "Refuse J04"),
        (replace(SETTLED, query="other"), LOGS, "Refuse J09"),
        (replace(SETTLED, committed=8, planned=8), LOGS, "Refuse J09"),
    ],
)
def test_a_job_goes_on_only_from_where_it_stopped_into_logs_that_hold_it(
    now: Checkpoint, logs: dict[TopicPartition, LogMark], expected: str
) -> None:
    ids = {where.topic: "id" for where in SETTLED.offsets}
    assert kind(spark_resume.may_resume(SETTLED, now, logs, ids)) == expected


def test_missing_ids_are_not_compared() -> None:
    assert kind(spark_resume.may_resume(SETTLED, SETTLED, LOGS)) == "Done"
    nameless = {where: replace(log, topic_id=None) for where, log in LOGS.items()}
    assert kind(spark_resume.may_resume(SETTLED, SETTLED, nameless, {T0.topic: "id"})) == "Done"


RUNNING = replace(HELD, state=JobState.RUNNING, progress_ms=9_500)


@pytest.mark.parametrize(
    ("record", "report", "expected"),
    [
        (RECORD, None, "Wait J05"),
        (RECORD, HELD, "Wait J11"),
        (RECORD, replace(RUNNING, progress_ms=None), "Wait J11"),
        (RECORD, replace(RUNNING, progress_ms=8_000), "Wait J11"),
        (RECORD, RUNNING, "Done"),
        (RECORD, replace(RUNNING, resumed_at={T0: 100}), "Done"),
        (RECORD, replace(RUNNING, resumed_at={T0: 101}), "Refuse J12"),
        (RECORD, replace(RUNNING, resumed_at={TopicPartition("t", 2): 0}), "Done"),
        (RECORD, replace(RUNNING, state=JobState.FAILED), "Refuse J11"),
        (replace(RECORD, state=JobState.ENDED), None, "Done"),
    ],
)
def test_a_job_runs_again_when_its_query_made_progress(record: HeldRecord, report: JobReport | None, expected: str) -> None:
    assert kind(spark_resume.decide_resumed(record, report, NOW)) == expected


BEFORE = Signs(NOW, RUNNING, 8, 7)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (BEFORE, BEFORE, "Wait J11"),
        (BEFORE, replace(BEFORE, committed=8), "Wait J11"),  # it was planned before
        (BEFORE, replace(BEFORE, planned=9, committed=9), "Done"),
        (BEFORE, replace(BEFORE, report=replace(RUNNING, progress_ms=NOW)), "Wait J11"),
        (BEFORE, replace(BEFORE, report=replace(RUNNING, progress_ms=NOW + 1)), "Done"),
        (BEFORE, replace(BEFORE, report=replace(RUNNING, state=JobState.FAILED)), "Refuse J11"),
        (BEFORE, replace(BEFORE, report=replace(RUNNING, state=JobState.ENDED)), "Done"),
        (Signs(NOW, None, None, None), Signs(NOW, None, None, None), "Wait J11"),
        (Signs(NOW, None, None, None), Signs(NOW, None, 0, 0), "Done"),
        (Signs(NOW, None, 0, None), Signs(NOW, None, 0, 0), "Wait J11"),
    ],
)
def test_progress_is_what_happened_since(before: Signs, now: Signs, expected: str) -> None:
    assert kind(spark_hold.decide_progress(before, now)) == expected


def test_a_decision_is_one_of_the_three() -> None:
    assert {Done, Wait, Refuse} >= {type(spark_resume.may_resume(SETTLED, SETTLED, LOGS))}
