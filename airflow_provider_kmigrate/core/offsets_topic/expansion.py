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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Verb, Wait
from airflow_provider_kmigrate.core.cluster_state.model import (
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
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.ledger.book import GroupPartition
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen
from airflow_provider_kmigrate.core.migration import coordinator, gates, roll
from airflow_provider_kmigrate.core.migration.coordinator import OFFSETS, TRANSACTIONS, find_hosts, hash_group
from airflow_provider_kmigrate.core.migration.gates import (
    MET,
    Gate,
    combine_gates,
    never,
    never_if,
    not_yet,
    not_yet_if,
    refuse_or_wait,
)
from airflow_provider_kmigrate.core.migration.phase import find_alarms, kraft_owns, migration_has_ended
from airflow_provider_kmigrate.core.node_files.config_matrix import read_setting, stage_on_disk
from airflow_provider_kmigrate.core.offsets_topic import offsets_repair
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import GroupLog
from airflow_provider_kmigrate.core.shared.text import code_span, count_of, join_ids, summarize

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
                [
                    *partition,
                    fetched.offset,
                    fetched.leader_epoch,
                    fetched.metadata,
                    self.times.get(GroupPartition(group, *partition)),
                ]
                for partition, fetched in sorted(offsets.items())
            ]
            for group, offsets in sorted(self.groups.items())
        }
        return {"version": VERSION, "number": self.number, "with_members": list(self.with_members), "groups": rows}


def parse_export(document: Mapping[str, Any]) -> Export:
    """Read the output of `Export.to_json`. Raises ValueError, TypeError or KeyError for anything else."""
    if document["version"] not in {2, VERSION}:
        raise ValueError(f"version {document['version']}")
    groups, times = dict[str, FetchedOffsets](), dict[GroupPartition, int]()
    for group, rows in document["groups"].items():
        groups[group] = {TopicPartition(topic, partition): FetchedOffset(*fields) for topic, partition, *fields, _ in rows}
        times |= {GroupPartition(group, topic, partition): t_ms for topic, partition, _, _, _, t_ms in rows if t_ms is not None}
    return Export(
        tuple(document["with_members" if document["version"] == VERSION else "alive"]), groups, int(document["number"]), times
    )


def commits_by_partition(groups: Mapping[str, FetchedOffsets]) -> dict[GroupPartition, FetchedOffset]:
    """The offsets of groups, by group and partition."""
    return {
        GroupPartition(group, *partition): fetched for group, offsets in groups.items() for partition, fetched in offsets.items()
    }


# Which groups move


def is_moved_by(group: str, expansion: Expansion) -> bool:
    """Whether the group's partition changes; if it is not certain which count brokers used, by any that explains their answers."""
    number = hash_group(group)
    return any(number % old != number % expansion.new for old in expansion.old)


def moving_groups(view: ClusterView, expansion: Expansion) -> list[str]:
    """The groups that brokers list, or have anything of, and that move; by name."""
    listed_groups = set(view.coordinators.groups if view.coordinators else ())
    hosted_groups = {name for groups in (view.hosted or {}).values() for name, group in groups.items() if group.exists}
    return sorted(group for group in listed_groups | hosted_groups if is_moved_by(group, expansion))


def select_moving_groups(view: ClusterView, names: Collection[str]) -> list[str]:
    """Those of these groups that the expansion under way moves, by name."""
    note = _noted_expansion(view)
    return sorted(name for name in names if note is not None and is_moved_by(name, note))


# The plan


def decide_plan(view: ClusterView, target: int) -> Expansion | Wait | Refuse:
    """The expansion to `target` partitions that may begin, or is under way; from a view of `PLANNED`."""
    expansion = expansion_under_way(view, target)
    if not isinstance(expansion, Expansion) or expansion == _noted_expansion(
        view
    ):  # a broker may be down, between its stop and its start
        return expansion
    gate = combine_gates((coordinator.groups_known(view), roll.no_reassignment(view), _no_open_transaction(view, expansion)))
    return expansion if gate.met else refuse_or_wait(gate)


def decide_undo(view: ClusterView, target: int) -> Expansion | Wait | Refuse:
    """The expansion to undo, if one is under way and no broker uses the new count."""
    undoable = _undoable_expansion(view, target)
    return decide_plan(view, target) if isinstance(undoable, Expansion) else undoable


def _undoable_expansion(view: ClusterView, target: int) -> Expansion | Wait | Refuse:
    expansion = _find_expansion_to_continue(view, target)
    if isinstance(expansion, Done):
        return Refuse((_too_late_reason("All brokers"),))
    using = _brokers_maybe_using_new(view, expansion) if isinstance(expansion, Expansion) else ()
    return Refuse((_too_late_reason(f"Brokers {join_ids(using)}"),)) if using else expansion


