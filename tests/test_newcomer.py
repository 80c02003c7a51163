"""What a newcomer reads before the first preflight is short: the README, and the quick start up to its preflight."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from airflow_provider_kmigrate.cli import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICK_START = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
MOST_WORDS = 1_500


def count_words(text: str) -> int:
    """As `wc -w` counts: tables, commands and files too."""
    return len(text.split())


def until_the_preflight() -> str:
    before, preflight, _ = QUICK_START.partition("$ kmigrate preflight")
    assert preflight
    return before


def test_few_words_stand_before_the_first_preflight() -> None:
    assert count_words(README) + count_words(until_the_preflight()) <= MOST_WORDS


def test_the_readme_leads_to_the_quick_start_before_anything_else_of_the_cluster() -> None:
    first_pages = re.findall(r"\]\(docs/([^)#]+)", README)
    assert "quick-start.md" in first_pages[:2]


def test_nothing_before_the_preflight_needs_another_page_than_for_passwords_sizes_and_keys() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)", until_the_preflight()))
    assert linked <= {"operators-guide.md", "machines.md", "cluster-file.md"}


def test_the_commands_of_the_quick_start_are_there_and_come_in_their_order() -> None:
    named = re.findall(r"^\$ kmigrate (\w+)", QUICK_START, re.MULTILINE)
    assert named == ["init", "check", "preflight", "plan"]
    assert set(named) <= COMMANDS.keys()


def test_init_and_the_file_name_the_same_connections_as_the_files_that_are_shown() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", QUICK_START, re.DOTALL)
    (block,) = re.findall(r"```yaml\n(.*?)```", QUICK_START, re.DOTALL)
    spec = yaml.safe_load(block)
    names = {spec["zookeeper"]["conn_id"], spec["kafka"]["conn_id"], spec["hosts"]["ssh_conn_id"]}
    assert yaml.safe_load(shown).keys() == names
    (init,) = re.findall(r"^\$ kmigrate init (.*)$", QUICK_START, re.MULTILINE)
    assert {"prod_zk", "prod_kafka"} <= set(init.split())
