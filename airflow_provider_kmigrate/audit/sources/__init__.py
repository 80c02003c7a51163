"""The sources of events: files, topics."""
