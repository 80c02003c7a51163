"""Before any change: preflight checks of everything, and the backup that a rollback needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_kmigrate.clients.wire import effective
from airflow_provider_kmigrate.core import coordinator, journal_lines
from airflow_provider_kmigrate.core.cluster import NodeSpec
from airflow_provider_kmigrate.core.decision import Done
from airflow_provider_kmigrate.core.files.config_matrix import FileStage, stage_of
from airflow_provider_kmigrate.core.files.properties import parse
from airflow_provider_kmigrate.core.model import ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.phase import ended
from airflow_provider_kmigrate.core.preflight import checks as preflight
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts, PreflightFinding, Severity, begun
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused, Unavailable
from airflow_provider_kmigrate.steps.group_watch import sample
from airflow_provider_kmigrate.steps.journal import format_reasons, lines_of
from airflow_provider_kmigrate.steps.nodes import note_counts
from airflow_provider_kmigrate.steps.run import StepContext, require_gate


@dataclass(frozen=True, slots=True)
class Preflight:
    """The facts and findings of one preflight; `took` in seconds."""

    view: ClusterView
    facts: PreflightFacts
    found: tuple[PreflightFinding, ...]
    took: float


def observe_preflight(context: StepContext) -> Preflight:
    """Observe and judge everything; nothing is changed, logged or written."""
    began = context.clock.monotonic()
    view = context.observer.observe(preflight.PREFLIGHT_FIELDS)
    facts = replace(_facts(context, view), environment=context.observer.environment(view))
    found = preflight.findings(view, facts)
    return Preflight(view, facts, found, context.clock.monotonic() - began)


def run_preflight(context: StepContext, keep: Callable[[Preflight], object] = lambda _: None) -> tuple[PreflightFinding, ...]:
    """Log, journal and return all findings of one observation, after `keep` received them. Raises `Refused` with every blocker."""
    result = observe_preflight(context)
    found = result.found
    for text in (*result.facts.environment.unread, *map(str, found)):
        context.say(text)
    context.journal.write("findings", "preflight", f"{len(found)} findings", findings=[as_json(finding) for finding in found])
    keep(result)
    if reasons := tuple(finding.reason for finding in preflight.blocking(found)):
        text = f"preflight: {len(reasons)} findings block the migration; nothing was changed. {format_reasons(reasons)}"
        raise Refused(text, reasons)
    unknown = sum(finding.severity is Severity.UNKNOWN for finding in found)
    context.say(f"Done: nothing blocks the migration; {len(found) - unknown} warnings, {unknown} unknown.")
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


def _facts(context: StepContext, view: ClusterView) -> PreflightFacts:
    configs = {node.id: _config(context, node) if view.answered(node.id) else None for node in context.spec.brokers}
    own = journal_lines.times_of(journal_lines.acts(journal_lines.read(lines_of(context.journals)).lines))
    tools = context.tools
    return PreflightFacts(context.spec, tools.chroot, configs, view.metadata_version, own_acts=own, connections=tools.connections)


def _config(context: StepContext, broker: NodeSpec) -> dict[str, str] | None:
    try:
        return effective(context.tools.wire(broker), broker.id)
    except (Unavailable, AuthenticationFailed) as error:
        context.say(f"Could not read the configuration of {broker.name}: {error}")
        return None


def run_backup(context: StepContext) -> Done:
    """Save all (`save_all`), and note how many partitions the topics of coordinators have. Raises `Unavailable` if that is not known."""
    done = save_all(context)
    view = context.observer.observe(Fields.ZOOKEEPER | Fields.BROKERS | Fields.PARTITIONS | Fields.COORDINATORS)
    require_gate(coordinator.answers_agree(view))
    note_counts(context, coordinator.counts_to_note(view))
    return done


def save_all(context: StepContext) -> Done:
    """Save every broker's original and ZooKeeper's tree and verify the hashes. Raises `Refused` without an original.

    Until the first broker has moved, a changed file simply is the new original, and the tree is saved again; afterwards a changed
    file is refused, and the tree of before stays. Once the migration is finalized nothing is saved.
    """
    view = context.observer.observe(Fields.POSITION)
    if ended(view):  # a broker that was left behind may have any file
        names = context.backup.verify()
        text = f"The migration is finalized: the backup in {context.backup.folder} stays as it is, {len(names)} files verified by hash."
        context.say(f"Done: {text}")
        return Done(text)
    has_begun = begun(view)
    if not has_begun:
        context.backup.keep_version(_version(context, view))
    for node in context.spec.brokers:
        text = context.tools.host(node).read_properties(node)
        if stage_of(parse(text)) is FileStage.ZOOKEEPER:
            keep = context.backup.keep_original if has_begun else context.backup.replace_original
            digest = keep(node, text)
            context.journal.write("backup", node.name, "original server.properties", sha256=digest)
        else:
            context.backup.original(node)
            context.say(f"{node.name}: its file is of a later stage; keeping the original in the backup.")
    count = context.backup.keep_tree(context.tools.zk.tree(), once=has_begun)
    names = context.backup.verify()
    sample(context)
    text = f"{count} znodes and {len(context.spec.brokers)} originals saved in {context.backup.folder}, {len(names)} files verified by hash."
    context.journal.write("done", "backup", text)
    context.say(f"Done: {text}")
    return Done(text)


def _version(context: StepContext, view: ClusterView) -> str:
    version = preflight.protocol_version(_facts(context, view))
    if version is None:
        raise Refused.because(Reason("B1a", "The brokers' inter.broker.protocol.version is unknown or differs."))
    return version
