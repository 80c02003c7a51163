"""The steps of the plans: each observes, has `core` decide, and acts."""
