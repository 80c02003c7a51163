"""Messages to people, through the Airflow notifiers that the cluster file names.

Requests for an approval, failed tasks, and alarms when they begin and end. A notifier is made for each message: Airflow renders a
notifier's templates in place. One that fails is logged; it keeps no message from the others, and no task from its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from airflow.sdk import BaseNotifier, Context

from airflow_provider_kmigrate.core.cluster import ClusterSpec, NotifierSpec
from airflow_provider_kmigrate.core.reasons.registry import links

_FAILED = "kmigrate: task {{ ti.task_id }} of {{ dag.dag_id }} failed"


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
        self.targets, self.runbook_url, self.title, self.text = targets, runbook_url, title, text

    def __call__(self, *args: Any) -> None:
        """Send the message to all; the templates stay, for the next one."""
        [context] = args
        title, text = (self.render_template(each, context) for each in (self.title, self.text))
        self.send(context, title, text)

    def notify(self, context: Context) -> None:
        """As a call; for Airflow, which calls either."""
        self(context)

    def send(self, context: Context, title: str, text: str) -> None:
        """Send these words through every notifier."""
        message = Message(title, text, "\n".join(links(text, self.runbook_url)))
        for target in self.targets:
            try:
                notifier_class(target)(**target.arguments)({**context, "kmigrate": message})
            except Exception:  # of whatever notifier: no run fails because a message was not sent
                self.log.exception("Notifier %s could not send %r; continuing without it.", target.notifier, title)


def notifier_class(target: NotifierSpec) -> Any:
    """The class that the cluster file names. Raises ImportError or AttributeError if this Airflow does not have it."""
    module, _, name = target.notifier.rpartition(".")
    return getattr(import_module(module), name)


def notifiers_of(spec: ClusterSpec, title: str, text: str) -> list[ClusterNotifier]:
    """The notifier of one kind of message, as a list for Airflow's arguments; empty if the cluster file names none."""
    return [ClusterNotifier(spec.notify, spec.runbook_url, title, text)] if spec.notify else []


def on_failure(spec: ClusterSpec) -> dict[str, Any]:
    """Default arguments of a DAG's tasks: a failed one is reported, with its error."""
    found = notifiers_of(spec, _FAILED, "{{ exception }}")
    return {"on_failure_callback": found} if found else {}
