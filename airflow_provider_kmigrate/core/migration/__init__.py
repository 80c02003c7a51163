"""What the migration's steps decide: which broker is next, controllers, finalization, waits, recovery."""
