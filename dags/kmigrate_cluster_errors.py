"""No DAG, but the import error that names file and line of every broken cluster file.

It stands apart from the DAGs because Airflow takes away all DAGs of a file that has an import error.
"""

from airflow_provider_kmigrate.dag_builders.folder import check, configured_folder

check(configured_folder())
