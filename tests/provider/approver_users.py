"""Users of Airflow who answer by its API, and a DAG that asks them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from airflow.models.trigger import handle_event_submit
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param
from airflow.triggers.base import TriggerEvent
from airflow.utils.session import create_session
from fastapi.testclient import TestClient

from airflow_provider_kmigrate.core.cluster_state.spec import ApproverSpec
from airflow_provider_kmigrate.core.migration.plan import FINALIZE
from airflow_provider_kmigrate.operators.approval import ApproveFinalizationOperator
from airflow_provider_kmigrate.utils.approval import demand_answer
from tests.provider.airflow_tasks import token_of
from tests.provider.person import Person
from tests.provider.simulated import Rehearsal
from tests.steps.sim_nodes import CLUSTER_ID

ONE = ApproverSpec(("ann", "bob"))
TWO = ApproverSpec(("ann", "bob"), required=2, reason=True)
_numbers = itertools.count()


class Users(Person):
    """Users of Airflow who answer one after another through its API, each as soon as the request waits; `statuses`: what it said."""

    def __init__(self, api: TestClient, dag_id: str, answers: Sequence[tuple[str, str, str]]) -> None:
        super().__init__(dag_id, "")
        self._api, self._left = api, list(answers)
        self.statuses: list[int] = []
        self.beside: dict[str, Any] = {}  # what a client of the API sends that is not in the form

    def _answer(self) -> None:
        with create_session() as session:
            found, detail = self._request(session)
            if not found or not detail:
                return
            if detail.response_received:  # as in `Person`: Airflow overwrote the answer's effect, not the answer
                handle_event_submit(TriggerEvent(detail.as_resume_event_payload()), task_instance=found, session=session)
                return
            path = f"/api/v2/dags/{self._dag_id}/dagRuns/{found.run_id}/taskInstances/{found.task_id}/-1/hitlDetails"
        if self._left:
            self.statuses.append(self._patch(path, *self._left.pop(0)))

    def _patch(self, path: str, user: str, option: str, reason: str) -> int:
        said = {"chosen_options": [option], "params_input": {"reason": reason or None, **self.beside}}
        return self._api.patch(path, json=said, headers={"Authorization": f"Bearer {token_of(self._api.app, user)}"}).status_code


def gate(approvers: ApproverSpec, sim: Rehearsal, **arguments: Any) -> DAG:
    """A task with evidence, the request, and a task that demands its answer as a finalization does."""
    with DAG(
        dag_id=f"approvers_{next(_numbers)}", schedule=None, params={"approve_finalization": Param("", type="string")}
    ) as dag:
        soak = PythonOperator(task_id="soak", python_callable=lambda: "healthy")
        asked = ApproveFinalizationOperator(
            task_id="approve",
            cluster="sim",
            cluster_id=CLUSTER_ID,
            cluster_file=str(sim.path),
            evidence="soak: {{ ti.xcom_pull(task_ids='soak') }}",
            evidence_tasks=["soak"],
            approvers=approvers,
            **arguments,
        )
        act = PythonOperator(task_id="act", python_callable=demanded)
        soak >> asked >> act
    return dag


def demanded(**context: Any) -> list[str]:
    return [answer.user for answer in demand_answer(file_of(context), context, "approve", FINALIZE).answers]  # type: ignore[arg-type]


def file_of(context: Any) -> str:
    """The cluster file of the request in the same DAG."""
    return str(context["dag"].get_task("approve").cluster_file)
