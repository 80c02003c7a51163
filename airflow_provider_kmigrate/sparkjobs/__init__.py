"""For users' own Spark streaming jobs: hold them while Kafka is being restarted under them, and go on exactly where they stopped.

A job that reads Kafka with Structured Streaming survives a clean roll of the brokers without any of this (measured). What kills it
is a partition without a leader for longer than its retries last; and stopping it carelessly repeats a batch. With two lines more it
can be held between two batches by kmigrate's DAGs, or by hand::

    from airflow_provider_kmigrate.sparkjobs import Gate, keep_running

    gate = Gate()
    keep_running(lambda: writer.foreachBatch(gate(write_batch)).start(), CHECKPOINT, gate=gate)

Needs no Airflow and imports pyspark only through the session that the job has.
"""

from airflow_provider_kmigrate.sparkjobs.running import Gate, keep_running

__all__ = ["Gate", "keep_running"]
