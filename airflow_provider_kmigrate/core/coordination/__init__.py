"""What the old consumer's coordination writes into ZooKeeper and computes from it."""
