"""A node's file, stop, start and restart; and the notes about nodes.

Files are rendered from the originals in the backup (`steps.backup`).
A stopped node comes up again despite transient failures. Notes are kept in ZooKeeper for later runs, because no node can report
them; they are part of every view (`ZkView`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import inf
from types import MappingProxyType
from typing import TypeVar

from airflow_provider_kmigrate.clients import znodes
from airflow_provider_kmigrate.clients.hosts.agent import MetaTexts, Restart
from airflow_provider_kmigrate.clients.hosts.files import sha256
from airflow_provider_kmigrate.clients.znodes import (
    COUNTS,
    EXPANSION,
    NOTES,
    REGISTERED,
    ROLLED_BACK,
    UNFLAGGED,
    Create,
    Delete,
    Set,
)
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.decision import Verb
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, foreign_file
from airflow_provider_kmigrate.core.files.properties import diff, edit, parse
from airflow_provider_kmigrate.core.gates import MET, Gate, not_yet, slow_stop_limit, unidentified
from airflow_provider_kmigrate.core.migration.controllers import stop_timed_out
from airflow_provider_kmigrate.core.model import Broker, BrokerMode, Controller, Expansion, Fields, Reason
from airflow_provider_kmigrate.exceptions import Refused, TimedOut, Unavailable
from airflow_provider_kmigrate.steps.backup import BackupStore, edited, edits, rollback_prerequisites, text_of
from airflow_provider_kmigrate.steps.journal import StepJournal, format_reasons
from airflow_provider_kmigrate.steps.run import StepContext, pass_gate_again

Value = TypeVar("Value")
NO_META_TEXTS: MetaTexts = MappingProxyType({})

_TRIES = 6  # to start a stopped node
_PAUSE = 2.0  # seconds between two tries; an Airflow retry would leave the node down for longer


def install(context: StepContext, node: NodeSpec, stage: FileStage, *, back: bool = False) -> None:
    """Install the file of a stage and report which keys change; values of unknown keys stay hidden.

    Raises `Refused` if a broker's file was edited since the backup, because the edit would be lost. On a rollback, and for a
    broker that a finalization left behind (`back`), it only reports the edit and where the edited file is kept. A controller's file must be absent or its own.
    """
    text = text_of(context.spec, context.backup, node, stage)
    host = context.tools.host(node)
    old = host.read_properties(node) if node.role is NodeRole.BROKER else _controller_file(context, node)
    if text == old:
        context.backup.confirm_written(node, text)
        return
    if node.role is NodeRole.BROKER:
        _check_edits(context, node, old, back=back)
    context.backup.keep_written(node, text)  # first, so that a killed run leaves a hash too many, never one too few
    changes = diff(old, text)
    context.say(
        f"{node.name}: new server.properties with {len(changes)} changes" + "".join(f"\n    {change}" for change in changes)
    )
    digest = host.put_properties(node, text, context.fence.token)
    context.backup.confirm_written(node, text)
    context.journal.write("file", node.name, f"server.properties for stage {stage}", sha256=digest)


def _check_edits(context: StepContext, node: NodeSpec, old: str, *, back: bool) -> None:
    keys = _edited_keys(context, node, old)
    if not keys:
        return
    reason = edited(node, keys, context.backup.path(node))
    if not back:
        raise Refused.because(reason)
    kept = context.tools.host(node).kept_as(node, old)
    context.say(
        f"ATTENTION: {reason.text} The node starts without these edits; the present file is kept as {kept} on {node.host}."
    )
    context.journal.write("edited", node.name, f"changed since the backup: {', '.join(keys)}", kept=kept)


def _edited_keys(context: StepContext, node: NodeSpec, text: str) -> tuple[str, ...]:
    found = edits(context.spec, context.backup, node, parse(text), sha256(text))
    return tuple(change.key for change in found)


def set_in_original(context: StepContext, node: NodeSpec, keys: Mapping[str, str]) -> None:
    """Set keys in a broker's original, from which every later file is rendered; `install` then puts them into its file.

    Raises `Refused` (O03) if the present file was edited since the backup: the edit would be lost.
    """
    original, present = context.backup.original(node), context.tools.host(node).read_properties(node)
    changed = edit(original, keys)
    if changed == original:
        return
    if found := _edited_keys(context, node, present):
        raise Refused.because(edited(node, found, context.backup.path(node)))
    context.backup.keep_written(node, present)  # first: the present file is no edit of the new original
    digest = context.backup.replace_original(node, changed)
    context.journal.write("file", node.name, f"original with {', '.join(keys)} set", sha256=digest)


def _controller_file(context: StepContext, node: NodeSpec) -> str:
    """The controller's file, empty if there is none. Raises `Refused` if the file belongs to another node or service."""
    host = context.tools.host(node)
    properties = host.files(node).properties
    if (whose := foreign_file(node.id, properties)) is not None:
        raise Refused.because(Reason("M01", f"{node.name}: {node.hosts.properties} on {node.host} is {whose}."))
    return "" if properties is None else host.read_properties(node)


