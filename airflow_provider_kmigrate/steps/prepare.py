"""Before any change: preflight checks of everything, and the backup that a rollback needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_kmigrate.core.decision import Done
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, stage_of
from airflow_provider_kmigrate.core.files.properties import parse
from airflow_provider_kmigrate.core.model import ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.preflight import checks as preflight
from airflow_provider_kmigrate.core.preflight.checks import PreflightFacts
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding, Severity
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused, Unavailable
from airflow_provider_kmigrate.steps.journal import format_reasons
from airflow_provider_kmigrate.steps.run import StepContext


@dataclass(frozen=True, slots=True)
class Preflight:
    """The facts and findings of one preflight; `took` in seconds."""

    view: ClusterView
    facts: PreflightFacts
    found: tuple[PreflightFinding, ...]
    took: float


def look_preflight(world: StepContext) -> Preflight:
    """Observe and judge everything; nothing is changed, logged or written."""
    began = world.clock.monotonic()
    view = world.observer.look(preflight.LOOK)
    facts = replace(_facts(world, view), around=world.observer.surroundings(view))
    found = preflight.findings(view, facts)
    return Preflight(view, facts, found, world.clock.monotonic() - began)


def run_preflight(world: StepContext, keep: Callable[[Preflight], object] = lambda _: None) -> tuple[PreflightFinding, ...]:
    """Log, journal and return all findings of one observation, after `keep` received them. Raises `Refused` with every blocker."""
    looked = look_preflight(world)
    found = looked.found
    for text in (*looked.facts.around.unread, *map(str, found)):
        world.say(text)
    world.journal.write("findings", "preflight", f"{len(found)} findings", findings=[as_json(finding) for finding in found])
    keep(looked)
    blocking = preflight.blocking(found)
    if blocking:
        reasons = tuple(finding.reason for finding in blocking)
        raise Refused(
            f"preflight: {len(blocking)} findings block the migration; nothing was changed. {format_reasons(reasons)}", reasons
        )
    unknown = sum(finding.severity is Severity.UNKNOWN for finding in found)
    world.say(f"Done: nothing blocks the migration; {len(found) - unknown} warnings, {unknown} unknown.")
    return found


def as_json(finding: PreflightFinding) -> dict[str, str]:
    """`{"code", "severity", "seen", "why", "remedy", "source"}`."""
    reason = finding.reason
    return {
        "code": reason.code,
        "severity": str(finding.severity),
        "seen": reason.text,
        "why": reason.meaning,
        "remedy": reason.next_step,
        "source": finding.source,
    }


def _facts(world: StepContext, view: ClusterView) -> PreflightFacts:
    return PreflightFacts(world.spec, world.tools.chroot, _configs(world, view), view.metadata_version)


def _configs(world: StepContext, view: ClusterView) -> dict[int, dict[str, str] | None]:
    return {node.id: _config(world, node.id) if view.answered(node.id) else None for node in world.spec.brokers}


def _config(world: StepContext, broker: int) -> dict[str, str] | None:
    try:
        return world.tools.admin.broker_config(broker)
    except (Unavailable, AuthenticationFailed) as error:
        world.say(f"Could not read the configuration of broker {broker}: {error}")
        return None


def run_backup(world: StepContext) -> Done:
    """Save every broker's original and ZooKeeper's tree and verify the hashes. Raises `Refused` without an original.

    Until the first broker has moved, a changed file simply is the new original; afterwards it is refused.
    """
    view = world.observer.look(Fields.BROKERS)
    begun = preflight.begun(view)
    if not begun:
        world.backup.keep_version(_version(world, view))
    for node in world.spec.brokers:
        text = world.tools.host(node).read_properties(node)
        if stage_of(parse(text)) is FileStage.ZOOKEEPER:
            keep = world.backup.keep_original if begun else world.backup.replace_original
            digest = keep(node, text)
            world.journal.write("backup", node.name, "original server.properties", sha256=digest)
        else:
            world.backup.original(node)
            world.say(f"{node.name}: its file is of a later stage; keeping the original in the backup.")
    count = world.backup.keep_tree(world.tools.zk.tree())
    names = world.backup.verify()
    text = f"{count} znodes and {len(world.spec.brokers)} originals saved in {world.backup.folder}, {len(names)} files verified by hash."
    world.journal.write("done", "backup", text)
    world.say(f"Done: {text}")
    return Done(text)


def _version(world: StepContext, view: ClusterView) -> str:
    version = preflight.protocol_version(_facts(world, view))
    if version is None:
        reason = Reason("B1a", "The brokers' inter.broker.protocol.version is unknown or differs.")
        raise Refused(str(reason), (reason,))
    return version
