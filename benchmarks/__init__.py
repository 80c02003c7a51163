"""What `make demo`, `make airflow` and `make bench` run. Not part of the package."""
