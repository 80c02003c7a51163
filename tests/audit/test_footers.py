"""Footers say what an engine would have said, or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit import queries
from airflow_provider_kmigrate.audit.engines import footers
from airflow_provider_kmigrate.audit.schema import LOG

Group = list[tuple[int, int, int]]  # tid, part, pos


def written(folder: Path, groups: Iterable[Group], name: str = "0.parquet", **options: Any) -> str:
    folder.mkdir(exist_ok=True)
    with pq.ParquetWriter(folder / name, LOG, **options) as writer:
        for group in groups:
            rows = [dict(zip(LOG.names, row, strict=True)) for row in group]
            writer.write_table(pa.Table.from_pylist(rows, schema=LOG))
    return str(folder)


def of(table: pa.Table) -> list[tuple[int, ...]]:
    return sorted(zip(*(table[name].to_pylist() for name in ("tid", "part", "o_lo", "o_hi", "total")), strict=True))


def test_footers_answer_as_the_engine_does(engine: Any, tmp_path: Path) -> None:
    written(tmp_path / "log", [[(0, 1, 5), (0, 1, 7)], [(0, 1, 8)], [(1, 1, 0)]])
    folder = written(tmp_path / "log", [[(0, 1, 2)], [(2**31 - 1, 0, 2**62)]], "1.parquet")
    engine.attach("log", [folder])
    told = footers.extents(folder)
    assert told is not None
    assert of(told) == of(engine.ask(queries.LOG_EXTENTS)) == [(0, 1, 2, 8, 4), (1, 1, 0, 0, 1), (2**31 - 1, 0, 2**62, 2**62, 1)]


@pytest.mark.parametrize("group", [[(0, 1, 5), (0, 2, 5)], [(0, 1, 5), (1, 1, 5)], [(0, 1, 5), (0, 1, None)]])
def test_a_row_group_that_leaves_something_open_is_not_judged_by_its_footer(tmp_path: Path, group: Group) -> None:
    assert footers.extents(written(tmp_path, [[(0, 0, 0)], group])) is None


def test_without_statistics_the_engine_is_asked(tmp_path: Path) -> None:
    assert footers.extents(written(tmp_path, [[(0, 0, 0)]], write_statistics=False)) is None


@pytest.mark.parametrize("name", ["more.orc", "torn.parquet"])
def test_files_that_footers_do_not_explain(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path, [[(0, 0, 0)]])
    (tmp_path / name).write_text("no Parquet")
    assert footers.extents(folder) is None


def test_marks_of_writers_are_no_data(tmp_path: Path) -> None:
    folder = written(tmp_path, [[(0, 0, 0)]])
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".0.parquet.crc").touch()
    told = footers.extents(folder)
    assert told is not None
    assert of(told) == [(0, 0, 0, 0, 1)]


def test_what_a_streaming_sink_notes_is_no_data(tmp_path: Path) -> None:
    folder = written(tmp_path, [[(0, 0, 0)]])
    (tmp_path / "_spark_metadata").mkdir()
    (tmp_path / "_spark_metadata" / "0").touch()
    assert footers.columns(folder) == LOG
    assert footers.extents(folder) is not None


def test_columns_are_those_of_the_first_file_and_the_folders_give_their_own(spark: Any, tmp_path: Path) -> None:
    pq.write_to_dataset(pa.Table.from_pylist([{"tid": 1, "part": 2, "pos": 3}], schema=LOG), tmp_path, partition_cols=["tid"])
    assert footers.columns(str(tmp_path)) == LOG.remove(0)
    spark.attach("log", [str(tmp_path)])
    assert of(spark.ask(queries.LOG_EXTENTS)) == [(1, 2, 3, 3, 1)]


@pytest.mark.parametrize("folder", ["", "nowhere", "s3a://bucket/log", "hdfs://host/log"])
def test_what_is_not_a_folder_here_is_the_engines(tmp_path: Path, folder: str) -> None:
    where = str(tmp_path / folder) if "://" not in folder else folder
    assert footers.extents(where) is None
    assert footers.columns(where) is None


def test_partitions_named_by_folders_are_the_engines(tmp_path: Path) -> None:
    pq.write_to_dataset(pa.Table.from_pylist([{"tid": 1, "part": 2, "pos": 3}], schema=LOG), tmp_path, partition_cols=["tid"])
    assert footers.extents(str(tmp_path)) is None
