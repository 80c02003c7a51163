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
from airflow_provider_kmigrate.core.cluster_state.decision import Verb
from airflow_provider_kmigrate.core.cluster_state.model import Broker, BrokerMode, Controller, Expansion, Fields, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.controllers import advise_after_stop_timeout
from airflow_provider_kmigrate.core.migration.gates import MET, Gate, not_yet, slow_stop_limit, unidentified_reasons
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, describe_foreign_file
from airflow_provider_kmigrate.core.node_files.properties import diff_properties, edit_properties, parse_properties
from airflow_provider_kmigrate.core.shared.text import count_of
from airflow_provider_kmigrate.exceptions import Refused, TimedOut, Unavailable
from airflow_provider_kmigrate.steps.backup import (
    BackupStore,
    edited_file_reason,
    find_edits,
    render_file,
    rollback_prerequisites,
)
from airflow_provider_kmigrate.steps.journal import StepJournal, format_reasons
from airflow_provider_kmigrate.steps.run import StepContext, pass_gate_again

Value = TypeVar("Value")
NO_META_TEXTS: MetaTexts = MappingProxyType({})

_TRIES = 6  # to start a stopped node
_PAUSE = 2.0  # seconds between two tries; an Airflow retry would leave the node down for longer


def install_file(context: StepContext, node: NodeSpec, stage: FileStage, *, allow_edits: bool = False) -> None:
    """Install the file of a stage and report which keys change; values of unknown keys stay hidden.

    Raises `Refused` if a broker's file was edited since the backup, because the edit would be lost. On a rollback, and for a
    broker that a finalization left behind (`allow_edits`), it only reports the edit and where the edited file is kept. A controller's file must be absent or its own.
    """
    text = render_file(context.spec, context.backup, node, stage)
    host = context.tools.host(node)
    old = host.read_properties(node) if node.role is NodeRole.BROKER else _read_controller_file(context, node)
    if text == old:
        context.backup.confirm_written(node, text)
        return
    if node.role is NodeRole.BROKER:
        _check_edits(context, node, old, allow_edits=allow_edits)
    context.backup.keep_written(node, text)  # first, so that a killed run leaves a hash too many, never one too few
    changes = diff_properties(old, text)
    context.say(
        f"{node.name}: new server.properties with {count_of(len(changes), 'change')}"
        + "".join(f"\n    {change}" for change in changes)
    )
    digest = host.put_properties(node, text, context.fence.token)
    context.backup.confirm_written(node, text)
    context.journal.write("file", node.name, f"server.properties for stage {stage}", sha256=digest)


def _check_edits(context: StepContext, node: NodeSpec, old: str, *, allow_edits: bool) -> None:
    keys = _find_edited_keys(context, node, old)
    if not keys:
        return
    reason = edited_file_reason(node, keys, context.backup.original_path(node))
    if not allow_edits:
        raise Refused.because(reason)
    kept_path = context.tools.host(node).kept_as(node, old)
    context.say(
        f"ATTENTION: {reason.text} The node starts without these edits; the present file is kept as {kept_path} on {node.host}."
    )
    context.journal.write("edited", node.name, f"changed since the backup: {', '.join(keys)}", kept=kept_path)


def _find_edited_keys(context: StepContext, node: NodeSpec, text: str) -> tuple[str, ...]:
    changes = find_edits(context.spec, context.backup, node, parse_properties(text), sha256(text))
    return tuple(change.key for change in changes)


def set_in_original(context: StepContext, node: NodeSpec, keys: Mapping[str, str]) -> None:
    """Set keys in a broker's original, from which every later file is rendered; `install` then puts them into its file.

    Raises `Refused` (O03) if the present file was edited since the backup: the edit would be lost.
    """
    original, present = context.backup.read_original(node), context.tools.host(node).read_properties(node)
    changed = edit_properties(original, keys)
    if changed == original:
        return
    if edited_keys := _find_edited_keys(context, node, present):
        raise Refused.because(edited_file_reason(node, edited_keys, context.backup.original_path(node)))
    context.backup.keep_written(node, present)  # first: the present file is no edit of the new original
    digest = context.backup.replace_original(node, changed)
    context.journal.write("file", node.name, f"original with {', '.join(keys)} set", sha256=digest)


def _read_controller_file(context: StepContext, node: NodeSpec) -> str:
    """The controller's file, empty if there is none. Raises `Refused` if the file belongs to another node or service."""
    host = context.tools.host(node)
    properties = host.files(node).properties
    if (whose := describe_foreign_file(node.id, properties)) is not None:
        raise Refused.because(Reason("M01", f"{node.name}: {node.hosts.properties} on {node.host} is {whose}."))
    return "" if properties is None else host.read_properties(node)


def refuse_if_rollback_lost(name: str, spec: ClusterSpec, backup: BackupStore, journal: StepJournal) -> None:
    """Raise `Refused`, with a journal line, if a prerequisite of the rollback is missing. `name`: the step that must not run then."""
    if reasons := rollback_prerequisites(spec, backup, spec.brokers):
        journal.write("lost", name, f"A rollback is not possible any more. {format_reasons(reasons)}")
        raise Refused(f"{name}: a rollback is not possible any more. {format_reasons(reasons)}", reasons)


