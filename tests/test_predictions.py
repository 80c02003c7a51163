"""What plans predicted and what runs took: what is compared, what is left out, and what counts as within a quarter."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.core.migration.durations import Work
from airflow_provider_kmigrate.core.migration.migration_plan import plan_migration
from airflow_provider_kmigrate.core.monitoring.journal_lines import parse_lines
from tests.core.plan_facts import facts_of
from tests.core.preflight_views import healthy
from tests.kit.predictions import (
    MODEL,
    VERSION,
    PhaseSeconds,
    compare_phases,
    is_within,
    keep_prediction,
    predict_again,
    read_all_predictions,
    read_predictions,
    summarize_predictions,
)


def stage(name: str, *lows: float, expected: float = 0.0) -> dict[str, Any]:
    tasks = [
        {
            "id": f"{name}.broker_{number}",
            "node": f"broker {number}",
            "is_done": False,
            "seconds": {"low": low, "expected": low, "high": low},
        }
        for number, low in enumerate(lows)
    ]
    return {"stage": name, "tasks": tasks, "seconds": {"low": 0.0, "expected": expected, "high": 0.0}}


PLAN = {
    "cluster_id": "id",
    "made_ms": 90_000,
    "restart_seconds": {"measured": 0, "starts": 3, "expected": 20.5, "opening": 1.5, "observation": 2.0},
    "stages": [
        stage("backup", expected=1.0),
        stage("first_roll", 65.0, 5.0, 5.0, expected=75.0),
        stage("copy", expected=3.0),
        stage("soak", expected=900.0),
        stage("finalize"),
    ],
}
LINES = [
    {"at": 50.0, "run": "dag/earlier", "kind": "done", "step": "broker 0 to migration"},
    {"at": 91.0, "run": "dag/one", "kind": "done", "step": "backup"},
    {"at": 100.0, "run": "dag/one", "kind": "act", "step": "broker 0 to migration"},
    {"at": 170.0, "run": "dag/one", "kind": "done", "step": "broker 0 to migration"},
    {"at": 180.0, "run": "dag/one", "kind": "done", "step": "broker 2 to migration"},
    {"at": 190.0, "run": "dag/one", "kind": "done", "step": "metadata copy", "seconds": 4.0},
    {"at": 192.0, "run": "observations", "kind": "done", "step": "metadata equivalence", "seconds": 0.5},
    {"at": 999.0, "run": "dag/one", "kind": "done", "step": "soak", "seconds": 800.0},
    {"at": 1001.0, "run": "observations", "kind": "done", "step": "dual-write lag", "seconds": 0.5},
    {"at": 1000.0, "run": "dag/other", "kind": "done", "step": "finalize controller 3000", "seconds": 1.0},
]


def texts() -> list[str]:
    return [json.dumps({"text": "x", **line}) for line in LINES]


def test_phases_are_compared_without_soak_bake_and_the_time_between_them() -> None:
    lines = parse_lines(texts()).lines
    assert compare_phases(PLAN, [line for line in lines if line.run == "dag/one"], 60.0) == [
        PhaseSeconds("first roll", 15.0, 20.0),
        PhaseSeconds("copy", 3.0, 4.0),
    ]
    assert compare_phases(PLAN, lines, 0.0)[0].predicted == 75.0


def test_a_record_is_of_the_run_that_made_the_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "run.jsonl").write_text("\n".join(texts()))
    assert keep_prediction("local", tmp_path / "none.json", tmp_path / "journal", 60.0, tmp_path / "kept") is None
    assert keep_prediction("local", tmp_path / "plan.json", tmp_path / "journal", 60.0, tmp_path / "kept")
    (record,) = read_predictions(tmp_path / "kept")
    assert (record["kind"], record["run"], record["is_simulated"]) == ("local", "dag/one", False)
    assert [phase["phase"] for phase in record["phases"]] == ["first roll", "copy"]
    lead = {"opening": 1.5, "observation": 2.0}
    assert record["inputs"] == {"brokers": 3, "controllers": 0, "start_seconds": [6.0], **lead, "task_seconds": {}}
    assert (record["cores"], len(record["load_at_end"])) == (os.cpu_count(), 3)
    restarts = (
        2 * 19.0
    )  # of brokers 1 and 2, by this run's own of broker 0: 79 s from the end of the backup, of which 60 were the bake
    checks = 1.0 + 2.5 + 6 * 1.5  # of the first roll, and of the stage copy; each opens the cluster
    assert record["after_first_restart"] == {"predicted": restarts + checks, "real": 10.0 + 6.0}


def test_what_is_simulated_or_of_another_version_does_not_count(tmp_path: Path) -> None:
    for name, record in {"a": {"version": 1, "is_simulated": True}, "b": {"version": 0, "is_simulated": False}, "c": {}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    assert read_predictions(tmp_path) == []


def test_the_records_that_are_kept_are_of_real_runs_and_say_of_which_commit(tmp_path: Path) -> None:
    records = read_all_predictions(tmp_path)
    assert records
    for record in records:
        assert (record["version"], record["is_simulated"]) == (VERSION, False)
        assert record["commit"]
        assert record["machine"]
        assert record["model"] == 2 or record["inputs"], "all others can be made again by a later model"
    assert len(summarize_predictions(records)["prediction_kinds"]) >= 3
    (tmp_path / "again.json").write_text(json.dumps(records[0]))
    assert len(read_all_predictions(tmp_path)) == len(records), "each counts once"


def test_an_older_models_record_is_predicted_again_by_todays_plan_from_what_was_known_then() -> None:
    inputs = {"brokers": 3, "controllers": 1, "start_seconds": [6.0]}
    phases = [{"phase": name, "predicted": 1.0, "real": 9.0} for name in ("controllers", "second roll", "finalize")]
    again = predict_again({"kind": "local", "inputs": inputs, "phases": phases})
    view, facts = healthy()
    facts = replace(facts, spec=replace(facts.spec, policy=replace(facts.spec.policy, canary_bake=0.0)))
    plan = plan_migration(facts_of((view, facts), start_seconds=[6.0]))
    (roll,) = (stage["seconds"]["expected"] for stage in plan["stages"] if stage["stage"] == "second_roll")
    predicted = {phase["phase"]: phase["predicted"] for phase in again["phases"]}
    assert (predicted["controllers"], predicted["second roll"]) == (11.2, roll)
    assert all(phase["real"] == 9.0 for phase in again["phases"])
    measured = {**inputs, "task_seconds": {str(Work.PROVISION): [20.0]}}
    again = predict_again({"kind": "local", "inputs": measured, "phases": phases[:1]})
    assert again["phases"][0]["predicted"] == 24.7


@pytest.mark.parametrize(
    ("predicted", "real", "within"),
    [
        (100.0, 100.0, True),
        (75.0, 100.0, True),
        (74.9, 100.0, False),
        (125.0, 100.0, True),
        (125.1, 100.0, False),
        (0.0, 0.0, False),
    ],
)
def test_a_quarter_of_the_real_duration_is_within(predicted: float, real: float, within: bool) -> None:
    assert is_within(predicted, real) is within


def test_the_share_is_of_runs_and_none_without_any() -> None:
    empty = summarize_predictions([])
    assert (empty["predictions"], empty["within_25_percent"]) == (0, None), "no run is no success"
    good = {
        "kind": "local",
        "model": MODEL,
        "restarts_measured_before": 0,
        "phases": [{"phase": "copy", "predicted": 3.0, "real": 3.0}],
    }
    bad = {
        "kind": "machines",
        "model": MODEL,
        "restarts_measured_before": 6,
        "phases": [{"phase": "copy", "predicted": 9.0, "real": 3.0}],
    }
    figures = summarize_predictions([good, good, bad])
    assert (figures["predictions"], figures["prediction_kinds"]) == (3, ["local", "machines"])
    assert (figures["within_25_percent"], figures["within_25_percent_measured"]) == (0.667, 0.0)
    assert figures["by_phase"] == {"copy": {"runs": 3, "within_25_percent": 0.667, "over": 1.67}}
    assert figures["within_interval"] == {"starts": {"runs": 2, "share": 1.0}, "restarts": {"runs": 1, "share": 0.0}}
    assert figures["second_roll_by_first"]["runs"] == 0


def test_a_record_of_an_older_model_is_predicted_again_or_judged_by_what_its_plan_said() -> None:
    record = {
        "kind": "local",
        "restarts_measured_before": 0,
        "phases": [
            {"phase": "first roll", "predicted": 900.0, "real": 52.0},
            {"phase": "second roll", "predicted": 900.0, "real": 65.0},
        ],
        "after_first_restart": {"predicted": 90.0, "real": 100.0},
    }
    inputs = {"brokers": 3, "controllers": 3, "start_seconds": [6.0]}
    with_inputs, without = {**record, "model": 1, "inputs": inputs}, {**record, "model": 2}
    figures = summarize_predictions([with_inputs, without, {**record, "model": MODEL, "inputs": inputs}])
    assert figures["within_25_percent"] == 0.333, "52 and 52 s are what today's plan says; the plan of the others said 900"
    assert figures["before_by_model"] == {str(model): {"runs": 1, "within_25_percent": 0.0} for model in (2, MODEL)}
    assert figures["second_roll_by_first"] == {"runs": 3, "within_25_percent": 1.0}
    assert figures["after_first_restart"] == {"runs": 3, "within_25_percent": 1.0}
