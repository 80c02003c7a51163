"""The chain of hashes through a journal: what was changed, taken out, added, cut off or written again is found, a torn line is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.shared.chain import Link, find_break, link_before
from airflow_provider_kmigrate.steps import journal as journals
from airflow_provider_kmigrate.steps.journal import FileJournal


@pytest.fixture
def journal(tmp_path: Path) -> FileJournal:
    return FileJournal(tmp_path / "run.jsonl", "dag/run", lambda: 1.5)


def lines(tmp_path: Path) -> list[bytes]:
    *found, rest = (tmp_path / "run.jsonl").read_bytes().split(b"\n")
    return found + ([rest] if rest else [])


def written(journal: FileJournal, count: int) -> Link:
    for number in range(count):
        journal.write("act", "step", f"the act {number}", chained=["no link"])
    return journal.read_link()


def test_every_line_follows_the_one_before_it(journal: FileJournal, tmp_path: Path) -> None:
    assert journal.read_link() == Link()
    end = written(journal, 5)
    assert end.lines == 5
    assert [link.lines for line in lines(tmp_path) if (link := link_before(line))] == [0, 1, 2, 3, 4]
    assert find_break(lines(tmp_path), end) == ""
    assert find_break(lines(tmp_path), Link()) == "", "no hash was kept: the lines follow one another"


@pytest.mark.parametrize("at", range(5))
def test_a_line_that_is_changed_taken_out_doubled_moved_or_added_is_found(journal: FileJournal, tmp_path: Path, at: int) -> None:
    end, whole = written(journal, 5), lines(tmp_path)
    changed = json.dumps(json.loads(whole[at]) | {"text": "another"}).encode()
    for broken in (
        [*whole[:at], changed, *whole[at + 1 :]],
        [*whole[:at], *whole[at + 1 :]],
        [*whole[: at + 1], *whole[at:]],
        [*whole[:at], b'{"kind": "act"}', *whole[at:]],
        [*whole[:at], b"", *whole[at:]],
        whole[:at],
        [whole[at], *whole[:at], *whole[at + 1 :]] if at else whole[:1],
    ):
        assert find_break(broken, end), broken


def test_an_end_that_is_cut_off_and_a_journal_that_is_written_again_are_found_by_the_hash_that_was_kept(
    journal: FileJournal, tmp_path: Path
) -> None:
    kept = written(journal, 5)
    assert find_break(lines(tmp_path)[:3], Link()) == "", "the lines themselves do not show it"
    assert "its end is missing" in find_break(lines(tmp_path)[:3], kept)
    assert "its end is missing" in find_break([], kept)
    (tmp_path / "run.jsonl").unlink()
    journal.write("act", "step", "another act")
    written(journal, 6)
    assert find_break(lines(tmp_path), Link()) == ""
    assert "written again" in find_break(lines(tmp_path), kept)


def test_lines_after_the_hash_that_was_kept_are_no_break(journal: FileJournal, tmp_path: Path) -> None:
    kept = written(journal, 3)
    written(journal, 2)
    assert find_break(lines(tmp_path), kept) == ""


@pytest.mark.parametrize("torn", [b'{"at": 1.5, "ru', b"\xff\xfe", b'{"chain": ["a"]}', b'{"kind": "act"}'])
def test_a_torn_line_and_a_journal_that_began_without_a_chain_are_covered_by_the_next_line(
    journal: FileJournal, tmp_path: Path, torn: bytes
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"at": 1, "run": "dag/run", "kind": "act", "step": "s", "text": "of an older release"}\n')
    written(journal, 2)
    with path.open("ab") as file:
        file.write(torn)
    torn_end = journal.read_link()
    kept, whole = written(journal, 2), lines(tmp_path)
    assert (torn_end.lines, kept.lines, whole[3]) == (4, 6, torn)
    assert find_break(whole, kept) == ""
    for at in range(4):
        assert find_break([*whole[:at], b"{}", *whole[at + 1 :]], kept)


@pytest.mark.parametrize("tail", [1, 64, 200, 4096])
def test_a_long_line_is_read_whole(journal: FileJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: int) -> None:
    monkeypatch.setattr(journals, "_TAIL", tail)
    journal.write("act", "step", "x" * 1000)
    end = written(journal, 3)
    assert find_break(lines(tmp_path), end) == ""
    assert end.lines == 4
