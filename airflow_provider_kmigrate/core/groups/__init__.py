"""Consumer groups seen from outside: their readiness, their health, their migration off ZooKeeper and their rollback."""
