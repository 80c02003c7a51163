"""Airflow's object storage, asked with a limit: of the libraries behind it some have none, others one of many minutes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from threading import Thread
from typing import Final, TypeVar

from airflow.sdk import ObjectStoragePath

from airflow_provider_kmigrate.exceptions import Unavailable

LIMIT: Final = 60.0  # seconds for one call: they read and write files of a few kB

Value = TypeVar("Value")


def asked(path: str, conn_id: str | None, act: Callable[[ObjectStoragePath], Value], limit: float) -> Value:
    """What `act` returns of that place, within `limit` seconds.

    Raises `FileNotFoundError`, `ImportError` where this worker has nothing for the scheme, and `Unavailable` for every other error and
    where there is no answer in time. A call that never returns stays in a thread of its own, which ends with the task's process.
    """
    answer: Future[Value] = Future()

    def run() -> None:
        try:
            answer.set_result(act(ObjectStoragePath(path, conn_id=conn_id)))
        except BaseException as error:  # noqa: BLE001  # whoever waits for the answer gets it
            answer.set_exception(error)

    Thread(target=copy_context().run, args=(run,), daemon=True, name="kmigrate-object-storage").start()
    try:
        return answer.result(limit)
    except (FileNotFoundError, ImportError):
        raise
    except TimeoutError:
        raise Unavailable(f"{path}: no answer within {limit:g} s") from None
    except Exception as error:
        raise Unavailable(f"{path}: {type(error).__name__}: {error}") from error
