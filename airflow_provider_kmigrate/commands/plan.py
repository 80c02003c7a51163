"""`kmigrate plan CLUSTER.yaml`: what a migration would do to this cluster; with `--of`, what another run of kmigrate would do.

Reads only. Exit code 0: here is the plan; 1: it is refused, preflight blocks it, or a file cannot be written; 2: the observation failed;
3: with `--compare`, the plan of today is another one than the saved one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.commands.arguments import add_connection_arguments
from airflow_provider_kmigrate.commands.reading import open_context, say_on_stderr
from airflow_provider_kmigrate.core.migration.plan_document import PlanOf, describe_drift, render_document
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.exceptions import Failed, Refused
from airflow_provider_kmigrate.steps import clean_up, expansion, groups, prepare, rollback
from airflow_provider_kmigrate.steps.run import StepContext

_MAKERS: Final[Mapping[str, Callable[[StepContext, argparse.Namespace], dict[str, Any]]]] = {
    PlanOf.MIGRATION: lambda context, _: prepare.plan_from_here(
        context, prepare.observe_preflight(replace(context, say=say_on_stderr))
    ),
    PlanOf.ROLLBACK: lambda context, _: rollback.plan_from_here(context),
    PlanOf.GROUPS: lambda context, _: groups.plan_from_here(context, sorted(context.spec.groups, key=lambda group: group.wave)),
    PlanOf.EXPANSION: lambda context, options: expansion.plan_from_here(context, options.partitions, undo=options.undo),
    PlanOf.CLEAN_UP: lambda context, _: clean_up.plan_from_here(context),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate plan", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cluster", type=Path, metavar="CLUSTER.yaml")
    parser.add_argument(
        "--of", choices=[str(of) for of in PlanOf], default=str(PlanOf.MIGRATION), help="what is planned (default: %(default)s)"
    )
    parser.add_argument("--partitions", type=int, metavar="N", help="of an expansion: how many the topic will have")
    parser.add_argument("--undo", action="store_true", help="of an expansion: undo it instead")
    add_connection_arguments(parser)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="Markdown, or one JSON object")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the plan there, as JSON")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="name what differs from the plan that was saved there")
    options = parser.parse_args(argv)
    if (options.of == PlanOf.EXPANSION) != (options.partitions is not None) or (options.undo and options.partitions is None):
        parser.error("--of expansion needs --partitions; no other plan takes --partitions or --undo")
    with open_context(options.cluster, options.connections, options.folder) as context:
        try:
            plan = _MAKERS[options.of](context, options)
        except Refused as refused:
            sys.stderr.write(f"{refused}\n")
            return 1
    drift = _compare(options.compare, plan) if options.compare else ()
    if options.save:
        atomic.replace(options.save, (json.dumps(plan, ensure_ascii=False, indent=1) + "\n").encode())
    if options.compare:
        sys.stdout.write(
            json.dumps({"drift": drift}) + "\n" if options.output == "json" else _format_drift(options.compare, drift)
        )
        return 3 if drift else 0
    sys.stdout.write(json.dumps(plan, indent=1) + "\n" if options.output == "json" else render_document(plan))
    return 1 if is_blocked(plan) else 0


def is_blocked(plan: Mapping[str, Any]) -> bool:
    """Whether the run that is planned would refuse to begin, or to write a file."""
    refused = any(task["refused"] for stage in plan["stages"] for task in stage["tasks"])
    return refused or bool(plan["findings"].get(str(Severity.BLOCK)))


def _compare(path: Path, plan: Mapping[str, Any]) -> tuple[str, ...]:
    saved = files.read_object(path)
    if saved is None:
        raise Failed(f"There is no plan in {path}.")
    try:
        return describe_drift(saved, plan)
    except ValueError as error:
        raise Failed(f"The plan in {path} cannot be compared. {error}") from None


def _format_drift(path: Path, drift: Sequence[str]) -> str:
    if not drift:
        return f"The plan is the one in {path}.\n"
    lines = "".join(f"* {line}\n" for line in drift)
    return f"The plan is another one than that in {path}:\n{lines}Review it again: kmigrate plan without --compare.\n"
