"""What a process imports: each task of each DAG is a process of its own and pays for it."""

from __future__ import annotations

import json
import subprocess
import sys

_COUNT = "import json, sys, {}; print(json.dumps([name for name in sys.modules]))"


def imported(*modules: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _COUNT.format(", ".join(modules))], check=True, stdout=subprocess.PIPE, text=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("airflow_provider_kmigrate.")}


def test_rolling_a_broker_imports_what_that_takes() -> None:
    """Its operator, its step and the clients: each module more is read, compiled and run by each of some thirty tasks.

    Consumer groups that must continue take two (`core.group_progress`, `steps.group_watch`), metrics two, the verdict on a rollback and
    foreign JSON one each.
    """
    found = ours(imported("airflow_provider_kmigrate.operators.migration", "airflow_provider_kmigrate.steps.brokers"))
    assert len(found) <= 85, "a new import from the roll of a broker: does it need it?"
    assert not {name for name in found if name.startswith("airflow_provider_kmigrate.audit")}


def test_the_folder_of_dags_imports_no_builder_and_no_client() -> None:
    found = imported("airflow_provider_kmigrate.dag_builders.folder")
    assert len(ours(found)) <= 30
    assert not found & {"kazoo", "confluent_kafka", "kafka"}


def test_a_dag_without_audit_does_not_import_spark() -> None:
    found = imported(*(f"airflow_provider_kmigrate.dag_builders.{name}" for name in ("zk_to_kraft", "rollback", "consumers")))
    assert not found & {
        "airflow.providers.apache.spark.operators.spark_submit",
        "airflow_provider_kmigrate.operators.spark_audit",
    }


def test_what_applications_import_is_little() -> None:
    """It runs inside an application, which has neither Airflow nor the rest of the provider's requirements."""
    found = imported(*(f"airflow_provider_kmigrate.applications.{name}" for name in ("migrating", "producer", "spark_hold")))
    rooms = {name.removeprefix("airflow_provider_kmigrate.") for name in ours(found)}
    assert len(rooms) <= 55
    for name in ("airflow", "pydantic", "psutil", "yaml", "httpx", "pyspark"):
        assert name not in found, name


def test_a_job_that_can_be_held_needs_no_other_package() -> None:
    found = imported("airflow_provider_kmigrate.applications.spark_hold")
    assert not found & {"confluent_kafka", "kafka", "kazoo", "tenacity", "pyspark"}
