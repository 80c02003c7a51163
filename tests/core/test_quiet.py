"""When users' own work may begin."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.decision import Done, Wait
from airflow_provider_kmigrate.core.journal_lines import JournalLine
from airflow_provider_kmigrate.core.model import ClusterView, Partition
from airflow_provider_kmigrate.core.spark.job_risks import RECENT_MS, Holder, decide

NOW, CALM = 10_000_000, 30_000
WELL = (Partition("t", 0, 0, (0, 1), (0, 1)),)
BEHIND = (Partition("t", 0, 0, (0, 1), (0,)),)
LEADERLESS = (Partition("t", 0, -1, (0, 1), (0, 1)),)
OURS = Holder("dag/run")


def line(kind: str, at_ms: int, run: str = "dag/run") -> JournalLine:
    return JournalLine(at_ms, run, kind, "broker 0 to kraft", "restart: x")


def act(ago_ms: int, settled: bool = True, run: str = "dag/run") -> list[JournalLine]:
    return [line(kind, NOW - ago_ms, run) for kind in ("act", "acted", "done")[: 3 if settled else 2]]


BEGAN = [line("began", 0)]


@pytest.mark.parametrize(
    ("partitions", "lines", "holder", "codes"),
    [
        (WELL, [], Holder(), []),
        (LEADERLESS, act(5, settled=False), Holder(), []),  # nobody's run: not kmigrate's doing
        (WELL, [], OURS, ["O05"]),
        (WELL, BEGAN, OURS, []),
        (WELL, act(5, run="dag/earlier"), OURS, ["O05"]),
        (WELL, act(30_000), OURS, []),
        (WELL, act(29_999), OURS, ["Q01"]),
        (WELL, act(60_000, settled=False), OURS, ["Q01"]),
        (WELL, act(5, settled=False), OURS, ["Q01", "Q01"]),
        (WELL, [*act(5, settled=False, run="dag/earlier"), *BEGAN], OURS, []),
        (BEHIND, act(60_000), OURS, ["Q01"]),
        (LEADERLESS, BEGAN, OURS, ["Q01"]),
        (None, BEGAN, OURS, ["Q01"]),
        (None, [], Holder(known=False), []),
        (None, act(60_000, settled=False), Holder(known=False), ["Q01"]),
        (None, act(RECENT_MS, settled=False), Holder(known=False), []),
    ],
)
def test_quiet(partitions: tuple[Partition, ...] | None, lines: list[JournalLine], holder: Holder, codes: list[str]) -> None:
    decision = decide(ClusterView(0.0, partitions=partitions), lines, holder, NOW, CALM)
    assert isinstance(decision, Wait if codes else Done)
    assert [reason.code for reason in getattr(decision, "reasons", ())] == codes
