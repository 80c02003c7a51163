"""Shapes of cluster for the fault matrix beside the usual one: how each is made, and the cells that it alone has.

| shape | the cluster | cells of its own |
| --- | --- | --- |
| directories | every broker has two log directories | one of them fails; replicas move to the other one |
| zookeeper-login | ZooKeeper lets clients in by SASL DIGEST-MD5 only, and what the brokers create there is theirs alone | a wrong password, of kmigrate, of a \
broker, at ZooKeeper itself; ZooKeeper restarted while a broker restarts |

A cell of its own has a place in the journey (`Journey.own`), which `tests.system.faults` calls by these names.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Final

from confluent_kafka.admin import AdminClient

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.steps.run import Step
from tests.kit.account import kafka_of
from tests.kit.localcluster import jaas, ready
from tests.kit.localcluster.plan import Plan, Shape
from tests.kit.processes import NodeProcess
from tests.system import fault_cells, proxy
from tests.system.journey import Journey, Trouble
from tests.system.troubles import NO_ZOOKEEPER, cut, disk_full
from tests.waiting import wait_until

PREFLIGHT: Final = "preflight"
FIRST_ROLL: Final = "before the first roll"
LAST_OF_FIRST_ROLL: Final = "the last broker of the first roll"  # in place of a cell of the usual shape
MIGRATION_MODE: Final = "dual-write, brokers on ZooKeeper"
KRAFT_MODE: Final = "dual-write, brokers on KRaft"
LAST_OF_ROLLBACK: Final = "the last broker of the rollback"

_MOVED: Final = "payments"
_MOVE_S, _STOP_S, _START_S = 60.0, 30.0, 60.0
_REFUSED_S = 8.0  # below the timeout of a session, 18 s
_WRONG: Final = "canary-wrong"
_LOGIN: Final = r"\[U09\][^\n|]*"


@dataclass(frozen=True)
class FaultShape:
    """How the cluster is made; `cells` by their place; `find_missing`: what this machine lacks for it, empty if nothing."""

    shape: Shape
    cells: Mapping[str, Callable[[Journey], None]] = field(default_factory=dict)
    find_missing: Callable[[], str] = str


# --- two log directories -----------------------------------------------------------------------------------------------------------------


def _failed_directory_blocks_preflight(journey: Journey) -> None:
    for full in _directories_full(journey)[-1:]:
        fault_cells.preflight_refuses(journey, Trouble(full.fault, r"\[B7b\][^|\n]*", full.made))


def _directory_fails_in_migration_mode(journey: Journey) -> None:
    """Nothing more is restarted; the step is left, so that the brokers that have their turn in the usual cells still have it."""
    _moves(journey, "copied")
    node = journey.to_roll(BrokerMode.KRAFT)
    for troubles in _directories_full_in_turn(journey):
        journey.series("roll", troubles, left=True, node=node, target=BrokerMode.KRAFT)


def _directory_fails_in_kraft_mode(journey: Journey) -> None:
    _moves(journey, "soak", seconds=2.0)
    for troubles in _directories_full_in_turn(journey):
        journey.series("soak", troubles, seconds=5.0)


def _directories_full(journey: Journey) -> list[Trouble]:
    """Each directory of the broker whose directories are disks of their own; its metadata log is in the first."""
    broker = journey.cluster.plan.brokers[-1]
    folders = journey.cluster.log_dirs_of(broker)
    return [disk_full(journey, broker, number) for number, folder in enumerate(folders) if folder.is_mount()]


def _directories_full_in_turn(journey: Journey) -> list[tuple[Trouble, Trouble]]:
    """For each directory a life of the step of its own, since the end of the fault starts the broker; another trouble comes before it."""
    others = [cut(journey, fault, journey.cluster.plan.brokers[0]) for fault in (proxy.RESET, proxy.REFUSED)]
    return list(zip(others, _directories_full(journey), strict=False))


def _moves(journey: Journey, kind: str, **arguments: object) -> None:
    node = journey.shuffled(journey.cluster.plan.brokers)[0]
    name = f"replicas of {node.name} move to its other directory"
    made = partial(journey.under, kind, name, _moved(journey, node), **arguments)
    journey.cell(name, "goes on", made)


@contextmanager
def _moved(journey: Journey, node: NodeSpec) -> Iterator[None]:
    """Those of one topic, from each directory into the other; over when all are there."""
    plan, directories = journey.cluster.plan, journey.cluster.log_dirs_of(node)
    wanted = {
        path.name: other
        for directory, other in zip(directories, directories[::-1], strict=True)
        for path in directory.glob(f"{_MOVED}-*")
    }
    kafka = kafka_of(journey.cluster, plan.folder.parent / "moves")
    topic = AdminClient({"bootstrap.servers": plan.bootstrap}).list_topics(_MOVED, timeout=_START_S).topics[_MOVED]
    rows = [
        {
            "topic": _MOVED,
            "partition": index,
            "replicas": partition.replicas,
            "log_dirs": [str(wanted[f"{_MOVED}-{index}"]) if broker == node.id else "any" for broker in partition.replicas],
        }
        for index, partition in topic.partitions.items()
    ]
    path = kafka.folder / "moves.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    where = ("--bootstrap-server", plan.bootstrap, "--reassignment-json-file", str(path))
    kafka.run("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", *where, "--execute")
    yield
    wait_until(lambda: all((target / name).is_dir() for name, target in wanted.items()), "every replica has moved", _MOVE_S)


# --- a login at ZooKeeper ------------------------------------------------------------------------------------------------------------------


def find_missing_sasl() -> str:
    """What DIGEST-MD5 needs and this Python lacks."""
    return "" if find_spec("puresasl") else "the Python package pure-sasl: pip install 'airflow-provider-kmigrate[sasl]'"


def _wrong_password_blocks_preflight(journey: Journey) -> None:
    fault_cells.preflight_refuses(journey, Trouble("kmigrate's password for ZooKeeper is wrong", _LOGIN, partial(_lied, journey)))


def _wrong_password_ends_a_roll(journey: Journey) -> None:
    node, target, name = journey.to_roll(BrokerMode.MIGRATION), BrokerMode.MIGRATION, "kmigrate's password for ZooKeeper is wrong"
    made = partial(journey.refuses, "roll", _LOGIN, name, _lied(journey), node=node, target=target)
    journey.cell(name, "refuses, names it and changes nothing", made)
    journey.series("roll", [_password_changes(journey)], left=True, node=node, target=target)


def _zookeeper_restarts_with_a_broker(journey: Journey) -> None:
    name = "ZooKeeper restarted while a broker restarts"

    def made() -> str:
        node, target = journey.to_roll(BrokerMode.MIGRATION), BrokerMode.MIGRATION
        return journey.meanwhile("roll", "stopped after", name, _restarted(journey.cluster.plan), 0.0, node=node, target=target)

    journey.cell(name, "goes on afterwards", made)


def _password_changes_in_the_soak(journey: Journey) -> None:
    journey.series("soak", [_password_changes(journey)], seconds=5.0)


def _broker_is_refused(journey: Journey) -> None:
    """A broker that is restarted into ZooKeeper mode ends at its login; it is started again until it may."""
    name = "password of a broker for ZooKeeper wrong in its restart"

    def made() -> str:
        node, target = journey.to_roll(BrokerMode.ZOOKEEPER), BrokerMode.ZOOKEEPER
        fault = _refused(journey.cluster.plan)
        return journey.meanwhile("roll back broker", "stopped after", name, fault, _REFUSED_S, node=node, target=target)

    journey.cell(name, "goes on afterwards", made, most=_MOST_STARTS, controllers=False)


_MOST_STARTS = (
    1 + Step.max_acts + 1
)  # by its restart, by that run's starts, of which each ends within a second, and by the next run


@contextmanager
def _lied(journey: Journey) -> Iterator[None]:
    """Another password in kmigrate's connection."""
    path = journey.cluster.plan.connections_path
    text = path.read_text()
    path.write_text(text.replace(jaas.PASSWORD, _WRONG))
    try:
        yield
    finally:
        path.write_text(text)


