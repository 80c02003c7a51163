"""kmigrate probe run | stop | verdict"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.core.audit.verdict import as_dict, combine
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError
from airflow_provider_kmigrate.probe.probe import RATE, Probe, ProbeEnd, stop_runs

_BEAT_S: Final = 1.0


def main(argv: list[str] | None = None) -> int:
    """Exit code 0: done; 1: it failed and says why; 3: `stop` found that it still runs, or the verdict is no PASS."""
    arguments = _build_parser().parse_args(argv)
    try:
        return _VERBS[arguments.verb](Probe(arguments.dir, _read_properties(arguments), rate=arguments.rate))
    except KMigrateError as error:
        sys.stderr.write(f"{arguments.verb} failed: {error}\n")
        return 1


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kmigrate probe", description=__doc__)
    parser.add_argument("verb", choices=tuple(_VERBS))
    parser.add_argument("--dir", type=Path, required=True, help="folder of this run")
    parser.add_argument("--properties", type=Path, help="JSON file of librdkafka properties, for run")
    parser.add_argument("--bootstrap", help="instead of bootstrap.servers in --properties")
    parser.add_argument("--rate", type=float, default=RATE, help="records a second for each broker (%(default)s)")
    return parser


def _read_properties(arguments: argparse.Namespace) -> Mapping[str, str]:
    """Raises `Failed` for a file that is not there, and if `run` has no brokers: it would end another run's probe, and then fail."""
    properties = files.read_object(arguments.properties) if arguments.properties else {}
    if properties is None:
        raise Failed(f"There is no file {arguments.properties}.")
    if arguments.bootstrap:
        properties |= {"bootstrap.servers": arguments.bootstrap}
    if arguments.verb == "run" and not properties.get("bootstrap.servers"):
        raise Failed("No broker is named. Write bootstrap.servers into the file of --properties, or give --bootstrap HOST:PORT.")
    return properties


def _run(probe: Probe) -> int:
    """Run it in this process, until SIGTERM, SIGINT or `stop`."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: probe.cancel())
    try:
        probe.start()
        while not (end := probe.find_end()):
            probe.wait(_BEAT_S)
    finally:
        probe.stop()
    sys.stdout.write(f"The probe has ended: {end}.\n")
    return 0 if end is not ProbeEnd.NO_FOLDER else 1


def _stop(probe: Probe) -> int:
    return 3 if stop_runs([probe.folder]) else 0


def _print_verdict(probe: Probe) -> int:
    findings, health = probe.evidence()
    verdict: dict[str, Any] = as_dict(combine(findings, [health]))
    sys.stdout.write(f"{json.dumps(verdict, indent=1)}\n")
    return 0 if verdict["outcome"] == "PASS" else 3


_VERBS: Final = {"run": _run, "stop": _stop, "verdict": _print_verdict}
