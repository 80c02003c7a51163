"""Whether the notifiers of a cluster file could send: class, arguments and connections, and one test message.

Airflow shows a notifier's fault only when a message is due, in a log that few people read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow.sdk import BaseHook

from airflow_provider_kmigrate.airflow_releases import AirflowNotFoundException
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NotifierSpec
from airflow_provider_kmigrate.notifications.messages import ClusterNotifier, load_notifier_class


def find_notifier_problems(spec: ClusterSpec, *, connections: bool = True) -> tuple[Reason, ...]:
    """F08 for each notifier that cannot be imported or made; `connections`: or whose connection Airflow does not have."""
    return tuple(
        Reason("F08", f"{spec.path}: notifier {notifier.notifier}: {text}")
        for notifier in spec.notify
        for text in _find_problems(notifier, connections=connections)
    )


def _find_problems(target: NotifierSpec, *, connections: bool) -> Iterator[str]:
    """No text has a value of the arguments: they may be secrets."""
    try:
        notifier_type = load_notifier_class(target)
    except (ImportError, AttributeError, TypeError):
        yield "this Airflow has no notifier with this import path."
        return
    try:
        notifier = notifier_type(**target.arguments)
    except TypeError as error:
        yield f"its class does not take the arguments {', '.join(target.arguments) or '(none)'}: {_describe_type_error(error)}."
        return
    except Exception as error:  # noqa: BLE001 - a class of others, which may raise anything
        yield f"it could not be made with the arguments {', '.join(target.arguments) or '(none)'}: {type(error).__name__}."
        return
    if connections:
        yield from (
            f"Airflow has no connection {conn_id}." for conn_id in _list_connections(notifier) if not _has_connection(conn_id)
        )


def _describe_type_error(error: TypeError) -> str:
    text = str(error)
    return text.partition("() ")[2] or "TypeError"


def _list_connections(notifier: Any) -> list[str]:
    """The connections that a notifier keeps, by its attributes whose names end in `conn_id`; templates are left out."""
    values = (value for name, value in sorted(vars(notifier).items()) if name.endswith("conn_id"))
    return [value for value in values if isinstance(value, str) and value and "{{" not in value]


def _has_connection(conn_id: str) -> bool:
    try:
        BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return False
    return True


def send_test_message(spec: ClusterSpec) -> tuple[Reason, ...]:
    """Send one message through all notifiers, within the time of any message; F08 if none of them sent it."""
    title, text = (
        f"kmigrate: {spec.name}: test message",
        "kmigrate check --test-message sent this. Nothing is wrong with the cluster.",
    )
    sent = ClusterNotifier(spec.notify, spec.runbook_url, title, text).send({}, title, text)
    return (
        ()
        if sent
        else (Reason("F08", f"{spec.path}: no notifier could send the test message; the log above has each one's error."),)
    )
