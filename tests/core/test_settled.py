"""Settled cuts: the check of what follows a cut, joined with what was settled, says what the check of the whole partition says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.audit import settled as cuts
from airflow_provider_kmigrate.core.audit.settled import (
    Arrived,
    GroupEnds,
    Settled,
    SettledKey,
    SettledPartition,
    SettledProducer,
    SettledWriter,
    WriterRow,
    choose_cut,
    describe_owners,
    find_reopened,
    is_to_be_confirmed,
    join_accounts,
)
from airflow_provider_kmigrate.core.events.model import Ack, Commit, DeliveryRun, Event, OwnershipChange, TopicPartition
from airflow_provider_kmigrate.core.ledger.book import Book, GroupPartition, PartitionEvents
from airflow_provider_kmigrate.core.ledger.facts import Gap
from airflow_provider_kmigrate.core.ledger.health import EvidenceTimes
from airflow_provider_kmigrate.core.ledger.partition import CheckContext, Limits, PartitionChecked, check_partition
from airflow_provider_kmigrate.core.ledger.prefix import GroupPrefix
from airflow_provider_kmigrate.core.ledger.records import PartitionRead, walk_deliveries
from tests.audit.random_histories import FAULTS, Uneven, _Made
from tests.core.histories import History

LIMITS = Limits(100, 1_000, EvidenceTimes())
WHERE = TopicPartition("t", 0)
KEY = SettledKey("abc", 100)


def part_of(book: Book, where: TopicPartition) -> PartitionEvents | None:
    return next((part for part in book.partition_events() if part.where == where), None)


def settle(part: PartitionEvents, context: CheckContext, open_ms: int) -> SettledPartition | None:
    """As the audit's questions do it, in plain words. The partition must be free of findings."""
    groups = {
        name: GroupEnds(
            min(run.first for run in runs),
            max(run.last for run in runs),
            max((commit.offset - 1 for commit in part.commits.get(name, ())), default=None),
        )
        for name, runs in part.runs.items()
    }
    acked = (min(ack.first for ack in part.acks), max(ack.last for ack in part.acks)) if part.acks else None
    newest = [
        event.first
        for event in (*part.acks, *(run for runs in part.runs.values() for run in runs))
        if event.stamp.t_ms >= open_ms
    ]
    at = choose_cut(acked, groups, set(context.reading_groups(part)), min(newest, default=None))
    if at is None:
        return None
    settled_runs = {name: [run for run in runs if run.last <= at] for name, runs in part.runs.items()}
    if not all(settled_runs.values()):
        return None
    prefixes = {name: group_prefix(part, name, runs) for name, runs in settled_runs.items()}
    owners = {
        name: describe_owners(context, GroupPartition(name, *part.where), prefix.ended_ms) for name, prefix in prefixes.items()
    }
    return SettledPartition(at, producers_of(part, settled_runs, at), prefixes, owners)


def group_prefix(part: PartitionEvents, name: str, runs: Sequence[DeliveryRun]) -> GroupPrefix:
    newest = max(runs, key=lambda run: run.last)
    counted: dict[tuple[str, str], int] = {}
    for run in runs:
        counted[run.stamp.writer, run.member] = counted.get((run.stamp.writer, run.member), 0) + run.count
    gap = walk_deliveries(PartitionRead(name, *part.where, [], runs, []), LIMITS.skew_ms).gap
    assert gap is not None
    first = min(run.first for run in runs)
    return GroupPrefix(first, newest.last, max(run.t_last_ms for run in runs), newest.member, counted, gap)


def producers_of(part: PartitionEvents, runs: dict[str, list[DeliveryRun]], at: int) -> dict[str, SettledProducer]:
    acks = [ack for ack in part.acks if ack.last <= at]
    claims = [(ack.producer, ack.seq_last) for ack in acks]
    claims += [
        (run.producer, run.producer_seq + run.count - 1)
        for some in runs.values()
        for run in some
        if run.producer is not None and run.producer_seq is not None
    ]
    return {
        name: SettledProducer(
            sum(ack.count for ack in acks if ack.producer == name), None, None, None,
            max((ack.latency_max_us or 0 for ack in acks if ack.producer == name), default=None),
            max(number for producer, number in claims if producer == name), at, 0,
        )
        for name in {producer for producer, _ in claims}
    }  # fmt: skip


