"""Chains that are kept while files arrive are those of all files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark.sql.pandas.types", reason="the audit has its own environment")
pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.schema import RECORDS
from airflow_provider_kmigrate.audit.sources import arriving
from airflow_provider_kmigrate.exceptions import Failed


def file_of(folder: Path, name: int, rng: np.random.Generator) -> None:
    """Some rows of few members and partitions, some of them lost and some there twice."""
    seq = np.sort(rng.integers(name * 60, name * 60 + 60, 50))
    values = {"tid": seq % 2, "part": seq % 3, "mid": seq // 40, "pos": seq + seq // 35, "seq": seq, "t_ms": seq * 10}
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(values | {"latency_us": seq}).cast(RECORDS), folder / f"{name}.parquet")


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(table[name].to_pylist() for name in sorted(table.column_names)), strict=True))


def test_what_arrives_in_pieces_is_chained_as_a_whole(spark: Any, duck: Any, tmp_path: Path) -> None:
    rng, records, kept = np.random.default_rng(4), tmp_path / "records", str(tmp_path / "kept")
    for begin in (0, 3):
        for name in range(begin, begin + 3):
            file_of(records, name, rng)
        arriving.catch_up(spark.session, str(records), kept, files_per_batch=2)
        duck.attach("records", [str(records)])
        found = arriving.chains(spark.session, kept)
        assert set(found.column_names) == set(duck.ask(queries.RECORD_CHAINS).column_names)
        assert rows(found) == rows(duck.ask(queries.RECORD_CHAINS))


def test_before_the_first_file_there_is_nothing(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Failed):
        arriving.chains(spark.session, str(tmp_path))
