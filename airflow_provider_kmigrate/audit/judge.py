"""From a reduced history to facts: the ledger judges, and what was left out is added to its totals."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import groupby
from typing import Any

from airflow_provider_kmigrate.audit.policy import Policy
from airflow_provider_kmigrate.audit.reduction.history import History
from airflow_provider_kmigrate.core.ledger import Case, Facts, Finding, balance

_NO_ACKS = "L09"
FINDINGS = ("lost", "unseen", "redelivered", "stored_twice", "reordered", "diverged", "overrun", "double_owned")


def judge(history: History, policy: Policy) -> Facts:
    """The facts of the whole history. Each finding keeps `Policy.max_cases` cases; counts are whole."""
    facts = balance(
        history.events,
        refused=history.refused,
        refused_before=history.refused_before,
        window=policy.window,
        skew_ms=policy.skew_ms,
        max_cases=sys.maxsize,
        alive_since=policy.alive_since,
        demand=policy.demand,
        newest=history.newest,
        now_ms=None if policy.alive_since is None else time.time_ns() // 1_000_000,
    )
    reasons = tuple(reason for reason in facts.reasons if not (history.acked and reason.code == _NO_ACKS))
    delivered = Counter(facts.delivered)
    delivered.update(history.delivered)
    waits = [gap for gap in facts.gaps if (gap.topic, gap.partition) not in history.places]
    gaps = sorted([*waits, *history.gaps], key=lambda gap: (-gap.ms, gap.group, gap.topic, gap.partition))
    return replace(
        joined(facts, policy.max_cases),
        complete=not reasons,
        reasons=reasons,
        acked=facts.acked + history.acked,
        delivered=dict(delivered),
        gaps=tuple(gaps),
        passed_over=facts.passed_over.with_largest(history.passed_over, policy.max_cases),
    )


def joined(facts: Facts, limit: int) -> Facts:
    """The same facts; counter-examples that continue each other are one, and at most `limit` of each finding are kept."""
    findings: dict[str, Any] = {name: getattr(facts, name) for name in FINDINGS}
    for name, found in findings.items():
        findings[name] = Finding(found.count, join(found.cases)[:limit])
    earlier = {name: Finding(found.count, join(found.cases)[:limit]) for name, found in facts.earlier.items()}
    return replace(facts, **findings, earlier=earlier)


def join(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Cases that differ only in their place and continue each other become one."""
    ordered = sorted(cases, key=lambda case: (_kind(case), case.from_ms or 0, case.first, case.seq_first or 0))
    found = (_chain(list(alike)) for _, alike in groupby(ordered, key=_kind))
    return tuple(sorted((case for chain in found for case in chain), key=lambda case: case.order))


_PLACE = {"first", "last", "count", "seq_first", "seq_last", "from_ms", "to_ms"}
_KIND = tuple(item.name for item in fields(Case) if item.name not in _PLACE)


def _kind(case: Case) -> tuple[str, ...]:
    """Everything but the place, comparable."""
    return tuple(repr(getattr(case, name)) for name in _KIND)


def _chain(cases: Sequence[Case]) -> list[Case]:
    chained: list[Case] = []
    for case in cases:
        if chained and _continues(chained[-1], case):
            chained[-1] = _both(chained[-1], case)
        else:
            chained.append(case)
    return chained


def _continues(one: Case, other: Case) -> bool:
    in_log = one.first >= 0 and other.first == one.last + 1
    by_number = one.seq_last is None or other.seq_first is None or other.seq_first == one.seq_last + 1
    return in_log and by_number and all(case.count == case.last - case.first + 1 for case in (one, other))


def _both(one: Case, other: Case) -> Case:
    return replace(
        one,
        last=other.last,
        count=one.count + other.count,
        seq_last=other.seq_last,
        from_ms=min(_known(one.from_ms, other.from_ms), default=None),
        to_ms=max(_known(one.to_ms, other.to_ms), default=None),
    )


def _known(*values: int | None) -> list[int]:
    return [value for value in values if value is not None]