def _too_late_reason(brokers: str) -> Reason:
    return Reason("K83", f"{brokers} use the new count: this can only be completed now, not undone.")


def describe_expansion(view: ClusterView, expansion: Expansion, *, undo: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What an expansion does, or its undo: the steps in words; and what it means for groups, or what an undo leaves."""
    if undo:
        return tuple(_describe_undo_steps(_format_counts(expansion.old))), (_describe_leftovers(view, expansion),)
    group_names, new = moving_groups(view, expansion), expansion.new
    staying = {*(view.coordinators.groups if view.coordinators else ())} - {*group_names}
    old, multiple = _format_counts(expansion.old), all(new % count == 0 for count in expansion.old)
    members = dict(moving_groups_with_members(view, expansion))
    members_text = summarize((f"{code_span(group)} ({many})" for group, many in members.items()), 200)
    has_begun = expansion == _noted_expansion(view)
    consequences = (
        "An earlier run has begun this; each step does what is left." if has_begun else "",
        f"`{OFFSETS.name}` goes from {old} to {count_of(new, 'partition')}."
        + ("" if multiple else f" {new} is no multiple of {old}: a multiple would move fewer."),
        f"**{count_of(len(group_names), 'group moves', 'groups move')} and must stop now**, until their offsets are imported: {summarize(map(code_span, group_names), 200)}."
        + (f" With members now: {members_text}." if members_text else "")
        + f" {count_of(len(staying), 'group stays', 'groups stay')} in their partitions and are not touched.",
    )
    return tuple(_describe_steps(view, expansion)), tuple(filter(None, consequences))


def _describe_steps(view: ClusterView, expansion: Expansion) -> list[str]:
    added = [
        f"{index}: {join_ids(row)}" for index, row in enumerate(replicas_to_add(view, expansion), len(_offsets_partitions(view)))
    ]
    grow = (
        f"the topic gets {count_of(len(added), 'partition')}; replicas of each: {summarize(added, 30, '; ')}"
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


def _describe_undo_steps(old: str) -> list[str]:
    return [
        "refuse if any broker uses the new count already",
        f"import the exported offsets under the count that brokers use ({old}), and read them back",
        "forget this expansion; start the groups then",
    ]


def _describe_leftovers(view: ClusterView, expansion: Expansion) -> str:
    """What an undo does not restore."""
    present = len(_offsets_partitions(view))
    if present in expansion.old:
        return "Nothing else was changed."
    return (
        f"What stays: {OFFSETS.name} has {count_of(present, 'partition')}, and Kafka cannot remove any. Brokers use {_format_counts(expansion.old)} until one "
        "restarts (K01): restart none before this expansion is run again."
    )


def _format_counts(counts: Collection[int]) -> str:
    return " or ".join(map(str, sorted(counts, reverse=True)))


# What is under way


def _noted_expansion(view: ClusterView) -> Expansion | None:
    return view.zk.expansion if view.zk else None


def _find_expansion_to_continue(view: ClusterView, target: int) -> Expansion | Done | Wait | Refuse:
    """The expansion under way; Done if the last one to `target` is over; a refusal if none has begun: only `decide_stopped` begins one."""
    if view.zk is None or view.partitions is None:
        return Wait((could_not_read("ZooKeeper or the partitions"),))
    note = view.zk.expansion
    if note is not None and note.is_over and note.new == target == len(_offsets_partitions(view)):
        return Done(
            f"{OFFSETS.name} has {count_of(target, 'partition')} and every group that moved has its offsets: nothing is left to do."
        )
    if note is None or note.is_over:
        return Refuse(
            (Reason("K83", f"No expansion to {count_of(target, 'partition')} has begun. Clear `moving_groups.stopped`."),)
        )
    return expansion_under_way(view, target)


def expansion_under_way(view: ClusterView, target: int) -> Expansion | Wait | Refuse:
    """The expansion that our note names, or one that may begin."""
    if view.zk is None:
        return Wait((could_not_read("ZooKeeper"),))
    note = view.zk.expansion
    if note is None or note.is_over:
        return _decide_begin(view, target)
    if note.new == target:
        return note
    text = f"An expansion of {OFFSETS.name} to {count_of(note.new, 'partition')} is under way, not to {target}."
    return Refuse((Reason("K83", text),))


def _decide_begin(view: ClusterView, target: int) -> Expansion | Wait | Refuse:
    """Whether a new expansion may begin, and from which count."""
    if view.partitions is None:
        return Wait((could_not_read("the partitions"),))
    rows = _offsets_partitions(view)
    if not rows:
        return Refuse((Reason("K83", f"{OFFSETS.name} does not exist."),))
    old = _counts_in_use(view, _counts_by_broker(view))
    gate = combine_gates(
        (
            roll.no_other_broker_down(view),
            _partitions_in_sync(rows),
            coordinator.brokers_agree(view, only_topic=TRANSACTIONS),
            _same_count_in_files(view),
            _same_count_in_use(view, old),
            _target_allowed(old, len(rows), target),
        )
    )
    return Expansion(tuple(sorted(old)), target) if gate.met else refuse_or_wait(gate)


def _counts_in_use(view: ClusterView, counts: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """The counts that explain all brokers' answers; one of them if it is proven, or if our note says which was used before."""
    present, unchanged = len(_offsets_partitions(view)), view.zk is not None and view.zk.topic_versions.get(OFFSETS.name) == 0
    configured = (
        {broker.id: int(value) for broker in view.brokers.values() if (value := _configured_count(broker))} if unchanged else None
    )
    verdict = coordinator.judge_counts(counts, present, view.brokers, configured)
    if verdict.agreement is coordinator.Agreement.PROVEN:
        return frozenset({present})
    alike = {counts.get(broker, frozenset()) for broker in view.brokers}
    used = alike.pop() if len(alike) == 1 else frozenset()
    noted = (view.zk.partition_counts or {}).get(OFFSETS.name) if view.zk is not None else None
    return frozenset({noted}) if noted in used and noted != present else used


def _configured_count(broker: Broker) -> str | None:
    if broker.files.properties is None:
        return None
    value = read_setting(broker.files.properties, OFFSETS.setting) or _DEFAULT_COUNT
    return value if value.isdecimal() else None


def _same_count_in_files(view: ClusterView) -> Gate:
    """B18: every file has the same count for a topic that is created again; a file that was not read is "not yet"."""
    unread = [broker.id for broker in view.brokers.values() if broker.files.properties is None]
    if unread:
        return not_yet(could_not_read(f"the properties of brokers {join_ids(unread)}"))
    counts = {broker.id: _configured_count(broker) or "no number" for broker in view.brokers.values()}
    counts_text = ", ".join(f"broker {broker} has {value}" for broker, value in counts.items())
    return never_if(len(set(counts.values())) > 1, Reason("B18", f"{OFFSETS.setting} differs in the files: {counts_text}."))


def _same_count_in_use(view: ClusterView, old: frozenset[int]) -> Gate:
    """K01, K02: every broker answered, and the same counts explain the answers of each."""
    if old:
        return MET
    counts = _counts_by_broker(view)
    unread = [broker for broker in view.brokers if not counts.get(broker)]
    if unread or not counts:
        return not_yet(Reason("K02", f"Which count of {OFFSETS.name} brokers {join_ids(unread) or 'all'} use is not known."))
    counts_text = "; ".join(
        f"broker {broker} with {_format_counts(broker_counts)}" for broker, broker_counts in sorted(counts.items())
    )
    return never(Reason("K01", f"Brokers compute with different counts of {OFFSETS.name}: {counts_text}."))


def _target_allowed(old: frozenset[int], present: int, target: int) -> Gate:
    """K83: `target` is a multiple of the count in use, or what the topic already has while brokers do not use it yet."""
    if not old:
        return MET  # refused by `_same_count_in_use`
    base = present if present in old else max(old)
    unused = present not in old
    multiples = [base * factor for factor in range(1, present // base + _MULTIPLES + 1) if base * factor > present]
    allowed_text = f"Multiples of {base} that are allowed: {', '.join(map(str, multiples[:_MULTIPLES]))}."
    if unused:
        allowed_text += (
            f" The topic has {count_of(present, 'partition')} already, which no broker uses: {present} is allowed, too."
        )
    if target < present or (target == present and not unused):
        return never(
            Reason("K83", f"{OFFSETS.name} has {count_of(present, 'partition')}, and cannot get {target}. {allowed_text}")
        )
    wrong = target % base != 0 and not (unused and target == present)
    return never_if(
        wrong, Reason("K83", f"{target} is no multiple of {base}, the count of {OFFSETS.name} that brokers use. {allowed_text}")
    )


def _offsets_partitions(view: ClusterView) -> list[Partition]:
    return [row for row in view.partitions or () if row.topic == OFFSETS.name]


def _counts_by_broker(view: ClusterView) -> Mapping[int, frozenset[int]]:
    return view.coordinators.counts.get(OFFSETS.name, {}) if view.coordinators else {}


def _partitions_in_sync(rows: Collection[Partition]) -> Gate:
    out_of_sync = sorted(row for row in rows if row.is_under_replicated or row.leader < 0)
    text = f"{count_of(len(out_of_sync), f'partition of {OFFSETS.name} is', f'partitions of {OFFSETS.name} are')} under-replicated or without leader: {summarize(row.name for row in out_of_sync)}."
    return not_yet_if(out_of_sync, Reason("S02", text))


def uses_new_count(view: ClusterView, broker: int, expansion: Expansion) -> bool:
    """Whether a broker certainly uses the new count."""
    possible = _counts_by_broker(view).get(broker, frozenset())
    return expansion.new in possible and not possible & set(expansion.old)


def _uses_old_count(view: ClusterView, broker: int, expansion: Expansion) -> bool:
    possible = _counts_by_broker(view).get(broker, frozenset())
    return expansion.new not in possible and bool(possible & set(expansion.old))


def _brokers_using_new(view: ClusterView, expansion: Expansion) -> list[int]:
    """Brokers that use the new count: there is no undo then."""
    return [broker for broker in sorted(view.brokers) if uses_new_count(view, broker, expansion)]


def _check_restarts_begun(view: ClusterView, expansion: Expansion) -> Done | Refuse | None:
    """Whether the restarts have begun, as far as known: then the groups are not touched any more.

    A broker that is down may be one that a killed task has left between its stop and its start. If it is not, the first restart
    still waits for everything that comes before it. Refused if a broker was restarted by something else before the offsets were saved.
    """
    if expansion.stage is ExpansionStage.BEGUN:
        return _check_early_restart(view, expansion)
    if using := _brokers_using_new(view, expansion):
        return Done(f"Brokers {join_ids(using)} use the new count already: what was exported before counts.")
    down = view.in_mode(None)
    if down and len(_offsets_partitions(view)) == expansion.new:
        return Done(f"Brokers {join_ids(down)} do not answer, and the topic has its partitions: a restart may be under way.")
    return None


def _check_early_restart(view: ClusterView, expansion: Expansion) -> Done | Refuse | None:
    """K01: a broker uses another count although no offset is safe yet; Done if all do, which only restarts by hand bring about."""
    changed = [
        broker
        for broker in sorted(view.brokers)
        if (counts := _counts_by_broker(view).get(broker)) and not counts & set(expansion.old)
    ]
    if changed and changed == sorted(view.brokers) == _brokers_using_new(view, expansion):
        return Done(
            f"All brokers use the new count, and this expansion has deleted nothing. {OFFSETS.name} must be repaired: the DAG "
            f"kmigrate_offsets_repair__{view.name}."
        )
    text = f"Brokers {join_ids(changed)} have restarted, and use another count, before the offsets of the groups that move were saved."
    return Refuse((Reason("K01", text),)) if changed else None


def _brokers_maybe_using_new(view: ClusterView, expansion: Expansion) -> list[int]:
    """Brokers that use the new count, or may: their answers fit both, and their file, which is written before a restart, has the new."""
    new = {None, str(expansion.new)}
    unclear = {
        broker for broker in view.brokers if not _uses_old_count(view, broker, expansion) and _counts_by_broker(view).get(broker)
    }
    return sorted(
        {*_brokers_using_new(view, expansion), *(broker for broker in unclear if _configured_count(view.broker(broker)) in new)}
    )


# Groups that move: stopped, exported, deleted


def moving_groups_with_members(view: ClusterView, expansion: Expansion) -> dict[str, int]:
    """The groups that move and have members, with the number of members."""
    return coordinator.count_members(view, moving_groups(view, expansion))


def _moving_groups_stopped(view: ClusterView, expansion: Expansion) -> Gate:
    """K79: no broker has a member of a group that moves."""
    groups_with_members = [f"{group} ({members})" for group, members in moving_groups_with_members(view, expansion).items()]
    return not_yet_if(
        groups_with_members,
        Reason(
            "K79",
            f"{count_of(len(groups_with_members), 'group that moves has', 'groups that move have')} members: {summarize(groups_with_members, 20)}.",
        ),
    )


def _no_open_transaction(view: ClusterView, expansion: Expansion) -> Gate:
    """K81: no open transaction delays a commit of a group that moves."""
    delayed_groups = [
        name for name in moving_groups(view, expansion) if any(copy.unstable for copy in find_hosts(view, name).values())
    ]
    return not_yet_if(
        delayed_groups,
        Reason("K81", f"Open transactions hold back commits of groups that move: {summarize(delayed_groups, 20)}."),
    )


def existing_offsets(view: ClusterView, expansion: Expansion) -> dict[str, FetchedOffsets]:
    """The groups that move and that a broker has anything of, with their offsets."""
    copies = {
        group: [copy for copy in find_hosts(view, group).values() if copy.exists] for group in moving_groups(view, expansion)
    }
    return {
        group: {partition: fetched for copy in group_copies for partition, fetched in copy.offsets.items()}
        for group, group_copies in copies.items()
        if group_copies
    }


def decide_stopped(view: ClusterView, target: int) -> Decision:
    """Note that the expansion begins, and which groups have members; then wait until no group that moves has one."""
    begun = _find_expansion_to_continue(view, target)
    expansion = expansion_under_way(view, target) if isinstance(begun, Refuse) else begun
    if not isinstance(expansion, Expansion):
        return expansion
    if decided := _check_restarts_begun(view, expansion):
        return decided
    groups_gate = coordinator.groups_known(view)
    if groups_gate.met and expansion != _noted_expansion(view):
        groups_with_members = moving_groups_with_members(view, expansion)
        return Act(
            Verb.NOTE,
            f"The expansion begins. {count_of(len(groups_with_members), 'group that moves has', 'groups that move have')} members: {summarize(groups_with_members, 20)}.",
        )
    gate = combine_gates((groups_gate, _moving_groups_stopped(view, expansion)))
    return gates.as_decision(
        gate,
        f"No broker has a member of the {count_of(len(moving_groups(view, expansion)), 'group that moves', 'groups that move')}.",
    )


def decide_export(view: ClusterView, target: int, export: Export) -> Decision:
    """Save the offsets of every group that moves, until the export has them as brokers have them."""
    expansion = _expansion_with_groups_stopped(view, target)
    if not isinstance(expansion, Expansion):
        return expansion
    current_offsets, saved = existing_offsets(view, expansion), export.groups
    changed_groups = sorted(group for group, offsets in current_offsets.items() if saved.get(group, offsets) != offsets)
    if expansion.stage is not ExpansionStage.BEGUN and changed_groups:
        return Refuse((_changed_groups_reason(changed_groups, "after they were exported, and groups were being deleted"),))
    if offsets_to_export(view, expansion, export) != saved:
        return Act(
            Verb.EXPORT,
            f"No member is left. Saving the offsets of {count_of(len(current_offsets), 'group')}: {summarize(sorted(current_offsets))}.",
        )
    return Done(
        f"The offsets of {count_of(len(saved), 'group that moves', 'groups that move')} are in the backup, in two copies."
    )


def offsets_to_export(view: ClusterView, expansion: Expansion, export: Export) -> Mapping[str, FetchedOffsets]:
    """The groups as the export must have them: what brokers have, and what was deleted since the export."""
    current_offsets = existing_offsets(view, expansion)
    return current_offsets if expansion.stage is ExpansionStage.BEGUN else {**export.groups, **current_offsets}


def build_export(view: ClusterView, expansion: Expansion, export: Export, log: Mapping[str, GroupLog]) -> Export | Refuse:
    """The next export; refused if the log of the groups that exist has other commits than brokers report.

    The time of an unchanged offset stays: a task that was killed may have committed it again before a deletion.
    """
    current_offsets, groups = existing_offsets(view, expansion), offsets_to_export(view, expansion, export)
    if wrong := offsets_repair.find_log_mismatches(log, commits_by_partition(current_offsets), expansion.old):
        return Refuse((log_mismatch_reason(wrong),))
    earlier_commits, current_commits = commits_by_partition(export.groups), commits_by_partition(groups)
    unchanged = {
        key: time
        for key, time in export.times.items()
        if key in current_commits and earlier_commits.get(key) == current_commits[key]
    }
    return Export(export.with_members, groups, export.number + 1, {**offsets_repair.commit_times(log), **unchanged})


def log_mismatch_reason(wrong: Sequence[str]) -> Reason:
    """K85: how the log differs from what brokers report, or from what was exported."""
    return Reason(
        "K85", f"{OFFSETS.name} holds {count_of(len(wrong), 'other commit')} than it must: {summarize(wrong, apart='; ')}."
    )


def decide_delete(view: ClusterView, target: int, export: Export) -> Decision:
    """Delete every group that moves, under the count that brokers use now, if the export has exactly its offsets."""
    expansion = _expansion_with_groups_stopped(view, target)
    if not isinstance(expansion, Expansion):
        return expansion
    current_offsets = existing_offsets(view, expansion)
    if changed_groups := sorted(group for group, offsets in current_offsets.items() if export.groups.get(group) != offsets):
        return Refuse((_changed_groups_reason(changed_groups, "since the export"),))
    if current_offsets:
        text = f"The export has the offsets of {count_of(len(current_offsets), 'group')}: deleting them, {summarize(sorted(current_offsets))}."
        return Act(Verb.DELETE_GROUPS, text)
    if expansion.stage is not ExpansionStage.DELETED:
        return Act(Verb.DELETE_GROUPS, f"No broker has anything left of a group that moves: reading whether {OFFSETS.name} has.")
    return Done(f"Neither a broker nor {OFFSETS.name} has anything left of a group that moves.")


def _expansion_with_groups_stopped(view: ClusterView, target: int) -> Expansion | Done | Wait | Refuse:
    """The expansion under way, if groups may be exported or deleted now: brokers use the old count, no group that moves has members."""
    expansion = _find_expansion_to_continue(view, target)
    if not isinstance(expansion, Expansion):
        return expansion
    if decided := _check_restarts_begun(view, expansion):
        return decided
    gate = combine_gates(
        (coordinator.groups_known(view), _moving_groups_stopped(view, expansion), _no_open_transaction(view, expansion))
    )
    return expansion if gate.met else refuse_or_wait(gate)


def _changed_groups_reason(groups: Sequence[str], when: str) -> Reason:
    return Reason("K82", f"{count_of(len(groups), 'group')} committed {when}: {summarize(groups, 20)}.")


# The topic and the brokers


def decide_expand(view: ClusterView, target: int) -> Decision:
    """Give the topic its partitions, once no group that moves exists, and wait until all are in sync."""
    expansion, rows = _find_expansion_to_continue(view, target), _offsets_partitions(view)
    if not isinstance(expansion, Expansion):
        return expansion
    if len(rows) == target:
        done = f"{OFFSETS.name} has {count_of(target, 'partition')}, all in sync."
        return _check_restarts_begun(view, expansion) or gates.as_decision(_partitions_in_sync(rows), done)
    gate = combine_gates(
        (
            _moving_groups_gone(view, expansion),
            roll.no_other_broker_down(view),
            _partitions_in_sync(rows),
            roll.no_reassignment(view),
        )
    )
    if not gate.met:
        return refuse_or_wait(gate)
    return Act(
        Verb.EXPAND,
        f"No broker has anything of a group that moves: {OFFSETS.name} gets {count_of(target - len(rows), 'partition')}.",
    )


def _moving_groups_gone(view: ClusterView, expansion: Expansion) -> Gate:
    """Brokers may begin to disagree: nothing is left of the groups that move, and they were exported."""
    if expansion.stage is not ExpansionStage.DELETED:
        text = "The groups that move were not deleted yet. Clear `moving_groups.stopped` and its downstream tasks."
        return never(Reason("K83", text))
    groups_gate = combine_gates((coordinator.groups_known(view), _moving_groups_stopped(view, expansion)))
    remaining_groups = sorted(existing_offsets(view, expansion)) if groups_gate.met else []
    text = f"{count_of(len(remaining_groups), 'group that moves', 'groups that move')} appeared since the export: {summarize(remaining_groups, 20)}."
    return combine_gates((groups_gate, never_if(remaining_groups, Reason("K82", text))))


def replicas_to_add(view: ClusterView, expansion: Expansion) -> list[list[int]]:
    """The replicas of each partition that the topic still misses."""
    racks = {broker.id: broker.rack for broker in view.brokers.values()}
    return coordinator.assign_new_replicas(_offsets_partitions(view), racks, expansion.new, expansion.old)


def mode_in_file(broker: Broker) -> BrokerMode | None:
    """The mode that a broker's file gives it; None if that was not read."""
    stage = stage_on_disk(broker.files)
    return next((mode for mode, file_stage in roll.STAGE.items() if file_stage is stage), None)


def decide_restart(view: ClusterView, broker_id: int, target: int, *, restarted: bool) -> Decision:
    """What is left to do until one broker has read the new count. `restarted`: by this process, whatever its answers show.

    The file is written before the stop. So a stopped broker whose file has the new count was stopped by us, and is started.
    """
    broker, mode = view.broker(broker_id), mode_in_file(view.broker(broker_id))
    if mode is None:
        return Wait((could_not_read(f"the properties of broker {broker_id}"),))
    file_has_new_count = _configured_count(broker) == str(target)
    if broker.process.state is ProcessState.STOPPED:
        return _decide_stopped_broker(broker, mode, file_has_new_count=file_has_new_count)
    if broker.mode is None:
        return roll.wait_for_answer(broker)
    if file_has_new_count and restarted:
        return roll.decide_settled(view, broker, mode)
    expansion = _find_expansion_to_continue(view, target)
    if not isinstance(expansion, Expansion):
        return expansion
    return _restart_or_rewrite(view, broker, expansion, mode, file_has_new_count=file_has_new_count)


def _restart_or_rewrite(
    view: ClusterView, broker: Broker, expansion: Expansion, mode: BrokerMode, *, file_has_new_count: bool
) -> Decision:
    if file_has_new_count and view.coordinators is None:
        return Wait((coordinator.NOT_ASKED,))
    if not uses_new_count(view, broker.id, expansion):
        return _restart(view, broker, expansion)
    if file_has_new_count:
        return roll.decide_settled(view, broker, mode)
    return Act(Verb.REWRITE, f"Broker {broker.id} uses the new count, but its file does not have it: writing the file.")


def _decide_stopped_broker(broker: Broker, mode: BrokerMode, *, file_has_new_count: bool) -> Decision:
    if not file_has_new_count:
        text = f"Broker {broker.id} is down, but this step did not stop it: its file does not have the new count."
        return Wait((Reason("R01", text),))
    if mode is not BrokerMode.KRAFT and broker.in_zookeeper is not False:
        return roll.wait_for_session_end(broker)
    return Act(Verb.START, f"Broker {broker.id} is stopped and its file has the new count: continuing an interrupted restart.")


def _restart(view: ClusterView, broker: Broker, expansion: Expansion) -> Decision:
    if len(_offsets_partitions(view)) != expansion.new:
        return Refuse(
            (
                Reason(
                    "K83", f"{OFFSETS.name} does not have its {count_of(expansion.new, 'partition')} yet. Clear `expand` first."
                ),
            )
        )
    danger = [reason for reason in find_alarms(view) if reason.cause is not Cause.UNFLAGGED_CONTROLLER]
    gate = combine_gates(
        (
            gates.process_known(broker),
            gates.software_unchanged(broker),
            never_if(danger, *danger),
            _controllers_ready(view),
            roll.no_reassignment(view),
            roll.may_stop(view, (broker.id,)),
        )
    )
    # Read last: several requests to every broker. Once one broker uses the new count, the others must follow soon: groups that
    # appeared since are split, or without a coordinator, exactly as long as brokers disagree.
    if gate.met:
        gate = combine_gates((coordinator.brokers_agree(view, only_topic=TRANSACTIONS), coordinator.groups_known(view)))
    if gate.met and not _brokers_using_new(view, expansion):
        gate = _moving_groups_gone(view, expansion)
    text = f"Broker {broker.id} may stop: every partition keeps enough in-sync replicas, and no group that moves has members."
    return Act(Verb.RESTART, text) if gate.met else refuse_or_wait(gate)


def _controllers_ready(view: ClusterView) -> Gate:
    """While KRaft owns the cluster, a broker that starts needs its controllers, and before the finalization their flags."""
    if not kraft_owns(view):
        return MET
    return combine_gates((gates.quorum_healthy(view), MET if migration_has_ended(view) else gates.all_controllers_flagged(view)))


def decide_one_coordinator(view: ClusterView, target: int) -> Decision:
    """Wait until every broker uses the new count and each group has exactly one coordinator, the leader of its partition."""
    if view.partitions is None or len(_offsets_partitions(view)) != target:
        return Wait((Reason("K83", f"{OFFSETS.name} does not have {count_of(target, 'partition')} yet."),))
    groups = view.coordinators.groups if view.coordinators else ()
    gate = combine_gates((coordinator.answers_agree(view), coordinator.groups_known(view)))
    gate = _one_coordinator_each(view, target, groups) if gate.met else gate
    text = f"Every broker uses {count_of(target, 'partition')} of {OFFSETS.name}, and each of {count_of(len(groups), 'group')} has one coordinator."
    return Done(text) if gate.met else Wait(gate.reasons)


def _one_coordinator_each(view: ClusterView, count: int, groups: Collection[str]) -> Gate:
    leaders = {row.index: row.leader for row in _offsets_partitions(view)}
    accepted = {group: list(find_hosts(view, group)) for group in sorted(groups)}
    misplaced_groups = [
        f"{group} ({join_ids(brokers) or 'none'}, not {leaders.get(hash_group(group) % count, -1)})"
        for group, brokers in accepted.items()
        if brokers != [leaders.get(hash_group(group) % count, -1)]
    ]
    return not_yet_if(
        misplaced_groups,
        Reason(
            "K01",
            f"{count_of(len(misplaced_groups), 'group does', 'groups do')} not have one coordinator: {summarize(misplaced_groups)}.",
        ),
    )


# The import


def decide_import(view: ClusterView, target: int, export: Export, *, undo: bool = False) -> Decision:
    """Commit the exported offsets, until each group's coordinator has exactly them. `undo`: under the old count."""
    expansion = _importable_expansion(view, target, export, undo=undo)
    if not isinstance(expansion, Expansion):
        return expansion
    if expansion.stage is ExpansionStage.BEGUN:
        return Done("Nothing was deleted: no group needs its offsets from the export.")
    missing, conflicts = compare_offsets(view, export)
    if missing:
        text = f"Each has one coordinator: committing the offsets of {count_of(len(missing), 'group')}, {summarize(sorted(missing))}."
        return Act(Verb.IMPORT, text)
    if conflicts:
        return Refuse((_changed_groups_reason(conflicts, "before their offsets were imported"),))
    existing_partitions = _existing_partitions(view)
    lost_offsets = sum(partition not in existing_partitions for offsets in export.groups.values() for partition in offsets)
    lost_text = (
        f" {count_of(lost_offsets, 'offset is', 'offsets are')} of partitions that no longer exist." if lost_offsets else ""
    )
    return Done(
        f"{count_of(len(export.groups), 'group has', 'groups have')} exactly the offsets of the export, by their coordinators' answers.{lost_text}"
    )


def decide_verify(view: ClusterView, target: int, export: Export, *, sure: bool, undo: bool = False) -> Decision:
    """Compare the offsets once more and end the expansion. `sure`: they were equal in the observations before, too."""
    decision = decide_import(view, target, export, undo=undo)
    if isinstance(decision, Act):
        return Wait((Reason("K82", "The offsets of some groups are not imported yet. Clear `import`."),))
    note = _noted_expansion(view)
    if not isinstance(decision, Done) or note is None or note.is_over:
        return decision
    if not sure:
        return Wait((Reason("T01", "Comparing the offsets again."),), healthy=True)
    return Act(Verb.NOTE, f"{decision.text} The groups may start. {_describe_leftovers(view, note) if undo else ''}".strip())


def _importable_expansion(view: ClusterView, target: int, export: Export, *, undo: bool) -> Expansion | Done | Wait | Refuse:
    """The expansion under way, if its offsets may be committed now."""
    if undo and view.zk is not None and view.zk.expansion is None:
        return Done("No expansion is under way: nothing is left to undo.")
    note = _undoable_expansion(view, target) if undo else _find_expansion_to_continue(view, target)
    if not isinstance(note, Expansion):
        return note
    gate = combine_gates((coordinator.groups_known(view), _all_brokers_use_count(view, note, undo=undo)))
    if gate.met and not undo:
        gate = _one_coordinator_each(view, target, export.groups)
    return note if gate.met else Wait(gate.reasons)


def _all_brokers_use_count(view: ClusterView, expansion: Expansion, *, undo: bool) -> Gate:
    counts, allowed = _counts_by_broker(view), set(expansion.old if undo else (expansion.new,))
    unread = [broker for broker in sorted(view.brokers) if not counts.get(broker)]
    wrong = [broker for broker in sorted(view.brokers) if broker not in unread and not counts[broker] & allowed]
    other_count_text = f"Brokers {join_ids(wrong)} do not use {_format_counts(allowed)} partitions of {OFFSETS.name} yet."
    unread_text = f"Which count brokers {join_ids(unread)} use is not known."
    return combine_gates((not_yet_if(wrong, Reason("K01", other_count_text)), not_yet_if(unread, Reason("K02", unread_text))))


def compare_offsets(view: ClusterView, export: Export) -> tuple[dict[str, FetchedOffsets], list[str]]:
    """The groups that miss their offsets, and those that have others or members."""
    missing, conflicts, existing_partitions = dict[str, FetchedOffsets](), list[str](), _existing_partitions(view)
    for group, exported_offsets in sorted(importable_offsets(view, export.groups).items()):
        copies = list(find_hosts(view, group).values())
        offsets = {
            partition: fetched
            for copy in copies
            for partition, fetched in copy.offsets.items()
            if partition in existing_partitions
        }
        if offsets == exported_offsets:
            continue
        if len(copies) == 1 and not copies[0].members and offsets.items() <= exported_offsets.items():
            missing[group] = exported_offsets
        else:
            conflicts.append(group)
    return missing, conflicts


def importable_offsets(view: ClusterView, groups: Mapping[str, FetchedOffsets]) -> dict[str, FetchedOffsets]:
    """The offsets of partitions that exist: brokers refuse all others."""
    existing_partitions = _existing_partitions(view)
    return {
        group: {partition: fetched for partition, fetched in offsets.items() if partition in existing_partitions}
        for group, offsets in groups.items()
    }


def _existing_partitions(view: ClusterView) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(row.topic, row.index) for row in view.partitions or ())


# Progress


def decide_progress(view: ClusterView, first: ClusterView, names: Collection[str]) -> Decision:
    """Wait until each of these groups has members again, and has committed since, or has nothing left to read."""
    if view.groups is None:
        return Wait((could_not_read("the groups that moved"),))
    waiting = [name for name in names if not _is_consuming(view.groups.get(name), (first.groups or {}).get(name))]
    if waiting:
        text = (
            f"Not consuming yet: {len(waiting)} of {count_of(len(names), 'group')}: {summarize(waiting, 20)}. They may start now."
        )
        return Wait((Reason("K84", text),))
    return Done(
        f"{count_of(len(names), 'group that had members before consumes', 'groups that had members before consume')} again."
    )


def _is_consuming(now: GroupSeen | None, before: GroupSeen | None) -> bool:
    """Whether a group has members, and has committed since, or has read every partition that it commits to its end."""
    if now is None or now.kafka is None or now.committed is None or not now.kafka.members:
        return False
    earlier_offsets = (before.committed if before else None) or {}
    partitions_behind = [
        partition for partition, offset in now.committed.items() if offset < (now.ends or {}).get(partition, offset)
    ]
    return not partitions_behind or any(
        offset > earlier_offsets.get(partition, offset) for partition, offset in now.committed.items()
    )
