"""Runs rows of a plan as a DAG's tasks would: each again once, 15 s after it failed, and not after a refusal; then a person is needed.

`python -m benchmarks.plan_worker SPEC CONNECTIONS FOLDER RUN PART`: a part of `PARTS`. What it says goes to standard output; exit code 1: a
person is needed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from airflow_provider_kmigrate.clients.connections import read_connections
from airflow_provider_kmigrate.core.migration import plan
from airflow_provider_kmigrate.core.migration.plan import StepRow
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, KMigrateError, Refused
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.catalog import run_plan
from benchmarks import direct

_ROLLBACK = plan.steps_after_approval(plan.ROLLBACK)
_HANDOVER = _ROLLBACK.index(plan.find_step(_ROLLBACK, "handover"))
PARTS = {
    "rollback": _ROLLBACK,
    "rollback to the handover": _ROLLBACK[:_HANDOVER],
    "rollback from the handover": _ROLLBACK[_HANDOVER:],
    "finalization": dict(plan.split_into_stages(plan.MIGRATION))["finalize"],
}
_TRIES = 2  # as `dag_builders.chaining.RETRIED`
_RETRY_DELAY = 15.0
_FINAL = (Refused, AuthenticationFailed, Failed)  # as of `operators.step`


def _run(row: StepRow, spec_path: Path, connections: Path, folder: Path, run: str) -> None:
    with direct.context_of(load(spec_path), read_connections(connections), run, folder=folder) as context:
        run_plan(context, (row,))
        if row == plan.ROLLBACK[-1]:
            context.fence.release()


def _tried(row: StepRow, *where: object) -> bool:
    """Whether a row came to its end. A row of several nodes has a try more for each of them, as their tasks have."""
    failed: dict[str, int] = {}
    while True:
        try:
            _run(row, *where)  # type: ignore[arg-type]
        except KMigrateError as error:
            task = str(error).partition(":")[0]
            failed[task] = failed.get(task, 0) + 1
            print(
                f"{time.strftime('%T')} FAILED {row.full_id()}, try {failed[task]}: {type(error).__name__}: {error}", flush=True
            )
            if isinstance(error, _FINAL) or failed[task] >= _TRIES:
                return False
            time.sleep(_RETRY_DELAY)
        else:
            return True


def main(arguments: list[str]) -> int:
    spec_path, connections, folder, run, part = arguments
    for row in PARTS[part]:
        print(f"{time.strftime('%T')} {row.full_id()}", flush=True)
        if not _tried(row, Path(spec_path), Path(connections), Path(folder), run):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
