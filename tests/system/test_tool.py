"""Where the trap of a killed tool springs: at the transaction that is meant, not at the first one of the step."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from airflow_provider_kmigrate.clients.znodes import Delete, Operation, Set
from tests.system import tool
from tests.system.tool import Trap, TrappedZooKeeper

STATE = Set("/brokers/topics/orders/partitions/0/state", b"{}", 3)
HANDOVER: list[Operation] = [Set("/controller_epoch", b"7", 2), Delete("/migration", 9), Delete("/controller", 4)]


class Recorded:
    """Stands for ZooKeeper."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def commit(self, operations: Any, holding: Any = None) -> str:
        del holding
        self.done.append(operations)
        return "answer"


def step(trapped: TrappedZooKeeper) -> None:
    assert trapped.commit([STATE], holding=None) == "answer"
    trapped.commit(HANDOVER, holding=None)


@pytest.mark.parametrize(
    ("point", "done"),
    [
        ("states raised", [[STATE]]),
        ("committed", [[STATE]]),
        ("handing over", [[STATE]]),
        ("handed over", [[STATE], HANDOVER]),
    ],
)
def test_a_trap_springs_at_its_own_transaction(point: str, done: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (os.getpid(), signal.SIGKILL)
        raise Killed

    monkeypatch.setattr(tool.os, "kill", kill)
    behind = Recorded()
    trapped = TrappedZooKeeper(behind, Trap(point, signal.SIGKILL))  # type: ignore[arg-type]
    with pytest.raises(Killed):
        step(trapped)
    assert behind.done == done


def test_a_transaction_outside_the_trap_kills_no_process() -> None:
    trapped = TrappedZooKeeper(Recorded(), Trap("", signal.SIGKILL))  # type: ignore[arg-type]
    assert trapped.commit([Set("/_kmigrate/note", b"", 1)]) == "answer"
