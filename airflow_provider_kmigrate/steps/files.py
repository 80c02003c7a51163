"""The properties file that a node needs next, and checks that a rollback still has all its inputs.

Files are rendered from the originals in the backup. `rollback_prerequisites` finds a lost input while it can still be fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from airflow_provider_kmigrate.clients.hosts.files import backup_name
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec, Role
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, stage_of
from airflow_provider_kmigrate.core.files.node_files import whose_else
from airflow_provider_kmigrate.core.files.properties import diff, parse
from airflow_provider_kmigrate.core.files.render import RenderFacts, broker_properties, controller_properties
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.spec import without_wipe
from airflow_provider_kmigrate.steps.backup import BackupStore, edited
from airflow_provider_kmigrate.steps.journal import Journal, format_reasons
from airflow_provider_kmigrate.steps.run import StepContext


def target_text(world: StepContext, node: NodeSpec, stage: FileStage) -> str:
    """The whole file of a stage. Raises `Refused` if the original is missing, altered or cannot be rendered from."""
    return text_of(world.spec, world.backup, node, stage)


def text_of(spec: ClusterSpec, backup: BackupStore, node: NodeSpec, stage: FileStage) -> str:
    """The same from a cluster file and a backup alone."""
    source = node if node.role is Role.BROKER else spec.brokers[0]
    original = backup.original(source)
    facts = RenderFacts.of(spec, backup.version())
    if node.role is Role.BROKER:
        return broker_properties(original, stage, facts)
    return controller_properties(original, node, stage, facts)


def install(world: StepContext, node: NodeSpec, stage: FileStage, *, back: bool = False) -> None:
    """Install the file of a stage and report which keys change; values of unknown keys stay hidden.

    Raises `Refused` if a broker's file was edited since the backup, because the edit would be lost. On a rollback (`back`) it
    only reports the edit and where the edited file is kept. A controller's file must be absent or its own.
    """
    text = target_text(world, node, stage)
    host = world.tools.host(node)
    old = host.read_properties(node) if node.role is Role.BROKER else _of_controller(world, node)
    if text == old:
        return
    if node.role is Role.BROKER:
        _mind_edits(world, node, old, back=back)
        world.backup.keep_written(node, text)  # first, so that a killed run leaves a hash too many, never one too few
    changes = diff(old, text)
    world.say(
        f"{node.name}: new server.properties with {len(changes)} changes" + "".join(f"\n    {change}" for change in changes)
    )
    digest = host.put_properties(node, text, world.fence.token)
    world.journal.write("file", node.name, f"server.properties for stage {stage}", sha256=digest)


def _mind_edits(world: StepContext, node: NodeSpec, old: str, *, back: bool) -> None:
    keys = edits(world, node, old)
    if not keys:
        return
    reason = edited(node, keys, world.backup.path(node))
    if not back:
        raise Refused.because(reason)
    kept = backup_name(node.hosts.properties, old)
    world.say(
        f"ATTENTION: {reason.text} The rollback continues without these edits; the present file is kept as {kept} on {node.host}."
    )
    world.journal.write("edited", node.name, f"changed since the backup: {', '.join(keys)}", kept=kept)


def edits(world: StepContext, node: NodeSpec, text: str) -> tuple[str, ...]:
    """The keys edited in a broker's file since the backup; none in a file of kmigrate, whatever the cluster file says now."""
    original = world.backup.original(node)
    if text == original or world.backup.wrote(node, text):
        return ()
    stage = stage_of(parse(text))
    expected = target_text(world, node, stage) if stage in (FileStage.MIGRATION, FileStage.KRAFT) else original
    return tuple(change.key for change in diff(expected, text))


def _of_controller(world: StepContext, node: NodeSpec) -> str:
    """The controller's file, empty if there is none. Raises `Refused` if the file belongs to another node or service."""
    host = world.tools.host(node)
    properties = host.files(node).properties
    if (whose := whose_else(node.id, properties)) is not None:
        text = f"{node.name}: {node.hosts.properties} on {node.host} is {whose}."
        raise Refused.because(Reason("M01", text))
    return "" if properties is None else host.read_properties(node)


def rollback_prerequisites(spec: ClusterSpec, backup: BackupStore, brokers: Iterable[NodeSpec]) -> tuple[Reason, ...]:
    """Reasons why these brokers, or the controllers, could not be rolled back.

    An original is missing, altered (by its hash) or cannot be rendered from; or the cluster file misses a command. The rollback
    itself writes what a machine's meta.properties misses.
    """
    return tuple(_reasons(spec, backup, brokers))


def refuse_if_rollback_lost(name: str, spec: ClusterSpec, backup: BackupStore, journal: Journal) -> None:
    """Raise `Refused`, with a journal line, if a prerequisite of the rollback is missing.

    `name`: the step that must not run then.
    """
    reasons = rollback_prerequisites(spec, backup, spec.brokers)
    if reasons:
        journal.write("lost", name, f"A rollback is not possible any more. {format_reasons(reasons)}")
        raise Refused(f"{name}: a rollback is not possible any more. {format_reasons(reasons)}", reasons)


def _reasons(spec: ClusterSpec, backup: BackupStore, brokers: Iterable[NodeSpec]) -> Iterator[Reason]:
    for node in brokers:
        yield from _refusals(lambda node=node: text_of(spec, backup, node, FileStage.ZOOKEEPER))  # type: ignore[misc]
    yield from without_wipe(spec)


def _refusals(attempt: Callable[[], object]) -> tuple[Reason, ...]:
    try:
        attempt()
    except Refused as refused:
        return refused.reasons
    return ()
