"""The test kit: a real Kafka cluster on this machine, and what makes it and Spark start quickly. It is not part of the provider's wheel."""
