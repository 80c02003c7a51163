"""The audit at any size: an engine reduces a history to what matters, `core.ledger` judges what is left.

::

    sources ──► tables ──► Spark or DuckDB ──► algebra (numpy) ──► a smaller history ──► core.ledger ──► core.audit.verdict
    lines,      schema     a few group-bys     which partitions    of the same facts     one judge       one rule
    Parquet                the same SQL        are beyond doubt

An unbroken chain of deliveries is one row of a group-by, so a hundred million records come back as a few thousand. Partitions
that this shows to be faultless are only counted; the events of all others go to the ledger as they are. Engines therefore cannot
differ in judgement, only in speed, and the tests hold every engine against the ledger on the raw events.

This is the only room that imports pyspark, duckdb, pyarrow or numpy's tables; it works without Airflow.
"""
