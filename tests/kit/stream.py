"""A load's processes, which outlive their starter, on the clients of the product's probe.

Everything is in one folder: `plan.json` (what runs), `properties.json` (how to reach Kafka; readable by the owner only),
`processes/<writer>/` (pid, birth and output of each process), `events/`. Removing the folder ends the processes.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar

import airflow_provider_kmigrate
from airflow_provider_kmigrate.applications.event_log import FolderEvents, read_events
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.admin import connect
from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.core.cluster_state.model import Process, ProcessState, Reason
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.ledger import Facts, balance
from airflow_provider_kmigrate.exceptions import Failed, KMigrateError, Refused, TimedOut
from airflow_provider_kmigrate.probe.clients import Lifetime, Receiver, Sender, Setup
from airflow_provider_kmigrate.probe.kafka_calls import partitions_of
from airflow_provider_kmigrate.probe.stream import StreamProgress, describe_missing, write_expected, write_extents
from tests.kit.processes import Launch, NodeProcess

_SCHEMA: Final = 2
_PLAN: Final = "plan.json"
PROPERTIES: Final = "properties.json"
_POLL_S = 0.1
_STOP_SENDER_S = 140.0  # longer than a sender waits for its last acknowledgement
_STOP_RECEIVER_S = 60.0  # a last commit may wait for the coordinator as long as a session
_SHOWN_S = 1.0
_KILLED_S = 10.0


class ProcessPlan(Protocol):
    """What runs: a dataclass of JSON values. Processes are named as writers."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def topics(self) -> tuple[str, ...]:
        """Names, or patterns that begin with `^`."""

    def senders(self) -> tuple[str, ...]:
        """The writers of the processes that send."""

    def receivers(self) -> tuple[str, ...]:
        """The writers of the processes that receive."""

    def describe_unowned(self, progress: StreamProgress, partitions: Iterable[TopicPartition]) -> str:
        """What is missing until the receivers share these partitions, which some broker shows now; empty: nothing."""

    def count_uncommitted(self, progress: StreamProgress) -> int:
        """The number of acknowledged offsets that are not committed."""


P = TypeVar("P")


def read_plan(folder: Path | str, make: Callable[..., P]) -> P:
    """What `make` builds from the values of the folder's plan. Raises `Refused` (Y01) if there is none that it can read."""
    values = files.read_object(Path(folder) / _PLAN)
    if values is None:
        raise Refused.because(Reason("Y01", f"There is no probe in {folder}."))
    if (schema := values.pop("schema", None)) != _SCHEMA:
        raise _unreadable_plan(f"It has schema {schema!r}; this release reads {_SCHEMA}.")
    try:
        return make(**values)
    except (KeyError, TypeError) as error:
        raise _unreadable_plan(f"It is damaged: {error!r}.") from error


def _unreadable_plan(why: str) -> Refused:
    return Refused.because(Reason("Y01", f"The plan of a probe cannot be read. {why}"))


def are_all_running(processes: Mapping[str, Process]) -> bool:
    """True if there are processes, and all of them run."""
    return bool(processes) and all(process.state is ProcessState.RUNNING for process in processes.values())


