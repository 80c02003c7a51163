"""A consumer that moves from ZooKeeper to Kafka by one setting, changed from restart to restart.

::

    consumer = consumer_of({..., "coordination.migration.stage": "zookeeper"})   # then "migrating", then "kafka"

The other properties stay: those of a migrating consumer are left out once they mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer

from airflow_provider_kmigrate.consumer.audited import AuditedConsumer
from airflow_provider_kmigrate.consumer.event_log import FileSink, Sink
from airflow_provider_kmigrate.consumer.migrating import MigratingConsumer
from airflow_provider_kmigrate.consumer.migrating.settings import ClientStage, is_ours, renamed, stage_of

ASSIGNOR: Final = "range"
"""The only assignor that migrating members share with Kafka consumers, and only while Kafka coordinates (`migrating.kafka`)."""


def consumer_of(properties: Mapping[str, Any], **options: Any) -> MigratingConsumer | Consumer:
    """Make the consumer of the stage: a `MigratingConsumer` that takes `options`, or in stage `kafka` a Kafka consumer.

    The stage is `coordination.migration.stage`. Raises `Refused` (Y06) for what a stage cannot do.
    """
    if stage_of(properties) is ClientStage.KAFKA:
        return Consumer(plain_properties(properties))
    return MigratingConsumer(properties, **options)


def audited_of(properties: Mapping[str, Any], audit: Sink | Path | str, **options: Any) -> AuditedConsumer:
    """The same, with its deliveries, commits and ownership written to a folder or sink; `options` are AuditedConsumer's."""
    sink = FileSink(audit) if isinstance(audit, Path | str) else audit
    how = {} if stage_of(properties) is ClientStage.KAFKA else {"incremental": True}
    return AuditedConsumer.of(properties, sink, connect=consumer_of, **how, **options)  # type: ignore[arg-type]


def plain_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Properties of librdkafka, with the assignor that lets it into a group with migrating members.

    Without a `client.id` the member is called by its `consumer.id`, by which kmigrate identifies the instance.
    """
    given = renamed(properties)
    called = {"client.id": given["consumer.id"]} if given.get("consumer.id") else {}
    theirs = {name: value for name, value in given.items() if not is_ours(name)}
    return {**called, **theirs, "partition.assignment.strategy": ASSIGNOR}
