"""A Spark cluster of three processes reads a broker that wants TLS and a password."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_provider_kmigrate.audit.connector import resolve_kafka_jars
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.plan import Shape
from tests.kit.standalone_spark import StandaloneSpark, run_standalone
from tests.system import secured
from tests.system.secured import PASSWORDS, TOOL, Secured

pytestmark = [pytest.mark.cluster, pytest.mark.long]
ROOT = Path(__file__).parents[2]
PYTHON = str(ROOT / ".venv-spark" / "bin" / "python")
COUNT, PARTITIONS, TOPIC = 300, 3, "orders"
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    try:
        cluster = secured.up(folder, Shape(name="secured", brokers=1, controllers=1, racks=0))
        create_topics(cluster.client(TOOL, "PLAIN"), [TopicPlan(TOPIC, PARTITIONS)])
        producer = Producer(cluster.client(TOOL, "PLAIN"))
        for number in range(COUNT):
            producer.produce(TOPIC, f"value {number}", partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        yield cluster
    finally:
        secured.LocalCluster(folder / "cluster").clean()


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    with run_standalone(tmp_path_factory.mktemp("spark"), PYTHON) as cluster:
        yield cluster


def read_logs(spark: StandaloneSpark, properties: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Take a fingerprint as the DAG does, with a driver of its own whose heap is small."""
    (folder / "kafka.json").write_text(json.dumps(dict(properties)))
    logs = {"properties": str(folder / "kafka.json"), "topics": [TOPIC], "before": str(folder / "before.json")}
    session = {"master": spark.url, "jars": [*resolve_kafka_jars()], "settings": SETTINGS}
    (folder / "request.json").write_text(json.dumps({"spark": session, "sources": [], "logs": logs}))
    program = [PYTHON, "-m", "airflow_provider_kmigrate.audit.fingerprint", str(folder / "request.json")]
    environment = {"PYSPARK_PYTHON": PYTHON, "PYSPARK_SUBMIT_ARGS": "--driver-memory 512m pyspark-shell", "PYTHONPATH": str(ROOT)}
    return subprocess.run(program, env={**os.environ, **environment}, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.timeout(900)
def test_executors_read_the_logs_with_tls_and_a_password(kafka: Secured, spark_cluster: StandaloneSpark, tmp_path: Path) -> None:
    done = read_logs(spark_cluster, kafka.client(TOOL, "PLAIN"), tmp_path)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert done.stdout.splitlines()[-1] == f"{COUNT} records of {PARTITIONS} partitions"
    assert not [secret for secret in PASSWORDS.values() if secret in done.stdout + done.stderr]
