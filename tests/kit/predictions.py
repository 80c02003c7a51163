"""What a plan predicted and what the run took, of each real run: files in build/predictions, which `python -m benchmarks plan` reads.

Left out on both sides: the soak, the bake of a pass's first broker, audits, approvals, windows, and the time between two stages, in which
Airflow starts tasks. Nothing simulated is written: only what has run processes of Kafka calls `keep_prediction`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.migration.durations import AROUND_RESTART, RESTART_PER_START, Work, choose_spread
from airflow_provider_kmigrate.core.migration.migration_plan import plan_migration
from airflow_provider_kmigrate.core.monitoring.journal_lines import OBSERVATIONS, JournalLine, list_phases, parse_lines
from airflow_provider_kmigrate.core.monitoring.task_times import list_task_seconds
from airflow_provider_kmigrate.steps.journal import read_journal_lines
from tests.core.plan_facts import facts_of
from tests.core.preflight_views import healthy

FOLDER: Final = Path(__file__).resolve().parents[2] / "build" / "predictions"
KEPT: Final = Path(__file__).with_name("predictions.jsonl")
"""Records of real runs, one a line, with the `commit` that ran and the `machine`: `build` is in no clone."""
VERSION: Final = 1
MODEL: Final = 4
"""How plans predict (`core.migration.durations`); increases with each change that moves a prediction. A record of an older model tells what plans
said then; `predict_again` what they would say now. Those of model 2 have no inputs: they are judged by what their plans said."""
PHASES: Final = {
    "controllers": "controllers",
    "first_roll": "first roll",
    "copy": "copy",
    "second_roll": "second roll",
    "finalize": "finalize",
}
"""Stage of the plan -> phase of the journal. The other stages wait on purpose, or for a person."""
TOLERANCE: Final = 0.25


_RESTART_IN_ROLL: Final = re.compile(r"^broker \d+ to migration$")


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
    """The journal of the run whose preflight made the plan: that of the first line behind it, with what its sensors and the triggerer observed.

    Without their lines a phase ended with its last act, though the plan counts the tasks behind that act (seen in the copy, and of the controllers).
    """
    later = [line for line in lines if line.at_ms >= plan["made_ms"]]
    own = [line for line in later if line.run == later[0].run]
    return [line for line in later if line.run == own[0].run or (line.run == OBSERVATIONS and line.at_ms <= own[-1].at_ms)]


def keep_prediction(kind: str, plan_path: Path, journals: Path, bake: float, folder: Path = FOLDER) -> Path | None:
    """Write what the newest plan predicted and what its run took. `kind`: of cluster. None if there is no plan, or nothing to compare."""
    if not plan_path.exists():
        return None
    plan = json.loads(plan_path.read_text(encoding="utf-8"))
    journal = parse_lines(read_journal_lines(journals)).lines
    lines = lines_of_planned_run(plan, journal)
    phases = compare_phases(plan, lines, bake)
    if not phases:
        return None
    inputs = _list_inputs(plan, [line for line in journal if line.at_ms < plan["made_ms"]], bake)
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
        "inputs": inputs,
        "phases": [phase._asdict() for phase in phases],
        "after_first_restart": _predict_rest(inputs, phases, journal, lines, bake),
        "cores": os.cpu_count(),
        "load_at_end": [round(load, 1) for load in os.getloadavg()],  # of 1, 5 and 15 minutes: of the run, and of before it
    }
    atomic.make_folder(folder)
    path = folder / f"{kind}-{plan['cluster_id']}-{plan['made_ms']}.json"
    atomic.replace(path, (json.dumps(record, indent=1) + "\n").encode())
    return path


def _list_inputs(plan: Mapping[str, Any], before: Sequence[JournalLine], bake: float) -> dict[str, Any]:
    """What the prediction was made of, so that a later model can be judged by the same run."""
    tasks, each = [task for stage in plan["stages"] for task in stage["tasks"]], plan["restart_seconds"]
    lead = {name: each[name] for name in ("opening", "observation")}
    around = AROUND_RESTART + sum(lead.values())
    starts = [(each["expected"] - around) / RESTART_PER_START] if each["starts"] else []  # the median of them
    return {
        "brokers": sum(task["id"].startswith("first_roll.broker_") for task in tasks),
        "controllers": sum(task["id"].startswith("controllers.provision_") for task in tasks),
        "start_seconds": starts,
        **lead,
        "task_seconds": {str(work): seconds for work, seconds in list_task_seconds(before, bake).items() if seconds},
    }


def _predict_rest(
    inputs: Mapping[str, Any],
    phases: Sequence[PhaseSeconds],
    journal: Sequence[JournalLine],
    lines: Sequence[JournalLine],
    bake: float,
) -> dict[str, float] | None:
    """What the plan says of the rest once the run has restarted its first broker, and what the rest took; None if it restarted none.

    As in `compare_phases`, without the time between two stages. The bake of the first pass is over by then.
    """
    ends = [line.at_ms for line in lines if line.kind == "done" and _RESTART_IN_ROLL.match(line.step)]
    rolls = [span for span in list_phases(lines) if span.name == PHASES["first_roll"]]
    later = [phase for phase in phases if phase.phase not in {PHASES["controllers"], PHASES["first_roll"]}]
    if not ends or not rolls:
        return None
    measured = list_task_seconds((line for line in journal if line.at_ms <= ends[0]), bake)
    plan = _plan_again({**inputs, "task_seconds": {str(work): seconds for work, seconds in measured.items()}})
    expected = _sum_stages(plan)
    predicted = expected[PHASES["first_roll"]] - plan["restart_seconds"]["expected"] + sum(expected[p.phase] for p in later)
    return {"predicted": round(predicted, 1), "real": round((rolls[-1].to_ms - ends[0]) / 1000 + sum(p.real for p in later), 1)}


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
    expected = _sum_stages(_plan_again(record["inputs"]))
    phases = [{**phase, "predicted": round(expected[phase["phase"]], 1)} for phase in record["phases"]]
    return {**record, "phases": phases}


def _plan_again(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Today's plan of a cluster of so many nodes, without a bake."""
    view, facts = healthy(inputs["brokers"])
    controllers, policy = facts.spec.controllers[: inputs["controllers"]], replace(facts.spec.policy, canary_bake=0.0)
    facts = replace(facts, spec=replace(facts.spec, controllers=controllers, policy=policy))
    own = {Work(name): seconds for name, seconds in inputs.get("task_seconds", {}).items()}
    view, opening = replace(view, took=inputs.get("observation", 0.0)), inputs.get("opening", 0.0)
    return plan_migration(facts_of((view, facts), start_seconds=inputs["start_seconds"], task_seconds=own, opening=opening))


