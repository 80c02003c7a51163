"""The runs of a cluster's probe: whose processes may be ended from here, and what a silent folder means. The real one: test_probe.py."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kmigrate.applications.event_log import EventLog, FileSink
from airflow_provider_kmigrate.core.cluster_state.model import ProcessState
from airflow_provider_kmigrate.core.events.model import Start, WriterRole
from airflow_provider_kmigrate.exceptions import Failed, Refused, TimedOut
from airflow_provider_kmigrate.probe import kafka_calls, process, stream
from airflow_provider_kmigrate.probe.probe import Probe, ProbeRuns, has_ended, wait_for_flow

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of this machine."""
    monkeypatch.setattr(socket, "gethostname", lambda: "here")


def left_behind(place: Path, run: str, machine: str) -> Path:
    """What a probe of that machine has on a folder that is shared."""
    folder = place / run
    (folder / "events").mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"schema": 2, "rate": 15.0, "max_seconds": 60.0, "run": "r"}))
    (folder / "machine").write_text(machine)
    log = EventLog(FileSink(folder / "events"), "producer0-r")
    log.write(Start(log.stamp(), WriterRole.PRODUCER))
    log.close(clean=True)
    return folder


def codes(refused: pytest.ExceptionInfo[Refused]) -> list[str]:
    return [reason.code for reason in refused.value.reasons]


def test_no_probe_is_ended_at_once(tmp_path: Path) -> None:
    assert ProbeRuns(tmp_path / "probe", NOWHERE).end() == ()


def test_one_that_writes_on_another_machine_is_left_to_that_machine(tmp_path: Path) -> None:
    folder = left_behind(tmp_path, "run", "worker-7")
    for attempt in (ProbeRuns(tmp_path, NOWHERE).end, lambda: ProbeRuns(tmp_path, NOWHERE).begin("run")):
        with pytest.raises(Refused, match="worker-7") as refused:
            attempt()
        assert codes(refused) == ["Y09"]
        assert str(folder) in str(refused.value)


def test_one_that_writes_nothing_there_has_ended(tmp_path: Path) -> None:
    folder = left_behind(tmp_path, "run", "worker-7")
    long_ago = time.time() - 61
    for path in (folder / "events").iterdir():
        os.utime(path, (long_ago, long_ago))
    assert has_ended(folder)
    assert ProbeRuns(tmp_path, NOWHERE).end() == ()


def test_one_of_this_machine_whose_processes_are_gone_is_ended(tmp_path: Path) -> None:
    left_behind(tmp_path, "run", "here")
    assert ProbeRuns(tmp_path, NOWHERE).end() == ("run",)
    with pytest.raises(Refused) as refused:
        ProbeRuns(tmp_path, NOWHERE).begin("run")
    assert codes(refused) == ["Y05"], "another run needs another folder"


def test_an_ended_one_of_another_release_keeps_no_new_one_from_starting(tmp_path: Path) -> None:
    folder = left_behind(tmp_path, "run", "here")
    (folder / "plan.json").write_text(json.dumps({"schema": 1}))
    with pytest.raises(Refused, match="schema 1"):
        ProbeRuns(tmp_path, NOWHERE).end()
    for path in (folder / "events").iterdir():
        os.utime(path, (time.time() - 61,) * 2)
    assert ProbeRuns(tmp_path, NOWHERE).end() == ()


def test_files_that_do_not_grow_are_no_evidence(tmp_path: Path) -> None:
    folder = left_behind(tmp_path, "run", "here")
    for events in (folder / "events", tmp_path / "not mounted here"):
        with pytest.raises(Refused) as refused:
            wait_for_flow(events, patience=0.1)
        assert codes(refused) == ["Y09"]


def test_a_start_that_fails_leaves_no_secret_and_says_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(probe: Probe) -> None:
        (probe.folder / "properties.json").write_text("canary-5up3r")
        raise TimedOut("no acknowledgement")

    monkeypatch.setattr(Probe, "start", fails)
    with pytest.raises(TimedOut):
        ProbeRuns(tmp_path, NOWHERE).begin("run")
    assert {path.name: path.read_text() for path in (tmp_path / "run").iterdir()} == {"machine": "here"}


class Waiting:
    """What the waits of a probe ask, on a clock that passes in sleeps and polls; `ends`: what is waited for is there at last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        self.now, self.polled = 0.0, 0
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        for module in modules:
            monkeypatch.setattr(module, "time", clock)

    def sleep(self, _: float) -> None:
        self.now += 1000.0
        self.polled += 1

    def __call__(self, *_: object, **__: object) -> bool:
        return self.polled > 5


def test_topics_without_leaders_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: Any = Waiting(monkeypatch, kafka_calls)
    monkeypatch.setattr(kafka_calls, "_has_leaders", waiting)
    with pytest.raises(TimedOut, match="not every partition of 1 topics had a leader"):
        kafka_calls.wait_for_leaders(waiting, {"t": 3}, 10.0)


def test_a_sender_without_a_topic_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, process)
    sender: Any = SimpleNamespace(
        _watch=SimpleNamespace(partitions=()),
        _lifetime=type("Lifetime", (), {"over": property(lambda _: waiting())})(),
        _producer=SimpleNamespace(poll=waiting.sleep),
        _topics=("orders.*",),
    )
    with pytest.raises(TimedOut, match=r"no topic matches orders\.\*"):
        process.Sender._wait_for_topics(sender)


@pytest.mark.parametrize(
    ("state", "error", "text"),
    [
        (ProcessState.STOPPED, Failed, "sender-0 ended by itself; its log"),
        (ProcessState.RUNNING, TimedOut, "does not start: no start"),
    ],
)
def test_a_stream_that_does_not_start_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: ProcessState, error: type[Exception], text: str
) -> None:
    waiting = Waiting(monkeypatch, stream)
    found = SimpleNamespace(folder=tmp_path / "sender-0", find=lambda: SimpleNamespace(state=state), log_tail=lambda _: "its log")
    probe: Any = SimpleNamespace(
        progress=lambda: SimpleNamespace(update=lambda: None), _list_processes=lambda: [found], folder=tmp_path
    )
    with pytest.raises(error, match=text):
        stream.Stream._wait_until_met(probe, lambda _: "" if waiting() else "no start", 10.0)
