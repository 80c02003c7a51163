"""`kmigrate check FILE_OR_FOLDER...` checks cluster files, and where Airflow is installed the notifiers that they name.

`--test-message` sends one message through them. `--schema` prints the files' JSON Schema, `--reference` the page of their keys.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec import Folder, advice, load, load_folder, schema
from airflow_provider_kmigrate.spec.model import render_reference


def main(argv: list[str] | None = None) -> int:
    """0: every file is right; 1: something is wrong and was printed."""
    parser = argparse.ArgumentParser(prog="kmigrate check", description="Check cluster files.")
    parser.add_argument("paths", nargs="*", type=Path, metavar="FILE_OR_FOLDER")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema for editors")
    parser.add_argument("--test-message", action="store_true", help="send a test message through the notifiers of each file")
    parser.add_argument("--reference", action="store_true", help="print docs/cluster-file.md: every key with its default")
    options = parser.parse_args(argv)
    if not (options.paths or options.schema or options.reference):
        parser.error("name a FILE_OR_FOLDER to check")
    if options.schema:
        sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
    if options.reference:
        sys.stdout.write(render_reference())
    results = [load_folder(path) if path.is_dir() else _load_file(path) for path in options.paths]
    empty = [path for path, result in zip(options.paths, results, strict=True) if result == Folder((), ())]
    for spec in (spec for result in results for spec in result.specs):
        sys.stdout.write("\n".join((_summary(spec), *map(str, advice(spec)))) + "\n")
    errors = [error for result in results for error in result.errors]
    errors += [
        error for result in results for spec in result.specs for error in _check_notifiers(spec, send=options.test_message)
    ]
    for error in errors:
        sys.stderr.write(f"{error}\n")
    for path in empty:
        sys.stderr.write(
            f"{path}: no cluster file: the folder has no .yaml or .yml file. Name the folder that has them, or a file.\n"
        )
    return 1 if errors or empty else 0


def _check_notifiers(spec: ClusterSpec, *, send: bool) -> Iterator[SpecError]:
    """F08 of the notifiers; a message through them, if asked for. Where Airflow is not installed nothing can be said."""
    if not spec.notify:
        return
    if find_spec("airflow") is None:
        sys.stdout.write(f"{spec.path}: Airflow is not installed here; its notifiers were not checked.\n")
        return
    from airflow_provider_kmigrate.notifications.check import find_notifier_problems, send_test_message  # noqa: PLC0415

    problems = find_notifier_problems(spec)
    if problems:
        yield SpecError.because(*problems)
    elif send:
        failed = send_test_message(spec)
        sys.stdout.write("" if failed else f"{spec.path}: a test message was sent.\n")
        if failed:
            yield SpecError.because(*failed)


def _load_file(path: Path) -> Folder:
    try:
        return Folder((load(path),), ())
    except SpecError as error:
        return Folder((), (error,))


def _summary(spec: ClusterSpec) -> str:
    return f"{spec.path}: valid; cluster {spec.name} ({spec.cluster_id}), brokers {len(spec.brokers)}, controllers {len(spec.controllers)}"
