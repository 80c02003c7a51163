"""`kmigrate evidence CLUSTER.yaml -o FILE`: one archive with all evidence of a migration; `kmigrate evidence verify FILE` checks one offline.

Making one reads files and connections and asks no node. Exit code 0: written, or all is as it was written; 1: refused, or something is not as it was
written, and the line says which file; 2: something could not be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_kmigrate.commands.arguments import add_connection_arguments, add_format_argument
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return _verify(words[1:]) if words[:1] == ["verify"] else _write(words)


def _write(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="kmigrate evidence",
        usage="kmigrate evidence CLUSTER.yaml -o FILE [options]\n       kmigrate evidence verify FILE [options]",
        description=(__doc__ or "").replace("\n", " "),
    )
    parser.add_argument("cluster", type=Path, metavar="CLUSTER.yaml")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="the archive, which must not exist yet")
    parser.add_argument(
        "--run", default="", help="only the journal and the audits of this run, such as manual__1; default: all runs"
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="sign the archive with the secret in this file, of at least 16 bytes"
    )
    add_connection_arguments(parser)
    options = parser.parse_args(words)

    from airflow_provider_kmigrate.commands.evidence_files import NotWritten, write_evidence  # noqa: PLC0415  # its help must not wait for it

    try:
        for line in write_evidence(options):
            sys.stdout.write(f"{line}\n")
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 1 if isinstance(error, NotWritten | Refused) else 2
    return 0


def _verify(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="kmigrate evidence verify", description="Check an archive against its manifest, offline."
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--key", type=Path, metavar="FILE", help="check the signature, too, with the secret in this file")
    add_format_argument(parser)
    options = parser.parse_args(words)

    from airflow_provider_kmigrate.commands.evidence_files import read_archive, read_key  # noqa: PLC0415
    from airflow_provider_kmigrate.core.monitoring.run_evidence import render_verification, verify_archive  # noqa: PLC0415

    try:
        verification = verify_archive(read_archive(options.file), read_key(options.key))
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    document = {"problems": verification.problems, "notes": verification.notes, "files": verification.files}
    sys.stdout.write(f"{json.dumps(document)}\n" if options.output == "json" else render_verification(verification))
    return 1 if verification.problems else 0
