"""Turns what clients wrote down into facts: lost, repeated, reordered records, stalls and gaps, each with its proof.

`balance(events)` gives `Facts`. It promises:

- the order in which events, or files of events, are read does not matter, and an event read twice counts once;
- what was not written down never passes for what did not happen: a ledger with a hole is not `complete`, with the reasons (codes
  in `health`), and its verdict is at best INCONCLUSIVE;
- what follows from the absence of an event (lost, reordered, commit gap) is a violation only if the group's account is whole,
  else `unseen`; what events show (stored twice, redelivered, diverged, two owners) always is one;
- what a client hands out twice by itself is counted apart (`client_repeats`), and is no violation.

It works on intervals of offsets, not on records, and is the oracle that the Spark audit is tested against.
"""

from airflow_provider_kmigrate.core.ledger.balance import balance, conclude
from airflow_provider_kmigrate.core.ledger.facts import Case, Facts, Gap, LedgerFinding
from airflow_provider_kmigrate.core.ledger.health import Demand

__all__ = [
    "Case",
    "Demand",
    "Facts",
    "Gap",
    "LedgerFinding",
    "balance",
    "conclude",
]
