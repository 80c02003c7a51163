"""Airflow's sensors: they wait for a state of the cluster, for a window, or for a verdict."""
