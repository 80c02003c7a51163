"""Statuses by Airflow's REST API, with the user's own token: what the user's rights on DAGs do not show is not there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, Failed, KMigrateError, Unavailable
from airflow_provider_kmigrate.masking import hide_values
from airflow_provider_kmigrate.pages.stored import (
    NO_STATE,
    WAITING_STATES,
    ApprovalRequest,
    ClusterStatus,
    Entry,
    StoredStatus,
    check_stored,
    cluster_of_dag,
    combine,
    is_row_of,
)
from airflow_provider_kmigrate.utils.status_xcom import STATUS

TOKEN: Final = "AIRFLOW_CLI_TOKEN"  # noqa: S105  # the name that airflowctl reads its token from, too
_TIMEOUT: Final = 10.0  # seconds for each part of an answer
_WHOLE: Final = 60.0  # seconds for one answer
_MOST_BYTES: Final = 4 << 20  # of one answer
_PAGE: Final = 100
_MOST_PAGES: Final = 20
_OF_A_DAG: Final = 2  # newest statuses of each DAG that are read: a step's, and that of the task before it
_AT_ONCE: Final = 16
Row = TypeVar("Row")
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Answer:
    """`clusters` by name; `notes`: what was not read, one sentence each."""

    clusters: Sequence[ClusterStatus]
    notes: Sequence[str] = ()


def read_statuses(url: str, names: Sequence[str] = (), transport: httpx.BaseTransport | None = None) -> Answer:
    """The statuses of all clusters whose DAGs the token's user may read, or of those with these `names`.

    Raises `Failed` for an address that a token must not be sent to, or without a token, `AuthenticationFailed`, `Unavailable`.
    """
    with open_client(url, transport) as client:
        return _Reader(client, set(names)).read()


def open_client(url: str, transport: httpx.BaseTransport | None = None) -> httpx.Client:
    """A client of Airflow's API with the token in AIRFLOW_CLI_TOKEN. Raises as `read_statuses`, but for the answers."""
    token = os.environ.get(TOKEN, "")
    if not token:
        raise Failed(f"Set {TOKEN} to your token of Airflow's API: `airflowctl auth login`, or POST /auth/token.")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise Failed(f"{TOKEN} is no token: it has a blank or a character that no token has. Copy it again, alone.")
    hide_values([token])
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}  # compressed bytes may say nothing without end
    address = _check_address(url)
    try:
        return httpx.Client(base_url=address, headers=headers, timeout=_TIMEOUT, transport=transport)
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:  # its text may hold the password of a proxy
        raise Failed(
            f"The proxy or the certificates that the environment names cannot be used ({type(error).__name__}): correct HTTPS_PROXY, ALL_PROXY, NO_PROXY or SSL_CERT_FILE."
        ) from None


def _check_address(url: str) -> str:
    try:
        httpx.URL(url)
        parts = urlsplit(url)
    except (ValueError, httpx.InvalidURL):  # the address may hold a password: it is not shown
        raise Failed("The address of Airflow is no address such as https://airflow.example.com.") from None
    if parts.username or parts.password:
        raise Failed("The address of Airflow has a user or a password in it. Give the address alone.")
    is_local = parts.hostname in {"localhost", "127.0.0.1", "::1"}
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise Failed(
            "The address of Airflow must begin with https://, or be of this machine: the token would travel unencrypted."
        )
    return url.rstrip("/")


