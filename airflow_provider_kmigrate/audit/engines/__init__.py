"""The engine that answers the audit's questions."""
