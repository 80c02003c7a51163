"""The journal of a run as evidence: one JSON object a line, flushed to disk before and after each act.

It is never read back to decide anything; the cluster's state comes from the cluster. Its lines are chained by hashes (`core.shared.chain`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.state_folder import SharedFolder, StateFolder
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Migration, Reason
from airflow_provider_kmigrate.core.shared.chain import Link, link_before
from airflow_provider_kmigrate.exceptions import Failed, Refused
from airflow_provider_kmigrate.masking import mask_all


class StepJournal(Protocol):
    """Records what a step observed, decided and did."""

    def write(self, kind: str, step: str, text: str, **facts: object) -> None:
        """One line; `facts` must be JSON values without secrets."""


class NoJournal:
    """Writes nothing: for a process that only observes and prints what it found."""

    def write(self, *_: object, **__: object) -> None:
        """Drop the line."""


_TAIL = 65_536  # bytes, in which the last whole line begins; else the file is read whole


class FileJournal:
    """`{"at": epoch seconds, "run": ..., "kind": ..., "step": ..., "text": ..., ..., "chain": its `Link`}` a line, in one file a run."""

    def __init__(self, path: Path, run: str, now: Callable[[], float], state: StateFolder | None = None) -> None:
        self._path, self.run, self._now, self._state = path, run, now, state or SharedFolder()
        self._prepare_file()

    def _prepare_file(self) -> None:
        """Raises `Refused` (O05) if the journal cannot be written, before anything is done."""
        try:
            atomic.make_folder(self._path.parent)
            written = self._path if self._path.exists() else self._path.parent
            closed = "" if os.access(written, os.W_OK) else f"no right to write {written}"
        except (Failed, OSError) as error:
            closed = str(error)
        if closed:
            text = f"This process's user cannot write the journal: {closed}."
            raise Refused.because(Reason("O05", text))

    def begin(self) -> None:
        """Write the run's first line, once. Without that line, a reader knows that the run keeps its journal elsewhere."""
        if not self._path.exists():
            self.write("began", "run", "The run owns the cluster.")

    def write(self, kind: str, step: str, text: str, **facts: object) -> None:
        """Append one line and flush it to disk before returning. A line that a full disk or a crash cut short stays alone."""
        line = {"at": round(self._now(), 3), "run": self.run, "kind": kind, "step": step, **mask_all({"text": text, **facts})}

        def make_line(file: IO[bytes]) -> bytes:
            link, torn = _read_end(file)
            return b"\n" * torn + json.dumps(line | {"chain": link}).encode() + b"\n"

        self._state.append(self._path, make_line)

    def read_link(self) -> Link:
        """The hash of all that is written."""
        try:
            with self._path.open("rb") as file:
                return _read_end(file)[0]
        except FileNotFoundError:
            return Link()


def _read_end(file: IO[bytes]) -> tuple[Link, bool]:
    """The hash of a journal, and whether its last line is torn."""
    end = file.seek(0, os.SEEK_END)
    for begin in sorted({max(0, end - _TAIL), 0}, reverse=True):
        *lines, rest = os.pread(file.fileno(), end - begin, begin).split(b"\n")
        lines += [rest] if rest else []
        first = 1 if begin else 0  # a line whose beginning was not read
        last = next((number for number in range(len(lines) - 1, first - 1, -1) if link_before(lines[number])), None)
        if last is not None:
            break
    link = (link_before(lines[last]) if last is not None else None) or Link()
    for line in lines[last or 0 :]:
        link = link.after(line)
    return link, bool(rest)


def journal_file_name(run: str) -> str:
    """The name of a run's journal. A run id may hold colons and slashes, which do not suit a file's name."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in run) + ".jsonl"


def read_journal_lines(folder: Path | None) -> Iterator[str]:
    """Every line of every journal in a folder; none if there is no such folder."""
    for path in sorted(folder.glob("*.jsonl")) if folder is not None and folder.is_dir() else ():
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def collect_evidence(view: ClusterView) -> dict[str, object]:
    """What allowed an act, small enough for one line: modes, flags, ISR health, /migration and the quorum."""
    partitions = view.partitions
    under_replicated = None if partitions is None else sum(partition.is_under_replicated for partition in partitions)
    migration = view.zk.migration if view.zk else None
    return {
        "took_s": round(view.took, 3),
        "modes": {str(broker.id): broker.mode for broker in view.brokers.values()},
        "flags": {str(c.id): c.migration_flag for c in view.controllers.values()},
        "under_replicated": under_replicated,
        "migration_offset": migration.metadata_offset if isinstance(migration, Migration) else None,
        "leader_epoch": view.quorum.leader_epoch if view.quorum else None,
    }


EXPECTED_FOR = 120.0
"""Seconds after kmigrate's own act in which a wait is its usual effect; the log says what to do only after that. A stop, a start and every ISR
took 6 to 40 s (measured); Kafka itself gives up a broker's session after 18 s."""


def format_expected_wait(reasons: Iterable[Reason], act: str, usual: float | None) -> str:
    """What a wait right after kmigrate's own `act` is about, without remedies. `usual`: seconds that this cluster's restarts took."""
    texts = "; ".join(dict.fromkeys(f"[{reason.code}] {reason.text.rstrip('.')}" for reason in reasons))
    usually = f"usually over within {usual:.0f} s, " if usual else ""
    return f"expected after kmigrate's own '{act}' ({usually}what to do is said after {EXPECTED_FOR:.0f} s): {texts}."


def format_reason_lines(reasons: Iterable[Reason]) -> str:
    """Reasons for a log that people read: each on a line of its own, with its next step on the line below, and then why it matters.

    What a code means and what to do is there once, with the first of the reasons that say it.
    """
    lines = list[str]()
    for reason in reasons:
        said = "\n".join(lines)
        meaning = "" if reason.meaning and reason.meaning in said else reason.meaning
        step = f"    Next: {reason.next_step}" if reason.next_step else ""
        lines.append(f"[{reason.code}] {reason.text}")
        lines += [step] if step and step not in lines else []
        lines += [f"    Why it matters: {meaning}"] if meaning else []
    return "\n".join(lines)


def format_reasons(reasons: Iterable[Reason]) -> str:
    """Format reasons as one text for logs and journals."""
    return " | ".join(map(str, reasons))
