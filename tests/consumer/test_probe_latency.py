"""What the probe's sender writes about its acknowledgements, and what a reader makes of it. The real one: test_probe.py."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ProbeFigures, ProduceLatency
from airflow_provider_kmigrate.probe.latency import BEFORE_S, FILE, NOW_S, SETTLING, LatencyRecorder, read_figures

EPOCH = 1_000_000.0


def message(partition: int, latency: float | None) -> Any:
    return SimpleNamespace(topic=lambda: "kmigrate-probe", partition=lambda: partition, latency=lambda: latency)


class Sending:
    """A sender with a clock of its own, of four records a second and partition."""

    def __init__(self, place: Path, run: str = "run") -> None:
        self.place, self.time = place, 0.0
        (place / run).mkdir(exist_ok=True)
        self.recorder = LatencyRecorder(place / run, lambda: self.time, lambda: EPOCH + self.time)

    def send(self, seconds: float, *latencies: float, error: object = None) -> ProbeFigures:
        """Acknowledge for so long, each partition after its own latency; returns what a reader sees then."""
        for _ in range(round(seconds * 4)):
            self.time += 0.25
            for partition, latency in enumerate(latencies):
                self.recorder.add_delivery_report(error, message(partition, latency))  # type: ignore[arg-type]
            self.recorder.write_if_due()
        return read_figures(self.place, lambda: EPOCH + self.time)


def test_the_first_seconds_do_not_count_and_those_after_them_are_kept(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    assert sending.send(SETTLING, 3.0).before is None
    assert sending.send(BEFORE_S - 1.0, 0.010).before is None
    assert sending.send(2.0, 0.010).before == {"kmigrate-probe-0": ProduceLatency(4.0, 0.010)}
    later = sending.send(60.0, 0.400)
    assert later.before == {"kmigrate-probe-0": ProduceLatency(4.0, 0.010)}
    assert later.now == {"kmigrate-probe-0": ProduceLatency(4.0, 0.400)}
    assert later.age <= 1.0


def test_another_attempt_of_the_run_keeps_what_the_first_one_measured(tmp_path: Path) -> None:
    before = Sending(tmp_path).send(SETTLING + BEFORE_S + 1.0, 0.010).before
    assert before
    assert Sending(tmp_path).send(SETTLING + BEFORE_S + 1.0, 0.900).before == before
    (tmp_path / "run" / FILE).write_text("torn {")
    assert Sending(tmp_path).send(SETTLING + BEFORE_S + 1.0, 0.900).before == {"kmigrate-probe-0": ProduceLatency(4.0, 0.900)}


def test_one_slow_partition_does_not_hide_among_fast_ones(tmp_path: Path) -> None:
    now = Sending(tmp_path).send(10.0, *[0.010] * 20, 2.0).now
    assert {where for where, one in now.items() if one.p95 > 1.0} == {"kmigrate-probe-20"}


def test_the_probes_latency_is_the_95th_percentile_and_a_restarts_delay_is_soon_over(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    sending.send(30.0, 0.010)
    sending.send(0.25, 9.0)
    assert sending.send(2.0, 0.010).now["kmigrate-probe-0"].p95 == 0.010, "one record of 20"
    sending.send(1.0, 9.0)
    assert sending.send(1.0, 0.010).now["kmigrate-probe-0"].p95 == 9.0
    assert sending.send(NOW_S + 1.0, 0.010).now["kmigrate-probe-0"].p95 == 0.010


def test_records_that_wait_or_fail_show_as_missing(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    sending.send(30.0, 0.010, 0.010)
    assert set(sending.send(NOW_S + 1.0, 0.010).now) == {"kmigrate-probe-0"}
    found = sending.send(NOW_S + 1.0, 0.010, error="timed out")
    assert (found.now, set(found.before or ())) == ({}, {"kmigrate-probe-0", "kmigrate-probe-1"})


def test_of_several_runs_the_one_that_writes_counts(tmp_path: Path) -> None:
    Sending(tmp_path, "earlier").send(30.0, 5.0)
    sending = Sending(tmp_path)
    sending.time = 40.0
    assert sending.send(30.0, 0.010).now["kmigrate-probe-0"].p95 == 0.010


@pytest.mark.parametrize(
    "stored", ["", "{", "[]", "{}", '{"at": 1, "before": 3, "now": {}}', '{"at": 1, "before": null, "now": {"a": 1}}']
)
def test_what_cannot_be_read_has_no_age(tmp_path: Path, stored: str) -> None:
    assert read_figures(tmp_path / "nowhere").age == math.inf
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).write_text(stored)
    assert read_figures(tmp_path).age == math.inf


def test_a_clock_that_is_ahead_makes_figures_as_old_as_one_that_is_behind(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).write_text(json.dumps({"at": EPOCH + 90.0, "before": None, "now": {}}))
    assert read_figures(tmp_path, lambda: EPOCH).age == 90.0


def test_a_folder_that_is_gone_ends_no_sender(tmp_path: Path) -> None:
    sending = Sending(tmp_path)
    sending.send(1.0, 0.010)
    (tmp_path / "run" / FILE).unlink()
    (tmp_path / "run").rmdir()
    assert sending.send(2.0, 0.010).age == math.inf