class Stream:
    """The stream that lives in `folder`. Any process may repeat `status` and `stop`.

    Each of its processes runs `python -m MODULE FOLDER WRITER` and finds there what it needs.
    """

    module: ClassVar[str]

    def __init__(self, folder: Path | str, properties: Mapping[str, str], plan: ProcessPlan) -> None:
        self.folder = Path(folder).absolute()
        self.events = self.folder / "events"
        self.plan = plan
        self._given = dict(properties)

    @property
    def has_begun(self) -> bool:
        """True if the folder holds a stream already."""
        return (self.folder / _PLAN).exists()

    @property
    def _properties(self) -> Mapping[str, str]:
        return files.read_object(self.folder / PROPERTIES) or self._given

    def start(self, timeout: float = 90.0) -> None:
        """Start receivers, wait until they own every partition, start senders, wait for an acknowledgement from each.

        Raises `Refused` if the folder holds a stream already, `TimedOut` or `Failed` with the end of a log if it does not
        start; no process of it runs then.
        """
        self._prepare()
        deadline, senders = time.monotonic() + timeout, self.plan.senders()
        try:
            self._spawn(self.plan.receivers())
            self._wait_until_met(self._make_unsettled_check(), deadline)
            self._spawn(senders)
            self._wait_until_met(
                lambda progress: describe_missing("acknowledgement", set(senders) - progress.producing), deadline
            )
        except BaseException:
            self._end_processes(self._list_processes(), 0.0)
            raise

    def _prepare(self) -> None:
        if self.has_begun:
            raise Refused.because(Reason("Y01", f"{self.folder} already holds a probe."))
        atomic.make_folder(self.events)
        atomic.replace(self.folder / PROPERTIES, json.dumps(self._given).encode())
        atomic.replace(self.folder / _PLAN, json.dumps({"schema": _SCHEMA, **asdict(self.plan)}, indent=1).encode())
        writers = (*self.plan.senders(), *self.plan.receivers())
        write_expected(self.events, writers)

    def _spawn(self, writers: Iterable[str]) -> None:
        for writer in writers:
            process = NodeProcess(self.folder / "processes" / writer)
            argv = (sys.executable, "-m", self.module, str(self.folder), writer)
            process.define(Launch(argv, env={"PYTHONPATH": str(Path(airflow_provider_kmigrate.__file__).parents[1])}))
            process.start()

    def _list_processes(self, writers: Iterable[str] | None = None) -> list[NodeProcess]:
        folders = {path.parent.name: path.parent for path in sorted(self.folder.glob("processes/*/launch.json"))}
        return [NodeProcess(folders[name]) for name in (folders if writers is None else writers) if name in folders]

    def status(self) -> dict[str, Process]:
        """The processes, by writer; nothing before the first start."""
        return {process.folder.name: process.find() for process in self._list_processes()}

    def progress(self) -> StreamProgress:
        """A reader of the events; nothing is read before its first `update`."""
        return StreamProgress(self.events)

    def _make_unsettled_check(self) -> Callable[[StreamProgress], str]:
        plan, admin = self.plan, connect(self._properties)

        def describe_unsettled(progress: StreamProgress) -> str:
            missing = describe_missing("start", set(plan.receivers()) - progress.started)
            # Again each time: a broker may not know yet of topics that were created a moment ago.
            return missing or plan.describe_unowned(progress, partitions_of(admin, plan.topics))

        return describe_unsettled

    def _wait_until_met(self, describe_unmet: Callable[[StreamProgress], str], deadline: float) -> None:
        progress = self.progress()
        while what := describe_unmet(progress.update()):
            ended = [process for process in self._list_processes() if process.find().state is ProcessState.STOPPED]
            if ended:
                raise Failed(f"{ended[0].folder.name} ended by itself; {ended[0].log_tail(10)}")
            if time.monotonic() > deadline:
                raise TimedOut(f"the stream in {self.folder} does not start: {what}; its events were kept")
            time.sleep(_POLL_S)

    def stop(self, drain: float = 60.0) -> None:
        """Stop senders, read the logs' extents, wait until everything is read, stop receivers.

        The wait ends after `drain` seconds, or with the last receiver; the ledger then shows what is unread. A process that does
        not end on SIGTERM is killed, which the ledger shows too.
        """
        ran = any(process.state is not ProcessState.STOPPED for process in self.status().values())
        self._end_processes(self._list_processes(self.plan.senders()), _STOP_SENDER_S)
        if ran:
            write_extents(self.events, self._properties, self.plan.topics)
            self._wait_until_read(time.monotonic() + drain)
        self._end_processes(self._list_processes(self.plan.receivers()), _STOP_RECEIVER_S)

    def _wait_until_read(self, deadline: float) -> None:
        progress, receivers = self.progress(), self._list_processes(self.plan.receivers())
        while self.plan.count_uncommitted(progress.update()) and time.monotonic() < deadline:
            if all(process.find().state is ProcessState.STOPPED for process in receivers):
                return
            time.sleep(_POLL_S)

    def _end_processes(self, processes: Iterable[NodeProcess], grace: float) -> None:
        """Send SIGTERM to all, and SIGKILL after `grace` seconds to those still running; their logs say where they hang."""
        pids = [(process, process.signal(signal.SIGTERM if grace else signal.SIGKILL)) for process in processes]
        deadline = time.monotonic() + grace
        for process, pid in pids:
            if not process.wait_gone(pid, max(0.0, deadline - time.monotonic())):
                process.signal(signal.SIGUSR1)  # see `run_client`
                process.wait_gone(pid, _SHOWN_S)
                process.signal(signal.SIGKILL)
                process.wait_gone(pid, _KILLED_S)

    def read_all_events(self) -> FolderEvents:
        """All events so far, and the lines that could not be read as events."""
        return read_events(self.events)

    def facts(self) -> Facts:
        """The ledger of all events so far; complete only after `stop`."""
        reading = self.read_all_events()
        return balance(reading.events, refused=reading.refused)


class ProcessLifetime(Lifetime):
    """Ends also at SIGTERM or SIGINT, and after `max_seconds`. Only a process's main thread may make it."""

    def __init__(self, folder: Path, max_seconds: float = 6 * 3600.0) -> None:
        super().__init__(folder)
        self._deadline = time.monotonic() + max_seconds
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self.end())

    @property
    def over(self) -> bool:
        """True if the process must end."""
        return super().over or time.monotonic() > self._deadline


def run_client(argv: Sequence[str], make_client: Callable[[Path, str], Sender | Receiver]) -> int:
    """Run the client of a folder and a writer. Exit code 0: done; 1: it failed and says why."""
    folder, writer = argv
    faulthandler.register(signal.SIGUSR1)  # where each thread is, though it hangs in a library
    try:
        make_client(Path(folder), writer).run()
    except KMigrateError as error:
        print(f"{writer} failed: {error}", file=sys.stderr)  # a command line
        return 1
    return 0


def setup_of(folder: Path, writer: str, topics: tuple[str, ...], max_seconds: float) -> Setup:
    """The setup of a process that the stream in this folder has started; takes its signals."""
    properties = files.read_object(folder / PROPERTIES) or {}
    if not properties.get("bootstrap.servers"):
        raise Refused.because(Reason("Y01", f"There is no bootstrap.servers in {folder / PROPERTIES}."))
    events = folder / "events"
    return Setup(events, writer, properties, topics, ProcessLifetime(events, max_seconds))
