"""Machines for the agent's tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.machine import Node
from tests.waiting import wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def build(**fields: Any) -> Node:
        made.append(Node(tmp_path, **fields))
        return made[-1]

    yield build
    for node in made:
        node.close()


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One machine, and one agent, for all tests that change nothing on it."""
    made = Node(tmp_path_factory.mktemp("unchanged"))
    yield made
    made.close()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own are closed. A job that the test has not waited for may still write there when it ends."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder

    def is_removed() -> bool:
        if folder.exists():
            shutil.rmtree(folder)
        return True

    wait_until(is_removed, "no job writes there any more", 60.0, despite=(OSError,))
