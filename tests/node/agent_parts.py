"""The agent as a module, and requests to it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import types
from pathlib import Path
from typing import Any

import pytest

from tests.node.machine import AGENT, Node
from tests.waiting import wait_for

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user: needs root")


def job_pid(node: Node) -> int:
    """The process of the job that runs."""

    def found() -> int:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"run" in words and str(node.config).encode() in words:
                    return int(entry.name)
        return 0

    return wait_for(found, bool, "the job has a process", 10)


# Directories

STORAGE = """#!/bin/sh
folder=$(sed -n 's/^log.dirs=//p' "$6")
[ "$1" = format ] && [ "$3" = --release-version ] || exit 9
printf 'version=1\\nnode.id=3000\\ncluster.id=%s\\n' "${2#--cluster-id=}" >"$folder/meta.properties"
mkdir "$folder/__cluster_metadata-0"
"""


def agent_module() -> Any:
    """The agent's code in this process, for what no process can show."""
    made: Any = types.ModuleType("kmigrate_node")
    made.__file__ = str(AGENT)
    exec(compile(AGENT.read_text(), str(AGENT), "exec"), made.__dict__)  # noqa: S102  # it has no name that can be imported
    return made


def left(node: Node) -> list[list[str]]:
    return list(node.ok("leftovers")["left"])


def removal(node: Node, *kinds: str) -> dict[str, Any]:
    """A request to remove what is listed now."""
    return {"kinds": list(kinds), "listed": hashlib.sha256(json.dumps(left(node)).encode()).hexdigest()}
