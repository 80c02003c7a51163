"""Airflow's connections as clients. A hook builds clients and masks secrets; it decides nothing."""
