"""The evidence of the logs themselves, before a step and after it."""
