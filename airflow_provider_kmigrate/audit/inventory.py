"""Looks at consumer groups by the million: an engine reduces them to one line a group, for `core.groups.inventory`.

A day of looks at thousands of groups is too much for a list and little for an engine; Spark and DuckDB read them alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_kmigrate.audit.engine import Engine
from airflow_provider_kmigrate.core.groups.readiness import LEAST_LOOKS, LagHistory

VIEW: Final = "looks"  # columns as in GroupSnapshot, `group` as consumer_group
_HISTORIES: Final = """
with steps as (
  select consumer_group, t_ms, lag, generation,
         lag(generation) over (partition by consumer_group order by t_ms) as before
  from looks
)
select consumer_group, count(*) as looks, count(lag) as lags, max(t_ms) - min(t_ms) as ms,
       percentile_disc(0.99) within group (order by lag) as p99,
       regr_slope(cast(lag as double), t_ms / 1000.0) as slope,
       count(generation) as generations,
       cast(sum(case when before is null then 0 when generation >= before then generation - before else generation end) as bigint)
         as moves
from steps group by consumer_group
"""


def histories(engine: Engine) -> dict[str, LagHistory]:
    """By group, from the attached view `VIEW`; every look has its generation or none of the group's has."""
    return {row["consumer_group"]: _history(row) for row in engine.ask(_HISTORIES).to_pylist()}


def _history(row: Mapping[str, Any]) -> LagHistory:
    churn = row["moves"] * 86_400_000 / row["ms"] if row["generations"] > 1 and row["ms"] else None
    slope = row["slope"] if row["lags"] >= LEAST_LOOKS else None
    return LagHistory(row["looks"], row["p99"], slope, churn)