def directories_are_ours(context: StepContext, name: str, node: NodeSpec) -> Gate:
    """The gate that a node's machine holds this cluster's directories, for a node that an act itself chose.

    No earlier observation has read them. `name`: the step's. Raises `WrongCluster` if they are another cluster's.
    """
    view = context.observer.observe(Fields.ZOOKEEPER | Fields.FILES, (node,))
    pass_gate_again(name, context, view)
    observed_node: Broker | Controller = view.brokers[node.id] if node.role is NodeRole.BROKER else view.controllers[node.id]
    unknown = unidentified_reasons(observed_node)
    return not_yet(*unknown) if unknown else MET


def stop(context: StepContext, node: NodeSpec, unresponsive_after: float = inf) -> float:
    """Stop a node; returns the seconds that it took. `TimedOut` says what to do next; other errors are the host's.

    A machine that dies meanwhile is `Unreachable` some 10 s later, or `unresponsive_after` seconds later if that is less.
    """
    with _stopping(context, node):
        return context.tools.host(node).stop(node, context.fence.token, context.say, unresponsive_after)


@contextmanager
def _stopping(context: StepContext, node: NodeSpec) -> Iterator[None]:
    """Say that the node stops, and for how long at most; a `TimedOut` says what to do next."""
    context.say(f"{node.name}: stopping, up to {node.stop_timeout:.0f} s.")
    try:
        yield
    except TimedOut as error:
        raise TimedOut(f"{error}. {advise_after_stop_timeout(node)}") from error


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

    def on_stopped(seconds: float) -> None:
        context.say(f"{node.name} stopped after {seconds:.1f} s.")
        while_down(seconds)

    with _stopping(context, node):
        context.tools.host(node).restart(node, Restart(metas, on_stopped, context.say, slow_stop_limit(0)), context.fence.token)


def apply_verb(context: StepContext, node: NodeSpec, stage: FileStage, verb: Verb) -> None:
    """Apply `verb`: START with the node's file, REWRITE the file of that stage, or RESTART with it."""
    if verb is not Verb.START:
        install_file(context, node, stage)
    if verb is Verb.RESTART:
        restart(context, node)
    if verb is Verb.START:
        start(context, node)


def retry(context: StepContext, what: str, do: Callable[[], Value]) -> Value:
    """Retry what must happen between a node's stop and its start while its host does not answer. `what` failed, in words for the log."""
    for tries_left in range(_TRIES - 1, 0, -1):
        try:
            return do()
        except Unavailable as error:
            context.say(f"{what}: {error} Trying again, at most {count_of(tries_left, 'time')}.")
            context.clock.sleep(_PAUSE)
    return do()


def note_registered(context: StepContext, broker: int) -> None:
    """Note that the controllers will know this broker, before it starts in migration mode."""
    _change_node_ids(context, REGISTERED, lambda brokers: brokers | {broker})


def note_unflagged(context: StepContext, controller: int) -> None:
    """Note that kmigrate removes this controller's flag, before it does."""
    _change_node_ids(context, UNFLAGGED, lambda controllers: controllers | {controller})


def note_rolled_back(context: StepContext, broker: int, mode: BrokerMode) -> None:
    """Note that this broker alone is rolled back: its registration with the controllers stays."""
    znode = context.tools.zk.read(ROLLED_BACK)
    rolled_back = znodes.parse_rolled_back(znode[0]) if znode else {}
    _write_note(
        context,
        ROLLED_BACK,
        {str(broker_id): str(broker_mode) for broker_id, broker_mode in {**rolled_back, broker: mode}.items()},
        znode,
    )


def build_note_deletions(context: StepContext) -> list[Delete]:
    """The operations that delete all notes: their controllers go in the same transaction, and new ones know no broker."""
    return [Delete(path, note[1]) for path in NOTES if (note := context.tools.zk.read(path)) is not None]


def forget_unflagged(context: StepContext, controller: int) -> None:
    """Forget the note when the controller gets its flag back: a later removal is not part of the finalization that was begun."""
    _change_node_ids(context, UNFLAGGED, lambda controllers: controllers - {controller})


def note_expansion(context: StepContext, expansion: Expansion | None) -> None:
    """Note how far an expansion of `__consumer_offsets` is; None: none is under way."""
    znode = context.tools.zk.read(EXPANSION)
    if expansion is not None:
        _write_note(context, EXPANSION, znodes.expansion_note(expansion), znode)
    elif znode is not None:
        context.tools.zk.commit([Delete(EXPANSION, znode[1])], holding=context.fence)


def note_counts(context: StepContext, counts: Mapping[str, int]) -> None:
    """Note these partition counts of coordinator topics; those that are noted already stay. Without any the note exists, too."""
    znode = context.tools.zk.read(COUNTS)
    before = znodes.parse_partition_counts(znode[0]) if znode else {}
    if znode is None or {**before, **counts} != before:
        _write_note(context, COUNTS, {**before, **counts}, znode)


def _change_node_ids(context: StepContext, path: str, change: Callable[[frozenset[int]], frozenset[int]]) -> None:
    znode = context.tools.zk.read(path)
    old_ids = znodes.parse_node_ids(path, znode[0]) if znode else frozenset()
    if (new_ids := change(old_ids)) != old_ids:
        _write_note(context, path, sorted(new_ids), znode)


def _write_note(context: StepContext, path: str, content: object, znode: tuple[bytes, int] | None) -> None:
    data = json.dumps(content).encode()
    context.tools.zk.commit([Create(path, data) if znode is None else Set(path, data, znode[1])], holding=context.fence)
