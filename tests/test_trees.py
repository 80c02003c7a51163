"""The tree of tests: a test file can be read, moved and run alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.trees import ROOT, imported_tests


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from tests.core.test_spec import GOOD", ["tests.core.test_spec"]),
        ("from tests.core import test_spec as base, views", ["tests.core.test_spec"]),
        ("import tests.core.test_spec", ["tests.core.test_spec"]),
        ("def later():\n    from tests.test_judge import shown", ["tests.test_judge"]),
        ("from tests.core.views import test_view\nfrom tests import trees\nimport tests.core.views, json", []),
    ],
)
def test_each_way_to_import_a_test_is_found(source: str, found: list[str]) -> None:
    assert imported_tests(source) == found


def test_no_file_imports_a_test_file() -> None:
    """What two of them need is in a module of its own beside them, in tests/kit or in a conftest."""
    paths = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    imports = {str(path.relative_to(ROOT)): imported_tests(path.read_text(encoding="utf-8")) for path in paths}
    assert {path: found for path, found in imports.items() if found} == {}


def test_a_fixture_that_does_not_exist_is_told_although_its_lane_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "test_lost.py").write_text(
        "import pytest\n\n@pytest.mark.cluster\ndef test_lost(elsewhere): ...\n", encoding="utf-8"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-m",
        "not cluster",
        str(tmp_path),
    ]
    session = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert session.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_lost.py::test_lost: ['elsewhere']" in session.stderr + session.stdout
