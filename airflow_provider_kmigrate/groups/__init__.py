"""Consumer groups that ZooKeeper coordinates, at a terminal and without Airflow: their state, and copies of their offsets.

`python -m airflow_provider_kmigrate.groups scan` only reads and takes no lock; `copy-offsets` owns the cluster while it writes.
"""
