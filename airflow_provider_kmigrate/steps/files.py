"""The properties file that a node must have next, from the originals in the backup."""

from __future__ import annotations

from airflow_provider_kmigrate.core.cluster import NodeSpec, Role
from airflow_provider_kmigrate.core.config_matrix import Stage
from airflow_provider_kmigrate.core.properties import diff
from airflow_provider_kmigrate.core.render import RenderFacts, broker_properties, controller_properties
from airflow_provider_kmigrate.steps.run import World


def target_text(world: World, node: NodeSpec, stage: Stage) -> str:
    """The whole file of a stage. Raises `Refused` where the original is missing, altered or cannot be rendered from."""
    source = node if node.role is Role.BROKER else world.spec.brokers[0]
    original = world.backup.original(source)
    facts = RenderFacts.of(world.spec, world.backup.version())
    if node.role is Role.BROKER:
        return broker_properties(original, stage, facts)
    return controller_properties(original, node, stage, facts)


def install(world: World, node: NodeSpec, stage: Stage) -> None:
    """Put the file of a stage in place, and say which keys change; values of unknown keys stay hidden."""
    text = target_text(world, node, stage)
    host = world.tools.host(node)
    old = host.read_properties(node) if node.role is Role.BROKER else ""
    if text == old:
        return
    changes = diff(old, text)
    world.say(
        f"{node.name}: new server.properties with {len(changes)} changes" + "".join(f"\n    {change}" for change in changes)
    )
    digest = host.put_properties(node, text, world.fence.token)
    world.journal.write("file", node.name, f"server.properties for stage {stage}", sha256=digest)
