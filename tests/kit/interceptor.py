"""The interceptor's classes for tests, compiled without a JDK against the oldest client that they run with, and that client's own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from airflow_provider_kmigrate.audit.connector import resolve_pom
from airflow_provider_kmigrate.exceptions import Refused
from tests.old_consumer.old_consumers import compiled

SOURCES: Final = Path(__file__).parents[2] / "interceptor"
PRODUCER: Final = "kmigrate.audit.ProducerEvidence"
CONSUMER: Final = "kmigrate.audit.ConsumerEvidence"
FOLDER: Final = "kmigrate.events.folder"
QUEUE: Final = "kmigrate.events.queue"


def oldest_tools() -> Path:
    """The folder of the jars of Kafka's tools 2.1.1, with its client, resolved once."""
    without = Refused("there is no Maven: install it (Debian, Ubuntu: apt-get install maven)")
    return resolve_pom(Path(__file__).with_name("kafka-tools-2.1.1.xml"), "kafka-tools-2.1.1", without)


def classes() -> Path:
    """The folder of the interceptor's classes."""
    return compiled(sorted(SOURCES.rglob("*.java")), oldest_tools().glob("*.jar"), "interceptor")


def settings(interceptor: str, events: Path | str, **more: str) -> dict[str, str]:
    """What a client's configuration needs to write its events to a folder; `more` with underscores for dots."""
    return {
        "interceptor.classes": interceptor,
        FOLDER: str(events),
        **{key.replace("_", "."): value for key, value in more.items()},
    }
