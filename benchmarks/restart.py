"""What one broker's restart executes of the package, on the simulated cluster: how many files, how many functions, what is read.

`files` and `functions`: of everything from the step to the last decision; the clients of a real cluster are not part of the simulation,
and what is left of `clients/` is not counted. `reads`: how often each field was observed; `observations`: how often anything was.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import airflow_provider_kmigrate
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Fields
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.run import run_step
from tests.steps.phases import controllers
from tests.steps.sim import SimCluster

_PACKAGE = f"{Path(airflow_provider_kmigrate.__file__).parent}/"
_FEW = 10  # rows of `by_file`


def main(arguments: Sequence[str], _build: Path) -> dict[str, object]:
    """The flat figures of `restart.json`."""
    parser = argparse.ArgumentParser(prog="restart")
    parser.add_argument("--list", action="store_true", help="print every function that was executed")
    chosen = parser.parse_args(arguments)
    cluster = SimCluster()
    with tempfile.TemporaryDirectory() as folder:
        context = cluster.context(Path(folder))
        controllers(cluster, context)
        reads = count_reads(cluster)
        step = RollBroker(cluster.spec.brokers[1], BrokerMode.MIGRATION, cluster.spec.policy, cluster.spec.group_progress)
        began = cluster.clock.time
        functions = executed(lambda: run_step(step, context))
    files = Counter(file for file, _ in functions)
    if chosen.list:
        for file, name in sorted(functions):
            print(f"{file} {name}")
    return {
        "files": len(files),
        "functions": len(functions),
        "by_file": dict(files.most_common(_FEW)),
        "observations": reads.pop("", 0),
        "reads": dict(sorted(reads.items())),
        "simulated_seconds": round(cluster.clock.time - began, 1),
    }


def executed(call: Callable[[], object]) -> set[tuple[str, str]]:
    """The functions of the package that `call` executes, as (file, qualified name), without its clients and its comprehensions."""
    found = set[tuple[str, str]]()

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        file = code.co_filename.removeprefix(_PACKAGE)
        if event == "call" and file != code.co_filename and "<" not in code.co_name and not file.startswith("clients/"):
            found.add((file, code.co_qualname))

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def count_reads(cluster: SimCluster) -> Counter[str]:
    """Count the fields of each observation from now on, by name; the empty name: all observations."""
    reads, observe = Counter[str](), cluster.observe

    def counted(what: Fields, *given: Any) -> Any:
        reads.update(["", *(field.name or "" for field in what)])
        return observe(what, *given)

    cluster.observe = counted  # type: ignore[method-assign]
    return reads
