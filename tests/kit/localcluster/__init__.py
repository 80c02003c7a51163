"""A real ZooKeeper, Kafka brokers and KRaft controllers on one machine, to rehearse on and to test against."""
