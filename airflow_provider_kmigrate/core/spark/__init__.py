"""Users' Spark jobs during a migration: holding and resuming them, their risks, and whether the cluster is quiet."""
