"""The audit at any size: aggregates show which partitions are clean, and `core.ledger` judges all others.

::

    sources ──► events ──► aggregates ──► clean partitions: counted ───────────────► core.ledger ──► core.audit.verdict
    lines,                 screen         suspects: each whole through the ledger    concludes       one rule
    Parquet                               in Spark's workers

The ledger is the only judge. The screen only selects suspects, and can only err towards suspicion; the tests hold every audit
against the ledger on the raw events.

Only this room imports pyspark and pyarrow; it works without Airflow.
"""
