"""What `status` says of a probe by its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import Process, ProcessState
from airflow_provider_kmigrate.probe.command import main
from airflow_provider_kmigrate.probe.probe import Probe
from airflow_provider_kmigrate.probe.stream import are_all_running

RUNS, ENDED, UNKNOWN = Process(ProcessState.RUNNING, 7), Process(ProcessState.STOPPED), Process(ProcessState.UNKNOWN)


@pytest.mark.parametrize(
    ("found", "expected"),
    [({}, False), ({"a": RUNS}, True), ({"a": RUNS, "b": ENDED}, False), ({"a": RUNS, "b": UNKNOWN}, False)],
)
def test_a_workload_runs_where_all_of_it_does_and_there_is_any(found: dict[str, Process], expected: bool) -> None:
    assert are_all_running(found) is expected


def test_a_probe_of_which_nothing_was_started_does_not_run(tmp_path: Path) -> None:
    Probe(tmp_path, {})._prepare()
    assert main(["status", "--dir", str(tmp_path)]) == 3
