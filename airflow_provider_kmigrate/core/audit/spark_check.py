"""A small audit whose result is known, and what an answer or an error of it says about the Spark that did it.

Two partitions of a topic that does not exist: one is read whole, which Spark's questions prove; of the other one ten records are lost, so
that it is judged event by event in a Python worker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core.audit.spark_words import cause_of
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events.model import (
    Ack,
    DeliveryRun,
    Event,
    Ownership,
    OwnershipChange,
    Stamp,
    Start,
    Stop,
    TopicPartition,
    WriterRole,
)
from airflow_provider_kmigrate.core.ledger import balance

_TOPIC, _GROUP, _PRODUCER, _MEMBER = "kmigrate-check", "kmigrate-check", "check-producer", "check-member"
_BEGAN_MS, _RECORDS, _RUN = 1_700_000_000_000, 30, 10
LOST: Final = _RUN
"""Records that the audit must find lost."""


def build_events() -> list[Event]:
    """The events of the small audit."""
    places = tuple(TopicPartition(_TOPIC, partition) for partition in (0, 1))
    written: list[Event] = [
        Start(_stamp(_PRODUCER, 0), WriterRole.PRODUCER),
        Start(_stamp(_MEMBER, 0), WriterRole.CONSUMER, group=_GROUP, topics=(_TOPIC,), reset="earliest"),
        Ownership(_stamp(_MEMBER, 1), _GROUP, _MEMBER, 1, OwnershipChange.ACQUIRED, places, 1),
    ]
    runs = [(place, first) for place in places for first in range(0, _RECORDS, _RUN)]
    for number, (place, first) in enumerate(runs, 1):
        stamp, seq = _stamp(_PRODUCER, number), place.partition * _RECORDS + first
        ends = (first, first + _RUN - 1, _RUN, seq, seq + _RUN - 1)
        written.append(Ack(stamp, _PRODUCER, *place, *ends, stamp.t_ms - 5, stamp.t_ms, 5_000))
    delivered = [run for run in runs if run != (places[1], _RUN)]
    counted = dict.fromkeys(places, 0)
    for number, (place, first) in enumerate(delivered, 2):
        stamp, seq = _stamp(_MEMBER, number), place.partition * _RECORDS + first
        span = (first, first + _RUN - 1, _RUN, counted[place], stamp.t_ms, stamp.t_ms)
        written.append(DeliveryRun(stamp, _GROUP, _MEMBER, 1, *place, *span, None, 0, _PRODUCER, seq))
        counted[place] += _RUN
    return [
        *written,
        Stop(_stamp(_PRODUCER, 1 + len(runs)), clean=True),
        Stop(_stamp(_MEMBER, 2 + len(delivered)), clean=True),
    ]


def _stamp(writer: str, number: int) -> Stamp:
    """The member's events follow the producer's."""
    return Stamp(writer, number, _BEGAN_MS + 1_000 * number + (60_000 if writer == _MEMBER and number > 1 else 0))


def find_wrong_answer(facts: Mapping[str, Any]) -> str:
    """What differs in the facts of the small audit (`facts.json`) from those of the ledger; empty if nothing does."""
    expected = json.loads(json.dumps({"sources": [{"level": Level.PRODUCER.label, **balance(build_events()).as_dict()}]}))
    if facts == expected:
        return ""
    sources = facts.get("sources")
    source = sources[0] if isinstance(sources, list) and len(sources) == 1 and isinstance(sources[0], dict) else {}
    names = sorted(name for name, value in expected["sources"][0].items() if source.get(name) != value)
    return f"Spark counts otherwise than the ledger: {', '.join(names) or 'other sources'}"


class MissingPiece(NamedTuple):
    """What an error says is missing, and what to do."""

    name: str
    advice: str


_PIECES: Final[Mapping[MissingPiece, tuple[str, ...]]] = {
    MissingPiece("master", "Correct host and port of the Spark connection, or start the master."): (
        r"no Spark master answers",
        r"All masters are unresponsive",
        r"Could not parse Master URL",
        r"Failed to connect to master",
        r"Connecting to ResourceManager.*Retrying",
        r"HADOOP_CONF_DIR or YARN_CONF_DIR must be set",
    ),
    MissingPiece("memory", "Raise `audit.spark.driver_memory` or `executor_memory`, or give Spark's workers more."): (
        r"OutOfMemoryError",
        r"Java heap space",
        r"\bMemoryError",
        r"exceeding memory limits",
        r"running beyond physical memory",
        r"OOMKilled",
        r"Python worker (?:exited unexpectedly|of Spark's ended)",
        r"Initial job has not accepted any resources",
        r"Could not reserve enough space for object heap",
        r"Error occurred during initialization of VM",
        r"System memory \d+ must be at least",
    ),
    MissingPiece(
        "python",
        "Driver and executors need Python 3.11 or later with pyspark and pyarrow: `audit.environment`, for executors elsewhere `audit.spark.archives`.",
    ): (
        r"No module named",
        r"ModuleNotFoundError",
        r"PYTHON_VERSION_MISMATCH",
        r"Cannot run program \"[^\"]*python",
        r"PACKAGE_NOT_INSTALLED",
        r"python[\w.]*: (?:command )?not found",
    ),
    MissingPiece("jar", "List in `audit.jars` the jars with which this Spark reads Kafka, of Spark's own version."): (
        r"Failed to find data source: kafka",
        r"jars are missing",
        r"[Jj]ar .*does not exist",
        r"(?:ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError)[:\s]+\S*kafka",
        r"unresolved dependency",
    ),
    MissingPiece("java", "Install Java 17 or later for spark-submit."): (
        r"Java is missing",
        r"JAVA_HOME is not set",
        r"java: (?:command )?not found",
    ),
    MissingPiece(
        "kafka", "Spark's driver and executors must reach the brokers and log in there; `audit.spark.kafka_options` adds options."
    ): (
        r"S(?:as|s)lAuthenticationException",
        r"SSL handshake failed",
        r"(?:Topic|Group|Cluster)AuthorizationException",
        r"Failed to construct kafka",
        r"Timed out waiting for a node assignment",
        r"No resolvable bootstrap",
    ),
    MissingPiece("store", "Workers, driver and executors must read and write `audit.result` under the same path."): (
        r"No FileSystem for scheme",
        r"S3AFileSystem not found",
        r"PATH_NOT_FOUND",
        r"FileNotFoundException",
        r"No such file or directory",
        r"Permission denied",
        r"Access(?:Denied|ControlException)",
        r"cannot be (?:read|written)",
        r"FAILED_READ_FILE",
    ),
}
_OWN_WORDS: Final = re.compile(r"^(?:no verdict|no observation of the logs): ")  # of `audit.job` and `audit.fingerprint`


def find_missing_piece(lines: Iterable[str]) -> tuple[MissingPiece | None, str]:
    """What the output of a job that failed says is missing, None if that is not known; and its cause, secrets masked.

    The job's own last words are asked first, because Spark logs much that it survives.
    """
    printed = [line for line in lines if line.strip()]
    own_words = [line for line in printed if _OWN_WORDS.match(line)]
    for part in (own_words[-1:], printed):
        for piece, patterns in _PIECES.items():
            line = next((line for line in part if any(re.search(pattern, line) for pattern in patterns)), None)
            if line is not None:
                return piece, cause_of(_OWN_WORDS.sub("", (own_words or [line])[-1]))
    return None, cause_of(_OWN_WORDS.sub("", (own_words or printed or ["it printed nothing"])[-1]))
