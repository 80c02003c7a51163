"""kmigrate's own stream of numbered records through every broker (level L1): nothing in the users' clients is changed for it.

A topic has one partition led by each broker, with as many replicas as three or the brokers allow. A sender and a receiver run as
processes of their own (`consumer.workload`), are found again by pid and birth, and write down what was acknowledged and delivered.
Its rate is small: it is there to be disturbed like any other client, not to load the cluster.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.consumer.probe_topic import ensure_topic
from airflow_provider_kmigrate.consumer.workload import GroupPlan, Workload, WorkloadPlan
from airflow_provider_kmigrate.consumer.workload.control import all_run, told
from airflow_provider_kmigrate.consumer.workload.plan import plan_of
from airflow_provider_kmigrate.core.audit.verdict import Ground, Level, LevelHealth, as_dict, combine, of_facts
from airflow_provider_kmigrate.core.ledger import Facts
from airflow_provider_kmigrate.core.model import Process, ProcessState, Reason
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused

TOPIC: Final = "kmigrate-probe"
GROUP: Final = "kmigrate-probe"


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """`rate` is records a second for each partition. After `max_seconds` a forgotten probe ends itself."""

    topic: str = TOPIC
    rate: float = 5.0
    max_seconds: float = 24 * 3600.0


class Probe:
    """The probe that lives in `folder`, one run of it; `attach` finds a running one. Every verb may be repeated, by any process."""

    def __init__(self, folder: Path | str, properties: Mapping[str, str], plan: ProbePlan | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.plan = plan or ProbePlan()
        self._properties = dict(properties)

    def start(self, timeout: float = 90.0) -> None:
        """Make or complete the topic, start both processes, wait until records flow. Does nothing where they run.

        Raises `Refused` where the folder holds a run that has ended, ours where the brokers refuse, `TimedOut` where nothing flows.
        """
        if (self.folder / "plan.json").exists():
            self._refuse_ended()
            return
        count = ensure_topic(self._properties, self.plan.topic, timeout)
        groups = (GroupPlan(GROUP, members=1),)
        plan = WorkloadPlan((self.plan.topic,), self.plan.rate * count, groups=groups, max_seconds=self.plan.max_seconds)
        Workload(self.folder, self._properties, plan).start(timeout)

    @property
    def events(self) -> Path:
        """The folder of what both processes wrote down."""
        return self._workload().events

    def forget_properties(self) -> None:
        """Take what may hold secrets off the disk: the processes have read it. From then on whoever ends the probe brings them."""
        (self.folder / "properties.json").unlink(missing_ok=True)

    def _workload(self) -> Workload:
        plan = files.read_object(self.folder / "plan.json")
        if plan is None or (self.folder / "properties.json").exists():
            return Workload.attach(self.folder)
        return Workload(self.folder, self._properties, plan_of(plan))

    def _refuse_ended(self) -> None:
        found = self.status()
        ended = [name for name, process in found.items() if process.state is ProcessState.STOPPED]
        if ended or not found:
            text = f"The probe in {self.folder} has ended: {', '.join(ended) or 'it was killed before it started anything'}."
            why = "What it did not see since then cannot be made up for."
            raise Refused.because(
                Reason(
                    "Y05",
                    text,
                    why,
                    "In a migration a new run has a probe of its own, or `probe: false` goes on without (runbook, Y05); else start the next one in another folder.",
                )
            )

    def status(self) -> dict[str, Process]:
        """Both processes, by writer; nothing before the first start."""
        if not (self.folder / "plan.json").exists():
            return {}
        return self._workload().status()

    def stop(self, drain: float = 60.0) -> None:
        """End the sender, let the receiver read the rest for at most `drain` seconds, end it."""
        if self.status():
            self._workload().stop(drain)

    def facts(self) -> Facts:
        """What happened so far; whole only after `stop`."""
        return self._workload().facts()

    def evidence(self) -> tuple[tuple[Ground, ...], LevelHealth]:
        """For `core.audit.verdict.combine`."""
        return of_facts(self.facts(), Level.PROBE)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0: done; 1: it failed and says why; 3: `status` found a process that ended, or none, or the verdict is no PASS."""
    arguments = _parser().parse_args(argv)
    try:
        return _VERBS[arguments.verb](Probe(arguments.dir, _properties(arguments), ProbePlan(rate=arguments.rate)))
    except KMigrateError as error:
        print(f"{arguments.verb} failed: {error}", file=sys.stderr)  # noqa: T201  # a command line
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_kmigrate.consumer.probe", description=__doc__)
    parser.add_argument("verb", choices=tuple(_VERBS))
    parser.add_argument("--dir", type=Path, required=True, help="folder of this run")
    parser.add_argument("--properties", type=Path, help="JSON file of librdkafka properties, for start")
    parser.add_argument("--bootstrap", help="instead of bootstrap.servers in --properties")
    parser.add_argument("--rate", type=float, default=ProbePlan().rate, help="records a second for each broker (%(default)s)")
    return parser


def _properties(arguments: argparse.Namespace) -> dict[str, str]:
    found = (files.read_object(arguments.properties) if arguments.properties else None) or {}
    return {**found, "bootstrap.servers": arguments.bootstrap} if arguments.bootstrap else found


def _status(probe: Probe) -> int:
    found = probe.status()
    print(told(found), end="")  # noqa: T201
    return 0 if all_run(found) else 3


def _verdict(probe: Probe) -> int:
    grounds, health = probe.evidence()
    found: dict[str, Any] = as_dict(combine(grounds, [health], required=[Level.PROBE]))
    print(json.dumps(found, indent=1))  # noqa: T201
    return 0 if found["outcome"] == "PASS" else 3


_VERBS: Final = {
    "start": lambda probe: probe.start() or 0,
    "status": _status,
    "stop": lambda probe: probe.stop() or 0,
    "verdict": _verdict,
}

if __name__ == "__main__":
    sys.exit(main())
