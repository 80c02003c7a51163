"""Reads Airflow's own record of an answer, which only the triggerer can ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from airflow.sdk.execution_time.hitl import get_hitl_detail_content_detail
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from tenacity import AsyncRetrying, stop_after_attempt, wait_exponential

_TRIES = 5  # in about 15 s


class AnswerTrigger(BaseTrigger):
    """Ends with the answer to a task's request, as Airflow's database has it: who gave it, when, and what it says.

    What wakes the task is not believed to be the answer. `{"error": ...}` if Airflow does not report it.

    :param ti_id: the task instance that asked.
    """

    def __init__(self, ti_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ti_id = ti_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The path of this class and its arguments, for Airflow's database."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"ti_id": self.ti_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event."""
        yield TriggerEvent(await self._read_answer())  # type: ignore[no-untyped-call]

    async def _read_answer(self) -> dict[str, Any]:
        try:
            async for attempt in AsyncRetrying(stop=stop_after_attempt(_TRIES), wait=wait_exponential(), reraise=True):
                with attempt:
                    detail = await sync_to_async(get_hitl_detail_content_detail)(ti_id=UUID(self.ti_id))
                    by, at = detail.responded_by_user, detail.responded_at
        except Exception as error:  # noqa: BLE001 - of whatever kind: an unread answer is none
            return {"error": f"{type(error).__name__}: {error}"}
        return {
            "options": list(detail.chosen_options or ()),
            "user": by.id if by else "",
            "name": by.name if by else "an unnamed user",
            "at": at.isoformat() if at else "",
            "reason": str((detail.params_input or {}).get("reason") or ""),
        }
