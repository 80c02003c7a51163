"""Stop, start and restart a node; a stopped node comes up again despite transient failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow_provider_kmigrate.core.cluster import NodeSpec, Role
from airflow_provider_kmigrate.core.decision import Verb
from airflow_provider_kmigrate.core.files.config_matrix import FileStage
from airflow_provider_kmigrate.core.gates import MET, Gate, not_yet, unidentified
from airflow_provider_kmigrate.core.migration.controllers import stop_timed_out
from airflow_provider_kmigrate.core.model import Broker, Controller, Fields
from airflow_provider_kmigrate.exceptions import TimedOut, Unavailable, Unreachable
from airflow_provider_kmigrate.steps.files import install
from airflow_provider_kmigrate.steps.run import StepContext, refuse_strangers

Value = TypeVar("Value")

_TRIES = 6
_PAUSE = 2.0  # seconds between two tries; an Airflow retry would leave the node down for longer


def ours(world: StepContext, name: str, node: NodeSpec) -> Gate:
    """The gate that a node's machine holds this cluster's directories, for a node that an act itself chose.

    No earlier observation has read them. `name`: the step's. Raises `WrongCluster` if they are another cluster's.
    """
    view = world.observer.look(Fields.ZOOKEEPER | Fields.FILES, (node,))
    refuse_strangers(name, world, view)
    seen: Broker | Controller = view.brokers[node.id] if node.role is Role.BROKER else view.controllers[node.id]
    unknown = unidentified(seen)
    return not_yet(*unknown) if unknown else MET


def stop_node(world: StepContext, node: NodeSpec) -> float:
    """Stop a node; returns the seconds that it took. `TimedOut` says what to do next; other errors are the host's."""
    try:
        return world.tools.host(node).stop(node, world.fence.token)
    except TimedOut as error:
        raise TimedOut(f"{error}. {stop_timed_out(node)}") from error


def stop(world: StepContext, node: NodeSpec) -> float:
    """Stop a node that is to be started again; returns the seconds that it took.

    If the connection breaks, its state is unknown: it is started, which is harmless if it runs, and the error is raised.
    """
    try:
        return stop_node(world, node)
    except Unreachable as error:
        world.say(f"Lost contact while stopping {node.name}: {error} Starting it in case it is down.")
        start(world, node)
        raise


def start(world: StepContext, node: NodeSpec) -> None:
    """Start a node; retries up to `_TRIES` times while its host is unreachable. Raises the last error, any other at once."""
    retry(world, f"{node.name} is down and could not be started", lambda: world.tools.host(node).start(node, world.fence.token))


def restart(world: StepContext, node: NodeSpec) -> None:
    """Stop a node, report how long that took, and start it again."""
    world.say(f"{node.name} stopped after {stop(world, node):.1f} s.")
    start(world, node)


def apply(world: StepContext, node: NodeSpec, stage: FileStage, verb: Verb) -> None:
    """Apply `verb`: START with the node's file, REWRITE the file of that stage, or RESTART with it.

    Raises ValueError for any other verb, with nothing done.
    """
    if verb not in {Verb.START, Verb.REWRITE, Verb.RESTART}:
        raise ValueError(f"{verb} does not change a node's file or process")
    if verb is not Verb.START:
        install(world, node, stage)
    if verb is Verb.RESTART:
        restart(world, node)
    if verb is Verb.START:
        start(world, node)


def retry(world: StepContext, what: str, do: Callable[[], Value]) -> Value:
    """Retry what stands between a node's stop and its start while its host does not answer. `what` failed, in words for the log."""
    for left in range(_TRIES - 1, 0, -1):
        try:
            return do()
        except Unavailable as error:
            world.say(f"{what}: {error} Trying again, at most {left} times.")
            world.clock.sleep(_PAUSE)
    return do()
