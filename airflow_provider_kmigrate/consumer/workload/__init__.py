"""Load with a ledger: numbered records through a whole migration, and what became of each.

Producers (idempotent, acks=all, all partitions, exact rate) and classic consumer groups run as processes of their own, survive
their starter, and write down what was acknowledged, delivered, committed and owned (`core.events`); `core.ledger` says from that
what was lost, repeated, reordered or stalled. `python -m airflow_provider_kmigrate.consumer.workload --help`.
"""

from airflow_provider_kmigrate.consumer.kafka_calls import TopicPlan, create_topics
from airflow_provider_kmigrate.consumer.workload.control import GroupPlan, Workload, WorkloadPlan, summary_of

__all__ = ["GroupPlan", "TopicPlan", "Workload", "WorkloadPlan", "create_topics", "summary_of"]
