"""Messages to people, through the Airflow notifiers that a cluster file names."""
