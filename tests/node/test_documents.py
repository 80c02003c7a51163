"""What README, the operator's guide and the threat model say of the agent: the node.json is accepted, their guarding tests exist."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from pathlib import Path

from tests.node.machine import AGENT

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "operators-guide.md").read_text(encoding="utf-8")
THREATS = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def examples() -> list[str]:
    return [block for block in re.findall(r"^ *```json\n(.*?)^ *```", GUIDE, re.MULTILINE | re.DOTALL) if '"roles"' in block]


def test_the_example_of_node_json_is_accepted_and_the_check_by_hand_answers(tmp_path: Path) -> None:
    [text] = examples()
    config = tmp_path / "node.json"
    config.write_text(text.replace('"user": "kafka"', json.dumps({"user": pwd.getpwuid(os.geteuid()).pw_name})[1:-1]))
    config.chmod(0o644)
    [check] = re.findall(r"echo '(\{.*\})' \| ssh HOST sudo -n\s/usr/local/sbin/kmigrate-node serve", GUIDE)
    argv = [sys.executable, "-I", str(AGENT), "serve", "--config", str(config)]
    done = subprocess.run(argv, input=check, capture_output=True, text=True, check=True, timeout=30)
    said = json.loads(done.stdout)["ok"]
    services = {role: found["service"] for role, found in said["roles"].items()}
    assert services == {"broker": "kafka.service", "controller": "kafka-controller.service"}


def test_the_line_of_sudoers_is_the_one_in_the_agents_head() -> None:
    [line] = re.findall(r"`(kmigrate ALL=.*serve)`", GUIDE)
    assert line in AGENT.read_text(encoding="utf-8")


def test_each_row_of_the_threat_model_is_guarded_by_tests_that_exist() -> None:
    _, machines, *_ = re.split(r"(?m)^## ", THREATS)
    rows = [line for line in machines.splitlines() if line.startswith("| ")][2:]
    known = {name for file in TESTS for name in re.findall(r"^ *def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)}
    assert len(rows) == 14
    for row in rows:
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named, row
        assert named - known == set()