def arrivals(events: Sequence[Event]) -> list[Arrived]:
    rows = []
    for event in events:
        writer, t_ms = event.stamp.writer, event.stamp.t_ms
        if isinstance(event, DeliveryRun):
            what = (
                event.group,
                writer,
                event.member,
                event.producer,
                event.first,
                event.t_first_ms,
                t_ms,
                event.seq,
                event.producer_seq,
            )
            rows.append(Arrived(event.topic, event.partition, "delivery", *what))
        elif isinstance(event, Ack):
            what = (None, writer, None, event.producer, event.first, None, t_ms, event.seq_first, event.seq_first)
            rows.append(Arrived(event.topic, event.partition, "ack", *what))
        elif isinstance(event, Commit) and event.ok:
            rows += [
                Arrived(
                    place.topic,
                    place.partition,
                    "commit",
                    event.group,
                    writer,
                    event.member,
                    None,
                    place.offset,
                    None,
                    t_ms,
                    None,
                    None,
                )
                for place in event.offsets
            ]
    return rows


def rest_of(whole: PartitionEvents, settled: SettledPartition) -> PartitionEvents:
    rest = PartitionEvents(whole.where, [ack for ack in whole.acks if ack.last > settled.at or not ack.has_offsets])
    for name, runs in whole.runs.items():
        rest.runs[name] = [run for run in runs if run.last > settled.at]
    for name, commits in whole.commits.items():
        rest.commits[name] = [commit for commit in commits if commit.offset - 1 > settled.at]
    return rest


def without_reports(checked: PartitionChecked) -> PartitionChecked:
    return replace(checked, delivered={group: n for group, n in checked.delivered.items() if n})


def story(seed: int, faults: Sequence[Callable[[_Made], None]]) -> tuple[list[Event], list[Event], int]:
    """What was written before a moment without a fault, what after it with some, and from when on events are left open."""
    rng = random.Random(seed)  # noqa: S311
    made = rng.choice([_Made, Uneven])(rng)
    for _ in range(rng.randint(2, 6)):
        made.step()
    before, open_ms = len(made.story.events), made.story.now - rng.choice([0, 0, 3_000, 10_000])
    for _ in range(rng.randint(1, 5)):
        made.step()
        if faults and rng.random() < 0.5:
            rng.choice(faults)(made)
    events = made.end()
    return events[:before], events[before:], open_ms


def compare(seed: int, faults: Sequence[Callable[[_Made], None]]) -> tuple[int, int, int]:
    """How many partitions were joined with their settled part, in how many of them something was found, and how many were reopened."""
    before, after, open_ms = story(seed, faults)
    joined = confirmed = reopened = 0
    early = CheckContext.of(Book.of(before), LIMITS)
    book = Book.of([*before, *after])
    context = CheckContext.of(book, LIMITS)
    for where in (WHERE, TopicPartition("t", 1)):
        part, whole = part_of(Book.of(before), where), part_of(book, where)
        settled = settle(part, early, open_ms) if part is not None and early.reading_groups(part) else None
        if settled is None or whole is None:
            continue
        if find_reopened({where: settled}, arrivals(after), context):
            reopened += 1
            continue
        joined += 1
        narrowed = replace(context, prefixes={where: settled.prefix})
        rest, everything = check_partition(rest_of(whole, settled), narrowed), check_partition(whole, context)
        if is_to_be_confirmed(rest):
            confirmed += 1
            assert is_to_be_confirmed(everything), seed
        else:
            assert without_reports(rest) == without_reports(everything), seed
        stored = Settled(KEY, {}, frozenset(), {where: settled})
        assert cuts.parse_document(cuts.as_document(stored).encode(), KEY) == stored
    return joined, confirmed, reopened


def test_what_follows_a_cut_is_judged_as_in_the_whole_partition() -> None:
    joined, confirmed, reopened = map(sum, zip(*(compare(seed, FAULTS) for seed in range(500)), strict=True))
    assert joined > 150
    assert confirmed > 20
    assert reopened > 40, "these histories do not reach below their cuts"


def test_a_calm_history_reopens_no_cut() -> None:
    joined, confirmed, reopened = map(sum, zip(*(compare(seed, ()) for seed in range(150)), strict=True))
    assert (joined > 50, confirmed, reopened) == (True, 0, 0)


PLAIN = SettledPartition(
    9,
    {"p": SettledProducer(10, 0, 9, 990, 5, 9, 9, 9)},
    {"g": GroupPrefix(0, 9, 1_000, "a", {("a", "a"): 10}, Gap("g", "t", 0, 7, 1, 8, ("a", "a")))},
    {"g": ""},
)
DELIVERY = Arrived("t", 0, "delivery", "g", "a", "a", "p", 10, 1_000, 1_005, 10, 10)
ACK = Arrived("t", 0, "ack", None, "p", None, "p", 10, None, 1_005, 10, 10)
COMMIT = Arrived("t", 0, "commit", "g", "a", "a", None, 5, None, 900, None, None)


