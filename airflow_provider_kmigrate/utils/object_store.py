"""`[kmigrate] store`: an object store of Airflow's (`ObjectStoragePath`) behind `[kmigrate] folder`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_kmigrate.clients.object_log import ObjectExists, StoredFolder, refuse_copy
from airflow_provider_kmigrate.clients.state_folder import SharedFolder, StateFolder
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.exceptions import Refused, Unavailable

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

_LOCAL = {"", "file", "local"}  # a half-written file is seen there
Value = TypeVar("Value")
LIMIT = 60.0  # seconds for one call: objects are of a few kB, and some of the libraries have no limit, others one of many minutes


@lru_cache
def open_state_folder(folder: Path, address: str) -> StateFolder:
    """The folder, shared by itself or as a copy of the store at `address`. Raises `Refused` (O05) for an address or a folder that is neither."""
    if address:
        return StoredFolder(folder, AirflowObjectStore(address))
    refuse_copy(folder)
    return SharedFolder()


class AirflowObjectStore:
    """`address`, such as `s3://aws_default@bucket/kmigrate`: the user part is the id of an Airflow connection."""

    def __init__(self, address: str) -> None:
        scheme, separator, rest = address.partition("://")
        if not separator or scheme in _LOCAL or ":" in rest.partition("@")[0] * ("@" in rest):
            text = f"`[kmigrate] store` is {scheme}://...: it must be an object store, such as s3://CONNECTION@BUCKET/FOLDER, without a password."
            raise Refused.because(Reason("O05", text))
        self.address = address.rstrip("/")

    def create(self, name: str, content: bytes) -> None:
        """On a condition that the store itself judges. Raises `ObjectExists` or `Unavailable`."""
        try:
            self._call(lambda fs, log: fs.pipe_file(f"{log}/{name}", content, mode="create"))
        except FileExistsError:
            raise ObjectExists(name) from None
        except FileNotFoundError as error:
            raise Unavailable(f"{self.address}: there is no such bucket ({error})") from error

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Their contents, asked for at once."""
        return self._call(lambda fs, log: [_require_content(content) for content in _read_at_once(fs, log, names)])

    def list_names(self) -> list[str]:
        """Their names."""
        try:
            return self._call(lambda fs, log: [str(path).rpartition("/")[2] for path in fs.ls(log, detail=False)])
        except FileNotFoundError:
            return []

    def _call(self, act: Callable[[Any, str], Value]) -> Value:
        try:
            return call_object_storage(f"{self.address}/log", None, lambda path: act(path.fs, path.path))
        except ImportError as error:
            text = f"This worker has no library for {self.address} ({error})."
            raise Refused.because(Reason("O05", text)) from error


def _read_at_once(fs: Any, log: str, names: Sequence[str]) -> list[bytes | Exception]:
    contents = fs.cat([f"{log}/{name}" for name in names], on_error="return")
    by_name = {str(path).rpartition("/")[2]: content for path, content in contents.items()}
    return [by_name[name] for name in names]


def _require_content(content: bytes | Exception) -> bytes | None:
    if isinstance(content, FileNotFoundError):
        return None
    if isinstance(content, Exception):
        raise content
    return content


def call_object_storage(path: str, conn_id: str | None, act: Callable[[ObjectStoragePath], Value]) -> Value:
    """Call `act` on that path of Airflow's object storage as it is now, for at most `LIMIT` seconds.

    Raises `FileNotFoundError`, `FileExistsError`, `ImportError` if this worker has no library for the scheme, and `Unavailable` for every other
    error and if there is no answer in time. A call that never returns stays in a thread of its own, which ends with the task's
    process.
    """
    from airflow.sdk import ObjectStoragePath  # noqa: PLC0415  # fsspec: most sites have no store

    answer: Future[Value] = Future()

    def run() -> None:
        try:
            storage_path = ObjectStoragePath(path, conn_id=conn_id)
            # s3fs lists and reads by the list that it remembers: what another process has written since would not be there.
            storage_path.fs.invalidate_cache()
            answer.set_result(act(storage_path))
        except BaseException as error:  # noqa: BLE001  # the waiting caller gets it
            answer.set_exception(error)

    Thread(target=copy_context().run, args=(run,), daemon=True, name="kmigrate-object-storage").start()
    try:
        return answer.result(LIMIT)
    except (FileNotFoundError, FileExistsError, ImportError):
        raise
    except TimeoutError:
        raise Unavailable(f"{path}: no answer within {LIMIT:g} s") from None
    except Exception as error:  # each store's library has classes of its own
        raise Unavailable(f"{path}: {type(error).__name__}: {error}") from error
