"""What ZooKeeper and KRaft hold of a cluster, in one spelling, and whether it is the same."""
