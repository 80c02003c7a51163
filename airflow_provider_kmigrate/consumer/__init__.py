"""Clients that write down what they saw: wrappers for confluent-kafka's consumer and producer, and a probe stream of our own.

Their events (`core.events`) are the levels of evidence above the log itself: the probe (L1), wrapped consumers (L2), wrapped
producers (L3). Nothing in here needs Airflow or Spark.
"""
