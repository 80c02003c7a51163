"""An expansion of `__consumer_offsets` (KIP-895) in which no group is split or loses offsets: what each step decides.

A group's offsets are in partition `hash mod n`; a broker learns n only when it starts. While brokers disagree, a group that moves
may have two coordinators or none, and once all agree it is without its offsets. Records that stay in its old partition may replace
newer commits at any later move of a leader. So, in this order:

1. The groups that move are stopped: no broker has a member of them.
2. Their offsets are exported, with leader epochs, metadata and commit times. The raw log must hold the same commits as brokers
   report: brokers leave out topics that the user may not describe.
3. They are deleted under the old count, which leaves tombstones in their old partitions. A broker answers before its followers have
   them. So the log is read until it holds nothing of these groups: no later leader can serve an old commit.
4. The topic gets its partitions. Nothing changes yet: every broker still uses the old count.
5. Every broker restarts. Until the first restart all of this can be undone: the offsets are imported under the old count. The
   topic keeps its partitions, which Kafka cannot remove. From then on it can only be completed.
6. Once all brokers use the new count and each group has one coordinator, the offsets are imported. They are compared with the
   brokers' answers and with the raw log, which must hold each of them once, in the group's new partition.

An integer factor k leaves one group in k where it is, so a new expansion must have one. A topic that was expanded by hand already
(its partitions are there, and no broker has restarted) is completed as it is, or expanded further to a multiple: Kafka cannot
remove partitions. The state of a step is read from the topic, the brokers' answers, the groups, and one note in ZooKeeper (`Expansion`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_kmigrate.core import coordinator, gates, offsets_repair
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen
from airflow_provider_kmigrate.core.coordinator import OFFSETS, TRANSACTIONS, hosts, magnitude
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.files.config_matrix import setting, stage_on_disk
from airflow_provider_kmigrate.core.gates import MET, Gate, never, never_if, not_yet, not_yet_if, together, unmet
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.migration import roll
from airflow_provider_kmigrate.core.model import (
    Broker,
    BrokerMode,
    Cause,
    ClusterView,
    Expansion,
    ExpansionStage,
    FetchedOffset,
    Fields,
    Partition,
    ProcessState,
    Reason,
    could_not_read,
)
from airflow_provider_kmigrate.core.offsets_repair import GroupLog
from airflow_provider_kmigrate.core.phase import alarms, ended, kraft_owns
from airflow_provider_kmigrate.core.text import code_span, join_ids, summarize

FetchedOffsets = Mapping[TopicPartition, FetchedOffset]

WHAT = Fields.BROKERS | Fields.ZOOKEEPER | Fields.PARTITIONS | Fields.COORDINATORS | Fields.HOSTED_GROUPS
"""What the steps about groups observe."""
PLANNED = WHAT | Fields.FILES | Fields.REASSIGNMENTS
"""What the plan observes."""
VERSION = 3
"""Of the stored form of an `Export`."""
_DEFAULT_COUNT = "50"  # Kafka's, of offsets.topic.num.partitions
_MULTIPLES = 3  # that a refusal names


@dataclass(frozen=True, slots=True)
class Export:
    """The offsets of the groups that move, as they were before the groups were deleted; the backup keeps two copies.

    `with_members`: groups that move and had members when the expansion began. `number`: grows with each writing. `times`: when each
    offset was committed, in ms since the epoch; an import cannot restore it, and brokers count retention from the import.
    """

    with_members: tuple[str, ...] = ()
    groups: Mapping[str, FetchedOffsets] = field(default_factory=dict)
    number: int = 0
    times: Mapping[GroupPartition, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON values; each offset is `[topic, partition, offset, leader epoch, metadata, commit time or null]`."""
        rows = {
            group: [
                [*where, one.offset, one.leader_epoch, one.metadata, self.times.get(GroupPartition(group, *where))]
                for where, one in sorted(offsets.items())
            ]
            for group, offsets in sorted(self.groups.items())
        }
        return {"version": VERSION, "number": self.number, "with_members": list(self.with_members), "groups": rows}


def export_of(found: Mapping[str, Any]) -> Export:
    """Read the output of `Export.to_json`. Raises ValueError, TypeError or KeyError for anything else."""
    if found["version"] not in {2, VERSION}:
        raise ValueError(f"version {found['version']}")
    groups, times = dict[str, FetchedOffsets](), dict[GroupPartition, int]()
    for group, rows in found["groups"].items():
        groups[group] = {TopicPartition(topic, at): FetchedOffset(*one) for topic, at, *one, _ in rows}
        times |= {GroupPartition(group, topic, at): t_ms for topic, at, _, _, _, t_ms in rows if t_ms is not None}
    return Export(tuple(found["with_members" if found["version"] == VERSION else "alive"]), groups, int(found["number"]), times)


