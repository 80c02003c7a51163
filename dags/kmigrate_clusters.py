"""The DAGs of every good cluster file in the configured folder ([kmigrate] clusters_folder)."""

from airflow_provider_kmigrate.dag_builders.folder import configured_folder, dags_of

globals().update(dags_of(configured_folder()))
