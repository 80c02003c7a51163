"""Kafka's own gauges as a second witness of a migration: read from an exporter's or Jolokia's answer, and compared with an observation.

Nothing is decided by them: no gate, step or readiness asks. A contradiction shows that a mapping of gauges is wrong, that another
cluster answers, or that kmigrate is mistaken; the watch reports it. The values of each phase are those of docs/metrics.md, which were
measured on Kafka 3.9.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Reason
from airflow_provider_kmigrate.core.migration.gates import MOST_LAG, dual_write_lag
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.core.shared.foreign_json import EXACT, read_json
from airflow_provider_kmigrate.core.shared.text import count_of

STATE: Final = "ZkMigrationState"
LAG: Final = "ZkWriteBehindLag"
_GAUGE_NAMES = re.compile(
    r"zk_?migration_?state|zk_?write_?behind_?lag", re.IGNORECASE
)  # exporters spell names as their rules say
_LINE = re.compile(r"[^\n]+")
_VALUES: Final = 100_000  # of an answer; a controller has some thousand gauges
_STATES: Final = {0: "none", 1: "migration", 2: "pre-migration", 3: "post-migration", 4: "ZooKeeper"}
#: What controllers may report in a phase. In between a controller takes a moment to follow; the phases left out have no one value.
EXPECTED: Final[Mapping[Phase, frozenset[int]]] = {
    Phase.PRE_MIGRATION: frozenset({2}),
    Phase.FIRST_ROLL: frozenset({2}),
    Phase.COPY: frozenset({1, 2}),
    Phase.DUAL_WRITE_ZOOKEEPER: frozenset({1}),
    Phase.HYBRID: frozenset({1}),
    Phase.DUAL_WRITE: frozenset({1}),
    Phase.FINALIZING: frozenset({1, 3}),
    Phase.ENDED: frozenset({1, 3}),
    Phase.FINALIZED: frozenset({3}),
}


@dataclass(frozen=True, slots=True)
class KafkaGauges:
    """What one controller's gauges say; None: it has no such gauge. `unread`: why they could not be read; empty if they were."""

    state: int | None = None
    lag: int | None = None
    unread: str = ""


def read_gauges(body: bytes) -> KafkaGauges:
    """The gauges in Prometheus's text format, or in Jolokia's JSON. Raises `ValueError`, and nothing else, if there is none."""
    text = body.decode()
    samples = list(_parse_jolokia(text) if text.lstrip().startswith("{") else _parse_prometheus(text))
    state, lag = _find_single(samples, STATE), _find_single(samples, LAG)
    if state is None and lag is None:
        raise ValueError(f"there is neither {STATE} nor {LAG} in the answer")
    return KafkaGauges(state, lag)


def _parse_prometheus(text: str) -> Iterator[tuple[str, float]]:
    """Lines such as `kafka_controller_KafkaController_Value{name="ZkMigrationState",} 1.0`."""
    for match in _LINE.finditer(text):
        line = match[0]
        if line.startswith("#") or not _GAUGE_NAMES.search(line):
            continue
        name, _, rest = line.rpartition("}") if "}" in line else line.partition(" ")
        yield name, float(next(iter(rest.split()), ""))


def _parse_jolokia(text: str) -> Iterator[tuple[str, float]]:
    """The answer to a read of one bean, or of a pattern: then `value` has the attributes of each bean by its name."""
    answer: Any = read_json(text, most=_VALUES)
    try:
        value = answer["value"]
        beans = {answer["request"]["mbean"]: value} if "Value" in value else value
        for name, attributes in beans.items():
            if _GAUGE_NAMES.search(name):
                yield name, _require_number(attributes["Value"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it is JSON, but no answer of Jolokia to a read of beans") from error


def _require_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return float(value)


def _find_single(samples: Iterable[tuple[str, float]], name: str) -> int | None:
    """The one value of a gauge, which is a whole number from 0."""
    values = {value for label, value in samples if name.lower() in label.replace("_", "").lower()}
    if not values:
        return None
    [value, *others] = sorted(values)
    if others or not 0 <= value <= EXACT or value != int(value):
        raise ValueError(f"{name} has the values {', '.join(f'{number:g}' for number in sorted(values)[:3])}")
    return int(value)


def find_contradictions(view: ClusterView, gauges: Mapping[int, KafkaGauges]) -> tuple[Reason, ...]:
    """G41 for each controller whose gauges an observation contradicts. A lag of 0 says nothing: standbys always report it."""
    return tuple(
        Reason("G41", f"Controller {controller} reports {text}", node=f"controller {controller}")
        for controller, reported in sorted(gauges.items())
        for text in _describe_contradictions(view, reported)
    )


def _describe_contradictions(view: ClusterView, reported: KafkaGauges) -> Iterator[str]:
    phase, lag = position_of(view).phase, dual_write_lag(view)
    expected = EXPECTED.get(phase)
    if expected is not None and reported.state is not None and reported.state not in expected:
        expected_states = " or ".join(map(str, sorted(expected)))
        state = f"{STATE} {reported.state} ({_STATES.get(reported.state, 'unknown to Kafka 3.9')})"
        yield f"{state}; kmigrate observes the phase '{phase}', in which it is {expected_states}."
    if lag is not None and reported.lag is not None and lag <= MOST_LAG < reported.lag:
        yield f"{LAG} {reported.lag}; kmigrate observes a lag of {lag}."


def describe_witness(view: ClusterView, gauges: Mapping[int, KafkaGauges]) -> str:
    """What the second witness says, as a sentence; empty if none is named."""
    if not gauges:
        return ""
    unread = [
        f"controller {controller} ({reported.unread})" for controller, reported in sorted(gauges.items()) if reported.unread
    ]
    agree = len(gauges) - len(unread) - len({reason.node for reason in find_contradictions(view, gauges)})
    missing = f" Not read: {'; '.join(unread)}." if unread else ""
    return f"Kafka's own gauges agree on {agree} of {count_of(len(gauges), 'controller')}.{missing}"