def refuse_if_rollback_lost(name: str, spec: ClusterSpec, backup: BackupStore, journal: StepJournal) -> None:
    """Raise `Refused`, with a journal line, if a prerequisite of the rollback is missing. `name`: the step that must not run then."""
    if reasons := rollback_prerequisites(spec, backup, spec.brokers):
        journal.write("lost", name, f"A rollback is not possible any more. {format_reasons(reasons)}")
        raise Refused(f"{name}: a rollback is not possible any more. {format_reasons(reasons)}", reasons)


def ours(context: StepContext, name: str, node: NodeSpec) -> Gate:
    """The gate that a node's machine holds this cluster's directories, for a node that an act itself chose.

    No earlier observation has read them. `name`: the step's. Raises `WrongCluster` if they are another cluster's.
    """
    view = context.observer.observe(Fields.ZOOKEEPER | Fields.FILES, (node,))
    pass_gate_again(name, context, view)
    seen: Broker | Controller = view.brokers[node.id] if node.role is NodeRole.BROKER else view.controllers[node.id]
    unknown = unidentified(seen)
    return not_yet(*unknown) if unknown else MET


def stop(context: StepContext, node: NodeSpec, silent: float = inf) -> float:
    """Stop a node; returns the seconds that it took. `TimedOut` says what to do next; other errors are the host's.

    A machine that dies meanwhile is `Unreachable` some 10 s later, or `silent` seconds later if that is less.
    """
    _say_stopping(context, node)
    with _advice(node):
        return context.tools.host(node).stop(node, context.fence.token, context.say, silent)


def _say_stopping(context: StepContext, node: NodeSpec) -> None:
    context.say(f"{node.name}: stopping, up to {node.stop_timeout:.0f} s.")


@contextmanager
def _advice(node: NodeSpec) -> Iterator[None]:
    try:
        yield
    except TimedOut as error:
        raise TimedOut(f"{error}. {stop_timed_out(node)}") from error


def start(context: StepContext, node: NodeSpec, metas: MetaTexts = NO_META_TEXTS) -> None:
    """Write these meta.properties of a node that is down, and start it; retries while its host is unreachable, up to `_TRIES` times.

    If one cannot be written, the node is started anyway. Raises the last error, any other at once.
    """
    host, token = context.tools.host(node), context.fence.token
    try:
        for folder, text in metas.items():
            what = f"{folder}/meta.properties of {node.name}, which is down, could not be written"
            retry(context, what, partial(host.put_meta, node, folder, text, token))
    finally:
        retry(context, f"{node.name} is down and could not be started", lambda: host.start(node, token))


