"""The kill switch: an Airflow Variable that stops every act of kmigrate on a cluster, or on all of them."""

from __future__ import annotations

from typing import Final

from airflow.sdk import Variable

from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import Unavailable

_ALL: Final = "kmigrate_stop"
_SHOWN: Final = 300  # characters of what the Variable says that a message carries


def stopped(cluster: str) -> str:
    """The text of the Variable `kmigrate_stop__<cluster>`, or of `kmigrate_stop` for every cluster; empty if neither exists.

    Read again before every act. Raises `Unavailable` if Airflow does not answer: `Variable.get` returns its default also if the
    API server fails (seen in `ExecutionAPISecretsBackend.get_variable` of Airflow 3.3.2, which turns every error but a denied
    access into "not there"). So an absent Variable is believed only if the list of keys was read as well, and has neither. No
    call of Airflow's can distinguish "not there" from an unresponsive secrets backend beside it, such as Vault.
    """
    names = (f"{_ALL}__{cluster}", _ALL)
    try:
        for name in names:
            said = Variable.get(name, default=None)
            if said is not None:
                return f"Variable {name} says {str(said).strip()[:_SHOWN]!r}"
        there = set(Variable.keys(prefix=_ALL))
    except Exception as error:  # noqa: BLE001  # of whatever kind: unread is not off
        raise _unread(cluster, f"{type(error).__name__}: {error}") from None
    if listed := [name for name in names if name in there]:
        raise _unread(cluster, f"Variable {listed[0]} exists, but its value was not delivered")
    return ""


def _unread(cluster: str, seen: str) -> Unavailable:
    text = f"The kill switch of {cluster} could not be read: {seen[:_SHOWN]}."
    return Unavailable(str(Reason("H07", text)))
