"""A task's status for operators, as an XCom of the task: Airflow stores who wrote it, and when, and who may read the DAG may read it.

It is written only: no gate, approval or permit reads it. A status that could not be stored ends no task.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.masking import mask_all
from airflow_provider_kmigrate.steps.run import StepContext

if TYPE_CHECKING:
    from airflow_provider_kmigrate.core.migration.plan_document import PlanOf
    from airflow_provider_kmigrate.steps.waits import Assessment

_log = logging.getLogger(__name__)

STATUS: Final = "kmigrate_status"
"""The XCom key."""
PLAN_DOCUMENT: Final = "kmigrate_plan_document"
"""The XCom key of the plan of a migration that a task has made, for its page; those of other kinds: `plan_key`."""
PAGES: Final = "/kmigrate"
"""Where Airflow's API server serves the pages, below its own root."""
EVENT: Final = "status"
"""The key of a trigger's event under which it hands a status to its task, which may write XComs."""
_MOST_PLAN_BYTES: Final = 1_000_000
_UNCHANGED: Final = 30.0  # seconds after which a status with the same headline is due again
_CHANGED: Final = 5.0  # least seconds between two of different headlines
_AFTER_FAILURE: Final = (
    300.0  # seconds without a status once Airflow did not take one: each try may take as long as Airflow's client
)


def pages_root() -> str:
    """Where the pages are, as a path of Airflow's own address."""
    from airflow.configuration import conf  # noqa: PLC0415  # `kmigrate status` needs the rest without Airflow

    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + PAGES


class StatusTimer:
    """When a status is due. Seconds of a clock that never runs backwards."""

    def __init__(self) -> None:
        self._headline: object = None
        self._due = float("-inf")

    def is_due(self, headline: object, now: float) -> bool:
        """Whether a status with this headline is due now; if so, it is taken as written."""
        early = self._due - (_UNCHANGED - _CHANGED) * (headline != self._headline)
        if now < early:
            return False
        self._headline, self._due = headline, now + _UNCHANGED
        return True

    def wait_after_failure(self, now: float) -> None:
        """Let nothing be due for some minutes."""
        self._due = now + _AFTER_FAILURE + _UNCHANGED


_NAMES: Final = frozenset({"kind", "of", "cluster", "cluster_id"})
"""By these a reader knows whose document it is: masked, it would be that of another cluster."""


def plan_key(of: PlanOf | str) -> str:
    """The XCom key of a plan of this kind: the newest of each has a page."""
    from airflow_provider_kmigrate.core.migration.plan_document import PlanOf  # noqa: PLC0415  # few tasks plan

    return PLAN_DOCUMENT if of == PlanOf.MIGRATION else f"{PLAN_DOCUMENT}_{of}"


class StatusKeeper:
    """Keeps the newest status of a process that cannot store it itself, for `EVENT`."""

    def __init__(self) -> None:
        self.document: Mapping[str, Any] | None = None
        self._timer = StatusTimer()

    def offer(self, headline: object, make: Callable[[], Mapping[str, Any]]) -> None:
        """Keep a status if one is due (`steps.run.OfferStatus`)."""
        if self._timer.is_due(headline, time.monotonic()):
            self.document = _make_status(make) or self.document


