"""What a process imports: each task of each DAG is a process of its own and pays for it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.trees import ROOT

_FORKS = """
import importlib, json, os, sys
first, folder = sys.argv[1:3]
importlib.import_module(first)
for name, modules in json.loads(sys.argv[3]).items():
    child = os.fork()
    if not child:
        for module in modules:
            importlib.import_module(module)
        with open(f"{folder}/{name}", "w") as file:
            json.dump(list(sys.modules), file)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""
_OURS = "airflow_provider_kmigrate"


def imported(first: str, sets: Mapping[str, Sequence[str]], folder: Path) -> dict[str, set[str]]:
    """What a process has imported with each of these sets of modules; what they all need comes `first`, once for all."""
    subprocess.run([sys.executable, "-c", _FORKS, first, str(folder), json.dumps(sets)], check=True, timeout=120)
    return {name: set(json.loads((folder / name).read_text())) for name in sets}


@pytest.fixture(scope="module")
def in_airflow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """In a process that has imported Airflow, which takes two seconds."""
    sets = {
        "roll": (f"{_OURS}.operators.migration", f"{_OURS}.steps.brokers"),
        "folder": (f"{_OURS}.dag_builders.folder",),
        "dags": [f"{_OURS}.dag_builders.{name}" for name in ("zk_to_kraft", "rollback", "consumers")],
    }
    return imported("airflow.sdk", sets, tmp_path_factory.mktemp("imports"))


@pytest.fixture(scope="module")
def in_application(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    sets = {
        "all": [f"{_OURS}.applications.{name}" for name in ("migrating", "producer", "spark_hold")],
        "hold": (f"{_OURS}.applications.spark_hold",),
    }
    return imported("json", sets, tmp_path_factory.mktemp("imports"))


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("airflow_provider_kmigrate.")}


def modules_with_code(names: set[str]) -> set[str]:
    """Without packages that have only a docstring."""
    folders = {name: ROOT / name.replace(".", "/") / "__init__.py" for name in names}
    return {name for name, init in folders.items() if not init.exists() or len(ast.parse(init.read_text()).body) > 1}


@pytest.mark.slow
def test_rolling_a_broker_imports_what_that_takes(in_airflow: dict[str, set[str]]) -> None:
    """Its operator, its step and the clients: each module more is read, compiled and run by each of some thirty tasks.

    Consumer groups that must continue take two (`core.migration.group_progress`, `steps.group_watch`), metrics two, the chain of the journal
    two (`core.shared.chain`, `clients.journal_heads`), the verdict on a rollback, foreign JSON, the schema of
    answers of agents, the note of a group's cutover, the commits of clients that are not registered one each, the status for operators three, what differs among the releases of Airflow one. Logins by token and by ticket take five
    (`clients.identity`, `clients.sasl`, `clients.oauth`, `clients.deadline`, `clients.zookeeper_sasl`), the acts of kmigrate's own client one, what a TLS failure
    means one, Storm's spouts in the tree one, the formats of znodes one, the secrets that no text shows one (`masking`), YAML that stands for too much one, a store
    behind the folder three (`clients.state_folder`, `clients.object_log`, `utils.object_store`).
    """
    found = ours(in_airflow["roll"])
    assert len(modules_with_code(found)) <= 100, "a new import from the roll of a broker: does it need it?"
    assert not {name for name in found if name.startswith("airflow_provider_kmigrate.audit")}


def test_the_folder_of_dags_imports_no_builder_and_no_client(in_airflow: dict[str, set[str]]) -> None:
    found = in_airflow["folder"]
    assert len(ours(found)) <= 31
    assert not found & {"kazoo", "confluent_kafka", "kafka"}


def test_a_dag_without_audit_does_not_import_spark(in_airflow: dict[str, set[str]]) -> None:
    assert "airflow_provider_kmigrate.dag_builders.zk_to_kraft" in in_airflow["dags"]
    assert not in_airflow["dags"] & {
        "airflow.providers.apache.spark.operators.spark_submit",
        "airflow_provider_kmigrate.operators.spark_audit",
    }


def test_what_applications_import_is_little(in_application: dict[str, set[str]]) -> None:
    """It runs inside an application, which has neither Airflow nor the rest of the provider's requirements."""
    found = in_application["all"]
    rooms = {name.removeprefix("airflow_provider_kmigrate.") for name in ours(found)}
    assert len(rooms) <= 62
    for name in ("airflow", "pydantic", "psutil", "yaml", "httpx", "pyspark"):
        assert name not in found, name


def test_a_job_that_can_be_held_needs_no_other_package(in_application: dict[str, set[str]]) -> None:
    found = in_application["hold"]
    assert not found & {"confluent_kafka", "kafka", "kazoo", "tenacity", "pyspark"}
