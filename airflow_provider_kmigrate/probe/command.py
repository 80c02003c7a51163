"""kmigrate probe start | status | stop | verdict"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.core.audit.verdict import as_dict, combine
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.probe.probe import RATE, Probe
from airflow_provider_kmigrate.probe.stream import are_all_running


def main(argv: list[str] | None = None) -> int:
    """Exit code 0: done; 1: it failed and says why; 3: `status` found a process that ended, or none, or the verdict is no PASS."""
    arguments = _build_parser().parse_args(argv)
    try:
        return _VERBS[arguments.verb](Probe(arguments.dir, _read_properties(arguments), rate=arguments.rate))
    except KMigrateError as error:
        print(f"{arguments.verb} failed: {error}", file=sys.stderr)  # noqa: T201  # a command line
        return 1


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kmigrate probe", description=__doc__)
    parser.add_argument("verb", choices=tuple(_VERBS))
    parser.add_argument("--dir", type=Path, required=True, help="folder of this run")
    parser.add_argument("--properties", type=Path, help="JSON file of librdkafka properties, for start")
    parser.add_argument("--bootstrap", help="instead of bootstrap.servers in --properties")
    parser.add_argument("--rate", type=float, default=RATE, help="records a second for each broker (%(default)s)")
    return parser


def _read_properties(arguments: argparse.Namespace) -> dict[str, str]:
    properties = (files.read_object(arguments.properties) if arguments.properties else None) or {}
    return {**properties, "bootstrap.servers": arguments.bootstrap} if arguments.bootstrap else properties


def _print_status(probe: Probe) -> int:
    processes = probe.status()
    for writer, process in processes.items():
        print(f"  {writer:<24} {process.state:<8} pid {process.pid or '-'}")  # noqa: T201
    return 0 if are_all_running(processes) else 3


def _print_verdict(probe: Probe) -> int:
    findings, health = probe.evidence()
    verdict: dict[str, Any] = as_dict(combine(findings, [health]))
    print(json.dumps(verdict, indent=1))  # noqa: T201
    return 0 if verdict["outcome"] == "PASS" else 3


_VERBS: Final = {
    "start": lambda probe: probe.start() or 0,
    "status": _print_status,
    "stop": lambda probe: probe.stop() or 0,
    "verdict": _print_verdict,
}
