"""What operators, sensors and triggers share: the context of a step, approvals, runs of other DAGs, Spark jobs."""