class StatusXCom:
    """Stores the status of one task, at most every few seconds. `ti`: Airflow's task instance. `clock`: seconds; never runs backwards."""

    def __init__(self, ti: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._ti, self._clock = ti, clock
        self._timer = StatusTimer()
        self._spec: ClusterSpec | None = None
        self._last: Mapping[str, Any] | None = None

    def attach_to(self, context: StepContext) -> StepContext:
        """The context whose steps leave their status here."""
        self._spec = context.spec
        return replace(context, offer_status=self.offer)

    def offer(self, headline: object, make: Callable[[], Mapping[str, Any]]) -> None:
        """Store a status if one is due (`steps.run.OfferStatus`)."""
        if self._timer.is_due(headline, self._clock()):
            self.store(_make_status(make))

    def offer_assessment(self, context: StepContext, assessment: Assessment, alarms: Sequence[Reason]) -> None:
        """Store the status of a whole assessment; `alarms`: one reason for each cause."""
        from airflow_provider_kmigrate.steps.status import describe_assessment  # noqa: PLC0415  # few tasks assess

        self.store(_make_status(lambda: describe_assessment(context, assessment, alarms)))

    def store(self, document: Mapping[str, Any] | None) -> None:
        """Store a document; None is ignored."""
        if document is None:
            return
        self._last = document
        self._push(STATUS, document)

    def _push(
        self,
        key: str,
        document: Mapping[str, Any],
        seal: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda masked: masked,
    ) -> None:
        """`seal`: what proves that it was not altered, once what may be secret in it is masked."""
        try:
            names = {name: document[name] for name in _NAMES & document.keys()}  # a header may have the cluster's name, too
            self._ti.xcom_push(key=key, value=seal({**mask_all(document), **names}))
        except Exception as error:  # noqa: BLE001 - of whatever kind: no migration stops for a page
            self._timer.wait_after_failure(self._clock())
            _log.warning("%s was not stored for operators: %s: %s", key, type(error).__name__, error)

    def store_plan(self, plan: Mapping[str, Any]) -> None:
        """Store a plan under the key of its kind, whole or, if it is very large, not at all."""
        if len(json.dumps(plan)) > _MOST_PLAN_BYTES:
            _log.warning("The plan is too large for Airflow's database; its page is in kmigrate's folder only.")
            return
        from airflow_provider_kmigrate.core.migration.plan_document import seal  # noqa: PLC0415  # few tasks plan

        self._push(plan_key(plan["of"]), plan, seal)

    def store_end(self, cluster_file: str, name: str, text: str, error: Exception | None = None) -> None:
        """Store how the task ended, beside what it observed last; nothing if it has judged the whole cluster, or its file cannot be read.

        `cluster_file`: a task that another run's lock stopped has opened no context yet.
        """
        if self._last is not None and self._last["alarms"] is not None:
            return
        if self._spec is None:
            from airflow_provider_kmigrate.spec import load  # noqa: PLC0415  # a task without a context: few end so

            with suppress(KMigrateError):  # the task's own error says so
                self._spec = load(cluster_file)
        if self._spec is None:
            return
        from airflow_provider_kmigrate.core.monitoring.status import (  # noqa: PLC0415  # as in `steps.run`
            Doing,
            StepFacts,
            describe_task_end,
        )

        spec, reasons = self._spec, tuple(getattr(error, "reasons", ()))
        facts = StepFacts(name, Doing.FAILED if error else Doing.DONE, text, reasons)
        document = _make_status(lambda: describe_task_end(spec, time.time(), facts))
        if document is not None and self._last is not None:
            document = {**self._last, "step": document["step"], "at_ms": document["at_ms"]}
        self.store(document)

    def store_unexpected_end(self, cluster_file: str, name: str, error: Exception) -> None:
        """Store that the task ended with an error that kmigrate does not raise. Its text may hold anything: the log has it, masked by Airflow."""
        from airflow_provider_kmigrate.airflow_releases import (  # noqa: PLC0415  # few tasks end so
            AirflowFailException,
            AirflowSkipException,
            DownstreamTasksSkipped,
        )

        if not isinstance(error, AirflowSkipException | DownstreamTasksSkipped):
            is_ours = isinstance(error, KMigrateError | AirflowFailException)
            text = str(error) if is_ours else f"It ended with a {type(error).__name__}: its log says more."
            self.store_end(cluster_file, name, text, error)


def _make_status(make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any] | None:
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - as above
        _log.warning("The status for operators could not be made: %s: %s", type(error).__name__, error)
        return None
