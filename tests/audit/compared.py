"""What an audit says and what the ledger says, so that they can be compared."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import Event
from airflow_provider_kmigrate.core.ledger import Facts, LedgerFinding, balance

ALL = AuditPolicy(max_cases=sys.maxsize)


def reported_by_ledger(events: Sequence[Event], policy: AuditPolicy = ALL) -> dict[str, Any]:
    limits = {"alive_since": policy.alive_since, "demand": policy.required_evidence}
    return messages(balance(events, skew_ms=policy.skew_ms, max_cases=policy.max_cases, **limits))


def messages(facts: Facts) -> dict[str, Any]:
    """Everything, made readable where it differs. Sentences only as far as both must agree."""
    values = {item.name: getattr(facts, item.name) for item in fields(facts)}
    return values | {"reasons": sorted(map(essence, facts.reasons))}


def essence(reason: Reason) -> str:
    """Without how many records follow a first one, and how often one number was used again: that depends on the order of reading."""
    text = re.sub(r"\.\.-?\d+\.$", "", reason.text)
    return f"{reason.cause} {re.sub(r'under [0-9]+ numbers', '', text)}"


def differences(mine: dict[str, Any], ledger: dict[str, Any]) -> dict[str, Any]:
    """What only one side says."""
    found = {}
    for name, theirs in ledger.items():
        if mine[name] == theirs:
            continue
        parts = [value.cases if isinstance(value, LedgerFinding) else value for value in (mine[name], theirs)]
        if isinstance(parts[0], tuple | list):
            found[name] = [[item for item in one if item not in other][:3] for one, other in (parts, parts[::-1])]
        else:
            found[name] = parts
    return found
