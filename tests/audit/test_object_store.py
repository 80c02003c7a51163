"""An audit of a ledger in an object store (`s3a://`), whole, listed late and cut off; and small files there, as holds and checkpoints use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the audit has its own environment")
import pyarrow.parquet as pq
from pyarrow.fs import S3FileSystem

from airflow_provider_kmigrate.audit.sources import rows_of_event, table_of
from airflow_provider_kmigrate.core.ledger import balance
from tests.core.histories import calm
from tests.kit import object_store

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]
PARTS = 4
# One session does all: what is asked of it, and what it says, by name.
PROGRAM = """
import json, sys
from contextlib import nullcontext
from airflow_provider_kmigrate.audit import job
from airflow_provider_kmigrate.audit.session import SparkEngine, start_session
from airflow_provider_kmigrate.clients.hadoop_files import HadoopFiles
from airflow_provider_kmigrate.exceptions import Unavailable

folder, options = sys.argv[1], json.loads(sys.argv[2])
session = start_session("local[2]", jars=options["jars"], settings=options["settings"])
codes = {}
for name in ("whole", "late", "cut"):
    codes[name] = job.main([f"{folder}/{name}.json", f"{folder}/{name}"], lambda _: nullcontext(SparkEngine(session)))
files, path, said = HadoopFiles(session), "s3a://lake/hold/file", []
said.append(files.read(path))
for text in ("gr\\u00fc\\u00dfe", "twice"):
    files.write(path, text)
    said.append(files.read(path))
try:
    files.write(path, "of another program", new=True)
except Unavailable as error:
    said.append("refused")
said.append(files.read(path))
said.append(files.names("s3a://lake/hold"))
files.delete(path)
said.append(files.read(path))
with open(f"{folder}/said.json", "w") as file:
    json.dump({"codes": codes, "files": said}, file)
session.stop()
"""


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[str, S3FileSystem]]:
    with object_store.run_object_store() as running:
        yield running


def write_ledger(files: S3FileSystem, name: str) -> list[str]:
    """A calm history in the bucket, in parts."""
    rows = table_of(row for event in calm().end() for row in rows_of_event(event))
    ends = [rows.num_rows * number // PARTS for number in range(PARTS + 1)]
    paths = [f"lake/{name}/part-{number}.parquet" for number in range(PARTS)]
    for path, (begin, end) in zip(paths, pairwise(ends), strict=True):
        pq.write_table(rows.slice(begin, end - begin), path, filesystem=files)
    return paths


def cut_off(files: S3FileSystem, path: str) -> None:
    with files.open_input_file(path) as file:
        content = file.read()
    with files.open_output_stream(path) as file:
        file.write(content[: len(content) // 2])


@pytest.fixture(scope="module")
def said(store: tuple[str, S3FileSystem], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    url, files = store
    folder = tmp_path_factory.mktemp("store")
    write_ledger(files, "whole")
    files.delete_file(write_ledger(files, "late")[1])
    cut_off(files, write_ledger(files, "cut")[2])
    for name in ("whole", "late", "cut"):
        source = {"level": "L2", "ledgers": [f"s3a://lake/{name}"]}
        (folder / f"{name}.json").write_text(json.dumps({"sources": [source]}))
    options = {"jars": object_store.resolve_jars(), "settings": dict(object_store.settings(url))}
    login = {"AWS_ACCESS_KEY_ID": object_store.KEY, "AWS_SECRET_ACCESS_KEY": object_store.KEY}
    environment = {
        **os.environ,
        **login,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": "--driver-memory 1g pyspark-shell",
    }
    argv = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(options)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    return folder, json.loads((folder / "said.json").read_text()), done.stderr


def test_a_ledger_in_an_object_store_is_audited(said: tuple[Path, dict[str, Any], str]) -> None:
    folder, document, _ = said
    assert document["codes"]["whole"] == 0
    (facts,) = json.loads((folder / "whole" / "facts.json").read_text())["sources"]
    assert facts == json.loads(json.dumps({"level": "L2", **balance(calm().end()).as_dict()}))
    assert json.loads((folder / "whole" / "verdict.json").read_text())["outcome"] == "PASS"


def test_a_part_that_is_not_listed_yet_is_a_hole(said: tuple[Path, dict[str, Any], str]) -> None:
    folder, document, _ = said
    assert document["codes"]["late"] == 0
    assert json.loads((folder / "late" / "verdict.json").read_text())["outcome"] != "PASS"


def test_half_a_part_is_named_and_leaves_no_verdict(said: tuple[Path, dict[str, Any], str]) -> None:
    folder, document, errors = said
    assert document["codes"]["cut"] == 2
    assert "part-2.parquet" in next(line for line in errors.splitlines() if line.startswith("no verdict: "))
    assert not (folder / "cut" / "verdict.json").exists()


def test_small_files_are_whole_and_the_first_writer_wins(said: tuple[Path, dict[str, Any], str]) -> None:
    assert said[1]["files"] == [None, "grüße", "twice", "refused", "twice", ["file"], None]
