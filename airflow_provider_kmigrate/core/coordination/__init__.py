"""What the ZooKeeper (legacy) consumer's coordination writes into ZooKeeper and computes from it."""
