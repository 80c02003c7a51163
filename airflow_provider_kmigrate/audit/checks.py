"""An audit's checks besides the ledger's: deliveries without ownership, unowned time, uneven shares, notes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from airflow_provider_kmigrate.core.audit.verdict import BEFORE_THE_STEP, AuditFinding, AuditOutcome, Level
from airflow_provider_kmigrate.core.events import Ownership, OwnershipChange, TopicPartition
from airflow_provider_kmigrate.core.ledger import Facts, LedgerFinding
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.text import summarize


def findings(changes: Iterable[Ownership], facts: Facts, level: Level) -> Iterator[AuditFinding]:
    """All findings of these checks. `changes`: the changes of ownership."""
    yield from _not_owned(facts, level)
    yield from _uneven(changes, level)
    if facts.unowned.count:
        yield _unowned(facts.unowned, level)
    if facts.send_failures:
        text = f"{facts.send_failures} records were given up by their producers."
        yield AuditFinding.of(AuditOutcome.PASS, AuditCause.SENDS_GIVEN_UP, text, level, facts.send_failures)
    if facts.of_others:
        yield _of_others(facts, level)
    if facts.skipped.count:
        yield _skipped(facts, level)
    if facts.client_repeats.count:
        yield _client_repeats(facts.client_repeats, level)


def _not_owned(facts: Facts, level: Level) -> Iterator[AuditFinding]:
    """Deliveries outside their member's own intervals. A gap in the events may hide the acquisition."""
    earlier = facts.earlier.get("not_owned", LedgerFinding())
    now = AuditOutcome.FAIL if facts.recorded else AuditOutcome.INCONCLUSIVE
    for found, outcome, before in ((earlier, AuditOutcome.PASS, BEFORE_THE_STEP), (facts.not_owned, now, "")):
        if found.count:
            text = f"{before}{found.count} records were delivered to a member that did not own their partition."
            yield AuditFinding.of(outcome, AuditCause.NOT_OWNED, text, level, found.count, found.cases)


def _unowned(found: LedgerFinding, level: Level) -> AuditFinding:
    longest = "".join(f", {case.topic}-{case.partition} for {case.count} ms at once" for case in found.cases[:1])
    text = f"Partitions had no owner for {found.count} ms in total{longest}."
    return AuditFinding.of(AuditOutcome.PASS, AuditCause.UNOWNED, text, level, found.count, found.cases)


def _uneven(changes: Iterable[Ownership], level: Level) -> Iterator[AuditFinding]:
    """Generations that were shared unevenly at their fullest."""
    found = []
    for (group, generation), shares in sorted(_fullest(changes).items()):
        topics = {topic for share in shares.values() for topic, _ in share}
        per_topic = [_spread([sum(at.topic == topic for at in share) for share in shares.values()]) for topic in topics]
        if min(_spread(list(map(len, shares.values()))), max(per_topic, default=0)) > 1:
            counts = ", ".join(f"{member} {len(share)}" for member, share in sorted(shares.items()))
            found.append(f"generation {generation} of {group}: {counts}")
    if found:
        text = f"{len(found)} generations shared their partitions unevenly, first {found[0]}."
        yield AuditFinding.of(AuditOutcome.PASS, AuditCause.UNEVEN, text, level, len(found))


def _spread(counts: Sequence[int]) -> int:
    return max(counts, default=0) - min(counts, default=0)


def _fullest(changes: Iterable[Ownership]) -> dict[tuple[str, int], dict[str, set[TopicPartition]]]:
    """The owners in each group's generation when most partitions had one."""
    owned: dict[str, dict[str, set[TopicPartition]]] = defaultdict(lambda: defaultdict(set))
    best: dict[tuple[str, int], dict[str, set[TopicPartition]]] = {}
    for change in sorted(changes, key=lambda change: (change.group, change.position or 0, change.stamp.t_ms)):
        shares, named = owned[change.group], set(change.partitions)
        mine = shares[change.member]
        shares[change.member] = mine | named if change.change is OwnershipChange.ACQUIRED else mine - named
        if change.generation is not None:
            key, now = (change.group, change.generation), {member: share for member, share in shares.items() if share}
            if sum(map(len, now.values())) >= sum(map(len, best.get(key, {}).values())):
                best[key] = now
    return best


def _of_others(facts: Facts, level: Level) -> AuditFinding:
    named = ", ".join(f"{topic}-{partition} of {group}" for group, topic, partition in facts.of_others[:5])
    more = f" and {len(facts.of_others) - 5} more" if len(facts.of_others) > 5 else ""
    text = f"Partitions that only members without events owned were not judged: {named}{more}."
    return AuditFinding.of(AuditOutcome.PASS, AuditCause.OWNER_WITHOUT_EVENTS, text, level, len(facts.of_others))


def _skipped(facts: Facts, level: Level) -> AuditFinding:
    found = facts.skipped
    text = f"{found.count} offsets between deliveries were skipped, and no wrapped producer reported records there."
    return AuditFinding.of(AuditOutcome.PASS, AuditCause.SKIPPED, text, level, found.count, found.cases)


def _client_repeats(found: LedgerFinding, level: Level) -> AuditFinding:
    """Counted beside `redelivered`, and no fault of the group or the brokers."""
    who = sorted({case.members[-1] for case in found.cases})
    text = f"{found.count} records were handed out twice by the client itself, in consecutive polls of one generation: {summarize(who)}."
    return AuditFinding.of(AuditOutcome.PASS, AuditCause.CLIENT_REPEATED, text, level, found.count, found.cases)
