"""`approvals verify`: record, journal and act of each approval, and what was cut off, changed or is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.approvals import Journal, main, verify
from airflow_provider_kmigrate.clients.journal_heads import JournalHead
from airflow_provider_kmigrate.clients.records import Kept
from airflow_provider_kmigrate.core.migration.approval import ASKED, Approval, ApproverAnswer, Shown, hash_text
from airflow_provider_kmigrate.steps.journal import FileJournal, journal_file_name

RUN = "kmigrate_zk_to_kraft__prod/manual__2026-11-29T10:00:00+00:00"
GIVEN = Approval(
    Shown(RUN, "cluster-1, /migration of 5.000", {"soak": hash_text("well")}),
    (ApproverAnswer("Finalize", "ann", "Ann", "2026-11-29T10:00:00+00:00", "all is well"),),
    "approve",
    hash_text("the request"),
)
AT = 1_795_946_400.0  # seconds; of the answer


class Kept1:
    """One run's journal, with an act before the approval, the approval, and an act after it."""

    def __init__(self, folder: Path, **change: Any) -> None:
        self.at = AT - 60
        self.path = folder / journal_file_name(RUN)
        journal = FileJournal(self.path, RUN, lambda: self.at)
        journal.write("act", "broker 0 to kraft", "restart: broker 0")
        journal.write("approval", "approve", str(GIVEN), **(GIVEN.to_json() | change))
        self.at = AT + 60
        journal.write("act", "controller 3000", "restart: controller 3000")
        self.head = JournalHead(RUN, *journal.read_link())

    @property
    def read(self) -> dict[str, Journal]:
        *lines, _ = self.path.read_bytes().split(b"\n")
        return {self.path.name: Journal(tuple(lines))}


def test_the_answer_has_the_date_of_this_test() -> None:
    from datetime import datetime  # noqa: PLC0415

    assert datetime.fromisoformat(GIVEN.answers[0].at).timestamp() == AT


def test_record_journal_and_the_first_act_since_are_shown(tmp_path: Path) -> None:
    there = Kept1(tmp_path)
    found = verify([Kept("/a", GIVEN)], [there.head], there.read)
    text = "\n".join(found.lines)
    assert found.is_sound, text
    for part in (RUN, "protected", "Finalize by Ann (ann)", "all is well", "says the same", "acts since: 1", "controller 3000"):
        assert part in text
    assert "3 lines, 3 of them covered" in text


def test_what_is_not_believed_not_noted_or_not_complete_is_named(tmp_path: Path) -> None:
    there = Kept1(tmp_path)
    others = replace(GIVEN, answers=(replace(GIVEN.answers[0], user="eve"),))
    for kept, word in (
        (Kept("/a", GIVEN, "any client may write it", protected=False), "NOT BELIEVED"),
        (Kept("/a", None, "no record", protected=False), "NOT BELIEVED"),
        (Kept("/a", others), "DOES NOT SAY SO"),
    ):
        found = verify([kept], [there.head], there.read)
        assert (found.is_sound, word in "\n".join(found.lines)) == (False, True)
    assert "NOT ENOUGH" in "\n".join(verify([Kept("/a", replace(GIVEN, status=ASKED))], [], there.read).lines)
    waits = verify([Kept("/a", replace(GIVEN, answers=(), status=ASKED))], [there.head], there.read)
    assert (waits.is_sound, "it waits" in "\n".join(waits.lines)) == (True, True)
    opened = verify([Kept("/a", GIVEN, protected=False)], [there.head], there.read)
    assert (opened.is_sound, "any client of ZooKeeper could" in "\n".join(opened.lines)) == (True, True)


@pytest.mark.parametrize("harm", ["missing", "cut", "changed"])
def test_a_journal_that_is_missing_or_cut_off_is_named(tmp_path: Path, harm: str) -> None:
    there = Kept1(tmp_path)
    [journal], read = there.read.values(), dict(there.read)
    if harm == "missing":
        read = {}
    elif harm == "cut":
        read[there.path.name] = Journal(journal.lines[:2])
    else:
        first = json.dumps(json.loads(journal.lines[0]) | {"text": "restart: broker 9"}).encode()
        read[there.path.name] = Journal((first, *journal.lines[1:]))
    found = verify([], [there.head], read)
    assert (found.is_sound, "NOT AS IT WAS WRITTEN" in found.lines[0]) == (False, True)


def test_two_runs_whose_names_make_one_file_are_both_held_to_their_hashes(tmp_path: Path) -> None:
    there, twin = Kept1(tmp_path), RUN.replace(":", "_")
    assert twin != RUN
    assert journal_file_name(twin) == journal_file_name(RUN)
    other = FileJournal(there.path, twin, lambda: AT)
    other.write("act", "broker 1 to kraft", "restart: broker 1")
    heads = [there.head, JournalHead(twin, *other.read_link())]
    assert verify([], heads, there.read).is_sound
    short = {there.path.name: Journal(there.read[there.path.name].lines[:3])}
    for sealed in (heads, heads[::-1]):
        found = verify([], sealed, short)
        assert not found.is_sound, "the line of the later run is gone"
        assert len(found.lines) == 2


def test_a_cluster_that_cannot_be_read_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["verify", str(tmp_path / "none.yaml"), "--connections", str(tmp_path / "c.json"), "--journals", str(tmp_path)]
    assert main(asked) in (1, 2)
    assert "none.yaml" in capsys.readouterr().err
