"""What the logs themselves say, before a step and after it."""
