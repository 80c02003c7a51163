"""Level L0 of a request: the observation before the step, and its comparison with the logs after it.

`python -m airflow_provider_kmigrate.audit.logs.observation REQUEST` leaves the observation where the request's `logs.before` says; the
audit with the same request compares.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from airflow_provider_kmigrate.audit import request
from airflow_provider_kmigrate.audit import session as sessions
from airflow_provider_kmigrate.audit.logs import fingerprint
from airflow_provider_kmigrate.audit.logs.fingerprint import LogSnapshot
from airflow_provider_kmigrate.audit.request import LogsRequest, OffsetsRequest, StreamRequest
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.admin import topic_names
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, LevelHealth
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused

_OURS: Final = ("__", "kmigrate-")  # Kafka's own topics, and kmigrate's


@dataclass(frozen=True, slots=True)
class Compared:
    """Two observations, and the findings about logs and commits between them."""

    before: LogSnapshot
    after: LogSnapshot
    findings: tuple[AuditFinding, ...]
    health: LevelHealth

    def leave(self, session: SparkSession, wanted: LogsRequest, place: Path) -> None:
        """Keep the later observation, whole, for the next audit, which compares everything written since the earlier.

        Raises ours.
        """
        if not any(mark.unread for mark in self.after.logs.marks.values()):  # else the older one stays the better one
            _keep(fingerprint.refreshed(session, properties(wanted), self.before, self.after, wanted.sample), place)


def compared(session: SparkSession, wanted: LogsRequest) -> Compared:
    """Findings about logs and commits since the newest earlier observation. Raises ours."""
    left = [place for place in wanted.refreshed if Path(place).exists()]
    before = fingerprint.from_dict(_read(left[-1] if left else wanted.before))
    then, reach = {where.topic for where in before.logs.marks}, properties(wanted)
    after = fingerprint.take(session, reach, {*_topics(wanted, reach), *(then if wanted.topics is None else ())}, before=before)
    asked = then.difference(wanted.exclude_topics) if wanted.topics is None else wanted.topics
    findings, health = fingerprint.compare(before, after, asked, resetting_groups=wanted.resetting_groups)
    return Compared(before, after, findings, health)


def taken(session: SparkSession, wanted: LogsRequest) -> LogSnapshot:
    """Observe before the step and keep the result. Raises ours."""
    reach = properties(wanted)
    snapshot = fingerprint.take(session, reach, _topics(wanted, reach), wanted.sample, block=wanted.block)
    _keep(snapshot, Path(wanted.before))
    return snapshot


def _topics(wanted: LogsRequest, reach: Mapping[str, str]) -> Collection[str]:
    """The named topics, or all of the users' that exist now."""
    if wanted.topics is not None:
        return wanted.topics
    return {name for name in topic_names(reach) if not name.startswith(_OURS)}.difference(wanted.exclude_topics)


def _keep(snapshot: LogSnapshot, place: Path) -> None:
    atomic.make_folder(place.parent)
    atomic.replace(place, json.dumps(fingerprint.as_dict(snapshot)).encode(), mode=atomic.ALL_USERS)


def properties(wanted: LogsRequest | OffsetsRequest | StreamRequest) -> Mapping[str, str]:
    """Kafka's properties for the request; never log them. Raises `Failed`, or `Refused` (X04)."""
    return {str(name): str(value) for name, value in _read(wanted.properties).items()}


def _read(place: str) -> Mapping[str, Any]:
    try:
        found = json.loads(Path(place).read_text(encoding="utf-8"))
    except OSError as error:
        raise Failed(f"the audit cannot read {place}: {error}") from error
    except ValueError:
        found = None
    if not isinstance(found, dict):
        text = f"{place} holds no JSON object."
        raise Refused.because(Reason.of(AuditCause.SNAPSHOT_DAMAGED, text))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 with the reason if nothing could be observed."""
    parser = argparse.ArgumentParser(description="Takes a fingerprint of logs and commits before a step.")
    parser.add_argument("request", type=Path, help="JSON, see request.py; its `logs` say where the fingerprint goes")
    options = parser.parse_args(arguments)
    try:
        wanted = request.load(options.request)
        if wanted.logs is None:
            raise Refused.because(Reason.of(AuditCause.REQUEST_WRONG, "The request names no logs."))
        with sessions.start(wanted.spark.master, jars=wanted.spark.jars, settings=wanted.spark.settings) as session:
            snapshot = taken(session, wanted.logs)
    except KMigrateError as error:
        print(f"no observation of the logs: {error}", file=sys.stderr)  # noqa: T201  # a program's own words
        return 2
    print(f"{snapshot.logs.records} records of {len(snapshot.logs.marks)} partitions")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
