"""A group of real processes goes back to old consumers from every point of its way, under load, by a tool that is also killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.core.events.model import Start, WriterRole
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.member.group_seen import MemberKind
from airflow_provider_kmigrate.core.member.registration import Mode
from benchmarks import direct
from benchmarks.rehearsal import Rehearsal
from tests.system.group_under_load import (
    APPLICATION,
    GROUP,
    PARTITIONS,
    drained,
    events_of,
    judged,
    kinds,
    messages,
    observe,
    under_load,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
OLD, MIGRATING, PLAIN = MemberKind.ZOOKEEPER, MemberKind.MIGRATING, MemberKind.KAFKA
ONE, TWO = APPLICATION.names
WAY: list[tuple[str, dict[str, Any]]] = [
    *(("switch", {"group": GROUP, "instance": name, "target": MIGRATING}) for name in (ONE, TWO)),
    ("mode", {"group": GROUP, "mode": Mode.KAFKA}),
    *(("switch", {"group": GROUP, "instance": name, "target": PLAIN}) for name in (ONE, TWO)),
    ("clean up", {"group": GROUP}),
]
STANDS = [[OLD, OLD], [MIGRATING, OLD], *[[MIGRATING, MIGRATING]] * 2, [MIGRATING, PLAIN], *[[PLAIN, PLAIN]] * 2]
MODES = [Mode.ZOOKEEPER] * 3 + [Mode.KAFKA] * 3 + [Mode.ZOOKEEPER]  # the last one has left no znode
BACK: tuple[str, dict[str, Any]] = ("roll back group", {"group": GROUP, "goal": Goal.ZOOKEEPER_CONSUMERS})


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """One load for the whole file: every test ends where it began, with two old consumers."""
    with under_load(tmp_path_factory.mktemp("back"), "back") as there:
        yield there


def forward(rehearsal: Rehearsal, far: int) -> None:
    with direct.context(rehearsal.cluster) as context:
        for kind, arguments in WAY[:far]:
            direct.step(context, kind, **arguments)
    assert sorted(kinds(rehearsal)) == sorted(STANDS[far])
    now = observe(rehearsal).zk
    assert now is not None
    assert now.mode is MODES[far]


def lives(rehearsal: Rehearsal) -> int:
    """How often an instance has begun."""
    return sum(
        isinstance(event, Start) and event.role is WriterRole.CONSUMER for event in read_events(events_of(rehearsal)).events
    )


def restarts(far: int) -> int:
    """Each one of the migration is undone by one of the rollback, and no instance is restarted twice, whichever process was killed."""
    return sum(kind == "switch" for kind, _ in WAY[:far])


def check_back(rehearsal: Rehearsal) -> None:
    """Old consumers, which begin nowhere behind what was committed to Kafka, and go on."""
    now = observe(rehearsal)
    assert now.zk is not None
    assert now.committed is not None
    assert [member.kind for member in now.members or ()] == [OLD, OLD]
    assert now.zk.requested_mode is now.zk.mode is Mode.ZOOKEEPER
    assert now.zk.mode_data in {None, b"zookeeper"}
    assert not now.zk.progress
    assert len(now.zk.owners) == PARTITIONS
    stored = now.zookeeper_offsets
    behind = {where: (stored.get(where), offset) for where, offset in now.committed.items() if stored.get(where, -1) < offset}
    assert not behind, "ZooKeeper's offset and Kafka's"
    wait_until(lambda: advanced(rehearsal, stored), "every partition's offset advances")


def advanced(rehearsal: Rehearsal, before: dict[Any, int]) -> bool:
    now = observe(rehearsal).zookeeper_offsets
    return len(now) == PARTITIONS and all(offset > before.get(where, -1) for where, offset in now.items())


@pytest.mark.parametrize("far", range(1, len(WAY) + 1))
def test_back_from(rehearsal: Rehearsal, far: int) -> None:
    forward(rehearsal, far)
    before = lives(rehearsal)
    with direct.context(rehearsal.cluster) as context:
        direct.step(context, BACK[0], **BACK[1])
    check_back(rehearsal)
    assert lives(rehearsal) == before + restarts(far)


@pytest.mark.parametrize(("far", "point"), [(3, "committed"), (4, "switching"), (6, "switched")])
def test_killed_in_the_rollback_and_run_again(rehearsal: Rehearsal, far: int, point: str) -> None:
    """After the mode was written; before an instance is restarted; after it was, with no run waiting for it."""
    forward(rehearsal, far)
    before = lives(rehearsal)
    killed = tool(rehearsal, "--at", point)
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    again = tool(rehearsal)
    assert again.returncode == 0, again.stdout
    check_back(rehearsal)
    assert lives(rehearsal) == before + restarts(far)


def tool(rehearsal: Rehearsal, *trap: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tests.system.tool", str(rehearsal.cluster.folder), BACK[0], json.dumps(BACK[1]), *trap]
    return subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150, check=False)


def test_the_ledger_of_all_of_it(rehearsal: Rehearsal) -> None:
    """Every instance was stopped by SIGTERM and commits before it lets go, so nothing was uncommitted: nothing comes twice."""
    drained(rehearsal)
    rehearsal.stop_applications()
    facts = judged(rehearsal)
    faults = ("lost", "unseen", "reordered", "double_owned", "commit_gap", "redelivered")
    assert facts.acked > 1000
    assert not facts.violations, messages(facts, faults)
    assert facts.complete, facts.reasons
    assert facts.delivered == {GROUP: facts.acked}
