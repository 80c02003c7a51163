"""Links from a task in Airflow's page to what it left, and to the runbook."""
