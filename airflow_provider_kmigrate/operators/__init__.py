"""Airflow's operators: one runs any step of a plan, the named ones are for DAGs of your own."""
