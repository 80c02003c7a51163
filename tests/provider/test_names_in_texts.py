"""Names in texts: a task, group, DAG, key or identifier that docs, runbook, log texts or a page of Airflow name in backticks exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from airflow.sdk import DAG
from pydantic import ValidationError

from airflow_provider_kmigrate import runbook
from airflow_provider_kmigrate.core.cluster_state.spec import (
    AuditSpec,
    CanarySpec,
    ClusterSpec,
    GroupSpec,
    InstanceSpec,
    SparkJobSpec,
)
from airflow_provider_kmigrate.dag_builders import folder
from airflow_provider_kmigrate.spec import load, schema
from airflow_provider_kmigrate.spec.model import ClusterFile
from tests.provider.simulated import rehearsal
from tests.steps.sim import SimCluster

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_provider_kmigrate"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
NAME = re.compile(r"`([a-z][a-z0-9_]*(?:[._][a-z0-9_<>*]+)*)`")
PROSE = ("core/reasons/", "dag_builders/task_docs.py")  # texts alone: they prove no name
NOT_OURS = re.compile(
    r"test_\w+[*]?|tests\..*|.*\.(?:py|jsonl|gz|\d)|[a-z0-9]+(?:\.[a-z0-9<>*]+){2,}"  # tests, files, settings of Kafka and ZooKeeper
    r"|(?:mirror|rebalance)\.\*|and|or|if|app2|airflow\.cfg|authorized_keys|hs_err|simple_auth_manager_all_admins|stop_after_(?:\*|<stage>)|cgrp|deferred|depends_on_past|derandomize|echo|host_key|ips|known_hosts|lint|mv|private_key|pyspark|sudoers|timedatectl|invalid_client|late_\d+s|l\d|chpst|gosu|su|runuser|setpriv|setuidgid|stopwaitsecs"
)


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> list[DAG]:
    """Every DAG of a cluster file with everything that has tasks."""
    path = rehearsal(tmp_path_factory.mktemp("names"), SimCluster()).path
    dags = (folder._build_dag(kind, everything(load(path))) for kind in folder.BUILDERS)
    return [dag for dag in dags if dag is not None]


def everything(spec: ClusterSpec) -> ClusterSpec:
    instances = tuple(InstanceSpec(f"app{n}", switch=("restart", "{kind}")) for n in range(4))
    audit = AuditSpec("spark", "/results", ("/events",), canary=CanarySpec())
    group = GroupSpec("billing", instances, window="22:00-04:00")
    return replace(spec, groups=(group,), spark_jobs=(SparkJobSpec("orders", "/checkpoint"),), audit=audit)


@pytest.fixture(scope="module")
def ids(dags: list[DAG]) -> frozenset[str]:
    """The ids of DAGs, tasks and task groups; those in a group also without it."""
    found = {name for dag in dags for name in (dag.dag_id, *dag.task_dict, *dag.task_group.get_task_group_dict()) if name}
    return frozenset(found | {name.rpartition(".")[2] for name in found})


@cache
def identifiers() -> frozenset[str]:
    """Names in the product's and the benchmarks' code, texts in it that are one word, and keys of the cluster file."""
    paths = [path for path in PACKAGE.rglob("*.py") if not any(text in path.as_posix() for text in PROSE)]
    paths += (ROOT / "benchmarks").glob("*.py")
    paths.append(PACKAGE / "node" / "kmigrate-node")
    words = {word for path in paths for word in words_of(ast.parse(path.read_text(encoding="utf-8")))}
    return frozenset(words | {part for path in paths for part in (path.stem, path.parent.name)} | set(keys_of(schema())))


def words_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if not re.search(r"\s", text):
                yield text
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name


def keys_of(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        yield from map(str, part)
        for inner in part.values():
            yield from keys_of(inner)


def unknown(text: str, ids: frozenset[str]) -> set[str]:
    """The names in backticks that nothing has. What begins as a task group or DAG must be the id of a task or DAG."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {name for name in NAME.findall(prose) if not NOT_OURS.fullmatch(name) and not is_known(name, ids)}


def is_known(name: str, ids: frozenset[str]) -> bool:
    pattern = re.sub(r"<\w+>|(?<=_)\d+$", "*", name)
    if any(fnmatchcase(each, pattern) or each.startswith(f"{pattern}_") for each in ids):
        return True
    first, *others = re.sub(r"__(?:prod|sim|<\w+>)$", "", name).split(".")  # a cluster's DAG or Variable
    is_group = bool(others) and any(each.startswith(f"{first}.") for each in ids)
    return not is_group and (name in identifiers() or {first, *others} <= identifiers())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_names_what_is_there(path: Path, ids: frozenset[str]) -> None:
    assert unknown(path.read_text(encoding="utf-8"), ids) == set()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_cluster_file_on_a_page_has_known_keys(path: Path) -> None:
    for block in re.findall(r"^ *```yaml\n(.*?)^ *```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        data = yaml.safe_load(dedent(block))
        with pytest.raises(ValidationError) as caught:  # it has no name, or a wrong one
            ClusterFile.model_validate({"controllers": data} if isinstance(data, list) else {**data, "name": []})
        assert [error["loc"] for error in caught.value.errors() if error["type"] == "extra_forbidden"] == []


IMPORT = re.compile(r"from (airflow_provider_kmigrate[\w.]*) import ([\w, ]+)")


def test_what_a_page_imports_can_be_imported() -> None:
    found = [
        (module, name) for page in PAGES for module, names in IMPORT.findall(page.read_text()) for name in re.split(", *", names)
    ]
    assert len(found) > 7
    assert [where for where in found if not hasattr(import_module(where[0]), where[1].strip())] == []


def test_the_page_of_a_dag_and_of_a_task_names_what_is_there(dags: list[DAG], ids: frozenset[str]) -> None:
    for dag in dags:
        descriptions = "\n".join(str(dag.params.get_param(name).description) for name in dag.params)
        cells = "\n".join(
            f"`{cell}`" for row in re.findall(r"^\| ([a-z_, ]+) \|", dag.doc_md or "", re.MULTILINE) for cell in row.split(", ")
        )
        for text in (dag.doc_md or "", descriptions, cells, *(task.doc_md or "" for task in dag.tasks)):
            assert unknown(text, ids) == set(), dag.dag_id


def test_a_log_text_names_what_is_there(ids: frozenset[str]) -> None:
    texts = {place: text for path in PACKAGE.rglob("*.py") for place, text in sentences(path) if "`" in text}
    assert {place: names for place, text in texts.items() if (names := unknown(text, ids))} == {}


def sentences(path: Path) -> Iterator[tuple[str, str]]:
    """The texts in a module that are no docstrings, with their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield f"{path.name}:{node.lineno}", node.value


@pytest.mark.parametrize(
    "name", ["heal", "heal.failover", "copy.flag", "first_roll.broken_0", "kmigrate_back__prod", "look_at_logs"]
)
def test_a_stale_name_is_found(name: str, ids: frozenset[str]) -> None:
    assert unknown(f"Clear `{name}`.", ids) == {name}


def test_the_runbook_is_among_the_pages() -> None:
    assert runbook.render_runbook() == (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
