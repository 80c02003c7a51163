"""The DAGs of `__consumer_offsets`: one expands it (KIP-895), or undoes that until the first broker has restarted; one repairs it."""

from __future__ import annotations

from functools import partial
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec
from airflow_provider_kmigrate.core.migration.plan import EXPANSION, SINGLE, StepRow
from airflow_provider_kmigrate.dag_builders.chaining import (
    ASKED_WITH_PLAN,
    RETRIED,
    approval_param,
    chain_plan,
    cluster_dag,
    plan_param,
)
from airflow_provider_kmigrate.dag_builders.task_docs import render_task_page
from airflow_provider_kmigrate.operators.approval import ApproveExpansionOperator, approval_arguments
from airflow_provider_kmigrate.operators.migration import RepairOffsetsOperator

_DOC = """\
### {name}: more partitions for __consumer_offsets

Gives the topic of committed offsets of cluster `{cluster_id}` more partitions, so that no group is consumed twice, stops or loses its offsets.
A broker reads their number once, when it starts (KIP-895), so every broker restarts once. Groups that move to another partition must be
stopped from `moving_groups` until `progress`; all others continue. With an integer factor k one group in k stays. A run also completes an expansion
that was made by hand and that no broker has noticed yet (K01).

| group | what happens | done when |
| --- | --- | --- |
| plan, approve | reads only; the request lists the groups that must stop | the operator (or the run's conf) approves |
| moving_groups | waits until the groups that move are stopped; saves their offsets twice; deletes them under the old count | neither a broker nor the topic's log has anything of them |
| expand | the topic gets its partitions, spread over brokers and racks | all in sync |
| restart | each broker restarts, with the new count in its file | one count, one coordinator for each group |
| import | imports the offsets and reads them back | every group has exactly its offsets, by brokers and by the topic's log |
| progress | start the groups now | those that had members consume again |

Until the first restart a run with `undo` imports the offsets under the old count; the topic keeps its partitions, because Kafka cannot
remove any. **From the first restart on it can only be completed.** Let nothing else restart brokers from `expand` to `import`.
"""


_REPAIR = """\
### {name}: repair __consumer_offsets

For cluster `{cluster_id}`, after brokers have used different partition counts of this topic (K01), as the audit reports it (D21). It takes the newest commit of each
group from both partitions, imports it where all brokers look for it, and removes the other copies. It refuses while brokers disagree, and waits
until the groups that have copies are stopped. What commit times do not settle is refused with all values (K90): decide in `decisions`.

**Afterwards restart every broker once**, one after the other, before the groups start: until then each keeps the copies that it has loaded.
"""


def build_repair(spec: ClusterSpec) -> DAG:
    """The DAG `kmigrate_offsets_repair__<cluster>`, for manual runs, one at a time."""
    text = _REPAIR.format(name=spec.name, cluster_id=spec.cluster_id)
    decisions = Param(
        {},
        type="object",
        title="Decisions",
        description='Which offset is right where commit times do not settle it: {"billing": {"orders-0": 111}}; null keeps it removed.',
    )
    with cluster_dag(
        spec, "kmigrate_offsets_repair", text, partial(render_task_page, plan=SINGLE), params={"decisions": decisions}
    ) as dag:
        RepairOffsetsOperator(task_id="repair", cluster_file=spec.path, retries=0)
    return dag


def build(spec: ClusterSpec) -> DAG:
    """The DAG `kmigrate_offsets_topic__<cluster>`, for manual runs, one at a time; its tasks are the steps of `core.migration.plan.EXPANSION`."""
    text = _DOC.format(name=spec.name, cluster_id=spec.cluster_id)
    approve = partial(ApproveExpansionOperator, **approval_arguments(spec, EXPANSION[0].full_id()))
    with cluster_dag(
        spec,
        "kmigrate_offsets_topic",
        text,
        partial(render_task_page, plan=EXPANSION),
        params=_expansion_params(spec),
        default_args=RETRIED,
    ) as dag:
        chain_plan(spec, EXPANSION, approve, _step_arguments, {})
    return dag


def _step_arguments(step: StepRow, _node: int | None) -> dict[str, Any]:
    return {"retries": 0, "plan": "{{ params.plan or '' }}"} if step is EXPANSION[0] else {}


def _expansion_params(spec: ClusterSpec) -> dict[str, Param]:
    return {
        "partitions": Param(
            None,
            type=["null", "integer"],
            title="Partitions afterwards",
            description="A multiple of what the topic has now. Of an expansion that was made by hand: what the topic has already, or a multiple "
            "of what brokers use. The task `plan` names those that are allowed.",
        ),
        "undo": Param(
            False,
            type="boolean",
            title="Undo instead",
            description="Import the offsets under the old count again. Only before the first broker has restarted; with the `partitions` of the "
            "run that is undone.",
        ),
        "plan": plan_param("expansion"),
        "approve_expansion": approval_param(spec, "Approve it beforehand", ASKED_WITH_PLAN),
    }
