"""Approvals: an administrator decides, with the observations shown."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_kmigrate.operators.step import EXPAND, FINALIZE, LEAVE, ROLL_BACK, STAY

_BODY = """\
**Cluster {name}** (`{cluster_id}`) runs in dual-write. Finalizing it is the **point of no return**: nothing is written to
ZooKeeper any more, and no rollback is possible afterwards.

{evidence}

The answers:

* **{finalize}**: restart the controllers without the migration flag, one at a time. Before each restart all of this is
  checked again; the task waits while anything is worse.
* **{stay}**: change nothing. This run ends. To be asked again with fresh evidence, clear `before_approval` and its downstream tasks.
"""

_PLAN = """\
**Cluster {name}** (`{cluster_id}`) will be rolled back to ZooKeeper. Brokers restart one at a time, up to twice; clients continue.
The steps, planned from the present state of the cluster:
"""

_GROUPS_PLAN = """\
**Consumer groups of cluster {name}** (`{cluster_id}`) will be rolled back, instance by instance. What was observed, and what follows from it:
"""

_EXPANSION = """\
**`__consumer_offsets` of cluster {name}** (`{cluster_id}`) will be expanded, or an expansion undone. What was observed, and what follows from it:
"""

_ANSWERS = """
{plan}

The answers:

* **{yes}**: start. An interrupted step continues where it stopped.
* **{leave}**: change nothing.
"""


class _ApproveOperator(HITLOperator):
    """Ask an administrator one question; a run whose conf gives the cluster id under `given_as` continues without asking.

    Any other text there is not taken for an approval. Never retried: a retry would ask again. Killed, it leaves nothing to stop or release:
    it only waits for the answer.
    """

    given_as: str
    yes: str
    no: str
    refused: str

    def __init__(self, *, cluster_id: str, subject: str, body: str, **kwargs: Any) -> None:
        super().__init__(**{"subject": subject, "body": body, "options": [self.no, self.yes], "retries": 0, **kwargs})
        self.cluster_id = cluster_id

    def execute(self, context: Context) -> Any:
        given = context["params"].get(self.given_as) or ""
        if given == self.cluster_id:
            self.log.info("Approved by the run's conf: it names cluster id %s.", given)
            return {"chosen_options": [self.yes], "responded_by_user": "the run's conf"}
        if given:
            self.log.warning(
                "The run's conf approves cluster id %r, which is not this cluster (%s): asking.", given, self.cluster_id
            )
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        answer = super().execute_complete(context, event)
        by = (answer["responded_by_user"] or {}).get("name", "an unnamed user")
        self.log.info("Answered %s by %s.", ", ".join(answer["chosen_options"]), by)
        if answer["chosen_options"] != [self.yes]:
            raise AirflowFailException(self.refused)
        return answer


class ApproveFinalizationOperator(_ApproveOperator):
    """Ask an administrator before the point of no return. `approve_finalization: <cluster id>` in the run's conf answers beforehand.

    :param cluster: name of the cluster, as it is shown.
    :param cluster_id: id of the cluster.
    :param evidence: Markdown with what was observed, such as what earlier tasks returned; its templates are rendered.
    """

    given_as, yes, no = "approve_finalization", FINALIZE, STAY
    refused = "Left in dual-write: nothing was changed. Clear before_approval to be asked again."

    def __init__(self, *, cluster: str, cluster_id: str, evidence: str, **kwargs: Any) -> None:
        body = _BODY.format(name=cluster, cluster_id=cluster_id, evidence=evidence, finalize=FINALIZE, stay=STAY)
        subject = f"Finalize the migration of Kafka cluster {cluster} to KRaft?"
        super().__init__(**{"cluster_id": cluster_id, "subject": subject, "body": body, **kwargs})


class ApproveRollbackOperator(_ApproveOperator):
    """Show an administrator the plan of a rollback and ask. `approve_rollback: <cluster id>` in the run's conf answers beforehand.

    :param cluster: name of the cluster, as it is shown.
    :param cluster_id: id of the cluster.
    :param plan: Markdown, such as what `RollbackPlanOperator` returned; its templates are rendered.
    """

    given_as, yes, no = "approve_rollback", ROLL_BACK, LEAVE
    refused = "Left as it is: nothing was changed. To be asked again, clear `plan` and its downstream tasks."
    question, heading = "Roll Kafka cluster {} back to ZooKeeper?", _PLAN

    def __init__(self, *, cluster: str, cluster_id: str, plan: str, **kwargs: Any) -> None:
        body = (self.heading + _ANSWERS).format(name=cluster, cluster_id=cluster_id, plan=plan, yes=self.yes, leave=LEAVE)
        super().__init__(**{"cluster_id": cluster_id, "subject": self.question.format(cluster), "body": body, **kwargs})


class ApproveGroupsRollbackOperator(ApproveRollbackOperator):
    """Show an administrator the plan of a rollback of consumer groups and ask. `approve_rollback: <cluster id>` answers beforehand.

    :param cluster: name of the cluster, as it is shown.
    :param cluster_id: id of the cluster.
    :param plan: Markdown, such as what `GroupPlanOperator` returned; its templates are rendered.
    """

    question, heading = "Roll consumer groups of Kafka cluster {} back?", _GROUPS_PLAN


class ApproveExpansionOperator(ApproveRollbackOperator):
    """Show an administrator the plan of an expansion of `__consumer_offsets` and ask. `approve_expansion: <cluster id>` answers beforehand.

    :param cluster: name of the cluster, as it is shown.
    :param cluster_id: id of the cluster.
    :param plan: Markdown, such as what `ExpansionPlanOperator` returned; its templates are rendered.
    """

    given_as, yes = "approve_expansion", EXPAND
    question, heading = "Expand __consumer_offsets of Kafka cluster {}?", _EXPANSION
