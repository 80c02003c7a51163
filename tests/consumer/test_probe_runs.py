"""The runs of a cluster's probe: whose attempt a run is, what ends it, what an earlier release left. The real one: test_probe.py."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_kmigrate.applications.event_log import EventLog, FileSink
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.events.model import Start, WriterRole
from airflow_provider_kmigrate.exceptions import Failed, Refused, TimedOut
from airflow_provider_kmigrate.probe import clients, command, kafka_calls, probe
from airflow_provider_kmigrate.probe.probe import (
    Probe,
    ProbeEnd,
    describe_earlier_release,
    find_flow,
    has_ended,
    list_runs,
    stop_runs,
)

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


def written(folder: Path, *, stopped: bool) -> Path:
    """A run with one writer."""
    log = EventLog(FileSink(folder / "events"), "producer0-r")
    log.write(Start(log.stamp(), WriterRole.PRODUCER))
    log.flush()
    if stopped:
        log.close(clean=True)
    return folder


def of_earlier_release(folder: Path, *, stopped: bool = False) -> Path:
    """What a probe whose processes an earlier release has started has on a folder that is shared."""
    written(folder, stopped=stopped)
    (folder / "machine").write_text("worker-7")
    for writer, pid in (("producer0-r", 4711), ("kmigrate-probe.0-r", 4712)):
        (folder / "processes" / writer).mkdir(parents=True)
        (folder / "processes" / writer / "process.json").write_text(json.dumps({"pid": pid, "birth": "b"}))
    return folder


def silent(folder: Path) -> Path:
    long_ago = time.time() - 61
    for path in (folder / "events").iterdir():
        os.utime(path, (long_ago, long_ago))
    return folder


def taken(folder: Path, attempt: str) -> Path:
    (folder / "owner.json").write_text(json.dumps({"attempt": attempt}))
    return folder


def codes(refused: pytest.ExceptionInfo[Refused]) -> list[str]:
    return [reason.code for reason in refused.value.reasons]


def begun(folder: Path) -> Probe:
    """A probe that has taken its run and has no client yet."""
    found = Probe(folder, NOWHERE)
    found._take_over()
    return found


def test_no_probe_is_ended_at_once(tmp_path: Path) -> None:
    assert stop_runs(list_runs(tmp_path / "probe")) == []


@pytest.mark.parametrize(
    "ended", [lambda folder: written(folder, stopped=True), lambda folder: silent(written(folder, stopped=False))]
)
def test_one_whose_writers_have_stopped_or_are_silent_has_ended_and_is_left_as_it_is(
    tmp_path: Path, ended: Callable[[Path], Path]
) -> None:
    folder = taken(ended(tmp_path / "run"), "a")
    assert has_ended(folder)
    assert stop_runs(list_runs(tmp_path)) == []
    assert json.loads((folder / "owner.json").read_text()) == {"attempt": "a"}


def test_one_that_runs_is_told_to_end_and_waited_for(tmp_path: Path) -> None:
    folder = taken(written(tmp_path / "run", stopped=False), "a")
    ending = threading.Thread(target=lambda: stop_runs(list_runs(tmp_path)))
    ending.start()
    while json.loads((folder / "owner.json").read_text()) != {"attempt": ""}:
        assert ending.is_alive()
    (folder / "events" / "producer0-r.done").write_text("{}")
    ending.join(30.0)
    assert not ending.is_alive()


def test_one_that_does_not_end_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = taken(written(tmp_path / "run", stopped=False), "a")
    monkeypatch.setattr(probe, "_TAKE_OVER_S", 0.0)
    assert stop_runs(list_runs(tmp_path)) == [folder]
    with pytest.raises(TimedOut, match="was asked to end and has not"):
        Probe(tmp_path / "next", NOWHERE).start(timeout=2.0)


def test_the_newest_attempt_has_the_run(tmp_path: Path) -> None:
    first = begun(tmp_path / "run")
    assert first.find_end() is None
    second = begun(tmp_path / "run")
    assert (first.find_end(), second.find_end()) == (ProbeEnd.TAKEN_OVER, None)
    (tmp_path / "run" / "owner.json").write_text("torn {")
    assert second.find_end() is None, "what cannot be read is no word to end"
    atomic.replace(tmp_path / "run" / "owner.json", b'{"attempt": ""}')
    assert (first.find_end(), second.find_end()) == (ProbeEnd.STOPPED, ProbeEnd.STOPPED)
    (tmp_path / "run" / "owner.json").unlink()
    assert second.find_end() is ProbeEnd.NO_FOLDER
    second.cancel()
    assert second.find_end() is ProbeEnd.CANCELLED


def test_a_client_that_ends_by_itself_ends_the_probe_with_its_reason(tmp_path: Path) -> None:
    found = begun(tmp_path / "run")

    def fail(_: object) -> Any:
        raise Failed("no space left")

    found._sender = found._begin("producer0-r", fail)
    found._sender.join(10.0)
    with pytest.raises(Failed, match="no space left"):
        found.find_end()
    found._sender = found._begin("producer0-r", lambda _: SimpleNamespace(run=lambda: None))  # type: ignore[arg-type,return-value]
    found._sender.join(10.0)
    with pytest.raises(Failed, match="ended by itself"):
        found.find_end()


@pytest.mark.parametrize(
    ("end", "error"), [(ProbeEnd.CANCELLED, Failed), (ProbeEnd.STOPPED, Refused), (ProbeEnd.TAKEN_OVER, Refused)]
)
def test_one_that_is_ended_before_its_first_record_is_tried_again_only_if_its_process_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: ProbeEnd, error: type[Exception]
) -> None:
    found = begun(tmp_path / "run")
    monkeypatch.setattr(found, "find_end", lambda: end)
    with pytest.raises(error, match="ended before it began"):
        found._wait_until_met(lambda _: "no start", time.monotonic() + 2.0)


def test_one_that_does_not_start_says_what_is_missing(tmp_path: Path) -> None:
    missing = iter(["no start of x", "no start of x", ""])
    with pytest.raises(TimedOut, match=r"does not start: no start of x\."):
        begun(tmp_path / "run")._wait_until_met(lambda _: next(missing), time.monotonic() - 1.0)


def test_beside_the_processes_of_an_earlier_release_none_begins_and_the_text_says_what_to_kill(tmp_path: Path) -> None:
    folder = of_earlier_release(tmp_path / "run")
    for run in ("run", "next"):
        with pytest.raises(Refused, match="worker-7") as refused:
            Probe(tmp_path / run, NOWHERE).start()
        assert codes(refused) == ["Y09"]
    assert stop_runs(list_runs(tmp_path)) == [folder], "at once: they read no owner"
    assert sorted(word for word in describe_earlier_release(folder).split() if word.startswith("47")) == ["4711", "4712"]


def test_once_an_earlier_releases_processes_have_ended_its_run_is_gone_on_with(tmp_path: Path) -> None:
    silent(of_earlier_release(tmp_path / "run"))
    of_earlier_release(tmp_path / "former", stopped=True)
    assert begun(tmp_path / "run").find_end() is None


def test_files_that_do_not_grow_are_no_evidence(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", stopped=False)
    for events in (folder / "events", tmp_path / "not mounted here"):
        assert find_flow(events, patience=0.1) is None


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
    with pytest.raises(TimedOut, match="not every partition of 1 topic had a leader"):
        kafka_calls.wait_for_leaders(waiting, {"t": 3}, 10.0)


def test_a_sender_without_a_topic_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, clients)
    sender: Any = SimpleNamespace(
        _watch=SimpleNamespace(partitions=()),
        _lifetime=type("Lifetime", (), {"over": property(lambda _: waiting())})(),
        _producer=SimpleNamespace(poll=waiting.sleep),
        _topics=("orders.*",),
    )
    with pytest.raises(TimedOut, match=r"no topic matches orders\.\*"):
        clients.Sender._wait_for_topics(sender)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "There is no file"), ("{}", "No broker is named"), ('{"bootstrap.servers": ""}', "No broker is named")],
)
def test_a_run_that_cannot_begin_ends_no_other_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str | None, said: str
) -> None:
    monkeypatch.setattr(Probe, "start", lambda *_: pytest.fail("it takes over from the probe that runs"))
    file = tmp_path / "p.json"
    if content is not None:
        file.write_text(content)
    assert command.main(["run", "--dir", str(tmp_path / "run"), "--properties", str(file)]) == 1
    assert said in capsys.readouterr().err
