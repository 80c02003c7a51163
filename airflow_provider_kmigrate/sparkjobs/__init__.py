"""Hold users' Spark streaming jobs while Kafka is restarted, and resume them exactly where they stopped.

A job that reads Kafka with Structured Streaming survives a clean roll of the brokers without this (measured). It fails if a
partition has no leader for longer than its retries last; and a careless stop repeats a batch. With two more lines kmigrate's
DAGs, or an administrator, can hold it between two batches::

    from airflow_provider_kmigrate.sparkjobs import Gate, keep_running

    gate = Gate()
    keep_running(lambda: writer.foreachBatch(gate(write_batch)).start(), CHECKPOINT, gate=gate)

Needs no Airflow and imports pyspark only through the session that the job has.
"""

from airflow_provider_kmigrate.sparkjobs.running import Gate, keep_running

__all__ = ["Gate", "keep_running"]
