"""Users' Spark jobs during a migration: holding and resuming them, their risks, whether the cluster is quiet.

Begin at `hold`.
"""
