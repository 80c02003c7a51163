"""What a plan predicted and what the run took, of each real run: files in build/predictions, which `python -m benchmarks plan` reads.

Left out on both sides: the soak, the bake of a pass's first broker, audits, approvals, windows, and the time between two stages, in which
Airflow starts tasks. Nothing simulated is written: only what has run processes of Kafka calls `keep_prediction`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.migration.durations import Work
from airflow_provider_kmigrate.core.migration.migration_plan import plan_migration
from airflow_provider_kmigrate.core.monitoring.journal_lines import JournalLine, list_phases, parse_lines
from airflow_provider_kmigrate.steps.journal import read_journal_lines
from tests.core.plan_facts import facts_of
from tests.core.preflight_views import healthy

FOLDER: Final = Path(__file__).resolve().parents[2] / "build" / "predictions"
KEPT: Final = Path(__file__).with_name("predictions.jsonl")
"""Records of real runs, one a line, with the `commit` that ran and the `machine`: `build` is in no clone."""
VERSION: Final = 1
MODEL: Final = 2
"""How plans predict (`core.migration.durations`); increases with each change that moves a prediction. A record of an older model tells what plans
said then; `predict_again` what they would say now."""
PHASES: Final = {
    "controllers": "controllers",
    "first_roll": "first roll",
    "copy": "copy",
    "second_roll": "second roll",
    "finalize": "finalize",
}
"""Stage of the plan -> phase of the journal. The other stages wait on purpose, or for a person."""
TOLERANCE: Final = 0.25


class PhaseSeconds(NamedTuple):
    """Of one phase."""

    phase: str
    predicted: float
    real: float


def compare_phases(plan: Mapping[str, Any], lines: Sequence[JournalLine], bake: float) -> list[PhaseSeconds]:
    """The phases that the plan had left to do and that the journal shows, in their order. `bake`: seconds of the policy's `canary_bake`."""
    spans: dict[str, float] = {}
    for span in list_phases(lines):
        spans[span.name] = spans.get(span.name, 0.0) + (span.to_ms - span.from_ms) / 1000
    compared = []
    for stage in plan["stages"]:
        phase = PHASES.get(stage["stage"], "")
        if phase not in spans or not stage["seconds"]["expected"]:
            continue
        baked = bake if _has_bake(stage, bake) else 0.0
        compared.append(PhaseSeconds(phase, stage["seconds"]["expected"] - baked, max(0.0, spans[phase] - baked)))
    return compared


def _has_bake(stage: Mapping[str, Any], bake: float) -> bool:
    """Whether the plan counts a bake in it: its first broker takes that much longer than the quickest of the others."""
    seconds = [task["seconds"]["low"] for task in stage["tasks"] if task["node"].startswith("broker") and not task["is_done"]]
    return bool(seconds) and max(seconds) - min(seconds) >= bake > 0


def lines_of_planned_run(plan: Mapping[str, Any], lines: Sequence[JournalLine]) -> list[JournalLine]:
    """The journal of the run whose preflight made the plan: that of the first line behind it."""
    later = [line for line in lines if line.at_ms >= plan["made_ms"]]
    return [line for line in later if line.run == later[0].run]


def keep_prediction(kind: str, plan_path: Path, journals: Path, bake: float, folder: Path = FOLDER) -> Path | None:
    """Write what the newest plan predicted and what its run took. `kind`: of cluster. None if there is no plan, or nothing to compare."""
    if not plan_path.exists():
        return None
    plan = json.loads(plan_path.read_text(encoding="utf-8"))
    lines = lines_of_planned_run(plan, parse_lines(read_journal_lines(journals)).lines)
    phases = compare_phases(plan, lines, bake)
    if not phases:
        return None
    record = {
        "version": VERSION,
        "model": MODEL,
        "kind": kind,
        "is_simulated": False,
        "cluster_id": plan["cluster_id"],
        "run": lines[0].run,
        "made_ms": plan["made_ms"],
        "restarts_measured_before": plan["restart_seconds"]["measured"],
        "restart_seconds": plan["restart_seconds"],
        "phases": [phase._asdict() for phase in phases],
    }
    atomic.make_folder(folder)
    path = folder / f"{kind}-{plan['cluster_id']}-{plan['made_ms']}.json"
    atomic.replace(path, (json.dumps(record, indent=1) + "\n").encode())
    return path


def read_predictions(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Every record of a real run, by the name of its file; one of another version is left out."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [record for record in records if record.get("version") == VERSION and record.get("is_simulated") is False]


def read_all_predictions(folder: Path = FOLDER, kept: Path = KEPT) -> list[dict[str, Any]]:
    """Every record of a real run: those of this folder, and those that are kept in the repository, each once."""
    stored = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    return list({(record["cluster_id"], record["made_ms"]): record for record in (*stored, *read_predictions(folder))}.values())


def predict_again(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an older model with what today's plan would have said from the same `inputs`: brokers, controllers, the median of their starts.

    Today's model was made with the records in view, so this shows how it fits, and not how it predicts.
    """
    inputs = record["inputs"]
    view, facts = healthy(inputs["brokers"])
    controllers, policy = facts.spec.controllers[: inputs["controllers"]], replace(facts.spec.policy, canary_bake=0.0)
    facts = replace(facts, spec=replace(facts.spec, controllers=controllers, policy=policy))
    own = {Work(name): seconds for name, seconds in inputs.get("task_seconds", {}).items()}
    plan = plan_migration(facts_of((view, facts), start_seconds=inputs["start_seconds"], task_seconds=own))
    expected = {PHASES.get(stage["stage"], ""): stage["seconds"]["expected"] for stage in plan["stages"]}
    phases = [{**phase, "predicted": round(expected[phase["phase"]], 1)} for phase in record["phases"]]
    return {**record, "phases": phases}


def summarize_predictions(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`predictions`: how many runs; `prediction_kinds`; `within_25_percent`: the share of runs whose whole prediction is; None without any.

    `predicted_before`: how many of them were predicted by today's model before they ran, and `within_25_percent_before` the share of those; the
    others are predicted again (`predict_again`). `within_25_percent_measured`: of the runs whose plan had restarts of this cluster to go by.
    `over_by_phase`: predicted over real.
    """
    runs = [
        (record, [PhaseSeconds(**phase) for phase in judged["phases"]])
        for record in records
        for judged in (record if record["model"] == MODEL else predict_again(record),)
    ]
    phases = [phase for _, listed in runs for phase in listed]
    before = [listed for record, listed in runs if record["model"] == MODEL]
    return {
        "predictions": len(runs),
        "prediction_kinds": sorted({str(record["kind"]) for record, _ in runs}),
        "within_25_percent": _share_within([listed for _, listed in runs]),
        "predicted_before": len(before),
        "within_25_percent_before": _share_within(before),
        "within_25_percent_measured": _share_within([listed for record, listed in runs if record["restarts_measured_before"]]),
        "over_by_phase": {
            name: round(sum(p.predicted for p in phases if p.phase == name) / real, 2)
            for name in PHASES.values()
            if (real := sum(p.real for p in phases if p.phase == name))
        },
    }


def _share_within(runs: Sequence[Sequence[PhaseSeconds]]) -> float | None:
    within = [is_within(sum(p.predicted for p in phases), sum(p.real for p in phases)) for phases in runs]
    return round(sum(within) / len(within), 3) if within else None


def is_within(predicted: float, real: float) -> bool:
    """Whether a prediction is within a quarter of the real duration."""
    return real > 0 and abs(predicted - real) <= TOLERANCE * real
