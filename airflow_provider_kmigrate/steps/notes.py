"""Notes that kmigrate keeps in ZooKeeper for later runs, because no node can report them; part of every view (`ZkView`)."""

from __future__ import annotations

import json

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.znode_writes import NOTES, REGISTERED, ROLLED_BACK, UNFLAGGED, Create, Delete, Set
from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.steps.run import StepContext


def note_registered(world: StepContext, broker: int) -> None:
    """Note that the controllers will know this broker, before it starts in migration mode."""
    _add(world, REGISTERED, broker)


def note_unflagged(world: StepContext, controller: int) -> None:
    """Note that kmigrate removes this controller's flag, before it does."""
    _add(world, UNFLAGGED, controller)


def note_rolled_back(world: StepContext, broker: int, mode: BrokerMode) -> None:
    """Note that this broker alone is rolled back: its registration with the controllers stays."""
    found = world.tools.zk.read(ROLLED_BACK)
    known = znodes.rolled_back(found[0]) if found else {}
    _put(world, ROLLED_BACK, {str(one): str(was) for one, was in {**known, broker: mode}.items()}, found)


def notes_deleted(world: StepContext) -> list[Delete]:
    """The operations that delete all notes: their controllers go in the same transaction, and new ones know no broker."""
    found = {path: world.tools.zk.read(path) for path in NOTES}
    return [Delete(path, note[1]) for path, note in found.items() if note is not None]


def forget_unflagged(world: StepContext, controller: int) -> None:
    """Forget the note when the controller gets its flag back: a later removal is not part of the finalization that was begun."""
    found = world.tools.zk.read(UNFLAGGED)
    known = znodes.node_ids(UNFLAGGED, found[0]) if found else frozenset()
    if controller in known:
        _put(world, UNFLAGGED, sorted(known - {controller}), found)


def _add(world: StepContext, path: str, node: int) -> None:
    found = world.tools.zk.read(path)
    known = znodes.node_ids(path, found[0]) if found else frozenset()
    if node not in known:
        _put(world, path, sorted({*known, node}), found)


def _put(world: StepContext, path: str, content: object, found: tuple[bytes, int] | None) -> None:
    data = json.dumps(content).encode()
    world.tools.zk.commit([Create(path, data) if found is None else Set(path, data, found[1])], holding=world.fence)
