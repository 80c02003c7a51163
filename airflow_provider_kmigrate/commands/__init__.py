"""Commands that read a cluster: `kmigrate preflight`, `plan`, `status`. They take no lock and change nothing.

Where Airflow is, they read its connections and its folder; elsewhere an exported file has the connections (`open_context`).
"""
