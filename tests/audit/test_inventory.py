"""The inventory from looks and from an engine's group-by: the same histories."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

from airflow_provider_kmigrate.audit.inventory import VIEW, histories  # noqa: E402
from airflow_provider_kmigrate.core.groups.readiness import GroupProtocol, GroupSnapshot, lag_history  # noqa: E402


def looks(seed: int) -> list[GroupSnapshot]:
    """Some groups at some times, as collectors leave them: lag not always read, generations that begin anew."""
    rng = random.Random(seed)  # noqa: S311
    found = []
    for number in range(rng.randrange(1, 12)):
        generation, known = rng.randrange(50), rng.random() < 0.8
        for t in range(rng.randrange(1, 40)):
            generation = rng.choice([generation, generation, generation + 1, 0])
            lag = rng.choice([None, rng.randrange(10_000)])
            times = 300_000 * t + rng.randrange(1000)
            found.append(GroupSnapshot(times, f"g{number}", GroupProtocol.ZOOKEEPER, 2, generation if known else None, lag))
    rng.shuffle(found)
    return found


def table(rows: list[GroupSnapshot]) -> Any:
    schema = pa.schema([("t_ms", pa.int64()), ("consumer_group", pa.string()), ("generation", pa.int64()), ("lag", pa.int64())])
    plain = [{**asdict(row), "consumer_group": row.group} for row in rows]
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in plain], schema=schema)


def test_an_engine_comes_to_the_same_histories(engine: Any) -> None:
    for seed in range(4):
        rows = looks(seed)
        engine.attach(VIEW, [table(rows)])
        found = histories(engine)
        assert found.keys() == {row.group for row in rows}
        for group, history in found.items():
            own = lag_history([row for row in rows if row.group == group])
            assert (history.looks, history.p99) == (own.looks, own.p99)
            assert history.slope == pytest.approx(own.slope)
            assert history.churn == pytest.approx(own.churn)
