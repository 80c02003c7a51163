"""The library for applications as a wheel of its own: `python -m tests.kit.library_wheel FOLDER` writes the project that `make wheel` builds.

The library is `applications` and what it imports, found by its imports: an application installs it without Airflow. The provider's wheel
holds the same files, so that nothing is imported under two names. An environment has one of the two (`applications/__init__.py`).
"""

from __future__ import annotations

import ast
import configparser
import re
import shutil
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = "airflow_provider_kmigrate"
NAME: Final = "kmigrate-applications"
BROUGHT_ALONG: Final = frozenset({"gssapi", "puresasl", "pyspark"})  # by an application itself, if it uses Kerberos or Spark
DISTRIBUTIONS: Final = {"kafka": "kafka-python", "confluent_kafka": "confluent-kafka"}  # of packages that are named otherwise

_PROJECT: Final = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "{version}"
description = "For applications beside kmigrate: the migrating consumer, audited clients, and a hold for Spark's streaming jobs; without Airflow"
readme = "consumers.md"
license = "Apache-2.0"
license-files = ["LICENSE", "NOTICE"]
requires-python = "{python}"
dependencies = {dependencies}

[tool.setuptools]
include-package-data = false

[tool.setuptools.packages.find]
include = ["{package}*"]

[tool.setuptools.package-data]
"*" = ["py.typed", "*.json"]
"""


def write_project(folder: Path) -> None:
    """A project of setuptools with the library's files, in a folder that is new or empty."""
    folder.mkdir(parents=True, exist_ok=True)
    modules = library_modules()
    for path in [*modules, *_data_beside(modules), Path(PACKAGE, "py.typed")]:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
    for name in ("LICENSE", "NOTICE", "docs/consumers.md"):
        shutil.copyfile(ROOT / name, folder / Path(name).name)
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    text = _PROJECT.format(
        name=NAME,
        version=_version(),
        python=setup["options"]["python_requires"],
        dependencies=library_requirements(),
        package=PACKAGE,
    )
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def library_modules() -> list[Path]:
    """The files of `applications` and of all that it imports, also inside functions, as paths below the repository."""
    waiting = [path.relative_to(ROOT) for path in sorted((ROOT / PACKAGE / "applications").rglob("*.py"))]
    reached = set[Path]()
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        reached.add(module)
        waiting += [parent / "__init__.py" for parent in module.parents if parent.parts]
        waiting += [path for name in _imported(module) if (path := _file_of(name)) is not None]
    return sorted(reached)


def library_requirements() -> list[str]:
    """What the library imports beyond Python itself, with the provider's bounds."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    bounds = {re.match(r"[\w-]*", line)[0]: line for line in setup["options"]["install_requires"].splitlines()}  # type: ignore[index]
    packages = {name.partition(".")[0] for module in library_modules() for name in _imported(module)}
    foreign = packages - set(sys.stdlib_module_names) - {PACKAGE} - BROUGHT_ALONG
    return [bounds[DISTRIBUTIONS.get(name, name)] for name in sorted(foreign)]


def _data_beside(modules: list[Path]) -> list[Path]:
    """JSON files beside a module of their own package, such as the messages of Kafka's protocol."""
    folders = {module.parent for module in modules if module.parent != Path(PACKAGE)}
    return sorted(path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).glob("*.json"))


def _imported(module: Path) -> set[str]:
    names = set[str]()
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):  # absolute, as ruff holds it
            names.update([str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)])
    return names


def _file_of(name: str) -> Path | None:
    """The file of a module of this package; None: another package, or a name inside a module."""
    if name.partition(".")[0] != PACKAGE:
        return None
    path = Path(name.replace(".", "/"))
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if (ROOT / candidate).is_file()), None)


def _version() -> str:
    tree = ast.parse((ROOT / PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    return str(next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)))


if __name__ == "__main__":
    write_project(Path(sys.argv[1]))
