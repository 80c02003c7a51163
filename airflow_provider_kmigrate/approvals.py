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
from airflow_provider_kmigrate.clients.journal_heads import DamagedHead, JournalHead, read_heads
from airflow_provider_kmigrate.clients.records import Kept, Records
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.migration.approval import GIVEN, Approval, ApproverAnswer, parse_approval
from airflow_provider_kmigrate.core.monitoring.journal_lines import JournalLine, list_acts, parse_lines
from airflow_provider_kmigrate.core.shared.chain import Link, find_break
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import count_of, printable
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.journal import journal_file_name

_NAMES = tuple(field.name for field in fields(Approval))


class Journal(NamedTuple):
    """The lines of a run's journal, without their ends."""

    lines: tuple[bytes, ...]

    def approvals(self) -> Iterator[Approval]:
        """What it says was approved."""
        for line in self.lines:
            try:
                line_facts = read_json(line)
                approval = parse_approval({name: line_facts[name] for name in _NAMES})
            except (ValueError, TypeError, KeyError):
                continue
            if approval is not None:
                yield approval

    def read(self) -> tuple[JournalLine, ...]:
        """Its lines that can be read."""
        return parse_lines(line.decode(errors="replace") for line in self.lines).lines


class Verified(NamedTuple):
    """What was found: lines for the reader, and whether everything is as it was written."""

    lines: tuple[str, ...]
    is_sound: bool


def verify(records: Sequence[Kept], sealed: Sequence[JournalHead | DamagedHead], journals: Mapping[str, Journal]) -> Verified:
    """Judge each record and each journal. `journals`: by the name of their file, of this cluster."""
    lines, is_sound = [], True
    for record in records:
        record_lines, sound = _verify_record(record, journals)
        lines += record_lines
        is_sound = is_sound and sound
    for damaged in (head for head in sealed if isinstance(head, DamagedHead)):
        lines.append(
            f"record {damaged.path}: NOT AS IT WAS WRITTEN: it holds no hash, so some journal may have been cut off. Next: find out who "
            "can write there, and compare the journals with a copy."
        )
        is_sound = False
    heads = [head for head in sealed if isinstance(head, JournalHead)]
    links = [(journal_file_name(head.run), Link(head.chain, head.lines)) for head in heads]  # two runs may share a file
    unsealed = journals.keys() - {name for name, _ in links}
    for name, kept_link in sorted([*links, *((name, Link()) for name in unsealed)]):
        journal = journals.get(name)
        why = find_break(journal.lines, kept_link) if journal else "the file is missing"
        coverage = (
            f"{count_of(len(journal.lines), 'line')}, {kept_link.lines} of them covered by the hash in ZooKeeper"
            if journal
            else ""
        )
        lines.append(f"journal {name}: {f'NOT AS IT WAS WRITTEN: {why}' if why else coverage}")
        is_sound = is_sound and not why
    return Verified(tuple(lines), is_sound)


def _verify_record(record: Kept, journals: Mapping[str, Journal]) -> tuple[list[str], bool]:
    if record.approval is None:
        return [f"record {record.path}: NOT BELIEVED: {record.doubt}"], False
    approval, journal = record.approval, journals.get(journal_file_name(record.approval.shown.run), Journal(()))
    by = "protected" if record.protected else "any client of ZooKeeper could have written it"
    lines = [
        f"record of {approval.task} of run {approval.shown.run}: {f'NOT BELIEVED: {record.doubt}' if record.doubt else by}",
        f"  given: {approval if approval.answers else 'nothing; it waits, or the answer was no'}",
        f"  shown: {approval.shown.cluster}; {', '.join(approval.shown.evidence)}",
    ]
    if not approval.answers:
        return lines, not record.doubt
    if approval.status != GIVEN:
        lines.append("  NOT ENOUGH: another approver must approve")
    is_noted = any(
        (journal_approval.shown, journal_approval.answers) == (approval.shown, approval.answers)
        for journal_approval in journal.approvals()
    )
    lines.append(f"  journal: {'says the same' if is_noted else 'DOES NOT SAY SO'}")
    answered = max(map(_answered_at_ms, approval.answers))
    later_acts = [span for span in list_acts(journal.read()) if span.from_ms >= answered]
    lines.append(
        f"  acts since: {len(later_acts)}"
        + (
            f", the first at {_format_time(later_acts[0].from_ms)}: {later_acts[0].verb} ({later_acts[0].step})"
            if later_acts
            else ""
        )
    )
    return lines, is_noted and not record.doubt


def _answered_at_ms(answer: ApproverAnswer) -> float:
    try:
        return datetime.fromisoformat(answer.at).timestamp() * 1000
    except (ValueError, OverflowError):
        return 0.0


def _format_time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = build_parser().parse_args(argv)
    try:
        spec = load(options.cluster)
        settings = settings_for(spec, lookup_in(read_connections(options.connections), spec))
        with ZooKeeper(settings.zookeeper) as zk:
            records = Records(zk, spec.cluster_id, settings.signing_key)
            kept_records, sealed = tuple(records.approvals()), tuple(read_heads(zk, spec.cluster_id))
        verified = verify(kept_records, sealed, read_journals(options.journals / spec.name))
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return 1 if isinstance(error, Refused) else 2
    sys.stdout.write(
        "\n".join(map(printable, (*verified.lines, "all is as it was written" if verified.is_sound else "SOMETHING IS NOT")))
        + "\n"
    )
    return 0 if verified.is_sound else 1


def read_journals(folder: Path) -> dict[str, Journal]:
    """Every journal in a folder, by the name of its file. Raises `Failed`."""
    try:
        lines_by_name = {path.name: path.read_bytes().split(b"\n") for path in sorted(folder.glob("*.jsonl"))}
    except OSError as error:
        raise Failed(f"cannot read the journals in {folder}: {error}") from error
    return {name: Journal(tuple(lines if lines[-1] else lines[:-1])) for name, lines in lines_by_name.items()}


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    root_parser = argparse.ArgumentParser(prog="kmigrate approvals", description=(__doc__ or "").split("\n")[0])
    commands = root_parser.add_subparsers(dest="command", required=True)
    verifying = commands.add_parser("verify", help="compare the records beside the fence with the journals; read-only")
    verifying.add_argument("cluster", type=Path, metavar="CLUSTER.yaml", help="the cluster file")
    verifying.add_argument("--connections", type=Path, required=True, help="JSON file written by `airflow connections export`")
    verifying.add_argument(
        "--journals", type=Path, required=True, metavar="FOLDER", help="`journal` in the folder of `[kmigrate] folder`"
    )
    return root_parser
