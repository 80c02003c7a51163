"""Public units as preflight gets them, as they are and with the drop-in that kmigrate writes."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster_state.model import ServiceUnit
from airflow_provider_kmigrate.core.node_files.service_unit import find_settings, render_drop_in
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding
from tests.core.preflight_views import Case
from tests.kit.units import UnitRow, shown

CODES = ("B19", "R13", "W7", "W23")


def found(case: Case) -> list[PreflightFinding]:
    return [finding for finding in run_checks(*case) if finding.code in CODES]


def said(case: Case) -> list[tuple[str, str]]:
    return [(str(finding.severity), finding.code) for finding in found(case)]


def units_of(row: UnitRow, *drop_ins: str) -> dict[str, ServiceUnit]:
    """Broker 0 with a row's unit, and controller 3000 with a copy of it that starts its own file, each with its drop-in."""
    copies = (
        ("broker 0", "kafka.service", None),
        ("controller 3000", "kafka-controller.service", "/etc/kafka/controller.properties"),
    )
    return {node: ServiceUnit(shown(name, row.text(file), *drop_ins)) for node, name, file in copies}


def passes(case: Case) -> bool:
    """Whether nothing of the units is left to do before the first restart."""
    return not [code for _, code in said(case) if code != "W23"]


def after_drop_in(row: UnitRow) -> dict[str, ServiceUnit]:
    return units_of(row, render_drop_in(find_settings(units_of(row)["broker 0"].shown, 330)))
