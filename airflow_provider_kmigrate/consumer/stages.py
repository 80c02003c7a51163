"""A consumer that goes from ZooKeeper to Kafka by one setting, changed at one restart after another.

::

    consumer = consumer_of({..., "coordination.migration.stage": "zookeeper"})   # then "migrating", then "kafka"

The properties stay as they are: those that only a migrating consumer has are left out where they mean nothing any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer

from airflow_provider_kmigrate.consumer.migrating import MigratingConsumer
from airflow_provider_kmigrate.consumer.migrating_settings import OLD_NAMES, Stage, is_ours, stage_of

ASSIGNOR: Final = "range"
"""The only one that migrating members offer to plain ones, and only while Kafka coordinates (`migrating_fence`)."""


def consumer_of(properties: Mapping[str, Any], **options: Any) -> MigratingConsumer | Consumer:
    """By `coordination.migration.stage`: a `MigratingConsumer` that takes `options`, or in stage `kafka` a plain consumer.

    Raises `Refused` (Y06) for what a stage cannot do.
    """
    if stage_of(properties) is Stage.KAFKA:
        return Consumer(plain_properties(properties))
    return MigratingConsumer(properties, **options)


def plain_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """What is librdkafka's, with the assignor that lets it into a group with migrating members."""
    given = {OLD_NAMES.get(name, name): value for name, value in properties.items()}
    return {name: value for name, value in given.items() if not is_ours(name)} | {"partition.assignment.strategy": ASSIGNOR}
