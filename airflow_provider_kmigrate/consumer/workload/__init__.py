"""Load with a ledger: numbered records through a whole migration, and the fate of each.

Producers (idempotent, acks=all, all partitions, exact rate) and classic consumer groups run as separate processes, outlive their
starter, and record what was acknowledged, delivered, committed and owned (`core.events`); `core.ledger` derives what was lost,
repeated, reordered or stalled. `python -m airflow_provider_kmigrate.consumer.workload --help`.
"""

from airflow_provider_kmigrate.consumer.kafka_calls import TopicPlan, create_topics
from airflow_provider_kmigrate.consumer.workload.control import GroupPlan, Workload, WorkloadPlan, summary_of

__all__ = ["GroupPlan", "TopicPlan", "Workload", "WorkloadPlan", "create_topics", "summary_of"]
