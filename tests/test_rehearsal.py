"""What a rehearsal leaves of an earlier one in the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from benchmarks.rehearsal import Rehearsal
from tests.kit.workload import Workload, WorkloadPlan
from tests.old_consumer.jvm_application import CutoverGroup


class _Told(CutoverGroup):
    """An application whose start shows what its account would read."""

    found: tuple[str, ...] | None = None

    def start(self, folder: Path, *_: Any) -> None:
        self.found = tuple(path.name for path in folder.rglob("*"))


class _Cluster:
    bootstrap = zookeeper = ""

    def __init__(self, _folder: Path) -> None:
        pass


def test_an_application_starts_without_the_logs_of_an_earlier_run(tmp_path: Path) -> None:
    told = _Told("invoices", "clicks")
    rehearsal = Rehearsal(tmp_path, applications=(told,), cluster_type=cast("Any", _Cluster))
    rehearsal.workload = Workload(tmp_path / "load", {}, WorkloadPlan(("clicks",)))
    log = tmp_path / "applications" / "invoices" / "invoices-app0.1.kafka.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        '{"name": "processed", "topic": "clicks", "partition": 0, "offset": 7}\n'
    )  # it would hide that record 7 was lost
    rehearsal.start_applications()
    assert told.found == ()
