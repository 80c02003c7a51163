"""Messages to operators, through the Airflow notifiers that the cluster file names.

Requests for an approval, failed tasks, and alarms when they begin and end. A notifier is made for each message: Airflow renders a
notifier's templates in place. One that fails or hangs is logged; it keeps no message from the others, and no task from its work.

Which alarms were reported is kept in a file beside the journals, for the next watch. An XCom would not do: Airflow sorts those of
earlier runs by their logical date, and PostgreSQL puts a run without one (`airflow dags trigger`) before all others, for good.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextvars import copy_context
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from airflow.sdk import BaseNotifier, Context
from airflow.sdk.log import mask_secret, redact  # type: ignore[attr-defined]  # imported there, as it is used in every log line

from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.cluster import ClusterSpec, NotifierSpec
from airflow_provider_kmigrate.core.foreign_json import read_json
from airflow_provider_kmigrate.core.reasons import links
from airflow_provider_kmigrate.core.text import indented, printable, unmarked
from airflow_provider_kmigrate.core.watch import AlarmChange, Alarms
from airflow_provider_kmigrate.exceptions import Failed
from airflow_provider_kmigrate.hooks.step_context import folder
from airflow_provider_kmigrate.observe.reads import THREADS

_log = logging.getLogger(__name__)

SEND_WITHIN = 30.0
"""Seconds for one message through all notifiers. Their own timeouts are longer, or none: Airflow's SMTP notifier tries 6 times, for 30 s each."""
_FAILED = "kmigrate: task {{ ti.task_id }} of {{ dag.dag_id }} failed"
_ERROR = "{{ exception or 'Its worker was killed or lost. The log of its last try shows how far it came.' }}"


class Message(NamedTuple):
    """What a notifier's templates see as `kmigrate`. `links`: to the runbook's entries of the codes in the text, one a line."""

    title: str
    text: str
    links: str = ""


class ClusterNotifier(BaseNotifier):
    """Send one message through every notifier of a cluster file.

    :param targets: the notifiers of the file.
    :param runbook_url: where people read the runbook.
    :param title: the message's first line. (templated)
    :param text: the message; its links follow it. (templated)
    """

    template_fields: Sequence[str] = ("title", "text")

    def __init__(self, targets: Sequence[NotifierSpec], runbook_url: str, title: str, text: str) -> None:
        super().__init__()
        self.targets, self.runbook_url, self.title, self.text = tuple(targets), runbook_url, title, text

    def __call__(self, *args: Any) -> None:
        """Send the message to all; the templates stay, for the next one."""
        [context] = args
        title, text = (self.render_template(each, context) for each in (self.title, self.text))
        self.send(context, title, text)

    def notify(self, context: Context) -> None:
        """As a call; for Airflow, which calls either."""
        self(context)

    def send(self, context: Context, title: str, text: str) -> bool:
        """Send these words through every notifier at once, within `SEND_WITHIN`; returns false if none of them sent it.

        Names and texts of others among them mention nobody and are no link, no element and no second line of a mail's head.
        A notifier that hangs is left alone on its thread, and this object does not use it again.
        """
        title, text = unmarked(printable(str(redact(title)))), unmarked(indented(str(redact(text))))
        message = Message(title, text, "\n".join(links(text, self.runbook_url)))
        lane, end = THREADS.lane(), time.monotonic() + SEND_WITHIN
        calls = [
            (target, lane.submit(copy_context().run, _send, target, {**context, "kmigrate": message})) for target in self.targets
        ]
        return not calls or any([self._has_sent(target, call, end, title) for target, call in calls])  # noqa: C419 - wait for all

    def _has_sent(self, target: NotifierSpec, call: Future[None], end: float, title: str) -> bool:
        try:
            error = call.exception(max(0.0, end - time.monotonic()))
        except TimeoutError as hangs:
            error, self.targets = hangs, tuple(each for each in self.targets if each is not target)
        if error is not None:
            text = "Notifier %s could not send %r within %.0f s; continuing without it."
            self.log.error(text, target.notifier, title, SEND_WITHIN, exc_info=error)
        return error is None


def _send(target: NotifierSpec, context: dict[str, Any]) -> None:
    """Send by `notify`: a call of a notifier would only log what fails."""
    mask_secret(dict(target.arguments))  # those whose names Airflow takes for secrets: an error may show them
    notifier = notifier_class(target)(**target.arguments)
    context |= {name: getattr(notifier, name) for name in notifier.template_fields}
    notifier.render_template_fields(context)
    notifier.notify(context)


def notifier_class(target: NotifierSpec) -> type[Any]:
    """The notifier that the cluster file names. Raises ImportError, AttributeError or TypeError if this Airflow has no such notifier."""
    module, _, name = target.notifier.rpartition(".")
    found: type[Any] = getattr(import_module(module), name)
    if not issubclass(found, BaseNotifier):
        raise TypeError(f"{target.notifier} is no notifier of Airflow")
    return found


def notifiers_of(spec: ClusterSpec, title: str, text: str) -> list[ClusterNotifier]:
    """The notifier of one kind of message, as a list for Airflow's arguments; empty if the cluster file names none."""
    return [ClusterNotifier(spec.notify, spec.runbook_url, title, text)] if spec.notify else []


def on_failure(spec: ClusterSpec) -> dict[str, Any]:
    """Default arguments of a DAG's tasks: a failed one is reported, with its error."""
    found = notifiers_of(spec, _FAILED, _ERROR)
    return {"on_failure_callback": found} if found else {}


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
    for name, alarm in change.ended.items():  # without a remedy: nothing is left to do
        since = datetime.fromtimestamp(alarm.since, UTC).isoformat(timespec="minutes")
        messages[name] = (
            f"{head} alarm {name.split()[0]} has ended",
            f"It was seen since {since}, and is not any more: {alarm.text}",
        )
    sent = [name for name, (title, text) in messages.items() if notifier.send(context, title, text)]
    keep_alarms(spec.name, change.reported(sent, now))


def keep_alarms(cluster: str, alarms: Alarms) -> None:
    """Keep alarms for the next watch of a cluster, or the next try of this one."""
    path = _path(cluster)
    try:
        atomic.make_folder(path.parent)
        atomic.replace(path, json.dumps(alarms.to_json()).encode())
    except Failed as error:
        _log.warning("Which alarms were reported could not be kept; the next watch reports them again: %s", error)


def _path(cluster: str) -> Path:
    return folder() / "alarms" / f"{cluster}.json"
