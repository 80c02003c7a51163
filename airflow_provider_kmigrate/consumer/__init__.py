"""Audited clients: wrappers for confluent-kafka's consumer and producer that record what they do, and a probe stream.

Their events (`core.events`) are the evidence above the log itself: the probe (L1), wrapped consumers (L2), wrapped producers
(L3). Needs neither Airflow nor Spark.
"""
