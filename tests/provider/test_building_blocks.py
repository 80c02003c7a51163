"""docs/building-blocks.md: its tables are the classes as they are, and its example is imported by Airflow and run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import BaseOperator, BaseSensorOperator

import airflow_provider_kmigrate
from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.get_provider_info import get_provider_info
from tests.provider.simulated import Rehearsal
from tests.steps.phases import check_back

PAGE = (Path(__file__).parents[2] / "docs" / "building-blocks.md").read_text()
ROOM = "airflow_provider_kmigrate"
EXAMPLE = Path(airflow_provider_kmigrate.__file__).parent / "example_dags" / "example_to_dual_write.py"
COMMON = {"cluster_file", "deferrable", "sync_for"}
AIRFLOWS = {"mode", "poke_interval", "timeout"}  # arguments of its own classes, with other defaults
INSIDE = {"probe", "spark_check", "step"}  # modules, as the page says; of `step` its base class


def listed() -> dict[str, tuple[str, str]]:
    """Class -> (its parameters, as the page has them; the modules that the page names above its table)."""
    found = {}
    for above, table in re.findall(r"^(`airflow_provider_kmigrate\.[^\n]*)\n\n((?:\|[^\n]*\n)+)", PAGE, re.MULTILINE):
        for name, parameters in re.findall(r"^\| `(\w+)` \| ([^|]*)\|", table, re.MULTILINE):
            found[name] = (parameters, above)
    return found


def class_of(name: str) -> type[Any]:
    [found] = [each for each in public() if each.__name__ == name]
    return found


def public() -> list[type[Any]]:
    """Every class of operators and sensors that no underscore begins, by the modules that the provider info names."""
    info = get_provider_info()
    modules = [name for kind in ("operators", "sensors") for entry in info[kind] for name in entry["python-modules"]]
    return [
        each
        for module in map(import_module, modules)
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, BaseOperator)
        and each.__module__ == module.__name__
        and each.__name__[0] != "_"
    ]


def parameters(of: type[Any]) -> set[str]:
    """What its constructor takes by name, up to Airflow's own classes; without the words that it gives to a class for any question."""
    own = [each for each in of.__mro__ if each.__module__.startswith(ROOM) and "__init__" in vars(each)]
    takes = {
        name
        for each in own
        for name, parameter in inspect.signature(vars(each)["__init__"]).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return takes - {"words"} - (AIRFLOWS if issubclass(of, BaseSensorOperator) else set())


def test_every_public_class_stands_on_the_page_and_can_be_imported_from_there() -> None:
    outside = {each.__name__ for each in public() if each.__module__.rpartition(".")[2] not in INSIDE}
    outside |= {"StepSensor", "WaitAllBrokersRegisteredSensor", "VerifyDualWriteLagSensor", "CoordinatorConsistencySensor"}
    assert set(listed()) == outside - {"AuditJob", "SparkJobOperator", "SparkSubmitOperator", "WindowSensor"}
    for name, (_, above) in listed().items():
        room, _, module = class_of(name).__module__.rpartition(".")
        assert module in re.findall(r"\w+", above), name
        assert room in above, name


@pytest.mark.parametrize("name", sorted(listed()))
def test_the_parameters_of_each_public_class_are_those_of_the_page_and_documented(name: str) -> None:
    of, (text, _) = class_of(name), listed()[name]
    takes = parameters(of)
    named = re.findall(r"(\*\*)?`(\w+)`", text)
    assert {each for _, each in named} == takes - COMMON
    assert {each for bold, each in named if bold} == (takes - COMMON) & set(of.template_fields)
    documented = set(re.findall(r":param (\w+):", of.__doc__ or ""))
    inherited = set(
        re.findall(r":param (\w+):", "".join(each.__doc__ or "" for each in of.__mro__ if each.__module__.startswith(ROOM)))
    )
    assert takes - inherited == set()
    assert ("cluster_file" in takes) == ("cluster_file" in of.template_fields)
    assert documented, "the class itself says what it takes"
    for field in set(re.findall(r":param (\w+):(?:(?!:param)[\s\S])*?\(templated\)", of.__doc__ or "")):
        assert field in of.template_fields, field


@pytest.mark.parametrize("name", sorted(listed()))
def test_what_a_kill_does_is_said(name: str) -> None:
    of = class_of(name)
    own = next((vars(each)["on_kill"] for each in of.__mro__ if "on_kill" in vars(each)), None)
    assert own is not None
    if own.__module__.startswith(ROOM):
        assert own.__doc__
    else:  # an approval only waits for an answer
        assert "leaves nothing to stop" in "".join(each.__doc__ or "" for each in of.__mro__)


@pytest.fixture
def example() -> DagBag:
    return DagBag(dag_folder=EXAMPLE)


def test_the_page_shows_the_example_that_the_package_has() -> None:
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert EXAMPLE.read_text().partition('"""\n\n')[2] == block
    assert EXAMPLE.name in PAGE


def test_the_example_of_hooks_is_imported() -> None:
    [block] = re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "building-blocks.md", "exec", dont_inherit=True), names)  # noqa: S102  # of this repository
    assert {"compare_topics", "active_controller"} <= names.keys()


def test_the_example_is_imported(example: DagBag) -> None:
    assert example.import_errors == {}
    assert set(example.dags) == {"prod_to_dual_write", "prod_rollback"}
    for dag in example.dags.values():
        assert {getattr(task, "cluster_file", "{{ params.cluster_file }}") for task in dag.tasks} == {"{{ params.cluster_file }}"}
        assert [task.task_id for task in dag.tasks if isinstance(task, BaseSensorOperator) and not task.deferrable] == []


@pytest.mark.slow(seconds=40)
def test_the_example_runs(example: DagBag, rehearse: Callable[..., Rehearsal], run_dag: Callable[..., Any]) -> None:
    sim = rehearse()
    conf = {"cluster_file": str(sim.path)}
    run = run_dag(example.dags["prod_to_dual_write"], run_conf=conf)
    assert str(run.state) == "success", {each.task_id: str(each.state) for each in run.get_task_instances()}
    view = sim.cluster.observe(None)
    assert view.modes() == dict.fromkeys(range(3), BrokerMode.KRAFT)
    assert sim.cluster.nodes[NodeRole.CONTROLLER, 3000].starts == 1
    run = run_dag(example.dags["prod_rollback"], run_conf=conf)
    assert str(run.state) == "success"
    check_back(sim.cluster)
