"""Airflow's Variables, by its REST API with the user's token, or as Airflow's own process reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
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
        from airflow.configuration import ensure_secrets_loaded  # noqa: PLC0415  # Airflow takes seconds to import
        from airflow.models.variable import Variable  # noqa: PLC0415

        self._variable: Any = Variable
        self._list_stores: Callable[[], Sequence[Any]] = ensure_secrets_loaded

    def read(self, name: str) -> str | None:
        """The Variable's text; None if there is none. Raises `Unavailable` if a store cannot be read.

        `Variable.get` takes a store that does not answer, and a value that it cannot decrypt, for a Variable that is not there.
        """
        value = self._try(lambda: self._read_stores(name))
        return None if value is None else str(value)

    def _read_stores(self, name: str) -> object:
        from airflow.utils.session import create_session  # noqa: PLC0415
        from sqlalchemy import select  # noqa: PLC0415

        for store in self._list_stores():
            if (value := store.get_variable(key=name)) is not None:
                return value
        with create_session() as session:
            if session.scalar(select(self._variable.key).where(self._variable.key == name)) is not None:
                raise Unavailable(f"The Variable {name} exists, and Airflow's key does not decrypt it.")
        return None

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
