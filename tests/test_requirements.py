"""What setup.cfg asks for can be installed: with the versions that the tests are run with, and beside Airflow with its own constraints."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.airflows import DAYS, list_replaced

ROOT = Path(__file__).parents[1]
AIRFLOW_3_3 = {
    "apache-airflow": "3.3.0",
    "apache-airflow-providers-apache-kafka": "1.14.0",
    "apache-airflow-providers-apache-spark": "6.2.0",
    "apache-airflow-providers-ssh": "5.0.4",
    "apache-airflow-providers-standard": "1.16.0",
    "asgiref": "3.11.1",
    "confluent-kafka": "2.15.0",
    "cryptography": "44.0.3",
    "gssapi": "1.9.0",
    "httpx": "0.28.1",
    "jinja2": "3.1.6",
    "markdown-it-py": "3.0.0",  # of Airflow 3.0's constraints; 3.3's is no older
    "psutil": "7.2.2",
    "pure-sasl": "0.6.2",
    "pydantic": "2.13.4",
    "pyyaml": "6.0.3",
    "tenacity": "9.1.4",
    "typing-extensions": "4.16.0",
}
"""Of Airflow's own constraints for its release 3.3.0: constraints-3.3.0/constraints-3.12.txt of apache/airflow, generated 2026-07-06.

But cryptography, for which it is the lower bound of Airflow's own metadata, and gssapi, of its constraints for 3.0."""
CONSTRAINED = Version(AIRFLOW_3_3["apache-airflow"])
UNCONSTRAINED = {"kafka-python", "kazoo"}  # Airflow's constraints name neither
NEEDS_NEXT_MAJOR = {"apache-airflow": "4", "httpx": "1", "kafka-python": "4"}  # setup.cfg says why


def read_requirements(*extras: str) -> list[Requirement]:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    options = setup["options.extras_require"]
    lines = "\n".join([setup["options"]["install_requires"], *(options[name] for name in extras)]).splitlines()
    return [Requirement(line) for line in lines if line.strip()]


INSTALLED = read_requirements("kerberos", "sasl", "spark", "ssh")
PINNED = {
    canonicalize_name(name): version
    for name, version in re.findall(
        r"^([^=\s#]+)==(\S+)$", (ROOT / "constraints-3.11.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
}


@pytest.mark.parametrize("requirement", [*INSTALLED, *read_requirements("mutants", "test")], ids=str)
def test_each_requirement_admits_the_version_that_the_tests_are_run_with(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)
    optional = {"pure-sasl", "gssapi"}  # none is installed for the tests; those of Kerberos are skipped without it
    assert name in optional or PINNED[name] in requirement.specifier


@pytest.mark.parametrize("requirement", INSTALLED, ids=str)
def test_each_requirement_admits_the_constraints_of_airflow_3_3(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)
    assert name in UNCONSTRAINED or AIRFLOW_3_3[name] in requirement.specifier


@pytest.mark.parametrize("requirement", INSTALLED, ids=str)
def test_only_a_next_major_that_setup_cfg_explains_is_excluded(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)
    bounds = {found.operator: found.version for found in requirement.specifier}
    assert bounds.pop(">=", None), f"{name} has no lower bound"
    assert bounds == ({"<": NEEDS_NEXT_MAJOR[name]} if name in NEEDS_NEXT_MAJOR else {})


def test_the_older_releases_of_airflow_begin_with_the_lower_bound_itself() -> None:
    """`make airflows` runs kmigrate on each of them."""
    [airflow] = [requirement for requirement in INSTALLED if requirement.name == "apache-airflow"]
    bound = min(Version(found.version) for found in airflow.specifier)
    assert min(map(Version, DAYS)) == bound
    assert {Version(release).release[:2] for release in DAYS} == {
        (3, minor) for minor in range(bound.minor, CONSTRAINED.minor + 1)
    }


def test_no_code_is_for_a_release_of_airflow_below_the_lower_bound() -> None:
    text = (ROOT / "airflow_provider_kmigrate" / "airflow_releases.py").read_text(encoding="utf-8")
    named = {Version(release) for release in re.findall(r"(?:Airflow |\| )(3\.\d+\.\d+)", text)}
    assert named <= {Version(release) for release in DAYS}, "pip refuses an Airflow that setup.cfg does not admit"


@pytest.mark.parametrize(
    ("after", "replaced"),
    [("a==1\nb==3\n", ["b 2 -> 3"]), ("a==1\n", ["b 2 -> None"]), ("a==1\nb==2\nc==1\nd @ file:///d.whl", [])],
)
def test_a_package_that_an_installation_replaced_is_named(after: str, replaced: list[str]) -> None:
    assert list_replaced("a==1\nb==2\n", after) == replaced


def test_each_module_that_the_package_imports_is_required_by_name() -> None:
    """One that only another package brings may be gone with that package's next release."""
    distributions = {
        "yaml": "pyyaml",
        "markdown_it": "markdown-it-py",
        "kafka": "kafka-python",
        "pydantic_core": "pydantic",
        "paramiko": "apache-airflow-providers-ssh",
        "puresasl": "pure-sasl",
    }
    on_spark = {"pyspark", "pyarrow", "py4j"}  # the audit's own environment
    required = {canonicalize_name(requirement.name) for requirement in INSTALLED} | {"apache-airflow-core"}
    imported: dict[str, str] = {}
    for file in (ROOT / "airflow_provider_kmigrate").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            imported.update((name.partition(".")[0], str(file)) for name in names)
    # pages are part of Airflow's own FastAPI application and read its SQLAlchemy models: with versions that Airflow's core bounds itself
    of_airflow = {"airflow", "fastapi", "sqlalchemy"}
    foreign = set(imported) - set(sys.stdlib_module_names) - on_spark - of_airflow - {"airflow_provider_kmigrate"}
    missing = {name: imported[name] for name in foreign if canonicalize_name(distributions.get(name, name)) not in required}
    assert missing == {}


def test_what_is_installed_has_the_files_for_airflow_and_for_the_machines_and_no_tests(tmp_path: Path) -> None:
    """By setuptools' own commands, since a wheel is built with packages that are downloaded (make wheel)."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False, timeout=30)
    if listed.returncode:
        pytest.skip("copies the files of a git checkout")
    source, library, data = tmp_path / "source", tmp_path / "library", tmp_path / "data"
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/machines/", "tests/system/", "docs/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    commands = ["build_py", "--build-lib", str(library), "install_data", "--install-dir", str(data)]
    argv = [sys.executable, "-W", "ignore", "-c", "import setuptools; setuptools.setup()", "--quiet", *commands]
    subprocess.run(argv, cwd=source, check=True, timeout=120)
    package = library / "airflow_provider_kmigrate"
    tracked = {
        name.removeprefix(f"{package.name}/") for name in listed.stdout.decode().split("\0") if name.startswith(package.name)
    }
    assert {"node/kmigrate-node", "cluster.schema.json", "example_dags/example_to_dual_write.py"} <= tracked
    assert sorted(name for name in tracked if not (package / name).is_file()) == []
    assert [path.name for path in library.iterdir()] == [package.name]
    dags = data / "share" / "airflow-provider-kmigrate" / "dags"
    assert {path.name for path in dags.iterdir()} == {path.name for path in (ROOT / "dags").glob("*.py")}


def test_each_file_of_the_licence_is_there() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    names = setup["metadata"]["license_files"].split()
    assert names == ["LICENSE", "NOTICE"]
    assert all((ROOT / name).read_text(encoding="utf-8").strip() for name in names)
