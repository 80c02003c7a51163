"""The audit's conclusions: fingerprints, commits, canaries, verdict, report. `core.ledger` turns events into facts."""
