"""`kmigrate check FILE_OR_FOLDER...` checks cluster files; `--schema` prints their JSON Schema, `--reference` the page of their keys."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec import Folder, advice, load, load_folder, schema
from airflow_provider_kmigrate.spec.model import reference


def main(argv: list[str] | None = None) -> int:
    """0: every file is right; 1: something is wrong and was printed."""
    parser = argparse.ArgumentParser(prog="kmigrate check", description="Check cluster files.")
    parser.add_argument("paths", nargs="*", type=Path, metavar="FILE_OR_FOLDER")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema for editors")
    parser.add_argument("--reference", action="store_true", help="print docs/cluster-file.md: every key with its default")
    arguments = parser.parse_args(argv)
    if not (arguments.paths or arguments.schema or arguments.reference):
        parser.error("name a FILE_OR_FOLDER to check")
    if arguments.schema:
        sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
    if arguments.reference:
        sys.stdout.write(reference())
    results = [load_folder(path) if path.is_dir() else _one(path) for path in arguments.paths]
    empty = [path for path, result in zip(arguments.paths, results, strict=True) if result == Folder((), ())]
    for spec in (spec for result in results for spec in result.specs):
        sys.stdout.write("\n".join((_summary(spec), *map(str, advice(spec)))) + "\n")
    errors = [error for result in results for error in result.errors]
    for error in errors:
        sys.stderr.write(f"{error}\n")
    for path in empty:
        sys.stderr.write(
            f"{path}: no cluster file: the folder has no .yaml or .yml file. Name the folder that has them, or a file.\n"
        )
    return 1 if errors or empty else 0


def _one(path: Path) -> Folder:
    try:
        return Folder((load(path),), ())
    except SpecError as error:
        return Folder((), (error,))


def _summary(spec: ClusterSpec) -> str:
    return f"{spec.path}: valid; cluster {spec.name} ({spec.cluster_id}), brokers {len(spec.brokers)}, controllers {len(spec.controllers)}"
