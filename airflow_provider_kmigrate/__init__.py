"""Move Kafka off ZooKeeper, live, one verified step at a time (KIP-125, KIP-866).

Airflow imports this package whenever it starts, so nothing heavy may be imported here.
"""

__version__ = "0.1.0"
