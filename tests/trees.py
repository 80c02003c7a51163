"""A copy of the repository to break: what is changed in it, nothing else sees."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "airflow_provider_kmigrate"


def fresh_tree(name: str) -> Path:
    """A new copy under build/, with all that the tests read."""
    tree = ROOT / "build" / name
    shutil.rmtree(tree, ignore_errors=True)
    for folder in (PACKAGE, "tests", "benchmarks", "dags", "docs"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*ROOT.glob("*.toml"), *ROOT.glob("*.cfg"), *ROOT.glob("*.md"), ROOT / "Makefile"):
        shutil.copy(file, tree)
    return tree


def imported_tests(source: str) -> list[str]:
    """The test files that a module's source imports, as dotted names."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if _is_test_file(name)]


def _is_test_file(name: str) -> bool:
    path = ROOT / f"{name.replace('.', '/')}.py"
    return name.startswith("tests.") and path.name.startswith("test_") and path.exists()
