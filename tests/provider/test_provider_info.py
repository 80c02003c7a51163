"""What Airflow itself sees of the package, through the entry point that it reads."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import airflow
import jsonschema
import pytest
from airflow.configuration import conf
from airflow.providers_manager import ProvidersManager
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

import airflow_provider_kmigrate
from airflow_provider_kmigrate.clients import connections
from airflow_provider_kmigrate.get_provider_info import get_provider_info
from airflow_provider_kmigrate.links import pages
from airflow_provider_kmigrate.notifications.messages import ClusterNotifier

PACKAGE = "airflow-provider-kmigrate"
EXTRAS = {
    connections.ZOOKEEPER: connections.ZOOKEEPER_EXTRAS,
    connections.CONTROLLER: connections.CONTROLLER_EXTRAS,
    connections.HOST: connections.HOST_EXTRAS,
}


@pytest.fixture(scope="module")
def manager() -> ProvidersManager:
    found = ProvidersManager()
    found.initialize_providers_list()
    found.initialize_providers_hooks()
    return found


def test_airflow_finds_the_provider(manager: ProvidersManager) -> None:
    assert manager.providers[PACKAGE].data["package-name"] == metadata.metadata(PACKAGE)["Name"]
    assert manager.providers[PACKAGE].version == metadata.version(PACKAGE)


def test_the_description_follows_airflows_schema() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert list(validator.iter_errors(get_provider_info())) == []


@pytest.mark.parametrize("conn_type", EXTRAS)
def test_each_connection_type_has_a_hook_that_can_be_tested(conn_type: str) -> None:
    hook = ProvidersManagerTaskRuntime().hooks[conn_type]
    assert hook is not None
    assert (hook.package_name, hook.connection_type, hook.connection_testable) == (PACKAGE, conn_type, True)


def test_kafkas_own_type_stays_with_the_kafka_provider() -> None:
    hook = ProvidersManagerTaskRuntime().hooks["kafka"]
    assert hook is not None
    assert hook.package_name == "apache-airflow-providers-apache-kafka"


@pytest.mark.parametrize(("conn_type", "extras"), EXTRAS.items())
def test_the_form_offers_exactly_the_extras_that_are_read(
    manager: ProvidersManager, conn_type: str, extras: tuple[str, ...]
) -> None:
    prefix = f"extra__{conn_type}__"
    offered = {name.removeprefix(prefix) for name in manager.connection_form_widgets if name.startswith(prefix)}
    assert offered == set(extras)
    assert conn_type in manager.field_behaviours


def test_passwords_in_forms_are_hidden(manager: ProvidersManager) -> None:
    assert manager.connection_form_widgets["extra__kmigrate_zookeeper__key_password"].is_sensitive
    assert manager.connection_form_widgets["extra__kmigrate_controller__key_password"].is_sensitive


@pytest.mark.parametrize("room", ["operators", "sensors", "triggers"])
def test_every_module_of_a_room_is_named_and_no_other(room: str) -> None:
    found = {path.stem for path in (Path(airflow_provider_kmigrate.__file__).parent / room).glob("*.py")} - {"__init__"}
    [entry] = get_provider_info()[room]
    assert set(entry["python-modules"]) == {f"airflow_provider_kmigrate.{room}.{name}" for name in found}


def test_every_hook_that_is_named_exists() -> None:
    [entry] = get_provider_info()["hooks"]
    assert [name for name in entry["python-modules"] if find_spec(name) is None] == []


def test_only_hooks_are_in_the_room_of_hooks() -> None:
    found = {path.stem for path in (Path(airflow_provider_kmigrate.__file__).parent / "hooks").glob("*.py")} - {"__init__"}
    assert found == {"connections", "ssh"}, "ssh has no connection type of its own: it uses Airflow's"


def test_airflow_knows_the_links_and_the_notifier(manager: ProvidersManager) -> None:
    links = set(get_provider_info()["extra-links"])
    there = {
        of for of in vars(pages).values() if isinstance(of, type) and of.__module__ == pages.__name__ and of.__name__[0] != "_"
    }
    assert links == {f"{of.__module__}.{of.__name__}" for of in there}
    assert links <= set(manager.extra_links_class_names)
    assert get_provider_info()["notifications"] == [f"{ClusterNotifier.__module__}.{ClusterNotifier.__name__}"]


@pytest.mark.parametrize("option", get_provider_info()["config"]["kmigrate"]["options"])
def test_every_option_has_its_default(manager: ProvidersManager, option: str) -> None:
    assert conf.get("kmigrate", option) == get_provider_info()["config"]["kmigrate"]["options"][option]["default"]


def test_reading_the_description_imports_nothing_heavy() -> None:
    """Airflow reads it at every start, before its configuration is ready."""
    code = (
        "import sys; import airflow_provider_kmigrate, airflow_provider_kmigrate.get_provider_info as g; g.get_provider_info();"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'airflow', 'kazoo', 'kafka', 'confluent_kafka', 'pydantic', 'yaml'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
