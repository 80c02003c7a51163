"""Kafka as Spark reads it: options from librdkafka's properties, and exact ranges of offsets as one table.

Spark's connector is a Java client, so an identity is translated: PEM files are passed by their content, because executors on other
machines have no such files.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_kmigrate.core.audit.spark_words import KAFKA_OPTIONS
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Failed, Refused

Spans = Mapping[TopicPartition, Sequence[tuple[int, int]]]  # of each partition offsets from .. before

_SAME: Final = ("bootstrap.servers", "security.protocol", "ssl.endpoint.identification.algorithm", "client.id")
_LOGIN: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
#: A roll may leave a partition without a leader for longer than Spark's three quick tries (measured: 1 s apart, then the query fails).
#: After each fetch Spark asks for the log's ends, on a connection on which the client's next fetch already waits for new records: by
#: default half a second for each partition and batch (measured: 60 s for a batch of 108 partitions).
READING: Final = {"fetchOffset.numRetries": "10", "fetchOffset.retryIntervalMs": "5000", "kafka.fetch.max.wait.ms": "10"}

#: Which sources Spark reads by their older interface. By that of Kafka each record becomes a Row and is taken apart again, and each task generates
#: the code for it again: a third of the processor time of a gate on 108 partitions.
_OLDER: Final = "spark.sql.sources.useV1SourceList"
#: Spark makes a task for each partition, with code generated for it: one reads up to so many partitions, but there are so many tasks for each core.
#: A cluster that grows with its work has few cores at first.
_PARTITIONS_A_TASK, _TASKS_A_CORE = 16, 4


def options_for(session: SparkSession, properties: Mapping[str, str]) -> dict[str, str]:
    """The options of Spark's Kafka source, as `translate_properties`, with those that the job's properties set (`audit.spark.kafka_options`)."""
    conf = session.sparkContext.getConf().getAll()
    own = {name.removeprefix(KAFKA_OPTIONS): value for name, value in conf if name.startswith(KAFKA_OPTIONS)}
    translatable = dict(properties)
    if any(name.startswith("kafka.sasl.") for name in own):  # a login of Spark's own, by a mechanism that need not be translated
        translatable = {name: value for name, value in translatable.items() if not name.startswith("sasl.")}
    return {**translate_properties(translatable), **own}


def translate_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The options of Spark's Kafka source for librdkafka's `properties`. They hold secrets: never log them.

    Raises `Refused` (X08) for a mechanism that cannot be translated, `Failed` for a PEM file that is not on this machine.
    """
    java = {name: properties[name] for name in _SAME if properties.get(name)}
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms")
    if mechanism and "SASL" in properties.get("security.protocol", "").upper():
        java |= {"sasl.mechanism": mechanism, "sasl.jaas.config": _jaas_config(mechanism, properties)}
    if properties.get("ssl.ca.location"):
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _read_pem(properties["ssl.ca.location"])}
    if properties.get("ssl.certificate.location") and properties.get("ssl.key.location"):
        java |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _read_pem(properties["ssl.certificate.location"]),
            "ssl.keystore.key": _read_pem(properties["ssl.key.location"]),
        }
    if properties.get("ssl.key.password"):
        java["ssl.key.password"] = properties["ssl.key.password"]
    return {f"kafka.{name}": value for name, value in java.items()}


def _read_pem(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        text = f"Spark's driver cannot read {path}, a PEM file that Kafka's connection names: {error}; put it on the driver's machine, too"
        raise Failed(text) from error


def _jaas_config(mechanism: str, properties: Mapping[str, str]) -> str:
    module = _LOGIN.get(mechanism)
    if module is None:
        text = (
            f"Spark cannot use the SASL mechanism {mechanism}, only {', '.join(_LOGIN)}; others need `audit.spark.kafka_options`."
        )
        raise Refused.because(Reason.of(AuditCause.MECHANISM_UNKNOWN, text))
    user, password = (
        properties.get(name, "").replace("\\", "\\\\").replace('"', '\\"') for name in ("sasl.username", "sasl.password")
    )
    return f'{module} required username="{user}" password="{password}";'


def read_spans(
    session: SparkSession, options: Mapping[str, str], spans: Spans, *, isolation: str = "read_uncommitted"
) -> DataFrame | None:
    """Records in these offsets with keys, values, times and headers, aborted ones too, or by `isolation`; None: no records.

    One span of each partition is one read, so a sample in four pieces is four. A read fails if offsets have been removed
    meanwhile. A task reads several partitions, one after the other.
    """
    older_sources = str(session.conf.get(_OLDER)).split(",")
    session.conf.set(_OLDER, ",".join(name for name in older_sources if name != "kafka"))
    frames = []
    for partition_spans in zip_longest(*spans.values()):
        ranges = {
            topic_partition: span
            for topic_partition, span in zip(spans, partition_spans, strict=True)
            if span and span[0] < span[1]
        }
        if ranges:
            frames.append(_read_ranges(session, options, ranges, isolation))
    if not frames:
        return None
    tasks = max(_TASKS_A_CORE * session.sparkContext.defaultParallelism, len(spans) * len(frames) // _PARTITIONS_A_TASK)
    return reduce(DataFrame.unionAll, frames).coalesce(tasks)


def _read_ranges(
    session: SparkSession, options: Mapping[str, str], ranges: Mapping[TopicPartition, tuple[int, int]], isolation: str
) -> DataFrame:
    partitions: dict[str, list[int]] = defaultdict(list)
    first: dict[str, dict[str, int]] = defaultdict(dict)
    end: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, partition), (begin, before) in ranges.items():
        partitions[topic].append(partition)
        first[topic][str(partition)], end[topic][str(partition)] = begin, before
    exact = {"assign": json.dumps(partitions), "startingOffsets": json.dumps(first), "endingOffsets": json.dumps(end)}
    fixed = {"includeHeaders": "true", "failOnDataLoss": "true", "kafka.isolation.level": isolation}
    return session.read.format("kafka").options(**{**READING, **options, **fixed, **exact}).load()
