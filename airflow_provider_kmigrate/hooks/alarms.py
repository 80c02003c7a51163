"""Reports a cluster's alarms, and keeps for the next watch which of them were reported.

They are in a file beside the journals. An XCom would not do: Airflow sorts those of earlier runs by their logical date, and PostgreSQL
puts a run without one (`airflow dags trigger`) before all others, for good.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import Context

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.cluster import ClusterSpec
from airflow_provider_kmigrate.core.foreign_json import read_json
from airflow_provider_kmigrate.core.watch import AlarmChange, Alarms
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.hooks.notify import ClusterNotifier
from airflow_provider_kmigrate.hooks.step_context import folder

_log = logging.getLogger(__name__)


def kept_alarms(cluster: str) -> Alarms:
    """What the last watch of a cluster kept."""
    try:
        return Alarms.from_json(read_json(_path(cluster).read_bytes()))
    except (OSError, ValueError):
        return Alarms()


def report_alarms(context: Context, spec: ClusterSpec, change: AlarmChange, now: float) -> None:
    """Send a message for each alarm that began or ended, then keep which were sent: a kill between repeats a message and loses none.

    `now`: seconds since the epoch.
    """
    notifier, head = ClusterNotifier(spec.notify, spec.runbook_url, "", ""), f"kmigrate: {spec.name}:"
    messages = {name: (f"{head} alarm {reason.code} begins", str(reason)) for name, reason in change.begun.items()}
    for name, alarm in change.ended.items():
        since = datetime.fromtimestamp(alarm.since, UTC).isoformat(timespec="minutes")
        messages[name] = (f"{head} an alarm has ended", f"Since {since}, not seen any more: {alarm.text}")
    sent = [name for name, (title, text) in messages.items() if notifier.send(context, title, text)]
    path, kept = _path(spec.name), change.reported(sent, now)
    try:
        atomic.make_folder(path.parent)
        atomic.replace(path, json.dumps(kept.to_json()).encode())
    except Failed as error:
        _log.warning("Which alarms were reported could not be kept; the next watch reports them again: %s", error)


def _path(cluster: str) -> Path:
    return folder() / "alarms" / f"{cluster}.json"