class _XComRow(NamedTuple):
    """Where a status is stored; `stored_at` in seconds since the epoch."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    stored_at: float


class _Reader:
    """One reading of an Airflow. `names`: of clusters; empty: all."""

    def __init__(self, client: httpx.Client, names: set[str]) -> None:
        self._client, self._names = client, names
        self._notes: list[str] = []

    def read(self) -> Answer:
        """The status of each cluster that has a DAG, in the order of names, with what was not read or may not be shown.

        Raises `Unavailable` if Airflow does not answer as its API describes, `AuthenticationFailed` if it refuses the token.
        """
        dags = set(self._list_all("/api/v2/dags", "dags", {"tags": "kmigrate"}, lambda row: str(row["dag_id"])))
        newest = self._list_newest()
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            stored = list(threads.map(self._read_value, newest))
        now_ms = round(1000 * time.time())
        checked = [check_stored(row, now_ms) for row in stored if row]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            checked = list(threads.map(self._correct_by_state, checked, _list_newest_steps(checked)))
        clusters = combine(checked, self._list_requests(), now_ms)
        missing = {cluster_of_dag(dag_id) for dag_id in dags if self._is_asked_for(dag_id)} - {each.cluster for each in clusters}
        absent = [ClusterStatus(name, now_ms) for name in missing]
        rows = {each.cluster for each in (*clusters, *absent)}
        not_shown = {name for name in self._names if not rows & {name, cluster_of_dag(name)}}
        if not_shown:
            self._notes.append(f"Airflow shows no DAG of {', '.join(sorted(not_shown))} to this user.")
        return Answer(sorted((*clusters, *absent), key=lambda status: status.cluster), self._notes)

    def _is_asked_for(self, dag_id: str) -> bool:
        return not self._names or any(is_row_of(dag_id, name) for name in self._names)

    def _list_newest(self) -> list[_XComRow]:
        """Where the newest statuses of each DAG are, those of the last day."""
        path, since = "/api/v2/dags/~/dagRuns/~/taskInstances/~/xcomEntries", time.time() - _DAY_S
        rows = self._list_all(path, "xcom_entries", {"xcom_key": STATUS, "order_by": "-timestamp"}, _parse_xcom_row, since)
        by_dag: dict[str, list[_XComRow]] = {}
        for row in sorted(rows, key=lambda row: row.stored_at, reverse=True):
            if self._is_asked_for(row.dag_id):
                by_dag.setdefault(row.dag_id, []).append(row)
        return [row for of_dag in by_dag.values() for row in of_dag[:_OF_A_DAG]]

    def _read_value(self, row: _XComRow) -> StoredStatus | None:
        dag, run, task = row[:3]
        path = f"/api/v2/dags/{quote_part(dag)}/dagRuns/{quote_part(run)}/taskInstances/{quote_part(task)}/xcomEntries/{STATUS}"
        try:
            answer = self._get(path, {"map_index": row.map_index})
        except KMigrateError as error:
            self._notes.append(f"The status of {dag}/{task} was not read: {error}")
            return None
        return StoredStatus(
            dag, run, task, round(1000 * row.stored_at), answer.get("value") if isinstance(answer, dict) else None
        )

    def _correct_by_state(self, entry: Entry, is_newest: bool) -> Entry:
        """The entry by the state that Airflow has of its task now; as it is, if that is not shown."""
        if not is_newest:
            return entry
        dag, run, task = (quote_part(name) for name in (entry.stored.dag_id, entry.stored.run_id, entry.stored.task_id))
        try:
            answer = ask(self._client, "GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}", is_optional=True)
        except KMigrateError as error:
            self._notes.append(f"Whether {entry.writer} has ended was not read: {error}")
            return entry
        if not (isinstance(answer, dict) and "state" in answer):
            return entry
        return replace(entry, stored=replace(entry.stored, state=str(answer["state"] or NO_STATE))).correct_step()

    def _list_requests(self) -> list[ApprovalRequest]:
        path = "/api/v2/dags/~/dagRuns/~/hitlDetails"
        try:
            requests = list(self._list_all(path, "hitl_details", {"response_received": "false"}, _parse_request))
        except KMigrateError as error:
            self._notes.append(f"Whether a request for an approval waits was not read: {error}")
            return []
        return [request for request in requests if request is not None and self._is_asked_for(request.dag_id)]

    def _list_all(
        self, path: str, key: str, params: Mapping[str, Any], parse: Callable[[Any], Row], since: float = 0.0
    ) -> Iterator[Row]:
        """Each row by `parse`, page by page; ends at rows before `since` if Airflow sorts them, which Airflow 3.1 may not."""
        for page in range(_MOST_PAGES):
            answer = self._get(path, {**params, "limit": _PAGE, "offset": page * _PAGE})
            try:
                rows = list(answer[key])
                yield from [parse(row) for row in rows]
                times = [_read_time(row) for row in rows] if since else []
                is_sorted = times == sorted(times, reverse=True)
                if (page + 1) * _PAGE >= answer["total_entries"] or not rows or (times and is_sorted and times[-1] < since):
                    return
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise Unavailable(f"Airflow's answer to {path} is not what its API describes ({error!r}).") from None
        self._notes.append(f"Airflow has more than {_MOST_PAGES * _PAGE} rows of {key}; the rest was not read.")

    def _get(self, path: str, params: Mapping[str, Any]) -> Any:
        return ask(self._client, "GET", path, params=dict(params))


def ask(client: httpx.Client, method: str, path: str, *, is_optional: bool = False, **request: Any) -> Any:
    """What Airflow answers, as JSON; None if it has no body, or if there is no such thing and it `is_optional`.

    `request`: `params`, `json`, as httpx takes them. Raises `Unavailable`, or `AuthenticationFailed` if the token or its user's rights do not suffice.
    """
    response, body = _fetch_in_time(client, method, path, request)
    code = response.status_code
    if code in _REFUSALS:
        raise AuthenticationFailed(f"Airflow refuses {path} with {code}: {_REFUSALS[code]}")
    if code == 404 and is_optional and not _is_of_another_server(body):
        return None
    if not response.is_success:
        raise Unavailable(f"Airflow answers {path} with {code}. {_describe_answer(code)}".rstrip())
    try:
        return _read_answer(body, is_asked=method == "GET")
    except ValueError:
        is_other = _is_page(body) or body.strip() in {b"", b"null"}
        next_step = _NOT_AIRFLOW if is_other else "Run the command again."
        what = "a web page" if _is_page(body) else "empty" if is_other else "no whole JSON document"
        raise Unavailable(f"Airflow's answer to {path} is {what}. {next_step}") from None


def _read_answer(body: bytes, *, is_asked: bool) -> Any:
    """The document; None if there is none. Raises ValueError for what is no JSON, and for nothing if something `is_asked` for."""
    answer = read_json(body) if body else None
    if answer is None and is_asked:  # which is not Airflow's word that there is no such thing
        raise ValueError("nothing")
    return answer


def _fetch_in_time(client: httpx.Client, method: str, path: str, request: Mapping[str, Any]) -> tuple[httpx.Response, bytes]:
    """The response and its body, in a thread that is not waited for: httpx's time is that of each part, also of headers without an end."""
    answers = SimpleQueue[tuple[httpx.Response, bytes] | BaseException]()

    def fetch() -> None:
        try:
            answers.put(_fetch(client, method, path, request))
        except BaseException as error:  # noqa: BLE001  # raised below
            answers.put(error)

    Thread(target=fetch, name="kmigrate-rest", daemon=True).start()
    try:
        answer = answers.get(timeout=_WHOLE + _TIMEOUT)
    except Empty:
        raise _without_end(path) from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _without_end(path: str) -> Unavailable:
    return Unavailable(f"Airflow's answer to {path} has no end after {_WHOLE:.0f} s.")


