"""Airflow's Variables, by its REST API with the user's token, or as Airflow's own process reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from airflow_provider_kmigrate.exceptions import KMigrateError, Unavailable

OF_ALL: Final = "kmigrate_stop"
"""The kill switch of every cluster."""


def switch_name(cluster: str) -> str:
    """The name of a cluster's kill switch."""
    return f"{OF_ALL}__{cluster}"


class Variables(Protocol):
    """Each raises `KMigrateError` if Airflow does not answer, or does not allow it."""

    def read(self, name: str) -> str | None:
        """Its text; None: there is none."""

    def write(self, name: str, text: str) -> None:
        """Make it."""

    def delete(self, name: str) -> None:
        """Delete it; one that is gone is no error."""


@contextmanager
def open_variables(url: str | None) -> Iterator[Variables]:
    """Of the Airflow at `url`; None: of this machine's, whose database this process must reach."""
    if url is None:
        yield _Local()
        return
    from airflow_provider_kmigrate.pages.rest import open_client  # noqa: PLC0415  # only what asks Airflow pays for its client

    with open_client(url) as client:
        yield _Remote(client)


class _Remote:
    """Variables of a running Airflow, by its REST API."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def read(self, name: str) -> str | None:
        """The Variable's text; None if there is none. Raises `Unavailable` if Airflow does not answer as its API describes."""
        answer = self._ask("GET", f"/{name}", is_optional=True)
        if answer is None:
            return None
        if not isinstance(answer, dict) or not isinstance(answer.get("value"), str):
            raise Unavailable(f"Airflow's answer about the Variable {name} is not what its API describes.")
        return str(answer["value"])

    def write(self, name: str, text: str) -> None:
        """Store the Variable, over an earlier one."""
        self._ask("POST", "", json={"key": name, "value": text, "description": "The kill switch of kmigrate"})

    def delete(self, name: str) -> None:
        """Delete the Variable; nothing if there is none."""
        self._ask("DELETE", f"/{name}", is_optional=True)

    def _ask(self, method: str, path: str, **request: Any) -> Any:
        from airflow_provider_kmigrate.pages.rest import ask  # noqa: PLC0415  # only what asks Airflow pays for its client

        return ask(self._client, method, f"/api/v2/variables{path}", **request)


class _Local:
    """Variables of the Airflow on this machine, by its own configuration: its database or secrets backends."""

    def __init__(self) -> None:
        os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"  # as `airflow variables`: else it reads no database
        from airflow.models.variable import Variable  # noqa: PLC0415  # Airflow takes seconds to import

        self._variable: Any = Variable

    def read(self, name: str) -> str | None:
        """The Variable's text; None if there is none. Raises `Unavailable` if no store can be read."""
        value = self._try(lambda: self._variable.get(name, default_var=None))
        return None if value is None else str(value)

    def write(self, name: str, text: str) -> None:
        """Store the Variable, over an earlier one."""
        self._try(lambda: self._variable.set(name, text, description="The kill switch of kmigrate"))

    def delete(self, name: str) -> None:
        """Delete the Variable; nothing if there is none."""
        self._try(lambda: self._variable.delete(name))

    @staticmethod
    def _try(call: Any) -> Any:
        try:
            return call()
        except KMigrateError:
            raise
        except Exception as error:  # noqa: BLE001  # of whatever database or secrets backend
            raise Unavailable(f"Airflow's Variables cannot be reached ({type(error).__name__}).") from None