def commits_of(groups: Mapping[str, FetchedOffsets]) -> dict[GroupPartition, FetchedOffset]:
    """The offsets of groups, by group and partition."""
    return {GroupPartition(group, *where): one for group, offsets in groups.items() for where, one in offsets.items()}


# Which groups move


def moves(group: str, expansion: Expansion) -> bool:
    """Whether the group's partition changes; if it is not certain which count brokers used, by any that explains their answers."""
    number = magnitude(group)
    return any(number % old != number % expansion.new for old in expansion.old)


def moving(view: ClusterView, expansion: Expansion) -> list[str]:
    """The groups that brokers list, or have anything of, and that move; by name."""
    listed = set(view.coordinators.groups if view.coordinators else ())
    hosted = {name for groups in (view.hosted or {}).values() for name, group in groups.items() if group.exists}
    return sorted(group for group in listed | hosted if moves(group, expansion))


def moving_names(view: ClusterView, names: Collection[str]) -> list[str]:
    """Those of these groups that the expansion under way moves, by name."""
    note = _note(view)
    return sorted(name for name in names if note is not None and moves(name, note))


# The plan


def decide_plan(view: ClusterView, target: int) -> Expansion | Wait | Refuse:
    """The expansion to `target` partitions that may begin, or is under way; from a view of `PLANNED`."""
    expansion = under_way(view, target)
    if not isinstance(expansion, Expansion) or expansion == _note(view):  # a broker may be down, between its stop and its start
        return expansion
    gate = together((coordinator.groups_known(view), roll.no_reassignment(view), _no_transaction(view, expansion)))
    return expansion if gate.met else unmet(gate)


def decide_undo(view: ClusterView, target: int) -> Expansion | Wait | Refuse:
    """The expansion to undo, if one is under way and no broker uses the new count."""
    found = _undoable(view, target)
    return decide_plan(view, target) if isinstance(found, Expansion) else found


def _undoable(view: ClusterView, target: int) -> Expansion | Wait | Refuse:
    found = _begun(view, target)
    if isinstance(found, Done):
        return Refuse((_too_late("All brokers"),))
    using = _may_use_new(view, found) if isinstance(found, Expansion) else ()
    return Refuse((_too_late(f"Brokers {join_ids(using)}"),)) if using else found


def _too_late(brokers: str) -> Reason:
    return Reason("K83", f"{brokers} use the new count: this can only be completed now, not undone.")


def describe(view: ClusterView, expansion: Expansion, *, undo: bool) -> str:
    """What an expansion does, or its undo, as Markdown for the administrator who approves it."""
    old, new = _either(expansion.old), expansion.new
    if undo:
        return "\n".join((*_numbered(_undone(old)), f"\n{_stays(view, expansion)}"))
    multiple = all(new % each == 0 for each in expansion.old)
    move, members = moving(view, expansion), with_members(view, expansion)
    staying = {*(view.coordinators.groups if view.coordinators else ())} - {*move}
    named = summarize((f"{code_span(group)} ({many})" for group, many in members.items()), 200)
    paragraphs = (
        "An earlier run has begun this; each step does what is left." if expansion == _note(view) else "",
        f"`{OFFSETS.name}` goes from {old} to {new} partitions."
        + ("" if multiple else f" {new} is no multiple of {old}: a multiple would move fewer."),
        f"**{len(move)} groups move and must stop now**, until their offsets are imported: {summarize(map(code_span, move), 200)}."
        + (f" With members now: {named}." if named else "")
        + f" {len(staying)} groups stay in their partitions and are not touched.",
        "\n".join(_numbered(_steps(view, expansion))),
        "Until step 5 this can be undone (`undo`). From the first restart on it can only be completed.",
    )
    return "\n\n".join(filter(None, paragraphs))


def _steps(view: ClusterView, expansion: Expansion) -> list[str]:
    added = [f"{index}: {join_ids(row)}" for index, row in enumerate(replicas_wanted(view, expansion), len(_topic(view)))]
    grow = (
        f"the topic gets {len(added)} partitions; replicas of each: {summarize(added, 30, '; ')}"
        if added
        else "the topic has its partitions already"
    )
    return [
        "wait until no broker has a member of a group that moves",
        f"export their offsets into the backup, in two copies with SHA-256, and compare them with the log of {OFFSETS.name}",
        f"delete these groups, under the count that brokers use now, until {OFFSETS.name} holds nothing of them",
        grow,
        f"restart every broker ({join_ids(sorted(view.brokers))}), one after the other, with `{OFFSETS.setting}={expansion.new}` in its file",
        "wait until all brokers use the new count and every group has one coordinator",
        f"import the offsets and compare them with the brokers' answers and with the log of {OFFSETS.name}",
        "wait until the groups that moved consume again: start them then",
    ]


