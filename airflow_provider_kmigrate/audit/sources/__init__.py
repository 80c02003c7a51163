"""The sources of events: files, topics, the output of Kafka's own tools."""
