"""Before any change: preflight checks of everything, and the backup that a rollback needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from airflow_provider_kmigrate.clients.wire import read_effective_config
from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import Cause, ClusterView, Fields, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NodeSpec
from airflow_provider_kmigrate.core.migration import coordinator
from airflow_provider_kmigrate.core.migration.migration_plan import plan_migration
from airflow_provider_kmigrate.core.migration.phase import migration_has_ended
from airflow_provider_kmigrate.core.migration.plan_facts import list_start_seconds
from airflow_provider_kmigrate.core.monitoring import journal_lines
from airflow_provider_kmigrate.core.node_files.config_matrix import FileStage, stage_of
from airflow_provider_kmigrate.core.node_files.properties import parse_properties
from airflow_provider_kmigrate.core.preflight import checks as preflight
from airflow_provider_kmigrate.core.preflight.findings import PreflightFacts, PreflightFinding, Severity, has_migration_begun
from airflow_provider_kmigrate.core.preflight.machines import list_metadata_room
from airflow_provider_kmigrate.core.shared.text import count_of, join_ids
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Refused, Unavailable
from airflow_provider_kmigrate.steps.group_watch import sample_group_progress
from airflow_provider_kmigrate.steps.journal import format_reasons, read_journal_lines
from airflow_provider_kmigrate.steps.nodes import note_counts
from airflow_provider_kmigrate.steps.plan_binding import read_plan_facts
from airflow_provider_kmigrate.steps.run import StepContext, require_gate

_TRIES, _AGAIN_AFTER = 10, 2.0  # seconds; a busy broker misses one observation, and the whole run must not end with it (measured)
_NO_MORE_AFTER = 60.0  # seconds; a machine that does not answer takes 15 s each time
Looked = TypeVar("Looked")


@dataclass(frozen=True, slots=True)
class Preflight:
    """The facts and findings of one preflight; `took` in seconds."""

    view: ClusterView
    facts: PreflightFacts
    found: tuple[PreflightFinding, ...]
    took: float


def observe_preflight(context: StepContext) -> Preflight:
    """Observe and judge everything; nothing is changed or written. Looks again, for a minute, while something blocks that was not read.

    A broker that starts or is busy is late for one look: that blocks a migration only if it lasts.
    """
    began = context.clock.monotonic()

    def observe_once() -> Preflight:
        view = context.observer.observe(preflight.PREFLIGHT_FIELDS)
        facts = replace(_read_facts(context, view), environment=context.observer.environment(view))
        findings = preflight.run_checks(view, facts)
        return Preflight(view, facts, findings, context.clock.monotonic() - began)

    return _look_again_while_late(
        context, observe_once, lambda result: _list_late(result.view) if preflight.blocking_findings(result.found) else ()
    )


def _look_again_while_late(
    context: StepContext, look: Callable[[], Looked], list_late: Callable[[Looked], Sequence[Reason]]
) -> Looked:
    """What a look returns; looks again, up to `_TRIES` times in a minute, while `list_late` names what was not read in time."""
    until = context.clock.monotonic() + _NO_MORE_AFTER
    for _ in range(_TRIES - 1):
        looked = look()
        late = list_late(looked)
        if not late or context.clock.monotonic() >= until:
            return looked
        context.say(f"Not read yet, so kmigrate looks again: {'; '.join(reason.text for reason in late)}")
        context.clock.sleep(_AGAIN_AFTER)
    return look()


def _list_late(view: ClusterView) -> tuple[Reason, ...]:
    """What a later look may read. Before a migration no controller answers, so that never blocks here; during one, each step's gates ask."""
    return tuple(reason for reason in view.unknowns if not reason.certain and reason.cause is not Cause.UNREAD_CONTROLLER)


def plan_from_here(context: StepContext, result: Preflight) -> dict[str, Any]:
    """The plan of the migration of the cluster that a preflight has observed (`migration_plan.plan_migration`)."""
    findings = {
        str(severity): [finding.code for finding in result.found if finding.severity is severity] for severity in Severity
    }
    tree = result.facts.environment.tree
    registered_at = {number: znode.broker_time for number, znode in tree.registrations.items()} if tree else {}
    return plan_of_view(
        context,
        result.view,
        preflight.protocol_version(result.facts),
        findings=findings,
        took=result.took,
        room=list_metadata_room(result.view, result.facts),
        start_seconds=list_start_seconds(result.view, registered_at, context.spec.policy.start_timeout),
    )


def plan_of_view(context: StepContext, view: ClusterView, version: str | None = None, **more: Any) -> dict[str, Any]:
    """The plan of the migration of an observed cluster (`plan_binding.read_plan_facts`)."""
    return plan_migration(read_plan_facts(context, view, version, **more))