def _fetch(client: httpx.Client, method: str, path: str, request: Mapping[str, Any]) -> tuple[httpx.Response, bytes]:
    end = time.monotonic() + _WHOLE
    try:
        with client.stream(method, path, **request) as response:
            body = b""
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise Unavailable(
                    f"Airflow's answer to {path} is compressed, and kmigrate asks for none: check the proxy before it."
                )
            for part in response.iter_bytes():
                body += part
                if len(body) > _MOST_BYTES:
                    raise Unavailable(f"Airflow's answer to {path} is larger than {_MOST_BYTES} bytes.")
                if time.monotonic() > end:
                    raise _without_end(path)
    except httpx.HTTPError as error:
        raise Unavailable(
            f"Airflow does not answer ({type(error).__name__}). Check the address, and that its API server runs."
        ) from None
    return response, body


def _is_page(body: bytes) -> bool:
    return body.lstrip()[:1] == b"<"


def _is_of_another_server(body: bytes) -> bool:
    """Whether a 404 says that the path, and not what is asked for, is unknown: a web server's page, or Airflow's below another root."""
    try:
        return _is_page(body) or read_json(body) == {"detail": "Not Found"}
    except ValueError:
        return False


_NOT_AIRFLOW: Final = "A proxy or its login page answers in Airflow's place, or the address lacks a part. Give the address at which Airflow's API itself answers."
_REFUSALS: Final = {
    401: f"the token is not valid, or no longer. Set {TOKEN} to a new one: `airflowctl auth login`.",
    403: "the token's user does not have the right. Ask the administrator of Airflow for it.",
}


