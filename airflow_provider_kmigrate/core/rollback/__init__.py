"""The way back to ZooKeeper: its steps, its conditions, its plan in words."""
