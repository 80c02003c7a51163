"""How much of kmigrate one restart of a broker runs: what a reader must open to follow it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from airflow_provider_kmigrate.core.cluster import Policy
from airflow_provider_kmigrate.core.decision import Done
from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.steps.run import run_step
from tests.steps.test_first_broker import ready, step

TARGET = BrokerMode.MIGRATION
HOUSE = "/airflow_provider_kmigrate/"


def of_the_house(frame: FrameType) -> str:
    """The file of the frame, below the package; empty outside it, and for what the simulation itself calls."""
    name = frame.f_code.co_filename.partition(HOUSE)[2]
    above: FrameType | None = frame if name else None
    while above is not None and above.f_code.co_name != "run_step":
        if "/tests/steps/sim" in above.f_code.co_filename:
            return ""
        above = above.f_back
    return name


def test_the_restart_of_a_broker_runs_few_files(tmp_path: Path) -> None:
    cluster = ready(tmp_path, TARGET)
    cluster.spec = replace(cluster.spec, policy=Policy(canary_bake=0.0))
    found: set[str] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename not in found and (name := of_the_house(frame)):
            found.add(name)

    rolling, context = step(cluster, TARGET), cluster.context(tmp_path)
    sys.setprofile(watch)
    try:
        done = run_step(rolling, context)
    finally:
        sys.setprofile(None)
    assert isinstance(done, Done)
    assert len(found) <= 25, sorted(found)
