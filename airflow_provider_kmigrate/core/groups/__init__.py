"""Consumer groups seen from outside: may they migrate, which act of their migration is next.

Begin at `scan` for a group's readiness, at `move` for the migration off ZooKeeper. What holds a broker's restart for groups: `core.migration.group_progress`.
"""