def run_preflight(context: StepContext, keep: Callable[[Preflight], object] = lambda _: None) -> tuple[PreflightFinding, ...]:
    """Log, journal and return all findings, after `keep` received them. Raises `Refused` with every blocker."""
    result = observe_preflight(context)
    findings = result.found
    for text in (*result.facts.environment.unread, *map(str, findings)):
        context.say(text)
    context.journal.write(
        "findings",
        "preflight",
        count_of(len(findings), "finding"),
        findings=[finding_to_json(finding) for finding in findings],
    )
    keep(result)
    if reasons := tuple(finding.reason for finding in preflight.blocking_findings(findings)):
        text = f"preflight: {count_of(len(reasons), 'finding blocks', 'findings block')} the migration; nothing was changed. {format_reasons(reasons)}"
        raise Refused(text, reasons)
    unknown = sum(finding.severity is Severity.UNKNOWN for finding in findings)
    context.say(f"Done: nothing blocks the migration; {count_of(len(findings) - unknown, 'warning')}, {unknown} unknown.")
    return findings


def finding_to_json(finding: PreflightFinding) -> dict[str, str]:
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


def _read_facts(context: StepContext, view: ClusterView) -> PreflightFacts:
    configs = {node.id: _read_config(context, node) if view.has_answered(node.id) else None for node in context.spec.brokers}
    own_acts = journal_lines.act_times(
        journal_lines.list_acts(journal_lines.parse_lines(read_journal_lines(context.journals)).lines)
    )
    tools = context.tools
    return PreflightFacts(
        context.spec, tools.chroot, configs, view.metadata_version, own_acts=own_acts, connections=tools.connections
    )


def _read_config(context: StepContext, broker: NodeSpec) -> dict[str, str] | None:
    try:
        return read_effective_config(context.tools.wire(broker), broker.id)
    except (Unavailable, AuthenticationFailed) as error:
        context.say(f"Could not read the configuration of {broker.name}: {error}")
        return None


def run_backup(context: StepContext) -> Done:
    """Save all (`save_all`), and note how many partitions the topics of coordinators have. Raises `Unavailable` if that is not known."""
    done = save_all(context)

    def observe_counts() -> ClusterView:
        return context.observer.observe(Fields.ZOOKEEPER | Fields.BROKERS | Fields.PARTITIONS | Fields.COORDINATORS)

    view = _look_again_while_late(context, observe_counts, _list_late)
    require_gate(coordinator.answers_agree(view))
    note_counts(context, coordinator.counts_to_note(view))
    return done


def save_all(context: StepContext) -> Done:
    """Save every broker's original and ZooKeeper's tree and verify the hashes. Raises `Refused` without an original.

    Until the first broker has moved, a changed file simply is the new original, and the tree is saved again; afterwards a changed
    file is refused, and the tree of before stays. Once the migration is finalized nothing is saved.
    """
    view = context.observer.observe(Fields.POSITION)
    if migration_has_ended(view):  # a broker that was left behind may have any file
        names = context.backup.verify()
        text = f"The migration is finalized: the backup in {context.backup.folder} stays as it is, {count_of(len(names), 'file')} verified by hash."
        context.say(f"Done: {text}")
        return Done(text)
    has_begun = has_migration_begun(view)
    if not has_begun:
        retrying = Retrying(
            stop=stop_after_attempt(_TRIES), wait=wait_fixed(_AGAIN_AFTER), sleep=context.clock.sleep, reraise=True
        )
        context.backup.keep_metadata_version(retrying.copy(retry=retry_if_exception_type(Unavailable))(_read_version, context))
    for node in context.spec.brokers:
        text = context.tools.host(node).read_properties(node)
        if stage_of(parse_properties(text)) is FileStage.ZOOKEEPER:
            keep = context.backup.keep_original if has_begun else context.backup.replace_original
            digest = keep(node, text)
            context.journal.write("backup", node.name, "original server.properties", sha256=digest)
        else:
            context.backup.read_original(node)
            context.say(f"{node.name}: its file is of a later stage; keeping the original in the backup.")
    count = context.backup.keep_tree(context.tools.zk.tree(), once=has_begun)
    names = context.backup.verify()
    sample_group_progress(context)
    text = f"{count_of(count, 'znode')} and {count_of(len(context.spec.brokers), 'original')} saved in {context.backup.folder}, {count_of(len(names), 'file')} verified by hash."
    context.journal.write("done", "backup", text)
    context.say(f"Done: {text}")
    return Done(text)


def _read_version(context: StepContext) -> str:
    """Raises `Unavailable` if a broker did not answer: it may do so a moment later, and nothing is known to differ."""
    view = context.observer.observe(Fields.POSITION)
    facts = _read_facts(context, view)
    if unread := [node.name for node in context.spec.brokers if facts.configs[node.id] is None]:
        text = f"The inter.broker.protocol.version of {join_ids(unread)} was not read; the backup needs it."
        raise Unavailable(f"{text} {format_reasons(view.unknowns)}".strip())
    version = preflight.protocol_version(facts)
    if version is None:
        raise Refused.because(Reason("B1a", "The brokers have different versions of inter.broker.protocol.version."))
    return version
