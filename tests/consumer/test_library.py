"""The library for applications, alone: without Airflow, without the provider."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from pathlib import Path

import pytest

from airflow_provider_kmigrate import applications
from tests.kit.library_environment import make_environment, run_in
from tests.kit.library_wheel import library_modules


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("library"))


@pytest.mark.slow
def test_every_module_of_the_library_is_imported_without_airflow(environment: Path) -> None:
    names = sorted(str(path.with_suffix("")).replace("/", ".").removesuffix(".__init__") for path in library_modules())
    ended = run_in(
        environment, f"import importlib\nfor name in {names!r}: importlib.import_module(name)\nprint(len(sys.modules))"
    )
    assert ended.returncode == 0, ended.stderr
    foreign = run_in(environment, "import airflow, pydantic")
    assert "No module named 'airflow'" in foreign.stderr, "the environment is what it is said to be"


def test_the_library_holds_no_module_of_the_provider_that_no_application_needs() -> None:
    rooms = {path.parts[1] for path in library_modules() if len(path.parts) > 2}
    assert rooms == {"applications", "clients", "core"}


def test_an_error_of_the_library_has_its_code_without_airflow(environment: Path) -> None:
    program = """
from airflow_provider_kmigrate.applications.migrating import consumer_of
from airflow_provider_kmigrate.exceptions import Refused
try:
    consumer_of({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "offsets.storage": "kafka"})
except Refused as error:
    print(error)
"""
    ended = run_in(environment, program)
    assert "Y06" in ended.stdout, ended.stderr


def test_a_library_beside_a_provider_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("kmigrate-applications", "0.1.0"), ("airflow-provider-kmigrate", "0.0.9")):
        metadata = tmp_path / f"{name.replace('-', '_')}-{number}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match="Uninstall both, then install one"):
        importlib.reload(applications)


def test_a_library_beside_the_provider_of_its_version_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "kmigrate_applications.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        f"Metadata-Version: 2.1\nName: kmigrate-applications\nVersion: {version('airflow-provider-kmigrate')}\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.reload(applications) is applications
