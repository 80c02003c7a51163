"""What every code means, is it safe meanwhile, what to do, what never to do: the one place that says so.

Log lines, JSON reports, task pages and docs/runbook.md are made from these entries (`registry`); the rest of the package gives a code
and what it observed.
"""
