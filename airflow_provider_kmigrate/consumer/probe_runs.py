"""The probe of one cluster over its migrations: each run in a folder of its own, one at a time, on the machine that started it.

`<place>/<run>/` is what `consumer.probe.Probe` makes, and `machine`, the name of the machine. The events are read from wherever the
place is mounted; only the machine itself can see and end the processes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.consumer.probe import Probe, ProbePlan
from airflow_provider_kmigrate.consumer.workload.progress import Progress
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused

_MACHINE: Final = "machine"
_LONG: Final = 14 * 86_400.0  # seconds: a migration with its soak, and a margin
_SILENT_S: Final = 60.0  # a probe writes every second
_POLL_S: Final = 0.5


class ProbeRuns:
    """The probes below `place`, all of one cluster; `properties` are librdkafka's, which hold secrets and are not left there.

    `probe`: what makes one of a folder, properties and a plan.
    """

    def __init__(
        self, place: Path | str, properties: Mapping[str, str], machine: str = "", probe: Callable[..., Probe] = Probe
    ) -> None:
        self._place, self._properties, self._probe = Path(place), properties, probe
        self._machine = machine or socket.gethostname()

    def begin(self, run: str) -> Path:
        """Start the probe of `run`, unless it runs, and end every other one; returns the folder of its events.

        Raises `Refused` where this run's has ended (Y05) or runs on another machine (Y09), others as `Probe.start`.
        """
        folder = self._place / run
        self._end(lambda other: other != folder)
        if self._is_elsewhere(folder):
            self._refuse(folder)
        probe = self._probe(folder, self._properties, ProbePlan(max_seconds=_LONG))
        atomic.make_folder(folder)
        atomic.replace(
            folder / _MACHINE, self._machine.encode()
        )  # first: whoever is killed behind it leaves a probe that has a home
        try:
            probe.start()
        finally:
            probe.forget_properties()
        return probe.events

    def end(self) -> tuple[str, ...]:
        """End every probe; returns their runs. Raises `Refused` (Y09) where one runs on another machine."""
        return self._end(lambda _: True)

    def _end(self, wanted: Callable[[Path], bool]) -> tuple[str, ...]:
        there = sorted(plan.parent for plan in self._place.glob("*/plan.json"))
        ended = []
        for folder in filter(wanted, there):
            if self._is_elsewhere(folder):
                if not silent(folder):
                    self._refuse(folder)
            else:
                self._probe(folder, self._properties).stop()
                ended.append(folder.name)
        return tuple(ended)

    def _is_elsewhere(self, folder: Path) -> bool:
        return (files.read(str(folder / _MACHINE)) or self._machine) != self._machine

    def _refuse(self, folder: Path) -> None:
        machine = files.read(str(folder / _MACHINE))
        text = f"The probe in {folder} runs on {machine}, and this is {self._machine}."
        why = "Its processes can only be seen and ended there."
        remedy = (
            "Give the tasks of this DAG a queue of one worker, or run there, with librdkafka's properties in a JSON file: "
            f"python -m {__package__}.probe stop --dir {folder} --properties FILE"
        )
        raise Refused.because(Reason("Y09", text, why, remedy))


def silent(folder: Path, seconds: float = _SILENT_S) -> bool:
    """Whether nothing was written there for so long: the probe has ended, wherever it ran."""
    newest = max((path.stat().st_mtime for path in (folder / "events").glob("*")), default=0.0)
    return time.time() - newest > seconds


def flows(events: Path, patience: float = 60.0) -> tuple[int, int]:
    """How many records were acknowledged, and how many offsets committed, once both grow.

    Raises `Refused` (Y09) where they do not within `patience` seconds.
    """
    progress = Progress(events)
    before, deadline = _so_far(progress), time.monotonic() + patience
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = _so_far(progress)
        if now[0] > before[0] and now[1] > before[1]:
            return now
    text = f"The probe in {events} shows nothing new for {patience:g} s: {before[0]} records acknowledged, {before[1]} offsets committed."
    why = "It was started on a worker that is gone, or its folder is not the same everywhere; the audits would have no evidence."
    remedy = "Run it where it can stay (see the operator's guide), or write `probe: false` in the section `audit`."
    raise Refused.because(Reason("Y09", text, why, remedy))


def _so_far(progress: Progress) -> tuple[int, int]:
    progress.update()
    return progress.acked, sum(offset for offsets in progress.committed.values() for offset in offsets.values())
