"""A stream without a fault, as the ledger reads it."""

from __future__ import annotations

from airflow_provider_kmigrate.core.events.model import OwnershipChange
from tests.core.histories import History

BEGAN = 5_000_000
PARTITIONS = 3


def steady(
    *,
    stops: int | None = None,
    dry: int | None = None,
    until: int = BEGAN + 300_000,
    beat_ms: int = 2_000,
    last: int = BEGAN - 5_000,
) -> History:
    """From ten minutes before a step on all partitions are written and read; one is written until the step only, or read until then."""
    history = History(now=BEGAN - 600_000)
    history.consumer("m", "g")
    history.producer("p")
    history.own("g", "m", OwnershipChange.ACQUIRED, range(PARTITIONS))
    for offset, begin in enumerate(range(BEGAN - 590_000, until, beat_ms)):
        history.now = begin
        for partition in range(PARTITIONS):
            if partition != stops or begin < last:
                history.ack("p", partition, offset, offset, 1)
                history.now -= 1_000
                if partition != dry or begin < BEGAN:
                    history.deliver("g", "m", partition, offset, 1, offset)
                    history.now -= 1_000
    return history
