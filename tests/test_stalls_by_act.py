"""Whose stall a slow record is: an act's, or nobody's."""

from __future__ import annotations

from typing import Any

from airflow_provider_kmigrate.core.events.model import SlowRecord
from benchmarks.rehearsal import NO_ACT, stalls_by_act


def _line(kind: str, step: str, at: float) -> dict[str, Any]:
    return {"kind": kind, "step": step, "at": at}


def _record(sent: float, milliseconds: int) -> SlowRecord:
    return SlowRecord("orders", 0, 0, 0, int(sent * 1000), milliseconds * 1000)


JOURNAL = [
    _line("act", "finalize controller 3000", 100.0),
    _line("done", "finalize controller 3000", 104.0),
    _line("act", "finalize controller 3001", 106.0),
    _line("done", "finalize controller 3001", 110.0),
]


def _longest(*records: SlowRecord) -> dict[str, float]:
    return {row["step"]: row["longest_ms"] for row in stalls_by_act(records, JOURNAL)}


def test_a_record_that_an_act_may_have_delayed_is_the_acts() -> None:
    fenced = _record(119.9, 700)  # a broker that the new controller gave up 9 s after the election
    assert _longest(_record(105.0, 300), fenced) == {
        "finalize controller 3000": 300.0,
        "finalize controller 3001": 700.0,
        NO_ACT: 0.0,
    }


def test_a_record_sent_long_after_the_last_act_or_before_the_first_is_no_acts() -> None:
    assert _longest(_record(160.0, 10_400), _record(50.0, 200)) == {
        "finalize controller 3000": 0.0,
        "finalize controller 3001": 0.0,
        NO_ACT: 10_400.0,
    }


def test_an_act_without_an_end_has_all_records_up_to_the_next_act() -> None:
    journal = [_line("act", "restart broker 0", 100.0), _line("act", "restart broker 1", 200.0)]
    rows = stalls_by_act([_record(190.0, 400), _record(900.0, 500)], journal)
    assert [row["longest_ms"] for row in rows] == [400.0, 500.0, 0.0]


def test_the_time_above_a_tenth_of_a_second_is_summed_over_the_records_of_an_act() -> None:
    rows = stalls_by_act([_record(101.0, 600), _record(102.0, 300)], JOURNAL)
    assert rows[0]["over_100ms_record_s"] == 0.7
