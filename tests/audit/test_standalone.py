"""The audit on a Spark cluster of several processes: a standalone master and two workers, of which one's executor is killed in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("py4j", reason="the audit has its own environment")

from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.ledger import balance
from tests.audit.random_histories import packed
from tests.kit.standalone_spark import StandaloneSpark, run_standalone
from tests.waiting import wait_until

pytestmark = pytest.mark.long
_HISTORIES = 60
_START_CPU_S = 6.0


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    with run_standalone(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Files of lines, a writer each; many of their partitions are suspects, which Python workers of the executors check."""
    folder = tmp_path / "events"
    folder.mkdir()
    lines: dict[str, list[str]] = {}
    for event in packed(_HISTORIES, seed=5):
        lines.setdefault(event.stamp.writer, []).append(encode(event))
    for number, written in enumerate(lines.values()):
        (folder / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in written))
    return folder


def submit(cluster: StandaloneSpark, events: Path, result: Path) -> subprocess.Popen[str]:
    """The job as the DAG submits it, in client mode, with a driver that is a process of its own."""
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "4",
        "spark.task.maxFailures": "8",
    }
    source = {"level": "L3", "lines": [str(events)], "store": str(result / "store")}
    result.mkdir()
    (result / "request.json").write_text(
        json.dumps({"spark": {"master": cluster.url, "settings": settings}, "sources": [source]})
    )
    program = [sys.executable, "-m", "airflow_provider_kmigrate.audit.job", str(result / "request.json"), str(result)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": "--driver-memory 512m pyspark-shell"}
    return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read_facts(job: subprocess.Popen[str], result: Path) -> object:
    """What the job found, once it ended well."""
    said, _ = job.communicate(timeout=600)
    assert job.returncode == 0, said[-3_000:]
    return json.loads((result / "facts.json").read_text())["sources"][0]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [0, 2])
def test_the_facts_are_the_ledgers_also_if_executors_die(
    spark_cluster: StandaloneSpark, events: Path, tmp_path: Path, kills: int
) -> None:
    job = submit(spark_cluster, events, tmp_path / "result")
    for _ in range(kills):
        wait_until(lambda: len(spark_cluster.executors()) == 2, "two executors", 120.0)
        _wait_for_work(spark_cluster.executors()[0])
        spark_cluster.executors()[0].kill()
    facts = read_facts(job, tmp_path / "result")
    expected = balance(packed(_HISTORIES, seed=5))
    assert facts == json.loads(json.dumps({"level": "L3", **expected.as_dict()}))


def _wait_for_work(executor: psutil.Process) -> None:
    """Until it has begun to work: it has used more of processors than its start does."""
    wait_until(lambda: not executor.is_running() or sum(executor.cpu_times()[:2]) > _START_CPU_S, "the executor works", 120.0)
