"""An audit as a JSON file: what the DAG writes and the job reads, wherever Spark runs it.

::

    {"spark": {"master": "local[2]", "jars": [], "settings": {}},
     "policy": {"skew_ms": 100, "allow": ["redelivered"], "max_lag_ms": 60000,
                "required_evidence": {"since": 1795241479346, "groups": ["billing"]}},
     "sources": [{"level": "L2", "lines": ["/audit/events"], "store": "/audit/result/prod/events/runs/lines"},
                 {"level": "L3", "ledgers": ["hdfs:///audit/ledger"]}],
     "logs": {"properties": "/audit/kafka.json", "topics": ["orders"], "before": "/audit/before.json"},
     "canary": {"group": "billing", "canary": "app0", "baseline": ["app1", "app2", "app3"], "interval_ms": 5000},
     "offsets": {"properties": "/audit/kafka.json", "folder": "…/commits"},
     "stream": {"properties": "/audit/kafka.json", "topic": "kmigrate-events", "folder": "…/ledger", "checkpoint": "…/checkpoint"},
     "report": {"cluster": "prod", "cluster_id": "…", "run": "…", "journals": ["/journal/prod"], "step": "first_roll", "tables": "…/tables"}}
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.core.audit.canary import CanaryPlan
from airflow_provider_kmigrate.core.audit.fingerprint import BLOCK, LogSample
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.ledger.health import ANY_EVIDENCE, Demand
from airflow_provider_kmigrate.core.ledger.partition import SKEW_MS
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import Failed, Refused


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """The settings of an audit's judgement. Times are milliseconds.

    `skew_ms`: by how much the members' clocks may differ. `max_cases`: counter-examples kept of a finding. `allow`: findings that are
    shown and do not fail, such as `redelivered` if clients are killed on purpose. `required_evidence`: the least evidence, from `since`
    on, of `groups`. `alive_since` as for `core.ledger.balance`: for an audit of clients that run on; None: all must have stopped.
    """

    skew_ms: int = SKEW_MS
    max_cases: int = 20
    allow: frozenset[str] = frozenset()
    alive_since: int | None = None
    required_evidence: Demand = ANY_EVIDENCE


@dataclass(frozen=True, slots=True)
class SparkRequest:
    """The Spark session of a request. `master` None: as spark-submit says."""

    master: str | None = None
    jars: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogsRequest:
    """Level L0. `properties`: a file with librdkafka's properties as JSON, which may hold secrets and therefore is not included.

    `before`: the observation before the step, from `audit.fingerprint`. `refreshed`: those of earlier audits that passed, in their
    order; the last existing one replaces `before`. `topics`: None for all but `exclude_topics` ones and those of Kafka and kmigrate
    themselves. `sample` and `block` as for `core.audit.fingerprint`. `resetting_groups`: groups that commit smaller offsets on purpose.
    """

    properties: str
    topics: tuple[str, ...] | None
    before: str
    refreshed: tuple[str, ...] = ()
    exclude_topics: tuple[str, ...] = ()
    sample: LogSample = field(default_factory=LogSample)
    block: int = BLOCK
    resetting_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetsRequest:
    """All of `__consumer_offsets`, written as Parquet into `folder`, over an earlier one (`audit.offsets_history`)."""

    properties: str
    folder: str


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A topic to which clients write events: its new events are ingested before the audit. `properties` as above.

    `folder` holds them as Parquet, a ledger of some source; it and `checkpoint` belong together (`audit.stream`).
    """

    properties: str
    topic: str
    folder: str
    checkpoint: str


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """The subject of the page and of the tables. `journals`: files, or folders of `*.jsonl`, on this machine.

    `step`: after which the audit is. `tables`: the folder of the tables (`audit.tables`), on this machine; empty: none are written.
    """

    cluster: str
    cluster_id: str = ""
    run: str = ""
    journals: tuple[str, ...] = ()
    step: str = ""
    tables: str = ""


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """One audit. `whole`: read all events, also those that earlier audits settled.

    None means: `logs`, level L0 is not measured; `report`, no page; `canary`, no comparison; `stream`, no topic is read; `offsets`, only
    the commits of a step are compared, by `logs`.
    """

    sources: tuple[Source, ...]
    policy: AuditPolicy = field(default_factory=AuditPolicy)
    spark: SparkRequest = SparkRequest()
    logs: LogsRequest | None = None
    report: ReportRequest | None = None
    canary: CanaryPlan | None = None
    stream: StreamRequest | None = None
    offsets: OffsetsRequest | None = None
    whole: bool = False


