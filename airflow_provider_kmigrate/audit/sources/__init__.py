"""Where events come from: files, topics, tables of single records, the output of Kafka's own tools."""
