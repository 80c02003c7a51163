"""What is not verified or sent readable: named if brokers have it already or the cluster file says it, else it blocks."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import ConnectionFacts
from airflow_provider_kmigrate.core.cluster_state.spec import AuditSpec
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import Severity
from tests.core.preflight_protection_rows import LISTENERS, ROWS
from tests.core.preflight_views import Change, both, codes, healthy, known, spec


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in LISTENERS], ids=[row[0] for row in LISTENERS])
def test_the_controllers_listener_is_as_it_was_meant(change: Change, expected: list[str]) -> None:
    assert codes(change(*healthy())) == expected


@pytest.mark.parametrize(
    ("audit", "severity", "users"),
    [
        (AuditSpec("spark", "/r"), Severity.BLOCK, "the probe and the audit"),
        (AuditSpec("spark", "/r", probe=False), Severity.BLOCK, "the audit"),
        (None, Severity.WARN, "nothing else"),
    ],
)
def test_librdkafka_without_kerberos_blocks_what_needs_it(audit: AuditSpec | None, severity: Severity, users: str) -> None:
    kerberos = known(connections=ConnectionFacts(librdkafka_without_kerberos=True))
    (found,) = (each for each in run_checks(*both(kerberos, spec(audit=audit))(*healthy())) if each.code == "B21")
    assert found.severity is severity
    assert users in found.reason.text


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_less_protection_than_before_blocks(change: Change, expected: list[Severity]) -> None:
    found = run_checks(*change(*healthy()))
    assert [each.severity for each in found if each.code == "B9f"] == expected
    assert {each.code for each in found} <= {"B9f", "B10a"}
