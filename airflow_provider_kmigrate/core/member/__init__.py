"""The member that migrates off ZooKeeper's coordination (KIP-125), as a pure state machine."""
