"""`kmigrate approvals verify CLUSTER.yaml --connections FILE --journals FOLDER`: record, journal and act of each approval.

Reads the records beside the fence, and the journals of the cluster; changes nothing. Exit code 0: all records are believed and the journals are as
they were written; 1: one is not, and the line says why; 2: something could not be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from airflow_provider_kmigrate.clients.connections import lookup_in, read_connections, settings_for
from airflow_provider_kmigrate.clients.journal_heads import JournalHead, heads
from airflow_provider_kmigrate.clients.records import Kept, Records
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.approval import GIVEN, Approval, ApproverAnswer, from_json
from airflow_provider_kmigrate.core.chain import Link, find_break
from airflow_provider_kmigrate.core.foreign_json import read_json
from airflow_provider_kmigrate.core.journal_lines import JournalLine, acts, read
from airflow_provider_kmigrate.core.text import printable
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.journal import file_name

_NAMES = tuple(each.name for each in fields(Approval))


class Journal(NamedTuple):
    """The lines of a run's journal, without their ends."""

    lines: tuple[bytes, ...]

    def approvals(self) -> Iterator[Approval]:
        """What it says was approved."""
        for line in self.lines:
            try:
                said = read_json(line)
                found = from_json({name: said[name] for name in _NAMES})
            except (ValueError, TypeError, KeyError):
                continue
            if found is not None:
                yield found

    def read(self) -> tuple[JournalLine, ...]:
        """Its lines that can be read."""
        return read(line.decode(errors="replace") for line in self.lines).lines


class Verified(NamedTuple):
    """What was found: lines for the reader, and whether everything is as it was written."""

    lines: tuple[str, ...]
    is_sound: bool


def verify(records: Sequence[Kept], sealed: Sequence[JournalHead], journals: Mapping[str, Journal]) -> Verified:
    """Judge each record and each journal. `journals`: by the name of their file, of this cluster."""
    lines, is_sound = [], True
    for kept in records:
        said, sound = _of_record(kept, journals)
        lines += said
        is_sound = is_sound and sound
    known = {head.run: Link(head.chain, head.lines) for head in sealed}
    names = {file_name(run): run for run in known}
    for name in sorted({*names, *journals}):
        kept_link = known[names[name]] if name in names else Link()
        journal = journals.get(name)
        why = find_break(journal.lines, kept_link) if journal else "the file is missing"
        seen = f"{len(journal.lines)} lines, {kept_link.lines} of them covered by the hash in ZooKeeper" if journal else ""
        lines.append(f"journal {name}: {f'NOT AS IT WAS WRITTEN: {why}' if why else seen}")
        is_sound = is_sound and not why
    return Verified(tuple(lines), is_sound)


def _of_record(kept: Kept, journals: Mapping[str, Journal]) -> tuple[list[str], bool]:
    if kept.approval is None:
        return [f"record {kept.path}: NOT BELIEVED: {kept.doubt}"], False
    given, journal = kept.approval, journals.get(file_name(kept.approval.shown.run), Journal(()))
    by = "protected" if kept.protected else "any client of ZooKeeper could have written it"
    lines = [
        f"record of {given.task} of run {given.shown.run}: {f'NOT BELIEVED: {kept.doubt}' if kept.doubt else by}",
        f"  given: {given if given.answers else 'nothing; it waits, or the answer was no'}",
        f"  shown: {given.shown.cluster}; {', '.join(given.shown.evidence)}",
    ]
    if not given.answers:
        return lines, not kept.doubt
    if given.status != GIVEN:
        lines.append("  NOT ENOUGH: another approver must approve")
    is_noted = any((each.shown, each.answers) == (given.shown, given.answers) for each in journal.approvals())
    lines.append(f"  journal: {'says the same' if is_noted else 'DOES NOT SAY SO'}")
    answered = max(map(_milliseconds, given.answers))
    done = [span for span in acts(journal.read()) if span.from_ms >= answered]
    lines.append(
        f"  acts since: {len(done)}"
        + (f", the first at {_iso(done[0].from_ms)}: {done[0].verb} ({done[0].step})" if done else "")
    )
    return lines, is_noted and not kept.doubt


def _milliseconds(answer: ApproverAnswer) -> float:
    try:
        return datetime.fromisoformat(answer.at).timestamp() * 1000
    except (ValueError, OverflowError):
        return 0.0


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    chosen = parser().parse_args(argv)
    try:
        spec = load(chosen.cluster)
        settings = settings_for(spec, lookup_in(read_connections(chosen.connections), spec))
        with ZooKeeper(settings.zookeeper) as zk:
            records = Records(zk, spec.cluster_id, settings.signing_key)
            kept, sealed = tuple(records.approvals()), tuple(heads(zk, spec.cluster_id))
        found = verify(kept, sealed, read_journals(chosen.journals / spec.name))
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 1 if isinstance(error, Refused) else 2
    sys.stdout.write(
        "\n".join(map(printable, (*found.lines, "all is as it was written" if found.is_sound else "SOMETHING IS NOT"))) + "\n"
    )
    return 0 if found.is_sound else 1


def read_journals(folder: Path) -> dict[str, Journal]:
    """Every journal in a folder, by the name of its file. Raises `Failed`."""
    try:
        found = {path.name: path.read_bytes().split(b"\n") for path in sorted(folder.glob("*.jsonl"))}
    except OSError as error:
        raise Failed(f"cannot read the journals in {folder}: {error}") from error
    return {name: Journal(tuple(lines if lines[-1] else lines[:-1])) for name, lines in found.items()}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="kmigrate approvals", description=(__doc__ or "").split("\n")[0])
    commands = made.add_subparsers(dest="command", required=True)
    verifying = commands.add_parser("verify", help="compare the records beside the fence with the journals; read-only")
    verifying.add_argument("cluster", type=Path, metavar="CLUSTER.yaml", help="the cluster file")
    verifying.add_argument("--connections", type=Path, required=True, help="JSON file written by `airflow connections export`")
    verifying.add_argument(
        "--journals", type=Path, required=True, metavar="FOLDER", help="`journal` in the folder of `[kmigrate] folder`"
    )
    return made
