"""What the quick start and the operator's guide show is what is read: each connection, each piece of a cluster file."""

import re
import shlex
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from airflow_provider_kmigrate import spec
from airflow_provider_kmigrate.clients.connections import controller_security, kafka_settings, ssh_settings, zookeeper_settings

ROOT = Path(__file__).parents[2]
QUICK_START = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "operators-guide.md").read_text(encoding="utf-8")
READ = {
    "kmigrate_zookeeper": zookeeper_settings,
    "kafka": kafka_settings,
    "kmigrate_controller": controller_security,
    "ssh": ssh_settings,
}


def blocks(text: str, kind: str) -> list[str]:
    return [dedent(block) for block in re.findall(rf"^ *```{kind}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)]


def added(text: str) -> list[list[str]]:
    """The words of each `airflow connections add`."""
    shown = "\n".join(blocks(text, "console")).replace("\\\n", " ")
    commands = [
        shlex.split(part)[2:]
        for part in re.findall(r"^\$ (airflow connections add .*?)(?=^\S|\Z)", shown, re.MULTILINE | re.DOTALL)
    ]
    return [words[1:] for words in commands]


def connection(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The id, and the fields as Airflow has them."""
    options = dict(zip(words[1::2], words[2::2], strict=True))
    return words[0], {name.removeprefix("--conn-").replace("type", "conn_type"): value for name, value in options.items()}


@pytest.mark.parametrize("words", [*added(QUICK_START), *added(GUIDE)], ids=lambda words: words[0])
def test_connections(words: list[str]) -> None:
    conn_id, fields = connection(words)
    assert READ[fields["conn_type"]](conn_id, fields)  # type: ignore[operator]


def anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    written = re.findall(r'<a id="([^"]+)"></a>', text)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads} | set(written)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        if "://" not in target and not (there.exists() and (not anchor or anchor in anchors(there.read_text(encoding="utf-8")))):
            broken.append(target)
    assert broken == []


def test_all_of_them_were_found() -> None:
    assert [words[0] for words in (*added(QUICK_START), *added(GUIDE))] == [
        "prod_zk",
        "prod_kafka",
        "prod_ssh",
        "prod_ssh",
        "prod_zk",
        "prod_kafka",
        "prod_controllers",
    ]


def test_cluster_files() -> None:
    (whole,) = (yaml.safe_load(block) for block in blocks(QUICK_START, "yaml"))
    assert spec.advice(spec.loads(yaml.safe_dump(whole))) == ()
    pieces = blocks(GUIDE, "yaml")
    assert len(pieces) >= 4
    for piece in pieces:
        assert spec.loads(yaml.safe_dump(whole | yaml.safe_load(piece)))
