"""How often a triggerer observes many deferred steps, and what other triggers pay for it: `make bench BENCH=triggers`.

Airflow's own `TriggerRunner` runs in a process on two cores, without its supervisor: deferred soaks whose observations take 200 ms each and
see nothing, and another provider's trigger that resolves names on the event loop's default threads. Then again beside as many steps whose
observations hang. The delay without any step shows what other processes on the machine cost.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DEFERRED, SECONDS, OBSERVATION_S, CORES = 100, 60.0, 0.2, 2
_FILE = """\
name: {name}
cluster_id: q1Sh-9_ISia_zwGINzRvyQ
zookeeper: {{conn_id: zk}}
kafka: {{conn_id: kf}}
hosts: {{driver: agent, properties: /p, connect: node}}
brokers: [{{id: 0, host: 127.0.0.1, port: 9092}}]
controllers: [{{id: 3000, host: ctl0, log_dir: /l}}]
"""


def main(arguments: Sequence[str], build: Path) -> dict[str, Any]:
    """Arguments: deferred steps, 100 by default; seconds, 60 by default."""
    deferred = int(arguments[0]) if arguments else DEFERRED
    seconds = float(arguments[1]) if len(arguments) > 1 else SECONDS
    del build
    idle, alone, beside = (_measured(*steps, seconds) for steps in ((0, 0), (deferred, 0), (deferred, deferred)))
    return {**alone, "getaddrinfo_delay_ms_max_without": idle["getaddrinfo_delay_ms_max"], "beside_hanging": beside}


def _measured(deferred: int, hanging: int, seconds: float) -> dict[str, Any]:
    """In a process of its own, with an Airflow home of its own."""
    with tempfile.TemporaryDirectory(prefix="kmigrate-triggers-") as home:
        environment = {
            **os.environ,
            "AIRFLOW_HOME": home,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__FERNET_KEY": "",
            "AIRFLOW__KMIGRATE__FOLDER": f"{home}/kmigrate",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        }
        words = [sys.executable, "-m", "benchmarks.triggers", home, str(deferred), str(hanging), str(seconds)]
        subprocess.run(words, check=True, env=environment, timeout=seconds + 120.0, stdout=subprocess.DEVNULL)
        return dict(json.loads(Path(home, "figures.json").read_text()))


class Observations:
    """Stands in for every cluster: observations take their time, see nothing, and of some clusters never end."""

    def __init__(self) -> None:
        self.begun: defaultdict[str, list[float]] = defaultdict(list)
        self.never = threading.Event()

    @contextmanager
    def open(self, spec: Any) -> Iterator[Any]:
        """What opens a cluster's tools: an observer that counts, and nothing else."""
        from airflow_provider_kmigrate.steps.run import SystemClock
        from airflow_provider_kmigrate.utils.step_context import OpenCluster

        tools: Any = SimpleNamespace()
        yield OpenCluster(tools, SimpleNamespace(observe=lambda *_: self._observe(spec.name)), SystemClock())

    def _observe(self, name: str) -> Any:
        from airflow_provider_kmigrate.core.cluster_state.model import ClusterView

        self.begun[name].append(time.monotonic())
        self.never.wait(OBSERVATION_S if name.startswith("well") else None)
        return ClusterView(taken_at=time.monotonic(), name=name)

    def longest_gap(self, since: float, until: float) -> float:
        """Seconds between two observations of a step that does not hang."""
        times = [[since, *begun, until] for name, begun in self.begun.items() if name.startswith("well")]
        return max((after - before for each in times for before, after in pairwise(each)), default=0.0)


async def _resolve(delays: list[float], until: float) -> None:
    """Add the milliseconds that each resolution of a name took, ten a second, also of one that does not come to its end."""
    while (began := time.monotonic()) < until:
        try:
            await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 9092)
        finally:
            delays.append(1000 * (time.monotonic() - began))
        await asyncio.sleep(0.1)


def _child(home: Path, deferred: int, hanging: int, seconds: float) -> dict[str, Any]:
    from airflow.executors.workloads import RunTrigger
    from airflow.jobs.triggerer_job_runner import TriggerRunner
    from airflow.models.trigger import Trigger
    from airflow.triggers.base import BaseTrigger, TriggerEvent

    from airflow_provider_kmigrate.triggers.step import StepTrigger
    from airflow_provider_kmigrate.utils.step_context import opener

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    observations, delays, ended = Observations(), list[float](), list[int]()
    opener.set(observations.open)
    began = time.monotonic()
    until = began + seconds

    class Resolving(BaseTrigger):
        """Another provider's."""

        def serialize(self) -> tuple[str, dict[str, Any]]:
            return "resolving", {}

        async def run(self) -> AsyncIterator[TriggerEvent]:
            await _resolve(delays, until)
            yield TriggerEvent("done")  # type: ignore[no-untyped-call]

    class Runner(TriggerRunner):
        """Without a supervisor: what would be sent to it is counted."""

        async def init_comms(self) -> None:
            reading = asyncio.create_task(asyncio.Event().wait())
            comms: Any = SimpleNamespace(_reader_task=reading)
            self.comms_decoder = comms

        async def sync_state_to_supervisor(self, finished_ids: list[int]) -> None:
            changes = self.process_trigger_events(finished_ids)
            ended.extend(number for number, _ in changes.failures or ())
            ended.extend(entry.trigger_id for entry in changes.events or () if entry.trigger_id != 0)
            self.stop = time.monotonic() >= until

    runner: Any = Runner()  # type: ignore[no-untyped-call]
    runner.trigger_cache["resolving"] = Resolving
    names = [f"well-{number}" for number in range(deferred)] + [f"hanging-{number}" for number in range(hanging)]
    triggers: list[BaseTrigger] = [Resolving()]  # type: ignore[no-untyped-call]
    for name in names:
        observations.begun[name] = []
        path = home / f"{name}.yaml"
        path.write_text(_FILE.format(name=name))
        triggers.append(StepTrigger(str(path), "soak", {}))
    for number, trigger in enumerate(triggers):
        classpath, arguments = trigger.serialize()
        encrypted = Trigger.encrypt_kwargs(arguments)
        runner.to_create.append(RunTrigger(id=number, classpath=classpath, encrypted_kwargs=encrypted))
    most = [0]

    async def watched() -> None:
        counting = asyncio.create_task(_most_threads(most))
        await runner.arun()
        counting.cancel()

    asyncio.run(watched())
    delays.sort()
    return {
        "deferred": sum(len(begun) > 1 for name, begun in observations.begun.items() if name.startswith("well")),
        "hanging": hanging,
        "ended": len(ended),
        "observations": sum(map(len, observations.begun.values())),
        "longest_gap_s": round(observations.longest_gap(began, time.monotonic()), 2),
        "getaddrinfo_delay_ms_max": round(delays[-1], 1),
        "getaddrinfo_delay_ms_median": round(delays[len(delays) // 2], 1),
        "threads": most[0],
    }


async def _most_threads(most: list[int]) -> None:
    while True:
        most[0] = max(most[0], threading.active_count())
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    figures = _child(Path(folder), int(numbers[0]), int(numbers[1]), float(numbers[2]))
    Path(folder, "figures.json").write_text(json.dumps(figures))
