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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from airflow.sdk import BaseNotifier, Context
from airflow.sdk.log import mask_secret, redact  # type: ignore[attr-defined]  # imported there, as it is used in every log line

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NotifierSpec
from airflow_provider_kmigrate.core.monitoring.watch import AlarmChange, Alarms
from airflow_provider_kmigrate.core.reasons import links
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import defuse_markup, escape_html, indent_further_lines, printable
from airflow_provider_kmigrate.exceptions import Failed, Unavailable
from airflow_provider_kmigrate.observe.reads import THREADS
from airflow_provider_kmigrate.utils.step_context import open_state, state_folder

_log = logging.getLogger(__name__)

SEND_WITHIN = 30.0
"""Seconds for one message through all notifiers. Their own timeouts are longer, or none: Airflow's SMTP notifier tries 6 times, for 30 s each."""
_FAILED = "kmigrate: task {{ ti.task_id }} of {{ dag.dag_id }} failed"
_ERROR = "{{ exception or 'Its worker was killed or lost. The log of its last try shows how far it came.' }}"


class Message(NamedTuple):
    """What a notifier's templates see as `kmigrate`.

    `text`: plain, without marks of Markdown. `links`: to the request that waits, and to the runbook's entries of the codes in the text, one
    a line. `html`: the body of a mail, with the link to the request, the text, and the links to the runbook.
    """

    title: str
    text: str
    links: str = ""
    html: str = ""


class ClusterNotifier(BaseNotifier):
    """Send one message through every notifier of a cluster file.

    :param targets: the notifiers of the file.
    :param runbook_url: where people read the runbook.
    :param title: the message's first line. (templated)
    :param text: the message; its links follow it. (templated)
    :param link: the address of the request that waits, of Airflow's own making; empty: none. With it, the text is Markdown. (templated)
    """

    template_fields: Sequence[str] = ("title", "text", "link")

    def __init__(self, targets: Sequence[NotifierSpec], runbook_url: str, title: str, text: str, link: str | None = None) -> None:
        super().__init__()
        self.targets, self.runbook_url, self.title, self.text = tuple(targets), runbook_url, title, text
        self.link = link

    def __call__(self, *args: Any) -> None:
        """Send the message to all; the templates stay, for the next one."""
        [context] = args
        title, text = (self.render_template(template, context) for template in (self.title, self.text))
        self.send(context, title, text, None if self.link is None else str(self.render_template(self.link, context)))

    def notify(self, context: Context) -> None:
        """As a call; for Airflow, which calls either."""
        self(context)

    def send(self, context: Context, title: str, text: str, request_link: str | None = None) -> bool:
        """Send these words through every notifier at once, within `SEND_WITHIN`; returns false if none of them sent it.

        `request_link`: as the argument `link`; None: the text is no Markdown. Names and texts of others among them mention no user and are no link, no element and no second line of a mail's head.
        A notifier that hangs is left alone on its thread, and this object does not use it again.
        """
        text = str(redact(text))  # a request's lines are Markdown: indented, they would be code
        text = indent_further_lines(text) if request_link is None else printable(text, "\n\t")
        title, text = defuse_markup(printable(str(redact(title)))), defuse_markup(text)
        message = _make_message(title, text, list(links(text, self.runbook_url)), request_link)
        lane, end = THREADS.open_lane(), time.monotonic() + SEND_WITHIN
        calls = [
            (target, lane.submit(copy_context().run, _send, target, {**context, "kmigrate": message})) for target in self.targets
        ]
        return not calls or any([self._has_sent(target, call, end, title) for target, call in calls])  # noqa: C419 - wait for all

    def _has_sent(self, target: NotifierSpec, call: Future[None], end: float, title: str) -> bool:
        try:
            error = call.exception(max(0.0, end - time.monotonic()))
        except TimeoutError as hangs:
            error, self.targets = hangs, tuple(other for other in self.targets if other is not target)
        if error is not None:
            text = "Notifier %s could not send %r within %.0f s; continuing without it."
            self.log.error(text, target.notifier, title, SEND_WITHIN, exc_info=error)
        return error is None


