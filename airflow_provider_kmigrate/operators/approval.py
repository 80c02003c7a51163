"""The last gate before the point of no return: a person, with the evidence in front of them."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

FINALIZE, HOLD = "Finalize", "Hold"

_BODY = """\
**Cluster {name}** (`{cluster_id}`) runs in dual-write. Finalizing it is the **point of no return**: ZooKeeper is written no more,
and no rollback is possible afterwards.

{evidence}

* **{finalize}**: restart the controllers without the migration flag, one at a time.
* **{hold}**: stay in dual-write. This run ends; clear `before_approval` and what follows to be asked again with fresh evidence.
"""


class ApproveFinalizationOperator(HITLOperator):
    """Ask a person; `evidence` is Markdown, and may be a template that pulls what earlier tasks returned.

    A run whose conf says `approve_finalization: <cluster id>` goes on without asking: for rehearsals, and for those who decided
    before. Any other text there is not taken for an approval. Never retried: a retry would ask again.
    """

    def __init__(self, *, cluster: str, cluster_id: str, evidence: str, **kwargs: Any) -> None:
        body = _BODY.format(name=cluster, cluster_id=cluster_id, evidence=evidence, finalize=FINALIZE, hold=HOLD)
        super().__init__(
            **{
                "subject": f"Finalize the migration of Kafka cluster {cluster} to KRaft?",
                "body": body,
                "options": [HOLD, FINALIZE],
                "retries": 0,
                **kwargs,
            }
        )
        self.cluster_id = cluster_id

    def execute(self, context: Context) -> Any:
        given = context["params"].get("approve_finalization") or ""
        if given == self.cluster_id:
            self.log.info("Approved beforehand: the run's conf names cluster id %s.", given)
            return {"chosen_options": [FINALIZE], "responded_by_user": "the run's conf"}
        if given:
            self.log.warning(
                "The run's conf approves cluster id %r, which is not this cluster (%s): asking.", given, self.cluster_id
            )
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        answer = super().execute_complete(context, event)
        if answer["chosen_options"] != [FINALIZE]:
            raise AirflowFailException("Held: the cluster stays in dual-write. Clear before_approval to be asked again.")
        return answer
