"""Releases, protocol versions and what depends on them; each defect gives exactly its code."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import level_of, version_of
from airflow_provider_kmigrate.core.preflight.checks import run_checks
from airflow_provider_kmigrate.core.preflight.findings import Severity
from tests.core.preflight_around import both_dirs
from tests.core.preflight_versions_rows import ROWS
from tests.core.preflight_views import Change, codes, healthy


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_one_defect_gives_its_code(change: Change, expected: list[str]) -> None:
    assert codes(change(*healthy())) == expected


#: Every metadata version of the bridge releases, the oldest first.
VERSIONS = [
    version for level in range(level_of("3.4-IV0") or 0, (level_of("3.9-IV0") or 0) + 1) if (version := version_of(level))
]


@pytest.mark.parametrize("version", VERSIONS)
def test_several_log_directories_are_judged_by_the_version_that_gives_them_ids(version: str) -> None:
    """`MetadataVersion.isDirectoryAssignmentSupported` is true from 3.7-IV2 on (KIP-858); with 3.7 it was an early access."""
    found = [found for found in run_checks(*both_dirs(version)(*healthy())) if "several log directories" in found.reason.text]
    line, _, variant = version.removeprefix("3.").partition("-IV")
    if (int(line), int(variant)) < (7, 2):
        assert [each.severity for each in found] == [Severity.BLOCK]
        assert f"broker 1 with 2, on {version}" in found[0].reason.text
    else:
        assert [each.severity for each in found] == ([Severity.WARN] if line == "7" else [])