def _sum_stages(plan: Mapping[str, Any]) -> dict[str, float]:
    return {PHASES.get(stage["stage"], ""): stage["seconds"]["expected"] for stage in plan["stages"]}


def summarize_predictions(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`predictions`: how many runs; `prediction_kinds`; `within_25_percent`: the share of runs whose whole prediction is; None without any.

    A record of an older model that has inputs is predicted again (`predict_again`); one without is judged by what its plan said.
    `before_by_model`: model -> how many runs its plans predicted before they ran, and the share within.
    `within_interval`: the share whose real duration is in the interval that a plan with the same basis states, as `_count_within_interval` has it.
    `within_25_percent_measured`: of the runs whose plan had restarts of this cluster to go by. `by_phase`: of how many runs a phase is
    compared, the share of them that are within, and predicted over real of their sums.
    `second_roll_by_first`: the share of runs whose second roll took what the first one had taken, within 25 %; `after_first_restart`: how many runs
    were predicted again once they had restarted one broker, and the share within.
    """
    runs = [
        (record, [PhaseSeconds(**phase) for phase in judged["phases"]])
        for record in records
        for judged in (predict_again(record) if record["model"] < MODEL and "inputs" in record else record,)
    ]
    phases = [phase for _, listed in runs for phase in listed]
    before = [record for record, _ in runs if record["model"] >= _FIRST_BEFORE]
    rolls = [{phase.phase: phase.real for phase in listed} for _, listed in runs]
    both = [(real[PHASES["first_roll"]], real[PHASES["second_roll"]]) for real in rolls if real.keys() >= _ROLLS]
    rests = [(rest["predicted"], rest["real"]) for record, _ in runs if (rest := record.get("after_first_restart"))]
    return {
        "predictions": len(runs),
        "prediction_kinds": sorted({str(record["kind"]) for record, _ in runs}),
        "within_25_percent": _share_within([listed for _, listed in runs]),
        "before_by_model": {
            str(model): _count_within([_sum_record(record) for record in before if record["model"] == model])
            for model in sorted({record["model"] for record in before})
        },
        "within_interval": _count_within_interval(runs),
        "within_25_percent_measured": _share_within([listed for record, listed in runs if record["restarts_measured_before"]]),
        "second_roll_by_first": _count_within(both),
        "after_first_restart": _count_within(rests),
        "by_phase": {
            name: _judge_phase(of_phase) for name in PHASES.values() if (of_phase := [p for p in phases if p.phase == name])
        },
    }


_ROLLS: Final = frozenset({PHASES["first_roll"], PHASES["second_roll"]})
_FIRST_BEFORE: Final = 2
"""The first model whose records are all of plans that were made before their runs."""


def _judge_phase(phases: Sequence[PhaseSeconds]) -> dict[str, float | None]:
    """Of one phase of several runs."""
    over = round(sum(phase.predicted for phase in phases) / sum(phase.real for phase in phases), 2)
    return {**_count_within([(phase.predicted, phase.real) for phase in phases]), "over": over}


def _sum_record(record: Mapping[str, Any]) -> tuple[float, float]:
    """Predicted and real, as its plan said."""
    return sum(phase["predicted"] for phase in record["phases"]), sum(phase["real"] for phase in record["phases"])


def _count_within(pairs: Sequence[tuple[float, float]]) -> dict[str, float | None]:
    """Of (predicted, real)."""
    share = round(sum(is_within(*pair) for pair in pairs) / len(pairs), 3) if pairs else None
    return {"runs": len(pairs), "within_25_percent": share}


def _count_within_interval(runs: Sequence[tuple[Mapping[str, Any], Sequence[PhaseSeconds]]]) -> dict[str, dict[str, float]]:
    """Basis of the plans -> how many runs, and the share of them that took what `choose_spread` says of such a plan."""
    shares = {}
    for basis, has_measured in (("starts", False), ("restarts", True)):
        ratios = [
            sum(p.real for p in phases) / sum(p.predicted for p in phases)
            for record, phases in runs
            if bool(record["restarts_measured_before"]) is has_measured
        ]
        low, high = choose_spread(has_measured)
        if ratios:
            shares[basis] = {"runs": len(ratios), "share": round(sum(low <= ratio <= high for ratio in ratios) / len(ratios), 3)}
    return shares


def _share_within(runs: Sequence[Sequence[PhaseSeconds]]) -> float | None:
    within = [is_within(sum(p.predicted for p in phases), sum(p.real for p in phases)) for phases in runs]
    return round(sum(within) / len(within), 3) if within else None


def is_within(predicted: float, real: float) -> bool:
    """Whether a prediction is within a quarter of the real duration."""
    return real > 0 and abs(predicted - real) <= TOLERANCE * real
