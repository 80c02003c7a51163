"""What the audit concludes: logs' fingerprints, commits, canaries, the verdict, the report's facts. From events to facts: `core.ledger`."""