@pytest.mark.parametrize(
    ("arrived", "reason"),
    [
        (DELIVERY, ""),
        (DELIVERY._replace(topic="u", lo=0), ""),
        (DELIVERY._replace(lo=9), "offset 9 was reported again or late"),
        (DELIVERY._replace(producer_seq=9), "p has record 9 again"),
        (DELIVERY._replace(producer="q", producer_seq=0), ""),
        (DELIVERY._replace(producer=None, producer_seq=None), ""),
        (DELIVERY._replace(consumer_group="h"), "group h reads it, too"),
        (DELIVERY._replace(t_first_ms=999), "a delivery is older than those before it"),
        (DELIVERY._replace(seq=9), "a member counts its deliveries again"),
        (DELIVERY._replace(writer="b", member="b", seq=0), ""),
        (ACK, ""),
        (ACK._replace(lo=-1), "offset -1 was reported again or late"),
        (ACK._replace(producer_seq=9), "p has record 9 again"),
        (COMMIT, ""),  # back on purpose, and later than what is settled
        (COMMIT._replace(t_ms=899), "a commit is older than its deliveries"),
        (COMMIT._replace(consumer_group="h", t_ms=0), ""),  # a group that reads nothing here
    ],
)
def test_what_is_about_the_settled_part_reopens_it(arrived: Arrived, reason: str) -> None:
    reopened = find_reopened({WHERE: PLAIN}, [arrived], CheckContext.of(Book(), LIMITS))
    assert reopened == ({WHERE: reason} if reason else {})


def test_a_group_that_subscribes_later_and_a_change_of_owners_reopen_it() -> None:
    story = History()
    story.consumer("b", "h", ("^t",))
    assert find_reopened({WHERE: PLAIN}, [], CheckContext.of(Book.of(story.events), LIMITS)) == {WHERE: "group h reads it, too"}
    owners = History(now=0)
    owners.own("g", "a", OwnershipChange.ACQUIRED)
    context = CheckContext.of(Book.of(owners.events), LIMITS)
    assert find_reopened({WHERE: PLAIN}, [], context) == {WHERE: "its owners in group g have changed"}
    known = replace(PLAIN, owners={"g": describe_owners(context, GroupPartition("g", *WHERE), 1_000)})
    owners.own("g", "a", OwnershipChange.RELEASED)
    after = CheckContext.of(Book.of(owners.events), LIMITS)
    assert find_reopened({WHERE: known}, [], after) == {}
    owners.events[-1] = replace(owners.events[-1], until_ms=999)
    asleep = CheckContext.of(Book.of(owners.events), LIMITS)
    assert find_reopened({WHERE: known}, [], asleep) == {WHERE: "its owners in group g have changed"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (WriterRow("w", 5, 90, 19, 10, 10, 10, None), ""),
        (WriterRow("w", 5, 90, 19, 11, 10, 10, None), "w has events"),  # one twice
        (WriterRow("w", 5, 90, 19, 9, 9, 10, None), "w has events"),  # one is missing
        (WriterRow("w", 5, 90, 9, 1, 1, 9, None), "w has events"),  # a settled one again
        (WriterRow("w", 5, 90, 19, 10, 10, 9, None), "w has events"),  # a settled one again, and one is missing
    ],
)
def test_an_account_goes_on_where_it_was_settled(row: WriterRow, reason: str) -> None:
    joined = join_accounts({"w": SettledWriter(1, 50, 9, -7)}, [row])
    if reason:
        assert isinstance(joined, str)
        assert joined.startswith(reason)
    else:
        assert joined == [WriterRow("w", 1, 90, 19, 20, 20, 0, -7)]


@pytest.mark.parametrize(("name", "value"), [("cluster_id", "xyz"), ("skew_ms", 99), ("mixed", ("g",)), ("release", "9.9")])
def test_cuts_of_another_cluster_or_policy_are_refused_by_name(name: str, value: object) -> None:
    document = cuts.as_document(Settled(KEY)).encode()
    with pytest.raises(ValueError, match=f"their {name} is"):
        cuts.parse_document(document, replace(KEY, **{name: value}))


@pytest.mark.parametrize(
    "damaged", [b"", b"{}", b"[1]", b'{"version": 2}', b'{"version": 1, "key": {}}', b'{"version": 1, "key": 7}']
)
def test_cuts_that_cannot_be_understood_are_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r"they|JSON|[Ee]xpect"):
        cuts.parse_document(damaged, KEY)


def test_cuts_of_another_release_are_refused_by_name() -> None:
    document = cuts.as_document(Settled(KEY)).replace('"version": 1', '"version": 2')
    with pytest.raises(ValueError, match="they have version 2, and this release reads version 1"):
        cuts.parse_document(document.encode(), KEY)
