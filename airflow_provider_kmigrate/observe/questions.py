"""Reads that run at the same time, each waited for only so long, each failure kept as a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import AuthenticationFailed, KMigrateError, WrongCluster
from airflow_provider_kmigrate.observe.threads import Lane

Key = TypeVar("Key")
Value = TypeVar("Value")
Answer_co = TypeVar("Answer_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer_co]):
    """A read under way; `reason` says what is unknown without its answer, `end` on the clock when to stop waiting for it."""

    future: Future[Answer_co]
    reason: Reason
    patience: float
    end: float


class Questions:
    """All questions of one look. An answer that comes too late is dropped: it can enter no other look."""

    def __init__(self, lane: Lane, clock: Callable[[], float]) -> None:
        self._lane = lane
        self._clock = clock
        self.unknowns: list[Reason] = []

    def ask(self, reason: Reason, patience: float, read: Callable[..., Value], *arguments: Any) -> Question[Value]:
        """Start a read in a thread; `patience` in seconds from now."""
        return Question(self._lane.submit(read, *arguments), reason, patience, self._clock() + patience)

    def now(self) -> float:
        """Seconds on the clock that questions are timed by."""
        return self._clock()

    def answer(self, question: Question[Value] | None, *, in_vain: str = "") -> Value | None:
        """The answer, or None and a reason among the unknowns; None alone where nothing was asked. `in_vain`: why nobody waits for it."""
        if question is None:
            return None
        if in_vain and not question.future.done():
            self._note(replace(question.reason, text=f"{question.reason.text}: not waited for, since {in_vain}"))
            return None
        found, reason = self._result(question)
        self._note(reason)
        return found

    def answers(self, questions: Mapping[Key, Question[Value]]) -> dict[Key, Value]:
        """The answers of those that gave one."""
        found = {key: self.answer(question) for key, question in questions.items()}
        return {key: answer for key, answer in found.items() if answer is not None}

    def any_answers(self, questions: Iterable[Question[Value]]) -> list[Value]:
        """The answers to one question that was asked of several; only if nobody gave one, there is a reason."""
        results = [self._result(question) for question in questions]
        found = [answer for answer, _ in results if answer is not None]
        if not found:
            for _, reason in results[:1]:
                self._note(reason)
        return found

    def _note(self, reason: Reason | None) -> None:
        if reason is not None:
            self.unknowns.append(reason)

    def _result(self, question: Question[Value]) -> tuple[Value | None, Reason | None]:
        try:
            return question.future.result(timeout=max(0.0, question.end - self._clock())), None
        except (WrongCluster, AuthenticationFailed):
            raise
        except FutureTimeoutError:
            question.future.cancel()  # one that did not even begin is not worth a thread any more
            why = f"no answer within {question.patience:g} s"
        except KMigrateError as error:
            why = str(error)
        return None, replace(question.reason, text=f"{question.reason.text}: {why}")