def _undone(old: str) -> list[str]:
    return [
        "refuse if any broker uses the new count already",
        f"import the exported offsets under the count that brokers use ({old}), and read them back",
        "forget this expansion; start the groups then",
    ]


def _stays(view: ClusterView, expansion: Expansion) -> str:
    """What an undo does not restore."""
    present = len(_topic(view))
    if present in expansion.old:
        return "Nothing else was changed."
    return (
        f"What stays: {OFFSETS.name} has {present} partitions, and Kafka cannot remove any. Brokers use {_either(expansion.old)} until one "
        "restarts (K01): restart none before this expansion is run again."
    )


def _numbered(lines: Sequence[str]) -> Iterator[str]:
    return (f"{number}. {line}" for number, line in enumerate(lines, 1))


def _either(counts: Collection[int]) -> str:
    return " or ".join(map(str, sorted(counts, reverse=True)))


# What is under way


def _note(view: ClusterView) -> Expansion | None:
    return view.zk.expansion if view.zk else None


def _begun(view: ClusterView, target: int) -> Expansion | Done | Wait | Refuse:
    """The expansion under way, Done if it is over, or a refusal if none to `target` has begun."""
    if view.zk is None or view.partitions is None:
        return Wait((could_not_read("ZooKeeper or the partitions"),))
    note = view.zk.expansion
    if note is not None and note.over and note.new == target == len(_topic(view)):
        return Done(f"{OFFSETS.name} has {target} partitions and every group that moved has its offsets: nothing is left to do.")
    if note is None or note.over:
        return Refuse((Reason("K83", f"No expansion to {target} partitions has begun. Clear `moving_groups.stopped`."),))
    return under_way(view, target)


def under_way(view: ClusterView, target: int) -> Expansion | Wait | Refuse:
    """The expansion that our note names, or one that may begin."""
    if view.zk is None:
        return Wait((could_not_read("ZooKeeper"),))
    note = view.zk.expansion
    if note is None or note.over:
        return _may_begin(view, target)
    if note.new == target:
        return note
    text = f"An expansion of {OFFSETS.name} to {note.new} partitions is under way, not to {target}."
    return Refuse((Reason("K83", text),))


def _may_begin(view: ClusterView, target: int) -> Expansion | Wait | Refuse:
    """Whether a new expansion may begin, and from which count."""
    if view.partitions is None:
        return Wait((could_not_read("the partitions"),))
    rows = _topic(view)
    if not rows:
        return Refuse((Reason("K83", f"{OFFSETS.name} does not exist."),))
    old = _used(view, _counts(view))
    gate = together(
        (
            roll.no_other_down(view),
            _in_sync(rows),
            coordinator.agreed(view, only=TRANSACTIONS),
            _same_files(view),
            _all_alike(view, old),
            _allowed(old, len(rows), target),
        )
    )
    return Expansion(tuple(sorted(old)), target) if gate.met else unmet(gate)