def load(path: Path) -> AuditRequest:
    """The request in a file. Raises `Failed` if it cannot be read, `Refused` (X08) if it makes no sense."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Failed(f"the audit's request {path} cannot be read: {error}") from error
    try:
        return parse(read_json(text))
    except ValueError as error:
        _refuse(f"it is no JSON: {error}")


def parse(document: Any) -> AuditRequest:
    """The request that a JSON document describes. Raises `Refused` (X08)."""
    return _REQUEST(document)


_Made = TypeVar("_Made")
_Read = Callable[[Any], Any]  # raises TypeError, ValueError, KeyError or AttributeError for a value that makes no sense


def _object_reader(make: Callable[..., _Made], **readers: _Read) -> Callable[[Any], _Made]:
    """Reads an object whose fields are the arguments of `make`, those without a reader as they are."""

    def read(value: Any) -> _Made:
        try:
            return make(**{name: readers[name](item) if name in readers else item for name, item in value.items()})
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            _refuse(str(error))

    return read


def _optional_reader(read: _Read) -> _Read:
    return lambda value: None if value is None else read(value)


def _list_reader(read: _Read) -> _Read:
    def read_list(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is no list")
        return tuple(map(read, value))

    return read_list


def _build_policy(*, max_lag_ms: int | None = None, **fields: Any) -> AuditPolicy:
    """The policy of a request.

    `max_lag_ms`: how long ago a client that runs on may have given its last heartbeat, counted from now.
    """
    alive = {} if max_lag_ms is None else {"alive_since": round(time.time() * 1000) - max_lag_ms}
    policy = AuditPolicy(**{**fields, **alive})
    if policy.max_cases < 1:
        raise ValueError(f"max_cases is {policy.max_cases}, and a finding shows at least one case")
    return policy


_STRINGS: Final = _list_reader(str)
_LEVEL: Final = {level.label: level for level in Level}.__getitem__
_TIME: Final = _optional_reader(int)  # milliseconds since the epoch, also as the text that a template makes of them
_REQUEST: Final = _object_reader(
    AuditRequest,
    sources=_list_reader(_object_reader(Source, level=_LEVEL, lines=_STRINGS, store=str, ledgers=_STRINGS)),
    policy=_object_reader(
        _build_policy,
        skew_ms=int,
        max_cases=int,
        allow=lambda names: frozenset(_STRINGS(names)),
        required_evidence=_object_reader(Demand, since=_TIME, groups=_STRINGS, mixed=_STRINGS),
    ),
    spark=_object_reader(SparkRequest, jars=_STRINGS),
    logs=_optional_reader(
        _object_reader(
            LogsRequest,
            topics=_optional_reader(_STRINGS),
            refreshed=_STRINGS,
            exclude_topics=_STRINGS,
            resetting_groups=_STRINGS,
            sample=_object_reader(LogSample),
            block=int,
        )
    ),
    report=_optional_reader(_object_reader(ReportRequest, journals=_STRINGS)),
    canary=_optional_reader(_object_reader(CanaryPlan, baseline=_STRINGS)),
    stream=_optional_reader(_object_reader(StreamRequest)),
    offsets=_optional_reader(_object_reader(OffsetsRequest)),
)


def _refuse(what: str) -> NoReturn:
    text = f"The audit's request is wrong: {what}."
    raise Refused.because(Reason.of(AuditCause.REQUEST_WRONG, text))
