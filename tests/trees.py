"""A copy of the repository to break: what is changed in it, nothing else sees."""

from __future__ import annotations

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