def _used(view: ClusterView, counts: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """The counts that explain all brokers' answers; one of them if it is proven, or if our note says which was used before."""
    present, unchanged = len(_topic(view)), view.zk is not None and view.zk.topic_versions.get(OFFSETS.name) == 0
    configured = (
        {broker.id: int(value) for broker in view.brokers.values() if (value := _configured(broker))} if unchanged else None
    )
    verdict = coordinator.uniform(counts, present, view.brokers, configured)
    if verdict.agreement is coordinator.Agreement.PROVEN:
        return frozenset({present})
    alike = {counts.get(broker, frozenset()) for broker in view.brokers}
    used = alike.pop() if len(alike) == 1 else frozenset()
    noted = (view.zk.partition_counts or {}).get(OFFSETS.name) if view.zk is not None else None
    return frozenset({noted}) if noted in used and noted != present else used


def _configured(broker: Broker) -> str | None:
    if broker.files.properties is None:
        return None
    value = setting(broker.files.properties, OFFSETS.setting) or _DEFAULT_COUNT
    return value if value.isdecimal() else None


def _same_files(view: ClusterView) -> Gate:
    """B18: every file has the same count for a topic that is created again; a file that was not read is "not yet"."""
    unread = [broker.id for broker in view.brokers.values() if broker.files.properties is None]
    if unread:
        return not_yet(could_not_read(f"the properties of brokers {join_ids(unread)}"))
    found = {broker.id: _configured(broker) or "no number" for broker in view.brokers.values()}
    named = ", ".join(f"broker {broker} has {value}" for broker, value in found.items())
    return never_if(len(set(found.values())) > 1, Reason("B18", f"{OFFSETS.setting} differs in the files: {named}."))


def _all_alike(view: ClusterView, old: frozenset[int]) -> Gate:
    """K01, K02: every broker answered, and the same counts explain the answers of each."""
    if old:
        return MET
    counts = _counts(view)
    unread = [broker for broker in view.brokers if not counts.get(broker)]
    if unread or not counts:
        return not_yet(Reason("K02", f"Which count of {OFFSETS.name} brokers {join_ids(unread) or 'all'} use is not known."))
    named = "; ".join(f"broker {broker} with {_either(found)}" for broker, found in sorted(counts.items()))
    return never(Reason("K01", f"Brokers compute with different counts of {OFFSETS.name}: {named}."))


def _allowed(old: frozenset[int], present: int, target: int) -> Gate:
    """K83: `target` is a multiple of the count in use, or what the topic already has while brokers do not use it yet."""
    if not old:
        return MET  # refused by `_all_alike`
    base = present if present in old else max(old)
    unused = present not in old
    good = [base * factor for factor in range(1, present // base + _MULTIPLES + 1) if base * factor > present]
    named = f"Multiples of {base} that are allowed: {', '.join(map(str, good[:_MULTIPLES]))}."
    if unused:
        named += f" The topic has {present} partitions already, which no broker uses: {present} is allowed, too."
    if target < present or (target == present and not unused):
        return never(Reason("K83", f"{OFFSETS.name} has {present} partitions, and cannot get {target}. {named}"))
    wrong = target % base != 0 and not (unused and target == present)
    return never_if(
        wrong, Reason("K83", f"{target} is no multiple of {base}, the count of {OFFSETS.name} that brokers use. {named}")
    )


def _topic(view: ClusterView) -> list[Partition]:
    return [row for row in view.partitions or () if row.topic == OFFSETS.name]


def _counts(view: ClusterView) -> Mapping[int, frozenset[int]]:
    return view.coordinators.counts.get(OFFSETS.name, {}) if view.coordinators else {}


def _in_sync(rows: Collection[Partition]) -> Gate:
    behind = sorted(row for row in rows if row.under_replicated or row.leader < 0)
    text = f"{len(behind)} partitions of {OFFSETS.name} are under-replicated or without leader: {summarize(row.name for row in behind)}."
    return not_yet_if(behind, Reason("S02", text))


def uses_new(view: ClusterView, broker: int, expansion: Expansion) -> bool:
    """Whether a broker certainly uses the new count."""
    possible = _counts(view).get(broker, frozenset())
    return expansion.new in possible and not possible & set(expansion.old)


def _uses_old(view: ClusterView, broker: int, expansion: Expansion) -> bool:
    possible = _counts(view).get(broker, frozenset())
    return expansion.new not in possible and bool(possible & set(expansion.old))


def _using_new(view: ClusterView, expansion: Expansion) -> list[int]:
    """Brokers that use the new count: there is no undo then."""
    return [broker for broker in sorted(view.brokers) if uses_new(view, broker, expansion)]


def _restarting(view: ClusterView, expansion: Expansion) -> Done | Refuse | None:
    """Whether the restarts have begun, as far as known: then the groups are not touched any more.

    A broker that is down may be one that a killed task has left between its stop and its start. If it is not, the first restart
    still waits for everything that comes before it. Refused if a broker was restarted by something else before the offsets were saved.
    """
    if expansion.stage is ExpansionStage.BEGUN:
        return _restarted_too_early(view, expansion)
    if using := _using_new(view, expansion):
        return Done(f"Brokers {join_ids(using)} use the new count already: what was exported before counts.")
    down = view.in_mode(None)
    if down and len(_topic(view)) == expansion.new:
        return Done(f"Brokers {join_ids(down)} do not answer, and the topic has its partitions: a restart may be under way.")
    return None


def _restarted_too_early(view: ClusterView, expansion: Expansion) -> Done | Refuse | None:
    """K01: a broker uses another count although no offset is safe yet; Done if all do, which only restarts by hand bring about."""
    changed = [broker for broker in sorted(view.brokers) if (of := _counts(view).get(broker)) and not of & set(expansion.old)]
    if changed and changed == sorted(view.brokers) == _using_new(view, expansion):
        return Done(
            f"All brokers use the new count, and this expansion has deleted nothing. {OFFSETS.name} must be repaired: the DAG "
            f"kmigrate_offsets_repair__{view.name}."
        )
    text = f"Brokers {join_ids(changed)} have restarted, and use another count, before the offsets of the groups that move were saved."
    return Refuse((Reason("K01", text),)) if changed else None


def _may_use_new(view: ClusterView, expansion: Expansion) -> list[int]:
    """Brokers that use the new count, or may: their answers fit both, and their file, which is written before a restart, has the new."""
    new = {None, str(expansion.new)}
    unclear = {broker for broker in view.brokers if not _uses_old(view, broker, expansion) and _counts(view).get(broker)}
    return sorted({*_using_new(view, expansion), *(broker for broker in unclear if _configured(view.broker(broker)) in new)})


# Groups that move: stopped, exported, deleted


def with_members(view: ClusterView, expansion: Expansion) -> dict[str, int]:
    """The groups that move and have members, with the number of members."""
    return coordinator.with_members(view, moving(view, expansion))


def _stopped(view: ClusterView, expansion: Expansion) -> Gate:
    """K79: no broker has a member of a group that moves."""
    named = [f"{group} ({members})" for group, members in with_members(view, expansion).items()]
    return not_yet_if(named, Reason("K79", f"{len(named)} groups that move have members: {summarize(named, 20)}."))


def _no_transaction(view: ClusterView, expansion: Expansion) -> Gate:
    """K81: no open transaction delays a commit of a group that moves."""
    held = [name for name in moving(view, expansion) if any(copy.unstable for copy in hosts(view, name).values())]
    return not_yet_if(held, Reason("K81", f"Open transactions hold back commits of groups that move: {summarize(held, 20)}."))


def existing(view: ClusterView, expansion: Expansion) -> dict[str, FetchedOffsets]:
    """The groups that move and that a broker has anything of, with their offsets."""
    copies = {group: [copy for copy in hosts(view, group).values() if copy.exists] for group in moving(view, expansion)}
    return {
        group: {where: one for copy in those for where, one in copy.offsets.items()} for group, those in copies.items() if those
    }


def decide_stopped(view: ClusterView, target: int) -> Decision:
    """Note that the expansion begins, and which groups have members; then wait until no group that moves has one."""
    begun = _begun(view, target)
    expansion = under_way(view, target) if isinstance(begun, Refuse) else begun
    if not isinstance(expansion, Expansion):
        return expansion
    if past := _restarting(view, expansion):
        return past
    known = coordinator.groups_known(view)
    if known.met and expansion != _note(view):
        there = with_members(view, expansion)
        return Act(Verb.NOTE, f"The expansion begins. {len(there)} groups that move have members: {summarize(there, 20)}.")
    gate = together((known, _stopped(view, expansion)))
    return gates.as_decision(gate, f"No broker has a member of the {len(moving(view, expansion))} groups that move.")


def decide_export(view: ClusterView, target: int, export: Export) -> Decision:
    """Save the offsets of every group that moves, until the export has them as brokers have them."""
    expansion = _quiet(view, target)
    if not isinstance(expansion, Expansion):
        return expansion
    there, saved = existing(view, expansion), export.groups
    changed = sorted(group for group, offsets in there.items() if saved.get(group, offsets) != offsets)
    if expansion.stage is not ExpansionStage.BEGUN and changed:
        return Refuse((_differs(changed, "after they were exported, and groups were being deleted"),))
    if to_export(view, expansion, export) != saved:
        return Act(Verb.EXPORT, f"No member is left. Saving the offsets of {len(there)} groups: {summarize(sorted(there))}.")
    return Done(f"The offsets of {len(saved)} groups that move are in the backup, in two copies.")


def to_export(view: ClusterView, expansion: Expansion, export: Export) -> Mapping[str, FetchedOffsets]:
    """The groups as the export must have them: what brokers have, and what was deleted since the export."""
    there = existing(view, expansion)
    return there if expansion.stage is ExpansionStage.BEGUN else {**export.groups, **there}


def exported(view: ClusterView, expansion: Expansion, export: Export, log: Mapping[str, GroupLog]) -> Export | Refuse:
    """The next export; refused if the log of the groups that exist has other commits than brokers report.

    The time of an unchanged offset stays: a task that was killed may have committed it again before a deletion.
    """
    there, groups = existing(view, expansion), to_export(view, expansion, export)
    if wrong := offsets_repair.unlike(log, commits_of(there), expansion.old):
        return Refuse((unlike_log(wrong),))
    before, now = commits_of(export.groups), commits_of(groups)
    unchanged = {key: time for key, time in export.times.items() if key in now and before.get(key) == now[key]}
    return Export(export.with_members, groups, export.number + 1, {**offsets_repair.commit_times(log), **unchanged})


def unlike_log(wrong: Sequence[str]) -> Reason:
    """K85: how the log differs from what brokers report, or from what was exported."""
    return Reason("K85", f"{OFFSETS.name} holds {len(wrong)} other commits than it must: {summarize(wrong, apart='; ')}.")


def decide_delete(view: ClusterView, target: int, export: Export) -> Decision:
    """Delete every group that moves, under the count that brokers use now, if the export has exactly its offsets."""
    expansion = _quiet(view, target)
    if not isinstance(expansion, Expansion):
        return expansion
    there = existing(view, expansion)
    if wrong := sorted(group for group, offsets in there.items() if export.groups.get(group) != offsets):
        return Refuse((_differs(wrong, "since the export"),))
    if there:
        text = f"The export has the offsets of {len(there)} groups: deleting them, {summarize(sorted(there))}."
        return Act(Verb.DELETE_GROUPS, text)
    if expansion.stage is not ExpansionStage.DELETED:
        return Act(Verb.DELETE_GROUPS, f"No broker has anything left of a group that moves: reading whether {OFFSETS.name} has.")
    return Done(f"Neither a broker nor {OFFSETS.name} has anything left of a group that moves.")


def _quiet(view: ClusterView, target: int) -> Expansion | Done | Wait | Refuse:
    """The expansion under way, if groups may be exported or deleted now: brokers use the old count, no group that moves has members."""
    expansion = _begun(view, target)
    if not isinstance(expansion, Expansion):
        return expansion
    if past := _restarting(view, expansion):
        return past
    gate = together((coordinator.groups_known(view), _stopped(view, expansion), _no_transaction(view, expansion)))
    return expansion if gate.met else unmet(gate)


def _differs(groups: Sequence[str], when: str) -> Reason:
    return Reason("K82", f"{len(groups)} groups committed {when}: {summarize(groups, 20)}.")


# The topic and the brokers


def decide_expand(view: ClusterView, target: int) -> Decision:
    """Give the topic its partitions, once no group that moves exists, and wait until all are in sync."""
    expansion, rows = _begun(view, target), _topic(view)
    if not isinstance(expansion, Expansion):
        return expansion
    if len(rows) == target:
        done = f"{OFFSETS.name} has {target} partitions, all in sync."
        return _restarting(view, expansion) or gates.as_decision(_in_sync(rows), done)
    gate = together((_ready(view, expansion), roll.no_other_down(view), _in_sync(rows), roll.no_reassignment(view)))
    if not gate.met:
        return unmet(gate)
    return Act(Verb.EXPAND, f"No broker has anything of a group that moves: {OFFSETS.name} gets {target - len(rows)} partitions.")


def _ready(view: ClusterView, expansion: Expansion) -> Gate:
    """Brokers may begin to disagree: nothing is left of the groups that move, and they were exported."""
    if expansion.stage is not ExpansionStage.DELETED:
        text = "The groups that move were not deleted yet. Clear `moving_groups.stopped` and its downstream tasks."
        return never(Reason("K83", text))
    known = together((coordinator.groups_known(view), _stopped(view, expansion)))
    left = sorted(existing(view, expansion)) if known.met else []
    text = f"{len(left)} groups that move appeared since the export: {summarize(left, 20)}."
    return together((known, never_if(left, Reason("K82", text))))


def replicas_wanted(view: ClusterView, expansion: Expansion) -> list[list[int]]:
    """The replicas of each partition that the topic still misses."""
    racks = {broker.id: broker.rack for broker in view.brokers.values()}
    return coordinator.new_replicas(_topic(view), racks, expansion.new, expansion.old)


def mode_of(broker: Broker) -> BrokerMode | None:
    """The mode that a broker's file gives it; None if that was not read."""
    stage = stage_on_disk(broker.files)
    return next((mode for mode, its in roll.STAGE.items() if its is stage), None)


def decide_restart(view: ClusterView, broker_id: int, target: int, *, restarted: bool) -> Decision:
    """What is left to do until one broker has read the new count. `restarted`: by this process, whatever its answers show.

    The file is written before the stop. So a stopped broker whose file has the new count was stopped by us, and is started.
    """
    broker, mode = view.broker(broker_id), mode_of(view.broker(broker_id))
    if mode is None:
        return Wait((could_not_read(f"the properties of broker {broker_id}"),))
    ours = _configured(broker) == str(target)
    if broker.process.state is ProcessState.STOPPED:
        return _stopped_broker(broker, mode, ours=ours)
    if broker.mode is None:
        return roll.unresponsive(broker)
    if ours and restarted:
        return roll.settled(view, broker, mode)
    expansion = _begun(view, target)
    if not isinstance(expansion, Expansion):
        return expansion
    return _reread(view, broker, expansion, mode, ours=ours)


def _reread(view: ClusterView, broker: Broker, expansion: Expansion, mode: BrokerMode, *, ours: bool) -> Decision:
    if ours and view.coordinators is None:
        return Wait((coordinator.NOT_ASKED,))
    if not uses_new(view, broker.id, expansion):
        return _restart(view, broker, expansion)
    if ours:
        return roll.settled(view, broker, mode)
    return Act(Verb.REWRITE, f"Broker {broker.id} uses the new count, but its file does not have it: writing the file.")


def _stopped_broker(broker: Broker, mode: BrokerMode, *, ours: bool) -> Decision:
    if not ours:
        text = f"Broker {broker.id} is down, but this step did not stop it: its file does not have the new count."
        return Wait((Reason("R01", text),))
    if mode is not BrokerMode.KRAFT and broker.in_zookeeper is not False:
        return roll.session_not_over(broker)
    return Act(Verb.START, f"Broker {broker.id} is stopped and its file has the new count: continuing an interrupted restart.")


def _restart(view: ClusterView, broker: Broker, expansion: Expansion) -> Decision:
    if len(_topic(view)) != expansion.new:
        return Refuse((Reason("K83", f"{OFFSETS.name} does not have its {expansion.new} partitions yet. Clear `expand` first."),))
    danger = [reason for reason in alarms(view) if reason.cause is not Cause.UNFLAGGED_CONTROLLER]
    gate = together(
        (
            gates.process_known(broker),
            never_if(danger, *danger),
            _controllers(view),
            roll.no_reassignment(view),
            roll.may_stop(view, (broker.id,)),
        )
    )
    # Read last: several requests to every broker. Once one broker uses the new count, the others must follow soon: groups that
    # appeared since are split, or without a coordinator, exactly as long as brokers disagree.
    if gate.met:
        gate = together((coordinator.agreed(view, only=TRANSACTIONS), coordinator.groups_known(view)))
    if gate.met and not _using_new(view, expansion):
        gate = _ready(view, expansion)
    text = f"Broker {broker.id} may stop: every partition keeps enough in-sync replicas, and no group that moves has members."
    return Act(Verb.RESTART, text) if gate.met else unmet(gate)


def _controllers(view: ClusterView) -> Gate:
    """While KRaft owns the cluster, a broker that starts needs its controllers, and before the finalization their flags."""
    if not kraft_owns(view):
        return MET
    return together((gates.quorum_healthy(view), MET if ended(view) else gates.all_flagged(view)))


def decide_one_coordinator(view: ClusterView, target: int) -> Decision:
    """Wait until every broker uses the new count and each group has exactly one coordinator, the leader of its partition."""
    if view.partitions is None or len(_topic(view)) != target:
        return Wait((Reason("K83", f"{OFFSETS.name} does not have {target} partitions yet."),))
    groups = view.coordinators.groups if view.coordinators else ()
    gate = together((coordinator.answers_agree(view), coordinator.groups_known(view)))
    gate = _one_each(view, target, groups) if gate.met else gate
    text = f"Every broker uses {target} partitions of {OFFSETS.name}, and each of {len(groups)} groups has one coordinator."
    return Done(text) if gate.met else Wait(gate.reasons)


def _one_each(view: ClusterView, count: int, groups: Collection[str]) -> Gate:
    leaders = {row.index: row.leader for row in _topic(view)}
    accepted = {group: list(hosts(view, group)) for group in sorted(groups)}
    wrong = [
        f"{group} ({join_ids(brokers) or 'none'}, not {leaders.get(magnitude(group) % count, -1)})"
        for group, brokers in accepted.items()
        if brokers != [leaders.get(magnitude(group) % count, -1)]
    ]
    return not_yet_if(wrong, Reason("K01", f"{len(wrong)} groups do not have one coordinator: {summarize(wrong)}."))


# The import


def decide_import(view: ClusterView, target: int, export: Export, *, undo: bool = False) -> Decision:
    """Commit the exported offsets, until each group's coordinator has exactly them. `undo`: under the old count."""
    expansion = _may_import(view, target, export, undo=undo)
    if not isinstance(expansion, Expansion):
        return expansion
    if expansion.stage is ExpansionStage.BEGUN:
        return Done("Nothing was deleted: no group needs its offsets from the export.")
    missing, conflicts = compared(view, export)
    if missing:
        text = f"Each has one coordinator: committing the offsets of {len(missing)} groups, {summarize(sorted(missing))}."
        return Act(Verb.IMPORT, text)
    if conflicts:
        return Refuse((_differs(conflicts, "before their offsets were imported"),))
    there = _existing_places(view)
    lost = sum(where not in there for offsets in export.groups.values() for where in offsets)
    gone = f" {lost} offsets are of partitions that no longer exist." if lost else ""
    return Done(f"{len(export.groups)} groups have exactly the offsets of the export, by their coordinators' answers.{gone}")


def decide_verify(view: ClusterView, target: int, export: Export, *, sure: bool, undo: bool = False) -> Decision:
    """Compare the offsets once more and end the expansion. `sure`: they were equal in the observations before, too."""
    decision = decide_import(view, target, export, undo=undo)
    if isinstance(decision, Act):
        return Wait((Reason("K82", "The offsets of some groups are not imported yet. Clear `import`."),))
    note = _note(view)
    if not isinstance(decision, Done) or note is None or note.over:
        return decision
    if not sure:
        return Wait((Reason("T01", "Comparing the offsets again."),), healthy=True)
    return Act(Verb.NOTE, f"{decision.text} The groups may start. {_stays(view, note) if undo else ''}".strip())


def _may_import(view: ClusterView, target: int, export: Export, *, undo: bool) -> Expansion | Done | Wait | Refuse:
    """The expansion under way, if its offsets may be committed now."""
    if undo and view.zk is not None and view.zk.expansion is None:
        return Done("No expansion is under way: nothing is left to undo.")
    note = _undoable(view, target) if undo else _begun(view, target)
    if not isinstance(note, Expansion):
        return note
    gate = together((coordinator.groups_known(view), _all_use(view, note, undo=undo)))
    if gate.met and not undo:
        gate = _one_each(view, target, export.groups)
    return note if gate.met else Wait(gate.reasons)


def _all_use(view: ClusterView, expansion: Expansion, *, undo: bool) -> Gate:
    counts, allowed = _counts(view), set(expansion.old if undo else (expansion.new,))
    unread = [broker for broker in sorted(view.brokers) if not counts.get(broker)]
    wrong = [broker for broker in sorted(view.brokers) if broker not in unread and not counts[broker] & allowed]
    others = f"Brokers {join_ids(wrong)} do not use {_either(allowed)} partitions of {OFFSETS.name} yet."
    unknown = f"Which count brokers {join_ids(unread)} use is not known."
    return together((not_yet_if(wrong, Reason("K01", others)), not_yet_if(unread, Reason("K02", unknown))))


def compared(view: ClusterView, export: Export) -> tuple[dict[str, FetchedOffsets], list[str]]:
    """The groups that miss their offsets, and those that have others or members."""
    missing, conflicts, there = dict[str, FetchedOffsets](), list[str](), _existing_places(view)
    for group, wanted in sorted(importable(view, export.groups).items()):
        found = list(hosts(view, group).values())
        offsets = {where: one for copy in found for where, one in copy.offsets.items() if where in there}
        if offsets == wanted:
            continue
        if len(found) == 1 and not found[0].members and offsets.items() <= wanted.items():
            missing[group] = wanted
        else:
            conflicts.append(group)
    return missing, conflicts


def importable(view: ClusterView, groups: Mapping[str, FetchedOffsets]) -> dict[str, FetchedOffsets]:
    """The offsets of partitions that exist: brokers refuse all others."""
    there = _existing_places(view)
    return {group: {where: one for where, one in offsets.items() if where in there} for group, offsets in groups.items()}


def _existing_places(view: ClusterView) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(row.topic, row.index) for row in view.partitions or ())


# Progress


def decide_progress(view: ClusterView, first: ClusterView, names: Collection[str]) -> Decision:
    """Wait until each of these groups has members again, and has committed since, or has nothing left to read."""
    if view.groups is None:
        return Wait((could_not_read("the groups that moved"),))
    waiting = [name for name in names if not _works(view.groups.get(name), (first.groups or {}).get(name))]
    if waiting:
        text = f"{len(waiting)} of {len(names)} groups do not consume yet: {summarize(waiting, 20)}. They may start now."
        return Wait((Reason("K84", text),))
    return Done(f"{len(names)} groups that had members before consume again.")


def _works(now: GroupSeen | None, before: GroupSeen | None) -> bool:
    """Whether a group has members, and has committed since, or has read every partition that it commits to its end."""
    if now is None or now.kafka is None or now.committed is None or not now.kafka.members:
        return False
    earlier = (before.committed if before else None) or {}
    behind = [where for where, offset in now.committed.items() if offset < (now.ends or {}).get(where, offset)]
    return not behind or any(offset > earlier.get(where, offset) for where, offset in now.committed.items())
