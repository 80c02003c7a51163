"""A cluster into dual-write and its brokers into KRaft mode, with a check of your own; and the rollback. `docs/building-blocks.md` shows it."""

from airflow.sdk import DAG, Param, chain, task

from airflow_provider_kmigrate.operators.migration import (
    BackupOperator,
    MigrationStepOperator,
    PreflightOperator,
    ProvisionControllersOperator,
    RollbackOperator,
    RollBrokerOperator,
)
from airflow_provider_kmigrate.sensors.step import StepSensor, VerifyDualWriteLagSensor, WaitAllBrokersRegisteredSensor

COMMON = {
    "catchup": False,
    "max_active_runs": 1,
    "params": {"cluster_file": Param("/etc/kmigrate/clusters/prod.yaml", type="string")},
    "default_args": {"cluster_file": "{{ params.cluster_file }}", "deferrable": True},
}

with DAG("prod_to_dual_write", schedule=None, **COMMON):

    @task
    def our_own_check() -> str:
        """Check something of your own between two steps; the text is the task's result."""
        return "The dashboards are fine."  # raise, and no broker leaves ZooKeeper mode

    chain(
        PreflightOperator(task_id="preflight"),
        BackupOperator(task_id="backup"),
        *(ProvisionControllersOperator(task_id=f"provision_{node}", controller=node) for node in (3000, 3001, 3002)),
        StepSensor(task_id="controllers_ready", step="controllers ready"),
        RollBrokerOperator(task_id="to_migration_mode", target="migration"),
        WaitAllBrokersRegisteredSensor(task_id="registered"),
        MigrationStepOperator(task_id="copied", step="copied"),
        VerifyDualWriteLagSensor(task_id="lag", limit=5),
        StepSensor(task_id="equivalent", step="equivalent"),
        our_own_check(),
        RollBrokerOperator(task_id="to_kraft_mode", target="kraft"),
        MigrationStepOperator(task_id="leaders", step="leaders"),
    )

with DAG("prod_rollback", schedule=None, **COMMON):
    RollbackOperator(task_id="rollback")
