"""What operators see in Airflow: the statuses that tasks have stored, as pages and for `kmigrate status --airflow-url`. Reads only."""
