"""The member of a group that migrates off ZooKeeper's coordination (KIP-125), as a pure state machine.

Begin at `membership`. `registration`, `assignors` and `group_seen` are what the ZooKeeper (legacy) consumer writes into ZooKeeper and computes from it.
"""
