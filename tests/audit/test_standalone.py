"""The audit on a Spark cluster of several processes: a standalone master and two workers, whose executors are killed in the middle of every stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
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


def submit(cluster: StandaloneSpark, events: Path, result: Path) -> subprocess.Popen[bytes]:
    """The job as the DAG submits it, in client mode, with a driver that is a process of its own. Spark's own log of it: in `result`/spark."""
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "4",
        "spark.task.maxFailures": "8",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (result / "spark").as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    source = {"level": "L3", "lines": [str(events)], "store": str(result / "store")}
    (result / "spark").mkdir(parents=True)
    (result / "request.json").write_text(
        json.dumps({"spark": {"master": cluster.url, "settings": settings}, "sources": [source]})
    )
    program = [sys.executable, "-m", "airflow_provider_kmigrate.audit.job", str(result / "request.json"), str(result)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": "--driver-memory 512m pyspark-shell"}
    with (result / "said").open("wb") as said:
        return subprocess.Popen(program, env=environment, stdout=said, stderr=subprocess.STDOUT)


def read_facts(job: subprocess.Popen[bytes], result: Path) -> object:
    """What the job found, once it ended well."""
    assert job.wait(600) == 0, (result / "said").read_text()[-3_000:]
    return json.loads((result / "facts.json").read_text())["sources"][0]


def expected_facts() -> object:
    """What the ledger finds in the same events."""
    return json.loads(json.dumps({"level": "L3", **balance(packed(_HISTORIES, seed=5)).as_dict()}))


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
    assert read_facts(job, tmp_path / "result") == expected_facts()


@pytest.mark.timeout(900)
def test_the_facts_are_the_ledgers_also_if_an_executor_dies_in_every_stage(
    spark_cluster: StandaloneSpark, events: Path, tmp_path: Path
) -> None:
    """Spark plans each stage that writes a shuffle as a job: each begins with what the one before left on executors, of which one dies now."""
    result = tmp_path / "result"
    job = submit(spark_cluster, events, result)
    killed = 0
    while job.poll() is None:
        if count_events(result, "SparkListenerJobStart") > killed and (executors := spark_cluster.executors()):
            executors[killed % len(executors)].kill()
            killed += 1
        time.sleep(0.05)
    assert read_facts(job, result) == expected_facts()
    assert killed == count_events(result, "SparkListenerJobStart") > 20
    assert (
        count_events(result, "SparkListenerExecutorRemoved") >= killed - 2
    )  # the driver may end before it hears of the last ones


def count_events(result: Path, event: str) -> int:
    """How many of an event Spark's log has; it is written at once for a job's start, later for others."""
    return sum(log.read_text().count(f'{{"Event":"{event}"') for log in (result / "spark").iterdir())


def _wait_for_work(executor: psutil.Process) -> None:
    """Until it has begun to work: it has used more of processors than its start does."""
    wait_until(lambda: not executor.is_running() or sum(executor.cpu_times()[:2]) > _START_CPU_S, "the executor works", 120.0)
