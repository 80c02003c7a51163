"""The rollback to ZooKeeper: its steps, its conditions, its plan in words."""
