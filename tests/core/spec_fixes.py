"""A cluster file with every key, broken copies of it, and what a reader does who follows a message to the letter."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel

from airflow_provider_kmigrate.exceptions import SpecError
from airflow_provider_kmigrate.spec import loads
from airflow_provider_kmigrate.spec.model import ClusterFile, find_section_model

Path = tuple[str | int, ...]
_PROBLEM = re.compile(
    r"^  .*?:\d+(?:: (?P<loc>\S+))?: found (?P<found>.*); expected (?P<expected>.*)\. Fix: (?P<fix>.*)\. \[(?P<code>F\d\d)\]$"
)


@dataclass(frozen=True, slots=True)
class Said:
    """One problem as a message prints it."""

    loc: Path
    found: str
    expected: str
    fix: str
    code: str


def problems_of(data: Any) -> list[Said]:
    """What the check prints of a document, or of a text; empty if it is valid."""
    text = data if isinstance(data, str) else yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False)
    try:
        loads(text, "prod.yaml")
    except SpecError as error:
        return [read_problem(line) for line in str(error).splitlines()[1:]]
    return []


def read_problem(line: str) -> Said:
    match = _PROBLEM.match(line)
    assert match, line
    return Said(parse_location(match["loc"] or ""), *(match[name] for name in ("found", "expected", "fix", "code")))


def parse_location(text: str) -> Path:
    """`brokers[1].port` as keys and positions; a key of properties may have dots itself, so the document decides (`find_parent`)."""
    return tuple(int(part[1:-1]) if part.startswith("[") else part for part in re.findall(r"\[\d+\]|[^.\[]+", text))


def find_parent(data: Any, loc: Path) -> tuple[Any, str | int]:
    """The mapping or list that holds what is at `loc`, and its key there."""
    node, rest = data, list(loc)
    while len(rest) > 1:
        joined = next((n for n in range(len(rest), 0, -1) if isinstance(node, dict) and ".".join(map(str, rest[:n])) in node), 0)
        key: str | int = ".".join(map(str, rest[:joined])) if joined else rest[0]
        rest = rest[joined or 1 :]
        if not rest:
            return node, key
        if isinstance(node, dict) and node.get(key) is None:
            node[key] = {}
        node = node[key]
    return node, rest[0]


def apply_fix(data: Any, said: Said) -> Any:
    """The document after the fix, as the message says it. Raises AssertionError if the message leaves open what to write."""
    fixed = copy.deepcopy(data)
    parent, key = find_parent(fixed, said.loc)
    if not isinstance(parent, dict | list):  # one value where a list may be: it is the item
        parent, key = find_parent(fixed, said.loc[:-1])
    written = re.findall(r"`([^`]*)`", said.fix)
    if said.fix.startswith("rename "):
        old, new = written
        assert old == key, said
        parent[new] = parent.pop(old)
    elif said.fix.startswith("move it to "):
        (fixed.setdefault(written[0], {}) if written else fixed)[key] = parent.pop(key)
    elif said.fix.startswith("remove it"):
        del parent[key]
    elif written:
        value = yaml.safe_load(written[0])
        if isinstance(value, dict) and isinstance(parent, dict) and len(value) == 1:
            parent.update(value)
        else:
            parent[key] = value
    else:
        raise AssertionError(f"no fix that can be applied: {said}")
    return fixed


def follow_messages(data: Any) -> list[str]:
    """What is wrong with the messages for a broken document, if its reader applies one fix after the other; empty: they lead to a valid file."""
    wrong, weak = list[str](), weaknesses(data)
    for _ in range(6):
        if not (problems := problems_of(data)):
            return [*wrong, *(f"its fix weakens safety: {weakness}" for weakness in weaknesses(data) - weak)]
        said = problems[0]
        data = apply_fix(data, said)
        if any((other.loc, other.found) == (said.loc, said.found) for other in problems_of(data)):
            wrong.append(f"its fix does not end it: {said}")
            return wrong
    return [*wrong, f"the fixes have no end: {problems_of(data)}"]


def example_of(model: type[BaseModel]) -> dict[str, Any]:
    """A section with every key, each with its example; of two keys that exclude each other the first."""
    section: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        inner = find_section_model(field.annotation)
        example = copy.deepcopy(field.examples[0])
        if inner is not None:
            example = [example_of(inner)] if isinstance(example, list) else example_of(inner)
        section[name] = example
    excluding = (
        ("ssh_conn_id", "connect"),
        ("ssh_conn_id", "conn_id"),
        *(("switch", key) for key in ("webhook", "units", "conn_id")),
    )
    for first, second in excluding:
        if first in section:
            section.pop(second, None)
    return section


def whole_file() -> dict[str, Any]:
    """A valid cluster file with every key."""
    data = example_of(ClusterFile)
    node_keys = {"driver", "properties", "ssh_conn_id", "stop_timeout"}
    for section in ("brokers", "controllers"):
        data[section] = [{key: value for key, value in node.items() if key not in node_keys} for node in data[section]]
    data["brokers"][0] |= {"log_dir": "/var/lib/kafka"}
    data["controllers"][0] |= {"id": 3000, "host": "ctl0.example.org"}
    return data


WRONG: tuple[Any, ...] = ("", "not this!", -1, [[1]], {"not": "this"})
REQUIRED = (*(name for name, field in ClusterFile.model_fields.items() if field.is_required()), "hosts")


def small_file(data: Any, section: str) -> Any:
    """The file with the keys that every file has, and one more."""
    return {key: value for key, value in data.items() if key in (*REQUIRED, section)}


def weaknesses(data: Any, path: str = "") -> set[str]:
    """What a file gives up of its safety: switches on their less safe side, findings that no longer count, one approver in place of two."""
    if isinstance(data, list):
        return set().union(*(weaknesses(item, path) for item in data)) if data else set()
    if not isinstance(data, dict):
        return set()
    weak = {f"{path}.{key}" for key, value in data.items() if value is LESS_SAFE.get(key)}
    weak |= (
        {f"{path}.allow {number}" for number, _ in enumerate(data.get("allow") or ())}
        if isinstance(data.get("allow"), list)
        else set()
    )
    weak |= {f"{path}.required"} if data.get("required") == 1 else set()
    return weak.union(*(weaknesses(value, f"{path}.{key}") for key, value in data.items()))


LESS_SAFE = {
    "verify_hostname": False,
    "rehearsal": True,
    "idempotent_sink": True,
    "webhook_tls": False,
    "reason": False,
    "not_requester": False,
    "side_by_side": True,
}


def breakages(data: Any, model: type[BaseModel] = ClusterFile, loc: Path = (), only: str = "") -> Iterator[tuple[Path, Any]]:
    """Every key, or those below `only`, with every wrong value: its place and the value."""
    for name, field in ((name, field) for name, field in model.model_fields.items() if only in {"", name}):
        place = (*loc, name)
        parent, key = find_parent(data, place)
        yield from ((place, value) for value in WRONG)
        inner = find_section_model(field.annotation)
        if inner is not None and isinstance(parent, dict) and key in parent:
            value = parent[key]
            yield from breakages(data, inner, (*place, 0) if isinstance(value, list) else place)


def misspellings(data: Any, loc: Path = ()) -> Iterator[Path]:
    """Every key that kmigrate decides the name of."""
    if isinstance(data, dict):
        for key, value in data.items():
            if "." not in key:
                yield (*loc, key)
                yield from misspellings(value, (*loc, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from misspellings(value, (*loc, index))


def broken_by(data: Any, loc: Path, value: Any) -> Any:
    broken = copy.deepcopy(data)
    parent, key = find_parent(broken, loc)
    parent[key] = value
    return broken
