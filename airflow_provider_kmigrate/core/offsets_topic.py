"""Which broker coordinates a group, and whether all brokers agree on that.

A group lives in partition `hash(group) mod n` of `__consumer_offsets`; its coordinator is that partition's leader. Every broker
reads n once, when it starts (KIP-895, not adopted). After an expansion of the topic old and restarted brokers therefore disagree,
and a roll activates the new count broker by broker: groups split, stop or lose their offsets. No broker reports its n, but only a
few n explain its FindCoordinator answers to made-up groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_kmigrate.core.coordination.registration import OFFSETS_TOPIC, java_hash
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.text import join_ids

_MIN_INT = -(2**31)


def magnitude(group: str) -> int:
    """A group's partition is this modulo their count; Kafka's `Utils.abs` maps the number without an absolute value to 0."""
    number = java_hash(group)
    return 0 if number == _MIN_INT else abs(number)


DEFAULT_LIMIT = 1000
"""Counts up to this are tried (or up to the topic's own, if that is higher)."""


class Agreement(StrEnum):
    """What the fingerprints of all brokers show."""

    PROVEN = "proven"  # every broker uses the topic's count and no other explains its answers
    DEGENERATE = "degenerate"  # the topic's count explains every answer, but so do others
    UNKNOWN = "unknown"  # something was not read, or leaders moved meanwhile: observe again
    BROKEN = "broken"  # some broker certainly uses another count


@dataclass(frozen=True, slots=True)
class CountVerdict:
    """`reasons` is empty exactly when agreement is proven."""

    agreement: Agreement
    reasons: tuple[Reason, ...] = ()


def probe_groups(number: int = 64) -> tuple[str, ...]:
    """Names to ask FindCoordinator for; asking creates nothing if the topic exists; otherwise the broker creates it."""
    return tuple(f"__coord_probe_{i}" for i in range(number))


def possible_counts(answers: Mapping[str, int | None], leaders: Mapping[int, int], limit: int = DEFAULT_LIMIT) -> frozenset[int]:
    """The counts that explain what one broker answered: group -> coordinator, None if it named none (no evidence).

    `leaders` is partition -> leader at the time of the answers. Empty: nothing explains them, the leaders have moved meanwhile.
    """
    evidence = {magnitude(group): broker for group, broker in answers.items() if broker is not None}
    if not evidence:
        return frozenset()
    candidates = range(1, max(limit, len(leaders)) + 1)
    return frozenset(n for n in candidates if all(leaders.get(h % n) == broker for h, broker in evidence.items()))


def uniform(
    counts: Mapping[int, frozenset[int]] | None,
    topic_count: int,
    brokers: Collection[int],
    configured: Mapping[int, int] | None = None,
) -> CountVerdict:
    """Whether all `brokers` use the topic's own count, from each one's possible counts.

    A broker missing in `counts`, or with none, leaves it unknown; one whose counts miss the topic's breaks it, whatever the others use.
    Leaders of a topic made in one go are so regular that many counts explain all answers if the number of brokers divides the topic's.
    `configured`, each broker's offsets.topic.num.partitions, settles that; give it only if the topic's znode has never changed since it
    was created (data version 0): then a broker has read either the topic's count or, started before it, its own configuration.
    """
    found = {broker: (counts or {}).get(broker, frozenset()) for broker in sorted(brokers)}
    of_topic = f"partitions of {OFFSETS_TOPIC}"
    wrong = {broker: _some(possible) for broker, possible in found.items() if possible and topic_count not in possible}
    if wrong:
        texts = (f"broker {broker} computes with {some} {of_topic}, which has {topic_count}" for broker, some in wrong.items())
        return CountVerdict(Agreement.BROKEN, tuple(Reason("K01", text) for text in texts))
    unread = [broker for broker, possible in found.items() if not possible]
    if unread or not found:
        text = f"no count of {OFFSETS_TOPIC} explains the answers of brokers {join_ids(unread) or 'all'}, or they did not answer"
        return CountVerdict(Agreement.UNKNOWN, (Reason("K02", text),))
    settled = {broker for broker, count in (configured or {}).items() if count == topic_count}
    ambiguous = [broker for broker, possible in found.items() if len(possible) > 1 and broker not in settled]
    if ambiguous:
        others = _some(found[ambiguous[0]] - {topic_count})
        text = f"brokers {join_ids(ambiguous)} use {topic_count} {of_topic} or, by the same answers, {others}"
        return CountVerdict(Agreement.DEGENERATE, (Reason("K02", text),))
    return CountVerdict(Agreement.PROVEN)


def _some(counts: frozenset[int], shown: int = 6) -> str:
    some = " or ".join(map(str, sorted(counts)[:shown]))
    return f"{some} or more" if len(counts) > shown else some
