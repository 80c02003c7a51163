"""Users' Spark jobs beside a migration: held, let go, their risks; and whether it is quiet."""
