"""The DAG that moves one cluster from ZooKeeper to KRaft: one task a node and a pass, chained, so that the graph is the migration.

A task that fails leaves everything behind it unstarted and the run red; cleared, it looks for itself what is left to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param, TaskGroup, chain

from airflow_provider_kmigrate.core.cluster import ClusterSpec, NodeSpec
from airflow_provider_kmigrate.core.forward.waiting import COPIED
from airflow_provider_kmigrate.core.gates import mover
from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.dag_builders import audit, spark_jobs
from airflow_provider_kmigrate.dag_builders.chaining import approved, goes_on
from airflow_provider_kmigrate.dag_builders.task_docs import doc
from airflow_provider_kmigrate.operators.approval import ApproveFinalizationOperator
from airflow_provider_kmigrate.operators.brokers import RollBrokerOperator
from airflow_provider_kmigrate.operators.controllers import FinalizeControllerOperator, ProvisionControllersOperator
from airflow_provider_kmigrate.operators.copy import (
    FinalizedOperator,
    MetadataCopyOperator,
    PreferredLeadersOperator,
    SoakOperator,
)
from airflow_provider_kmigrate.operators.prepare import BackupOperator, PreflightOperator
from airflow_provider_kmigrate.operators.rollback import RollbackPlanOperator
from airflow_provider_kmigrate.sensors.step import (
    ControllersReadySensor,
    MetadataEquivalenceSensor,
    MigrationPhaseSensor,
    VerifyDualWriteLagSensor,
    WaitAllBrokersRegisteredSensor,
)

_GATES = ("after_first_roll", "after_second_roll", "before_approval", "after_finalization")
_DOC = """\
### {name}: ZooKeeper to KRaft

Moves cluster `{cluster_id}` live (KIP-866). Until **finalize** everything can be taken back.

| group | what happens | over when |
| --- | --- | --- |
| preflight, backup | reads only; originals and ZooKeeper's tree are saved | no blocking finding |
| controllers | {controllers} KRaft controllers start with the migration flag | one leader, all answer with the flag |
| first_roll | each broker restarts in migration mode | back in every ISR |
| copy | metadata is copied, dual-write begins | ZooKeeper and KRaft store the same |
| second_roll | each broker restarts in KRaft mode | back in every ISR |
| soak | dual-write for {soak} with every gate green | time is up |
| approve | a person decides | **point of no return** |
| finalize | controllers restart without the flag, the active one last | nothing is written to ZooKeeper |

Any task may be cleared at any time: it looks at the cluster and does what is left. A broker that is the ZooKeeper controller is
skipped in the first roll and rolled at its end.
"""

_EQUAL, _VERDICT = "before_approval.equivalence", "audit_before_approval.verdict"
_EVIDENCE = """\
* soak: {{ ti.xcom_pull(task_ids='soak') }}
* metadata: {{ ti.xcom_pull(task_ids='before_approval.equivalence') }}
* dual-write: {{ ti.xcom_pull(task_ids='before_approval.dual_write_lag') }}
* the way back, which ends here:

{{ ti.xcom_pull(task_ids='before_approval.way_back') | indent(2, first=True) }}
"""
_AUDITED = "* audit: {{ ti.xcom_pull(task_ids='audit_before_approval.verdict') }}"


def build(spec: ClusterSpec) -> DAG:
    """The DAG `kmigrate_zk_to_kraft__<cluster>`, for manual runs, one at a time; its groups are those of `core.forward.sequence`."""
    with DAG(
        dag_id=f"kmigrate_zk_to_kraft__{spec.name}",
        schedule=None,
        catchup=False,
        max_active_runs=1,
        tags=["kmigrate", "kafka", spec.name],
        doc_md=_doc(spec),
        params={"approve_finalization": _approval_param(spec)},
        default_args={"retries": 1, "retry_delay": timedelta(seconds=15)},
    ) as dag:
        chain(
            PreflightOperator(cluster_file=spec.path, task_id="preflight", retries=0),
            *spark_jobs.risks(spec),
            BackupOperator(cluster_file=spec.path, task_id="backup"),
            _controllers(spec),
            *audit.probe_begins(spec),
            *audit.look(spec),
            *spark_jobs.hold(spec, "first_roll"),
            _roll(spec, "first_roll", BrokerMode.MIGRATION),
            *spark_jobs.progress(spec, "first_roll"),
            *audit.gate(spec, _GATES[0], after=f"first_roll.{_first(spec.brokers)}"),
            _copy(spec),  # its takeover may leave out the leaders that a held job waits for (G13)
            *spark_jobs.resume(spec, "copy"),
            *spark_jobs.hold(spec, "second_roll"),
            _roll(spec, "second_roll", BrokerMode.KRAFT),
            *spark_jobs.progress(spec, "second_roll"),
            *spark_jobs.resume(spec, "second_roll"),
            *audit.gate(spec, _GATES[1], after=f"second_roll.{_first(spec.brokers)}", earlier=_GATES[:1]),
            SoakOperator(cluster_file=spec.path, task_id="soak", **audit.begins(spec)),
            _before_approval(spec),
            *audit.gate(spec, _GATES[2], after="soak", earlier=_GATES[:2]),
            _approve(spec),
            _finalize(spec),
            *audit.probe_ends(spec),
            *audit.gate(spec, _GATES[3], after=f"finalize.{_first(spec.controllers)}", earlier=_GATES[:3], final=True),
        )
    for task in dag.tasks:
        if isinstance(task, BaseOperator):
            task.doc_md = f"{doc(task.task_id)}{_mover(spec, task.task_id)}"
    return dag


def _mover(spec: ClusterSpec, task: str) -> str:
    """A link to the DAG that moves consumer groups, for the tasks that one which lives on ZooKeeper holds up (G21)."""
    if not spec.groups or not (task == "soak" or task.startswith("second_roll.")):
        return ""
    return f"\n\nConsumer groups that live on ZooKeeper are moved by [{mover(spec.name)}](/dags/{mover(spec.name)})."


def _first(nodes: Sequence[NodeSpec]) -> str:
    """The task of a group's first node."""
    return f"{nodes[0].role}_{nodes[0].id}"


