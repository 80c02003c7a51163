"""What Airflow's triggerer runs for a task that waits."""
