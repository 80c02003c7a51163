"""`kmigrate preflight CLUSTER.yaml`: may this cluster be migrated?

Exit code 0: nothing blocks; 1: a blocker; 2: the observation failed. Reads only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from airflow_provider_kmigrate.commands.arguments import add_connection_arguments, add_format_argument
from airflow_provider_kmigrate.commands.reading import open_context, say_on_stderr
from airflow_provider_kmigrate.core.preflight.checks import list_checks
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding, Severity
from airflow_provider_kmigrate.core.preflight.made import Owner
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.preflight.page import PreflightOutcome, as_document, judge_outcome, write_report
from airflow_provider_kmigrate.steps.prepare import Preflight, observe_preflight


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kmigrate preflight", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cluster", type=Path, metavar="CLUSTER.yaml")
    add_connection_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write preflight.html and preflight.json there")
    add_format_argument(parser)
    options = parser.parse_args(argv)
    with open_context(options.cluster, options.connections, options.folder) as context:
        result = observe_preflight(replace(context, say=say_on_stderr))
    if options.out:
        write_report(result, options.out)
    sys.stdout.write(json.dumps(as_document(result), indent=1) + "\n" if options.output == "json" else _format_text(result))
    return 1 if judge_outcome(result.found) is PreflightOutcome.BLOCKED else 0


def _format_text(result: Preflight) -> str:
    """Findings by who can act on them, or else every check that was made; and the outcome."""
    findings = result.found
    counts = ", ".join(f"{sum(counted.severity is severity for counted in findings)} {severity}" for severity in Severity)
    outcome = judge_outcome(findings)
    checks = list_checks(result.view, result.facts)
    owners = {finding: check.owner for check in checks for finding in check.findings}
    lines = [f"Checked {check.about}: {check.saw}." for check in checks] if outcome is PreflightOutcome.READY else []
    for owner in dict.fromkeys(owners.get(finding, Owner.FILE) for finding in findings):
        owned = [finding for finding in findings if owners.get(finding, Owner.FILE) is owner]
        lines += [
            f"For {owner}:",
            *(f"  {finding}" for finding in sorted(owned, key=lambda finding: _gravity_key(finding, owned))),
        ]
    return (
        "".join(f"{line}\n" for line in lines) + f"{outcome}: {counts}; {count_of(len(checks), 'check')}; {result.took:.1f} s\n"
    )


def _gravity_key(finding: PreflightFinding, findings: Sequence[PreflightFinding]) -> tuple[int, int]:
    """The gravest first, those of one code together."""
    codes = list(dict.fromkeys(other.code for other in findings))
    return list(Severity).index(finding.severity), codes.index(finding.code)