def _begins(spec: ClusterSpec, node: NodeSpec) -> dict[str, Any]:
    return audit.begins(spec) if node in (spec.brokers[0], spec.controllers[0]) else {}


def _controllers(spec: ClusterSpec) -> TaskGroup:
    with TaskGroup("controllers") as group:
        tasks: list[BaseOperator] = [
            ProvisionControllersOperator(cluster_file=spec.path, task_id=f"provision_{node.id}", controller=node.id)
            for node in spec.controllers
        ]
        chain(*tasks, ControllersReadySensor(cluster_file=spec.path, task_id="ready"))
    return group


def _roll(spec: ClusterSpec, name: str, target: BrokerMode) -> TaskGroup:
    with TaskGroup(name) as group:
        rolls: list[BaseOperator] = [
            RollBrokerOperator(
                cluster_file=spec.path,
                task_id=f"broker_{node.id}",
                broker=node.id,
                target=target,
                **goes_on(),
                **_begins(spec, node),
            )
            for node in spec.brokers
        ]
        rest = RollBrokerOperator(cluster_file=spec.path, task_id="postponed", target=target, **goes_on())
        registered = WaitAllBrokersRegisteredSensor(cluster_file=spec.path, task_id="registered")
        chain(*rolls, rest, PreferredLeadersOperator(cluster_file=spec.path, task_id="leaders"), registered)
    return group


def _copy(spec: ClusterSpec) -> TaskGroup:
    with TaskGroup("copy") as group:
        chain(
            MetadataCopyOperator(cluster_file=spec.path, task_id="copied"),
            MigrationPhaseSensor(cluster_file=spec.path, task_id="phase", phases=COPIED),
            VerifyDualWriteLagSensor(cluster_file=spec.path, task_id="dual_write_lag"),
            MetadataEquivalenceSensor(cluster_file=spec.path, task_id="equivalence"),
        )
    return group


def _before_approval(spec: ClusterSpec) -> TaskGroup:
    with TaskGroup("before_approval") as group:
        chain(
            VerifyDualWriteLagSensor(cluster_file=spec.path, task_id="dual_write_lag"),
            MetadataEquivalenceSensor(cluster_file=spec.path, task_id="equivalence"),
            RollbackPlanOperator(cluster_file=spec.path, task_id="way_back", forward=True),
        )
    return group


def _approve(spec: ClusterSpec) -> BaseOperator:
    evidence = _EVIDENCE + (_AUDITED if spec.audit else "")
    return ApproveFinalizationOperator(task_id="approve", cluster=spec.name, cluster_id=spec.cluster_id, evidence=evidence)


def _finalize(spec: ClusterSpec) -> TaskGroup:
    shown: dict[str, Any] = {"evidence": _EQUAL, "verdict": _VERDICT if spec.audit else "", **approved()}
    with TaskGroup("finalize") as group:
        each: list[BaseOperator] = [
            FinalizeControllerOperator(
                cluster_file=spec.path, task_id=f"controller_{node.id}", controller=node.id, **shown, **_begins(spec, node)
            )
            for node in spec.controllers
        ]
        active = FinalizeControllerOperator(cluster_file=spec.path, task_id="active_last", **shown)
        chain(*each, active, FinalizedOperator(cluster_file=spec.path, task_id="finalized"))
    return group


def _approval_param(spec: ClusterSpec) -> Param:
    asked = "Leave it empty to be asked before the point of no return."
    return Param(
        None,
        type=["null", "string"],  # Airflow's form would not accept an empty string
        title="Approve finalization beforehand",
        description=f"{asked} To go on without being asked, enter the cluster id {spec.cluster_id}.",
    )


def _doc(spec: ClusterSpec) -> str:
    soak = timedelta(seconds=spec.policy.min_soak)
    return _DOC.format(name=spec.name, cluster_id=spec.cluster_id, controllers=len(spec.controllers), soak=soak)