@contextmanager
def _refused(plan: Plan) -> Iterator[None]:
    """Another password in the file of the nodes, which each reads as it starts."""
    jaas.client_switches(plan, _WRONG)
    try:
        yield
    finally:
        jaas.client_switches(plan)


def _password_changes(journey: Journey) -> Trouble:
    name = "ZooKeeper restarted with another password, and back"
    return Trouble(name, f"{_LOGIN}|{NO_ZOOKEEPER}", partial(_changed, journey.cluster.plan))


@contextmanager
def _changed(plan: Plan) -> Iterator[None]:
    """Nobody may log in; sessions outlive it."""
    jaas.server_switches(plan, plan.zookeeper_folder, _WRONG)
    _restart_zookeeper(plan)
    try:
        yield
    finally:
        jaas.server_switches(plan, plan.zookeeper_folder)
        _restart_zookeeper(plan)


@contextmanager
def _restarted(plan: Plan) -> Iterator[None]:
    _restart_zookeeper(plan)
    yield


def _restart_zookeeper(plan: Plan) -> None:
    process = NodeProcess(plan.zookeeper_folder)
    if not process.wait_gone(process.signal(signal.SIGTERM), _STOP_S):
        raise Failed("ZooKeeper does not end")
    ready.zookeeper_serves(plan, time.monotonic() + _START_S)


SHAPES: Final[Mapping[str, FaultShape]] = {
    "usual": FaultShape(Shape(name="faults")),
    "directories": FaultShape(
        Shape(name="faults", log_dirs=2),
        {
            PREFLIGHT: _failed_directory_blocks_preflight,
            MIGRATION_MODE: _directory_fails_in_migration_mode,
            KRAFT_MODE: _directory_fails_in_kraft_mode,
        },
    ),
    "zookeeper-login": FaultShape(
        Shape(name="faults", zookeeper_login=True),
        {
            PREFLIGHT: _wrong_password_blocks_preflight,
            FIRST_ROLL: _wrong_password_ends_a_roll,
            LAST_OF_FIRST_ROLL: _zookeeper_restarts_with_a_broker,
            KRAFT_MODE: _password_changes_in_the_soak,
            LAST_OF_ROLLBACK: _broker_is_refused,
        },
        find_missing_sasl,
    ),
}
