"""Consumer groups seen from outside: how ready, how healthy, how they are moved off ZooKeeper and back."""
