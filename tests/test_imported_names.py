"""What tests and benchmarks import from the package is there. Those that need Spark are imported in another lane only: a module that is split broke two there."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "airflow_provider_kmigrate"
FILES = [file for folder in ("tests/audit", "tests/kit", "benchmarks") for file in sorted((ROOT / folder).rglob("*.py"))]


@cache
def list_names(module: str) -> frozenset[str]:
    """What a module of the package holds at its top, and the modules below it."""
    path = ROOT / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names = {inner.stem for inner in path.iterdir()} if path.is_dir() else set[str]()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return frozenset(names)


def test_there_is_something_to_look_at() -> None:
    assert len(FILES) > 100
    assert "check_rows" in list_names(f"{PACKAGE}.audit.partition_rows")
    assert "check_rows_of_old" not in list_names(f"{PACKAGE}.audit.partition_rows")


def test_every_name_that_is_imported_is_there() -> None:
    missing = [
        f"{file.relative_to(ROOT)}: {node.module}.{alias.name}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE
        for alias in node.names
        if alias.name not in list_names(str(node.module))
    ]
    assert not missing