def _describe_answer(code: int) -> str:
    """What a status code of no use means, and what to do."""
    if 300 <= code < 400 or code == 404:
        return _NOT_AIRFLOW
    if code == 429:
        return "It is asked too often: wait a minute, and run the command again."
    return "Its API server, or a proxy before it, is ill: read its log, and run the command again." if code >= 500 else ""


def _list_newest_steps(entries: Sequence[Entry]) -> list[bool]:
    """Of each entry whether it is the newest of its cluster that says what a task does."""
    newest: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.stored.stored_ms):
        if entry.document is not None and entry.document.step is not None:
            newest[cluster_of_dag(entry.stored.dag_id)] = entry
    return [newest.get(cluster_of_dag(entry.stored.dag_id)) is entry for entry in entries]


def _read_time(row: Any) -> float:
    return datetime.fromisoformat(row["timestamp"]).timestamp()


def _parse_xcom_row(row: Any) -> _XComRow:
    dag_id, run_id, task_id = (str(row[name]) for name in ("dag_id", "run_id", "task_id"))
    return _XComRow(dag_id, run_id, task_id, int(row.get("map_index", -1)), _read_time(row))


def _parse_request(row: Any) -> ApprovalRequest | None:
    """A request of kmigrate's that waits; None for any other row."""
    task = row["task_instance"]
    if task["state"] not in WAITING_STATES or not task["dag_id"].startswith("kmigrate_"):
        return None
    return ApprovalRequest(
        str(task["dag_id"]),
        str(task["dag_run_id"]),
        str(task["task_id"]),
        str(row["subject"]),
        round(1000 * datetime.fromisoformat(row["created_at"]).timestamp()),
        [str(user["name"]) for user in row.get("assigned_users") or ()],
    )


def quote_part(part: str) -> str:
    """A name as one part of a path."""
    return quote(part, safe="")


def clear_newest_task(client: httpx.Client, dag: str, task: str) -> str:
    """Clear one task of the newest run of a DAG, and none behind it; returns the run. Raises `Failed` if there is no run or no such task in it."""
    path = f"/api/v2/dags/{quote_part(dag)}"
    runs = ask(client, "GET", f"{path}/dagRuns", params={"order_by": "-run_after", "limit": 1}, is_optional=True)
    try:
        newest = [str(row["dag_run_id"]) for row in (runs or {"dag_runs": ()})["dag_runs"]]
    except (LookupError, TypeError):
        raise Unavailable(f"Airflow's answer to {path}/dagRuns is not what its API describes.") from None
    if not newest:
        raise Failed(f"Airflow shows no run of {dag} to this user.")
    run = newest[0]
    body = {
        "dry_run": False,
        "dag_run_id": run,
        "task_ids": [task],
        "only_failed": False,
        "reset_dag_runs": True,
        "include_downstream": False,
        "include_upstream": False,
    }
    cleared = ask(client, "POST", f"{path}/clearTaskInstances", json=body, is_optional=True)
    if not (isinstance(cleared, dict) and cleared.get("task_instances")):
        raise Failed(f"Run {run} of {dag} has no task {task}.")
    return run
