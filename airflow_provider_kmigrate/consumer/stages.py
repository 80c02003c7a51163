"""A consumer that goes from ZooKeeper to Kafka by one setting, changed at one restart after another.

::

    consumer = consumer_of({..., "coordination.migration.stage": "zookeeper"})   # then "migrating", then "kafka"

The properties stay as they are: those that only a migrating consumer has are left out where they mean nothing any more.
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
"""The only one that migrating members offer to plain ones, and only while Kafka coordinates (`migrating.fence`)."""


def consumer_of(properties: Mapping[str, Any], **options: Any) -> MigratingConsumer | Consumer:
    """By `coordination.migration.stage`: a `MigratingConsumer` that takes `options`, or in stage `kafka` a plain consumer.

    Raises `Refused` (Y06) for what a stage cannot do.
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
    """What is librdkafka's, with the assignor that lets it into a group with migrating members.

    Without a `client.id` the member is called by its `consumer.id`: kmigrate knows the instance by it.
    """
    given = renamed(properties)
    called = {"client.id": given["consumer.id"]} if given.get("consumer.id") else {}
    theirs = {name: value for name, value in given.items() if not is_ours(name)}
    return {**called, **theirs, "partition.assignment.strategy": ASSIGNOR}
