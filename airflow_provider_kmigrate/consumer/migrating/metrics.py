"""A migrating member's figures: KIP-125's two by its names, and as Prometheus reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.core.coordination.registration import Mode
from airflow_provider_kmigrate.core.member.state import Member

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class _Gauge(NamedTuple):
    name: str
    text: str


_GAUGES: Final = {
    "ActiveKafkaCoordinationCount": _Gauge(
        "kmigrate_consumer_kafka_coordination_active", "Whether Kafka coordinates, by the last look of this member (0 or 1)."
    ),
    "KafkaOwnedPartitionsCount": _Gauge(
        "kmigrate_consumer_kafka_owned_partitions", "Partitions that Kafka has given this member, in either mode."
    ),
}
_AGE: Final = _Gauge(
    "kmigrate_consumer_kafka_members_age_seconds",
    "How old this member's knowledge of the Kafka group's members is; absent: none.",
)


def metrics_of(member: Member | None) -> dict[str, int]:
    """By KIP-125's names: whether Kafka coordinates by the member's last look, and how many partitions Kafka has given it."""
    return {
        "ActiveKafkaCoordinationCount": int(member is not None and member.mode is Mode.KAFKA),
        "KafkaOwnedPartitionsCount": len(member.kafka) if member else 0,
    }


def with_figures(properties: Mapping[str, Any], metrics: Callable[[], dict[str, int]]) -> dict[str, Any]:
    """The properties of the consumer that fetches: where the application has a `stats_cb`, its JSON has the figures, too."""
    tell = properties.get("stats_cb")
    if tell is None:
        return dict(properties)
    return {**properties, "stats_cb": lambda text: tell(json.dumps({**json.loads(text), **metrics()}))}


def as_text(metrics: dict[str, int], group: str, client: str, members_age: float = float("inf")) -> str:
    """Prometheus' text format, with the labels `group` and `client`."""
    labels = f'{{group="{group.translate(_ESCAPED)}",client="{client.translate(_ESCAPED)}"}}'
    lines = [line for name, value in metrics.items() for line in _lines(_GAUGES[name], labels, str(value))]
    if members_age < float("inf"):
        lines += _lines(_AGE, labels, f"{members_age:.3f}")
    return "\n".join(lines) + "\n"


def _lines(gauge: _Gauge, labels: str, value: str) -> Iterator[str]:
    yield f"# HELP {gauge.name} {gauge.text}"
    yield f"# TYPE {gauge.name} gauge"
    yield f"{gauge.name}{labels} {value}"
