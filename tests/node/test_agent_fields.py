"""Each field that the agent reads, of each verb, with values that no client sends: one answer each, and it goes on."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.node.machine import AGENT, CLUSTER, NEW, OLD, Node, file

READ = re.compile(r"""(?:request\.get\(|request\[|field\(request, |seconds\(request, )"(\w+)\"""")
NAMED = re.compile(r"\w+")


def load_agent() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("kmigrate_node_fields", str(AGENT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    agent = importlib.util.module_from_spec(spec)
    loader.exec_module(agent)
    return agent


def list_fields(agent: ModuleType, verb: str) -> list[str]:
    """The fields that a verb's own text reads, and that of all that it calls: no list here can miss a new one."""
    functions = {
        name: value for value in (vars(agent), vars(agent.Role)) for name, value in value.items() if inspect.isfunction(value)
    }
    names, fields = ["admitted", verb if verb in functions else "begin_job"], {"id"}
    for name in names:  # it grows
        text = inspect.getsource(inspect.unwrap(functions[name]))
        fields |= {*READ.findall(text)} if "request" in text else set()
        names += [other for other in dict.fromkeys(NAMED.findall(text)) if other in functions and other not in names]
    return sorted(fields - {"v", "verb", "role"})


DEEP: Any = 1
for _ in range(200):
    DEEP = [DEEP]
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 10**400, float("nan"), "", "a\0b", "../../x", "\ud800", "\u0661.\u0662", [], [None], {"x": 1}, [["a", 1]], DEEP,
)  # fmt: skip


def is_slow(name: str, value: Any) -> bool:
    """Whether the agent waits as long as it is asked to, or for an answer of DNS."""
    return (name == "wait" and isinstance(value, int | float)) or (
        name == "host" and isinstance(value, str) and value.isprintable()
    )


def list_requests(agent: ModuleType, role: str) -> Iterator[dict[str, Any]]:
    """A whole request of each verb with one field of another value, and one without it. A job is begun by none of them."""
    good = {
        "node": 1,
        "release": "3.9",
        "kinds": [],
        "listed": "x",
        "enabled": False,
        "lines": 5,
        "host": "localhost",
        "topics": {},
        "assigned": [],
    }
    good |= {"v": 1, "id": 1, "role": role, "cluster": CLUSTER, "token": 5, **file(OLD)}
    for verb in agent.VERBS:
        whole = {**good, "verb": verb}
        for name in ["job"] if verb in agent.ACTS else list_fields(agent, verb):
            yield from (whole | {name: value} for value in HOSTILE if not is_slow(name, value))
            yield {key: value for key, value in whole.items() if key != name}


def test_the_fields_are_found_in_the_agents_text() -> None:
    agent = load_agent()
    assert {"topics", "assigned"} <= {*list_fields(agent, "topic_ids")}
    assert {"content", "length", "sha256", "token", "cluster"} <= {*list_fields(agent, "install_file")}


@pytest.mark.slow
@pytest.mark.parametrize("role", ["broker", "controller"])
def test_no_value_of_any_field_ends_the_agent_or_writes_a_file(tmp_path: Path, role: str) -> None:
    agent = load_agent()
    node = Node(tmp_path)
    if role == "controller":
        node.is_controller()
    requests = list(list_requests(agent, role))
    argv = [sys.executable, "-I", str(AGENT), "serve", "--config", str(node.config)]
    asked = "".join(f"{json.dumps(request)}\n" for request in requests).encode()
    done = subprocess.run(argv, input=asked, capture_output=True, timeout=300, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(answers) == len(requests)
    for request, answer in zip(requests, answers, strict=True):
        assert ("ok" in answer) or re.fullmatch(r"[a-z_]+", answer["error"]["code"]), request
    assert NEW not in node.properties.read_text()
    assert {path.name for path in tmp_path.iterdir()} <= {"etc", "var", "state", "node.json"}


def test_fewer_assignments_than_topics_are_a_malformed_request(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.refused("topic_ids", topics={"a": "x", "b": "y"}, assigned=[[0]]) == "malformed"
    assert node.ok("hello"), "it goes on"
    node.close()
