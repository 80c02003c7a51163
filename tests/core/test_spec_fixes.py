"""Every key of a cluster file, broken in every way: its message is one, its fix ends it, leads on to a valid file, and weakens nothing."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from airflow_provider_kmigrate.spec.model import ClusterFile
from tests.core.door_messages import MESSAGES, judge_message
from tests.core.spec_fixes import (
    breakages,
    broken_by,
    find_parent,
    follow_messages,
    misspellings,
    problems_of,
    small_file,
    weaknesses,
    whole_file,
)

WHOLE = whole_file()
SECTIONS = sorted(ClusterFile.model_fields)
FILES = sorted(MESSAGES.glob("*.yaml"))


def test_a_file_with_the_example_of_every_key_is_valid() -> None:
    assert problems_of(WHOLE) == []


@pytest.mark.parametrize("section", SECTIONS)
def test_a_wrong_value_has_one_message_whose_fix_leads_on(section: str) -> None:
    small = small_file(WHOLE, section)
    for loc, value in breakages(small, only=section):
        broken = broken_by(small, loc, value)
        problems = problems_of(broken)
        assert len(problems) <= 1 or value == {"not": "this"}, (loc, value, problems)
        assert follow_messages(broken) == [], (loc, value)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_misspelt_key_is_renamed_or_removed(section: str) -> None:
    small = small_file(WHOLE, section)
    for loc in misspellings({section: small[section]}):
        for new in ("zzz", f"{loc[-1]}x"):
            broken = copy.deepcopy(small)
            parent, key = find_parent(broken, loc)
            parent[new] = parent.pop(key)
            assert follow_messages(broken) == [], (loc, new)


def test_a_fix_that_weakens_would_be_found() -> None:
    assert weaknesses({"kafka": {"verify_hostname": False}, "audit": {"allow": ["lost"]}, "approvers": {"required": 1}}) == {
        ".kafka.verify_hostname",
        ".audit.allow 0",
        ".approvers.required",
    }


def test_the_corpus_of_broken_files_is_whole() -> None:
    assert len(FILES) >= 55


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_broken_file_gets_a_right_answer(file: Path) -> None:
    assert judge_message(file) == []
