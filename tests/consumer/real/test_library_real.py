"""An application with the library alone takes two stages on a real broker, and its records are audited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.core.events.model import DeliveryRun
from tests.kit.library_environment import make_environment, run_in

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=40)]

APPLICATION = """
import json
from airflow_provider_kmigrate.applications.event_log import FileSink
from airflow_provider_kmigrate.applications.migrating import audited_of
from airflow_provider_kmigrate.applications.producer import AuditedProducer
properties, topic, folder, wanted = json.loads(sys.argv[1])
with_kafka = {key: properties[key] for key in ("bootstrap.servers",)}
from confluent_kafka import Producer
producer = AuditedProducer(Producer(with_kafka), FileSink(folder))
for number in range(wanted):
    producer.produce(topic, f"{number}".encode())
producer.close()
consumer = audited_of(properties, folder)
consumer.subscribe([topic])
read = 0
while read < wanted:
    message = consumer.poll(1.0)
    if message is not None and message.error() is None:
        read += 1
consumer.close()
print(read)
"""


def test_an_application_with_the_library_alone_takes_two_stages(tmp_path: Path, properties: dict[str, Any], group: str) -> None:
    environment = make_environment(tmp_path / "library")
    del properties["coordination.migration.enabled"]
    for stage in ("zookeeper", "migrating"):
        asked = json.dumps([properties | {"coordination.migration.stage": stage}, group, str(tmp_path / "events"), 50])
        ended = run_in(environment, APPLICATION, asked, timeout=120.0)
        assert ended.stdout.split() == ["50"], ended.stderr
    read = read_events(tmp_path / "events")
    assert read.refused == []
    assert sum(event.count for event in read.events if isinstance(event, DeliveryRun)) == 100
