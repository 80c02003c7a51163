"""Consumer groups that ZooKeeper coordinates, for a person at a terminal: where each stands, and copying its offsets. Without Airflow.

`python -m airflow_provider_kmigrate.groups scan` only reads and takes no lock; `copy-offsets` owns the cluster while it writes.
"""
