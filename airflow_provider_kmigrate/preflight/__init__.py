"""The preflight report: one self-contained HTML file, and the same as JSON beside it.

`kmigrate preflight CLUSTER.yaml` checks a cluster without Airflow. It only reads and takes no lock.
"""
