"""Threads that all observers of a process share: few of them, and no call that hangs holds another lane up."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from typing import Any

import pytest

from airflow_provider_kmigrate.observe.reads import Threads, _Job
from tests.waiting import wait_until

NAME = "kmigrate-observe"


class Hanging:
    """A call that hangs until it is released; the first `count` begin."""

    def __init__(self) -> None:
        self.begun, self._released = threading.Semaphore(0), threading.Event()

    def __call__(self) -> str:
        self.begun.release()
        assert self._released.wait(30.0)
        return "late"

    def has_begun(self, count: int) -> bool:
        return all(self.begun.acquire(timeout=10.0) for _ in range(count))

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def hangs() -> Any:
    call = Hanging()
    yield call
    call.release()


def test_a_lane_is_served_however_many_calls_of_others_hang(hangs: Hanging) -> None:
    threads = Threads(most=3, most_of_a_lane=64)
    ill = threads.open_lane()
    late = [ill.submit(hangs) for _ in range(50)]
    assert hangs.has_begun(3)
    for _ in range(3):
        assert [threads.open_lane().submit(int, "7").result(10.0), threads.open_lane().submit(int, "8").result(10.0)] == [7, 8]
    assert not hangs.begun.acquire(blocking=False), "no more of its own begin"
    hangs.release()
    assert [call.result(10.0) for call in late] == ["late"] * 50


def test_a_lane_has_its_own_limit(hangs: Hanging) -> None:
    lane = Threads(most=100, most_of_a_lane=2).open_lane()
    calls = [lane.submit(hangs) for _ in range(5)]
    assert hangs.has_begun(2)
    assert not hangs.begun.acquire(blocking=False)
    hangs.release()
    assert {call.result(10.0) for call in calls} == {"late"}


def test_what_has_not_begun_is_dropped_when_its_lane_closes(hangs: Hanging) -> None:
    lane = Threads(most_of_a_lane=1).open_lane()
    running, waiting = lane.submit(hangs), lane.submit(hangs)
    assert hangs.has_begun(1)
    lane.close()
    with pytest.raises(CancelledError):
        waiting.result(10.0)
    hangs.release()
    assert running.result(10.0) == "late"


def test_an_error_belongs_to_who_asked() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        Threads().open_lane().submit(int, "seven").result(10.0)


def test_an_answer_is_handed_over_even_if_the_next_call_gets_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    threads = Threads()
    job = _Job(Future(), lambda: 7, threads.open_lane())
    monkeypatch.setattr(threads, "_dispatch", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threads._carry_out(job, SimpleQueue())
    assert job.future.result(0) == 7


def test_calls_one_after_another_need_one_thread_which_keeps_no_process_alive() -> None:
    lane, seen = Threads().open_lane(), set[threading.Thread]()
    for _ in range(200):
        seen.add(lane.submit(threading.current_thread).result(10.0))
    assert len(seen) == 1
    assert all(thread.daemon and thread.name == NAME for thread in seen)


def test_threads_end_when_idle() -> None:
    lane = Threads(idle=0.05).open_lane()
    thread = lane.submit(threading.current_thread).result(10.0)
    wait_until(lambda: not thread.is_alive(), "a thread without work ends")
    assert lane.submit(int, "7").result(10.0) == 7, "and another one is made"


def test_a_child_process_begins_without_its_parents_threads(hangs: Hanging) -> None:
    threads = Threads(most=1)
    threads.open_lane().submit(hangs)
    assert hangs.has_begun(1)
    threads.after_fork()
    assert threads.open_lane().submit(int, "7").result(10.0) == 7