def restart(
    context: StepContext, node: NodeSpec, metas: MetaTexts = NO_META_TEXTS, while_down: Callable[[float], object] = float
) -> None:
    """Stop a node, write these meta.properties, and start it again: one act of its machine, which no killed task cuts in half.

    `while_down` is called with the seconds of the stop before the start.
    """

    def stopped(seconds: float) -> None:
        context.say(f"{node.name} stopped after {seconds:.1f} s.")
        while_down(seconds)

    _say_stopping(context, node)
    with _advice(node):
        context.tools.host(node).restart(node, Restart(metas, stopped, context.say, slow_stop_limit(0)), context.fence.token)


def apply(context: StepContext, node: NodeSpec, stage: FileStage, verb: Verb) -> None:
    """Apply `verb`: START with the node's file, REWRITE the file of that stage, or RESTART with it."""
    if verb is not Verb.START:
        install(context, node, stage)
    if verb is Verb.RESTART:
        restart(context, node)
    if verb is Verb.START:
        start(context, node)


def retry(context: StepContext, what: str, do: Callable[[], Value]) -> Value:
    """Retry what must happen between a node's stop and its start while its host does not answer. `what` failed, in words for the log."""
    for left in range(_TRIES - 1, 0, -1):
        try:
            return do()
        except Unavailable as error:
            context.say(f"{what}: {error} Trying again, at most {left} times.")
            context.clock.sleep(_PAUSE)
    return do()


def note_registered(context: StepContext, broker: int) -> None:
    """Note that the controllers will know this broker, before it starts in migration mode."""
    _change(context, REGISTERED, lambda known: known | {broker})


def note_unflagged(context: StepContext, controller: int) -> None:
    """Note that kmigrate removes this controller's flag, before it does."""
    _change(context, UNFLAGGED, lambda known: known | {controller})


def note_rolled_back(context: StepContext, broker: int, mode: BrokerMode) -> None:
    """Note that this broker alone is rolled back: its registration with the controllers stays."""
    found = context.tools.zk.read(ROLLED_BACK)
    known = znodes.rolled_back(found[0]) if found else {}
    _put(context, ROLLED_BACK, {str(one): str(was) for one, was in {**known, broker: mode}.items()}, found)


def notes_deleted(context: StepContext) -> list[Delete]:
    """The operations that delete all notes: their controllers go in the same transaction, and new ones know no broker."""
    return [Delete(path, note[1]) for path in NOTES if (note := context.tools.zk.read(path)) is not None]


def forget_unflagged(context: StepContext, controller: int) -> None:
    """Forget the note when the controller gets its flag back: a later removal is not part of the finalization that was begun."""
    _change(context, UNFLAGGED, lambda known: known - {controller})


def note_expansion(context: StepContext, expansion: Expansion | None) -> None:
    """Note how far an expansion of `__consumer_offsets` is; None: none is under way."""
    found = context.tools.zk.read(EXPANSION)
    if expansion is not None:
        _put(context, EXPANSION, znodes.expansion_note(expansion), found)
    elif found is not None:
        context.tools.zk.commit([Delete(EXPANSION, found[1])], holding=context.fence)


def note_counts(context: StepContext, counts: Mapping[str, int]) -> None:
    """Note these partition counts of coordinator topics; those that are noted already stay. Without any the note exists, too."""
    found = context.tools.zk.read(COUNTS)
    before = znodes.partition_counts(found[0]) if found else {}
    if found is None or {**before, **counts} != before:
        _put(context, COUNTS, {**before, **counts}, found)


def _change(context: StepContext, path: str, change: Callable[[frozenset[int]], frozenset[int]]) -> None:
    found = context.tools.zk.read(path)
    known = znodes.node_ids(path, found[0]) if found else frozenset()
    if (wanted := change(known)) != known:
        _put(context, path, sorted(wanted), found)


def _put(context: StepContext, path: str, content: object, found: tuple[bytes, int] | None) -> None:
    data = json.dumps(content).encode()
    context.tools.zk.commit([Create(path, data) if found is None else Set(path, data, found[1])], holding=context.fence)
