"""When users' own work may begin."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.journal_lines import ActSpan
from airflow_provider_kmigrate.core.model import ClusterView, Done, Partition, Wait
from airflow_provider_kmigrate.core.spark.quiet import RECENT_MS, Holder, decide

NOW, CALM = 10_000_000, 30_000
WELL = (Partition("t", 0, 0, (0, 1), (0, 1)),)
BEHIND = (Partition("t", 0, 0, (0, 1), (0,)),)
HEADLESS = (Partition("t", 0, -1, (0, 1), (0, 1)),)
OURS = Holder("dag/run")


def act(ago_ms: int, settled: bool = True, run: str = "dag/run") -> ActSpan:
    at = NOW - ago_ms
    return ActSpan(run, "broker 0 to kraft", "restart", at, at, at if settled else None)


@pytest.mark.parametrize(
    ("partitions", "acts", "holder", "codes"),
    [
        (WELL, [], Holder(), []),
        (HEADLESS, [act(5, settled=False)], Holder(), []),  # nobody's run: not kmigrate's doing
        (WELL, [], OURS, []),
        (WELL, [act(30_000)], OURS, []),
        (WELL, [act(29_999)], OURS, ["Q02"]),
        (WELL, [act(60_000, settled=False)], OURS, ["Q01"]),
        (WELL, [act(5, settled=False)], OURS, ["Q01", "Q02"]),
        (WELL, [act(5, settled=False, run="dag/earlier")], OURS, []),
        (BEHIND, [act(60_000)], OURS, ["Q04"]),
        (HEADLESS, [], OURS, ["Q04"]),
        (None, [], OURS, ["Q03"]),
        (None, [], Holder(known=False), []),
        (None, [act(60_000, settled=False)], Holder(known=False), ["Q01"]),
        (None, [act(RECENT_MS, settled=False)], Holder(known=False), []),
    ],
)
def test_quiet(partitions: tuple[Partition, ...] | None, acts: list[ActSpan], holder: Holder, codes: list[str]) -> None:
    decision = decide(ClusterView(0.0, partitions=partitions), acts, holder, NOW, CALM)
    assert isinstance(decision, Wait if codes else Done)
    assert [reason.code for reason in getattr(decision, "reasons", ())] == codes