def _make_message(title: str, text: str, runbook_links: Sequence[str], request_link: str | None) -> Message:
    """The message in each of its forms. A text of others that loses marks could become a link, so it is made harmless again."""
    from airflow_provider_kmigrate.notifications.rendering import render_html, render_plain  # noqa: PLC0415  # only messages

    addresses = [*([request_link] if request_link else []), *runbook_links]
    link_to = '<p><a href="{}">{}</a></p>'.format
    body = f"<p>{'<br>'.join(map(escape_html, text.splitlines()))}</p>" if request_link is None else render_html(text)
    plain = text if request_link is None else defuse_markup(render_plain(text))
    # First, since an approver who has read the four figures need not scroll through the evidence to the end.
    first = [link_to(escape_html(request_link), "Open the request")] if request_link else []
    last = [
        link_to(*[escape_html(link)] * 2) if "://" in link else f"<p><code>{escape_html(link)}</code></p>"
        for link in runbook_links
    ]  # without the runbook's address they are commands
    return Message(title, plain, "\n".join(addresses), "\n".join((*first, body, *last)))


def _send(target: NotifierSpec, context: dict[str, Any]) -> None:
    """Send by `notify`: a call of a notifier would only log what fails."""
    mask_secret(dict(target.arguments))  # those whose names Airflow takes for secrets: an error may show them
    for address in _list_addresses(target.arguments):
        mask_secret(address)  # a chat's webhook is a secret as a whole
    notifier = load_notifier_class(target)(**target.arguments)
    context |= {name: getattr(notifier, name) for name in notifier.template_fields}
    notifier.render_template_fields(context)
    notifier.notify(context)


def _list_addresses(value: object) -> Iterator[str]:
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _list_addresses(inner)
    elif isinstance(value, str) and "://" in value and not any(sign.isspace() for sign in value):
        yield value


def load_notifier_class(target: NotifierSpec) -> type[Any]:
    """The notifier that the cluster file names. Raises ImportError, AttributeError or TypeError if this Airflow has no such notifier."""
    module, _, name = target.notifier.rpartition(".")
    notifier_type: type[Any] = getattr(import_module(module), name)
    if not issubclass(notifier_type, BaseNotifier):
        raise TypeError(f"{target.notifier} is no notifier of Airflow")
    return notifier_type


def make_notifiers(spec: ClusterSpec, title: str, text: str, link: str | None = None) -> list[ClusterNotifier]:
    """The notifier of one kind of message, as a list for Airflow's arguments; empty if the cluster file names none."""
    return [ClusterNotifier(spec.notify, spec.runbook_url, title, text, link)] if spec.notify else []


def failure_arguments(spec: ClusterSpec) -> dict[str, Any]:
    """Default arguments of a DAG's tasks: a failed one is reported, with its error."""
    notifiers = make_notifiers(spec, _FAILED, _ERROR)
    return {"on_failure_callback": notifiers} if notifiers else {}


def load_alarms(cluster: str) -> Alarms:
    """What the last watch of a cluster kept."""
    try:
        return Alarms.from_json(read_json(_alarms_path(cluster).read_bytes()))
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
            f"It was observed since {since}, and is not any more: {alarm.text}",
        )
    sent = [name for name, (title, text) in messages.items() if notifier.send(context, title, text)]
    save_alarms(spec.name, change.after_reporting(sent, now))


def save_alarms(cluster: str, alarms: Alarms) -> None:
    """Keep alarms for the next watch of a cluster, or the next try of this one."""
    path = _alarms_path(cluster)
    try:
        open_state().replace(path, lambda _: json.dumps(alarms.to_json()).encode())
    except (Failed, Unavailable) as error:
        _log.warning("Which alarms were reported could not be kept; the next watch reports them again: %s", error)


def _alarms_path(cluster: str) -> Path:
    return state_folder() / "alarms" / f"{cluster}.json"
