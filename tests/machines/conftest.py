"""What tests on machines share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.machines import Machine, Template
from tests.machines.agent_install import Command


@pytest.fixture
def command(machine: Machine, template: Template, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(machine, template, tmp_path, capsys)
