"""An administrator who answers the request of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import handle_event_submit
from airflow.sdk import timezone
from airflow.triggers.base import TriggerEvent
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session


class Person:
    """Answers the requests of a DAG, as Airflow's pages do; `asked` is what they were shown last.

    An answer within milliseconds of the question can be overwritten by what Airflow still writes of the question (seen once): then
    the task waits on, and is answered again.
    """

    def __init__(self, dag_id: str, option: str) -> None:
        self._dag_id, self._option = dag_id, option
        self.asked: HITLDetail | None = None

    @contextmanager
    def at_work(self) -> Iterator[Person]:
        over = Event()
        thread = Thread(target=self._wait_and_answer, args=(over,))
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join(10.0)

    def _wait_and_answer(self, over: Event) -> None:
        while not over.is_set():
            with suppress(SQLAlchemyError):  # SQLite is locked, Airflow was quicker: the next time
                self._answer()
            over.wait(0.05)

    def _request(self, session: Session) -> tuple[TaskInstance | None, HITLDetail | None]:
        """The task that waits for an answer, and what it asks."""
        waits = select(TaskInstance).where(TaskInstance.dag_id == self._dag_id, TaskInstance.state == "awaiting_input")
        instance = session.scalar(waits)
        return instance, instance and session.scalar(select(HITLDetail).where(HITLDetail.ti_id == instance.id))

    def _answer(self) -> None:
        with create_session() as session:
            instance, detail = self._request(session)
            if not instance or not detail:
                return
            detail.responded_at, detail.chosen_options = timezone.utcnow(), [self._option]
            detail.responded_by = {"id": "ann", "name": "Ann"}
            handle_event_submit(TriggerEvent(detail.as_resume_event_payload()), task_instance=instance, session=session)
            session.flush()
            session.expunge(detail)
            self.asked = detail
