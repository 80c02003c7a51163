"""What a migration's steps decide: which broker next, controllers up and finalized, waits, cures."""
