"""Audits by Spark: the DAG `kmigrate_audit__<cluster>`, the gate after each phase of a migration, and the one after a rollback.

Both exist only for clusters whose file has a section `audit`. An INCONCLUSIVE audit is repeated later, with more evidence; if it
stays so, or the verdict is FAIL, the task `verdict` fails.

Operators of audits are imported in functions: most cluster files have no audit, and a task imports only what its own DAG needs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from airflow.sdk import DAG, BaseOperator, Context, TaskGroup, TriggerRule, chain

from airflow_provider_kmigrate.airflow_releases import AirflowSkipException
from airflow_provider_kmigrate.core.audit.spark_words import KAFKA_OPTIONS, SESSION_JAVA
from airflow_provider_kmigrate.core.cluster_state.spec import AuditSpec, ClusterSpec, GroupSpec, SparkSpec
from airflow_provider_kmigrate.core.migration.beside import AUDIT_SESSION, AUDIT_SESSION_ENDED, PROBE, PROBE_ENDED
from airflow_provider_kmigrate.dag_builders.chaining import AFTER_SKIPS, cluster_asset, cluster_dag
from airflow_provider_kmigrate.dag_builders.task_docs import render_task_page

_DOC = """\
### {name}: are all records there?

Audits with Spark the events that the clients of cluster `{cluster_id}` recorded, and where all commits of its groups are if the cluster file
asks for that (`offsets_history`). It changes nothing. The result of each run
is in `{result}`. A failure means a finding or too little evidence; the log of `verdict` says which.
"""
_RUN = "{{ run_id | replace(':', '_') | replace('+', '_') }}"
_FINGERPRINT = "fingerprint_logs"
_TAIL = 1_000  # offsets of each partition, and up to as many again, since it begins where a block does
_CHECKED = 10  # newest records of each partition that a check of Spark reads
_SCHEDULED = "scheduled"
_STOP_PROBE = "stop_probe"
_BEGAN = "kmigrate_began_ms"
_SESSION_IDLE = 21_600.0  # seconds beyond the soak without a request
_PASS, _TABLES = "audit-pass", "audit-tables"
SKIP_AUDIT: Final = "skip_audit"
"""The param of a rollback's run that leaves the audit out."""
ROLLBACK_POSSIBLE: Final = (
    "No later task has started, and the cluster keeps serving. Until 'finalize' begins everything can be rolled back. "
    "Read the findings, then decide on a rollback (from this phase: `kmigrate runbook`, section 2)."
)
_NONE: Mapping[str, Any] = MappingProxyType({})
FINALIZED: Final = (
    "The cluster is finalized: a rollback to ZooKeeper is not possible any more. Keep the event files and the backup. The "
    "findings name topic, partition, offsets and members."
)
_ROLLED_BACK = (
    "The rollback itself is complete. Keep the event files and the backup, and do not migrate again before you have read the findings: they "
    "name topic, partition, offsets and members."
)
_OF_GROUP = (
    "After a FAIL the next task rolls the group back. If the audit is inconclusive, nothing is rolled back: give it more "
    "evidence and clear it, or roll the group back with kmigrate_consumers_rollback__{cluster}. No other instance or group was changed."
)
_EVIDENCE_TIMEOUT = timedelta(minutes=5)
"""How long a rollback waits for each task of its evidence: what is wrong with the cluster may be why it is slow."""
_PROBE_PATIENCE = 240.0  # seconds


def build(spec: ClusterSpec) -> DAG | None:
    """The DAG on the schedule of the file's `audit`; None without that section, or events or `offsets_history` in it."""
    audit = spec.audit
    if audit is None or not (_has_events(audit) or audit.offsets_history):
        return None
    text = _DOC.format(name=spec.name, cluster_id=spec.cluster_id, result=audit.result)
    with cluster_dag(spec, "kmigrate_audit", text, render_task_page, tags=["audit"], schedule=audit.schedule or None) as dag:
        evidence_demand = (
            {"since": round(1000 * datetime.fromisoformat(audit.baseline_time).timestamp())} if audit.baseline_time else None
        )
        offsets = {"offsets": {"folder": f"{audit.result}/{spec.name}/commits"}} if audit.offsets_history else {}
        chain(*_audit_tasks(spec, audit, _SCHEDULED, "", demand=evidence_demand, request_parts=offsets))
    return dag


def probe_check_tasks(spec: ClusterSpec, **arguments: Any) -> list[BaseOperator]:
    """The task that waits until kmigrate's own records arrive; none if the file wants none. `run_probe_beside` sends them."""
    if not spec.probe_folder:
        return []
    from airflow_provider_kmigrate.operators.probe import CheckProbeSensor

    return [CheckProbeSensor(task_id="check_probe", folder=spec.probe_folder, run=_RUN, **arguments)]


def run_probe_beside(dag: DAG, spec: ClusterSpec, check: str, **arguments: Any) -> None:
    """Add the task that sends and receives kmigrate's own records, beside the steps, and one behind it; none if the file wants none.

    It begins when the task `check` may. The second one ends whatever becomes of the first, so that the run's outcome does not depend on it.
    """
    if not spec.probe_folder:
        return
    from airflow.providers.standard.operators.empty import EmptyOperator

    from airflow_provider_kmigrate.operators.probe import ProbeOperator

    probe = ProbeOperator(
        task_id=PROBE,
        cluster_file=spec.path,
        folder=spec.probe_folder,
        run=_RUN,
        needed_until=_STOP_PROBE,
        retries=3,
        retry_delay=timedelta(seconds=15),
        **arguments,
    )
    chain(list(dag.get_task(check).upstream_list), probe, EmptyOperator(task_id=PROBE_ENDED, trigger_rule=TriggerRule.ALL_DONE))


def rollback_evidence(spec: ClusterSpec) -> list[TaskGroup]:
    """The group `evidence`: what the audit of a rollback compares with. It never fails the run: a rollback does not depend on Spark."""
    if spec.audit is None:
        return []
    from airflow.providers.standard.operators.empty import EmptyOperator

    arguments: dict[str, Any] = {"execution_timeout": _EVIDENCE_TIMEOUT, "retries": 0, **SKIPPABLE}
    with TaskGroup("evidence", default_args=arguments) as group:  # type: ignore[arg-type] # attrs' converter hides the field's type
        taken = EmptyOperator(task_id="taken", trigger_rule=TriggerRule.ALL_DONE)
        for line in (probe_check_tasks(spec, patience=_PROBE_PATIENCE), fingerprint_tasks(spec, retries=0)):
            chain(*line, taken)
    return [group]


def rollback_gate(spec: ClusterSpec, after: str) -> list[TaskGroup]:
    """The group `audit_after_rollback`. `after`: the task with which the rollback began, which has `begins`."""
    return step_gate(spec, "after_rollback", after=after, advice=_ROLLED_BACK, arguments=SKIPPABLE)


def _skip_if_unwanted(context: Context) -> None:
    if context["params"].get(SKIP_AUDIT):
        raise AirflowSkipException("The run was started with 'Roll back without an audit'.")


SKIPPABLE: Final = {"pre_execute": _skip_if_unwanted}
"""Default arguments of tasks that a rollback may leave out."""


def probe_stop_tasks(spec: ClusterSpec) -> list[BaseOperator]:
    """The task that ends kmigrate's own records, and waits until all are read."""
    if not spec.probe_folder:
        return []
    from airflow_provider_kmigrate.operators.probe import StopProbeOperator

    return [StopProbeOperator(task_id=_STOP_PROBE, folder=spec.probe_folder, **AFTER_SKIPS)]


def fingerprint_tasks(spec: ClusterSpec, **arguments: Any) -> list[BaseOperator]:
    """The fingerprint of the logs with which the gates compare; none if the file has an empty list of topics for it.

    `arguments` of the operator, instead of the file's.
    """
    audit = spec.audit
    if audit is None or audit.topics == ():
        return []
    from airflow_provider_kmigrate.operators.spark_audit import SparkFingerprintOperator

    request = {**_build_request(spec, audit, _FINGERPRINT), "stream": None, "report": None, **_logs_request(spec, audit)}
    result = _result_folder(spec, audit, _FINGERPRINT)
    return [
        SparkFingerprintOperator(
            task_id=_FINGERPRINT, request=request, result=result, **(_spark_arguments(spec, audit) | arguments)
        )
    ]


def check_tasks(spec: ClusterSpec) -> list[BaseOperator]:
    """Tasks that try Spark with the settings of the audits; none without a section `audit`.

    The second one, which reads the cluster, is left out where no audit reads its logs.
    """
    audit = spec.audit
    if audit is None:
        return []
    from airflow_provider_kmigrate.operators.spark_check import SparkCheckOperator, SparkLogsCheckOperator

    arguments = _spark_arguments(spec, audit) | {"result": f"{audit.result}/{spec.name}/check", "retries": 0, "session": None}
    tasks: list[BaseOperator] = [SparkCheckOperator(task_id="check_spark", **arguments)]
    if audit.topics != ():
        logs = {
            **_logs_request(spec, audit)["logs"],
            "refreshed": [],
            "sample": {"share": 0.0, "tail": _CHECKED},
            "block": _CHECKED,
        }
        tasks.append(SparkLogsCheckOperator(task_id="check_spark_logs", request={"sources": [], "logs": logs}, **arguments))
    return tasks


def session_tasks(spec: ClusterSpec) -> list[BaseOperator]:
    """The task that keeps one Spark application for all audits of the run, and one behind it; none if each audit is a job of its own.

    The second one ends whatever becomes of the first, so that the run's outcome does not depend on it.
    """
    audit = spec.audit
    if audit is None or not audit.session:
        return []
    from airflow.providers.standard.operators.empty import EmptyOperator

    from airflow_provider_kmigrate.operators.audit_session import AuditSessionOperator

    events = f"{spec.probe_folder}/{_RUN}/events" if spec.probe_folder else ""
    conf = {"spark.driver.extraJavaOptions": SESSION_JAVA, **_spark_conf(audit.spark)}
    session = AuditSessionOperator(
        task_id=AUDIT_SESSION,
        request={"sources": _build_request(spec, audit, AUDIT_SESSION, events)["sources"]},
        result=f"{audit.result}/{spec.name}/session/{_RUN}",
        results=f"{audit.result}/{spec.name}",
        idle_limit=spec.policy.min_soak + _SESSION_IDLE,
        **_spark_arguments(spec, audit) | {"conf": conf, "retries": 3, "retry_delay": timedelta(seconds=30)},
    )
    return [session, EmptyOperator(task_id=AUDIT_SESSION_ENDED, trigger_rule=TriggerRule.ALL_DONE)]


def start_time_arguments(spec: ClusterSpec) -> dict[str, Any]:
    """Arguments of the first task of a step that a gate judges: it stores its start, from which on the gate requires evidence."""
    return {"pre_execute": _store_start_time} if spec.audit is not None else {}


def _store_start_time(context: Context) -> None:
    """Store the start. A deferred task keeps it; a retry begins again, so that its own acts have evidence too."""
    ti: Any = context["ti"]
    if ti.xcom_pull(task_ids=ti.task_id, key=_BEGAN) is None:
        ti.xcom_push(_BEGAN, time.time_ns() // 1_000_000)


def step_gate(
    spec: ClusterSpec,
    step: str,
    *,
    after: str,
    earlier: Sequence[str] = (),
    advice: str = ROLLBACK_POSSIBLE,
    arguments: Mapping[str, Any] = _NONE,
    at_end: Mapping[str, Any] = _NONE,
) -> list[TaskGroup]:
    """The group `audit_<step>`, which passes only at PASS; none without a section `audit`.

    `after`: the task with which the step began, which has `begins`. `earlier`: the gates before, whose fingerprints replace the
    first. `advice`: what to do if it does not pass. `arguments`: default ones of its tasks; `at_end`: of its last task.
    """
    if spec.audit is None:
        return []
    with TaskGroup(f"audit_{step}", default_args=dict(arguments)) as group:  # type: ignore[arg-type] # as in `rollback_evidence`
        logs = _logs_request(spec, spec.audit, earlier)
        chain(
            *_audit_tasks(
                spec, spec.audit, step, advice, request_parts=logs, demand=_evidence_since(after), probed=True, at_end=at_end
            )
        )
    return [group]


def group_gate(
    spec: ClusterSpec,
    group: str,
    name: str,
    *,
    after: str,
    canary: Mapping[str, Any] | None = None,
    mixed: bool = False,
) -> list[BaseOperator]:
    """The tasks `audit_<name>` and `verdict_<name>` after a step of a group; none if the file names no events of clients.

    `after`: the task with which the step began, which has `begins`. The group must have been delivered something since. `canary`:
    the instances to compare, as from `canary_comparison`. `mixed`: some of its members may write no events yet.
    """
    if spec.audit is None or not _has_events(spec.audit):
        return []
    demand = _evidence_since(after) | {"groups": [group], "mixed": [group] if mixed else []}
    request_parts = {"canary": dict(canary)} if canary else {}
    advice = _OF_GROUP.format(cluster=spec.name)
    return _audit_tasks(
        spec, spec.audit, f"{group}/{name}", advice, suffix=f"_{name}", demand=demand, request_parts=request_parts
    )


def _evidence_since(task_id: str) -> dict[str, Any]:
    """When that task began; if it was marked as done, when the run did."""
    began = f"ti.xcom_pull(task_ids='{task_id}', key='{_BEGAN}')"
    return {"since": f"{{{{ {began} or (1000 * dag_run.start_date.timestamp()) | int }}}}"}


def canary_comparison(spec: ClusterSpec, group: GroupSpec) -> dict[str, Any] | None:
    """The group's first instance against its others, for a request; None if the file does not want it, or they are too few."""
    canary_spec = spec.audit.canary if spec.audit else None
    if canary_spec is None:
        return None
    from airflow_provider_kmigrate.core.audit.canary import MIN_BASELINE

    canary_instance, *others = (instance.name for instance in group.instances)
    if len(others) < MIN_BASELINE:
        return None
    times = {"interval_ms": round(1000 * canary_spec.interval), "settle_ms": round(1000 * canary_spec.settle)}
    return {
        "group": group.name, "canary": canary_instance, "baseline": others, "window": canary_spec.window, "margin": canary_spec.margin, **times
    }  # fmt: skip


def verdict_path(spec: ClusterSpec, step: str) -> str:
    """The path of the verdict on a step, as a template; empty without a section `audit`."""
    return f"{_result_folder(spec, spec.audit, step)}/verdict.json" if spec.audit else ""


def _audit_tasks(
    spec: ClusterSpec,
    audit: AuditSpec,
    step: str,
    advice: str,
    *,
    suffix: str = "",
    demand: Mapping[str, Any] | None = None,
    request_parts: Mapping[str, Any] = _NONE,
    probed: bool = False,
    at_end: Mapping[str, Any] = _NONE,
) -> list[BaseOperator]:
    """The tasks of an audit.

    `demand` as the policy's; `request_parts` of the request; `probed`: our own records are judged, if there are any.
    """
    from airflow_provider_kmigrate.operators.spark_audit import SparkAuditOperator
    from airflow_provider_kmigrate.sensors.waits import AuditVerdictSensor

    result = _result_folder(spec, audit, step)
    events = f"{spec.probe_folder}/{_RUN}/events" if probed and spec.probe_folder else ""
    submit = SparkAuditOperator(
        task_id=f"audit{suffix}",
        request=_build_request(spec, audit, step, events, demand) | dict(request_parts),
        result=result,
        retry_inconclusive=True,
        outlets=[cluster_asset(spec, _TABLES, {"folder": _tables_folder(spec, audit)})],
        **_spark_arguments(spec, audit),
    )
    verdict = AuditVerdictSensor(
        task_id=f"verdict{suffix}",
        path=f"{result}/verdict.json",
        inconclusive="fail",
        advice=advice,
        timeout=600.0,
        poke_interval=10.0,
        outlets=[cluster_asset(spec, _PASS)],
        **at_end,
    )
    return [submit, verdict]


def _spark_conf(spark: SparkSpec) -> dict[str, str]:
    """Properties of a job; what is for its Kafka source travels among them (`audit.kafka_source`)."""
    image = {"spark.kubernetes.container.image": spark.image} if spark.image else {}
    options = {f"{KAFKA_OPTIONS}{name}": value for name, value in spark.kafka_options.items()}
    return {**spark.properties, **image, **options}


def _spark_arguments(spec: ClusterSpec, audit: AuditSpec) -> dict[str, Any]:
    """Arguments of both operators; a fingerprint, too, is tried again: a partition may have no leader."""
    return {
        "conn_id": audit.conn_id,
        "environment": audit.environment,
        "cluster_file": spec.path,
        "jars": ",".join(audit.jars) or None,
        "archives": ",".join(audit.spark.archives) or None,
        "driver_memory": audit.spark.driver_memory,
        "executor_memory": audit.spark.executor_memory or None,
        "deploy_mode": audit.spark.deploy_mode or None,
        "conf": _spark_conf(audit.spark),
        "retries": audit.retries,
        "retry_delay": timedelta(seconds=audit.retry_delay),
        "session": {"folder": f"{audit.result}/{spec.name}/session/{_RUN}", "cluster_id": spec.cluster_id, "run": _RUN}
        if audit.session
        else None,
    }


def _result_folder(spec: ClusterSpec, audit: AuditSpec, step: str) -> str:
    return f"{audit.result}/{spec.name}/{step}/{_RUN}"


def _build_request(
    spec: ClusterSpec, audit: AuditSpec, step: str, probe: str = "", demand: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """As `audit.request` has it; master and deploy mode are those of the Spark connection. `probe`: where its events are."""
    from airflow_provider_kmigrate.core.audit.verdict import Level

    levels = {"probe": Level.PROBE, "consumers": Level.CONSUMER, "producers": Level.PRODUCER}
    stream = _stream_request(spec, audit, step)
    ledgers = [*audit.ledgers, *([stream["folder"]] if stream else [])]
    kept = _events_folder(spec, audit, step)
    source = {"level": levels[audit.level].label, "lines": list(audit.events), "store": f"{kept}/lines", "ledgers": ledgers}
    probe_source = {"level": Level.PROBE.label, "lines": [probe], "store": f"{kept}/probe-{_RUN}", "ledgers": []}
    policy: dict[str, Any] = {"allow": list(audit.allow), "max_lag_ms": round(audit.max_lag * 1000)}
    policy |= {"required_evidence": dict(demand)} if demand else {}
    sources = [*([source] if _has_events(audit) else []), *([probe_source] if probe else [])]
    report = {
        "cluster": spec.name,
        "cluster_id": spec.cluster_id,
        "run": _RUN,
        "step": step,
        "tables": _tables_folder(spec, audit),
    }
    return {"policy": policy, "sources": sources, "stream": stream, "report": report}


def _stream_request(spec: ClusterSpec, audit: AuditSpec, step: str) -> dict[str, Any] | None:
    """The part of a request that reads the topic."""
    if not audit.events_topic:
        return None
    kept = _events_folder(spec, audit, step)
    return {"topic": audit.events_topic, "folder": f"{kept}/ledger", "checkpoint": f"{kept}/checkpoint"}


def _events_folder(spec: ClusterSpec, audit: AuditSpec, step: str) -> str:
    """The folder that keeps what was read of events.

    Runs' audits, of which there is one at a time, continue from each other; scheduled ones do so in a folder of their own.
    """
    return f"{audit.result}/{spec.name}/events/{_SCHEDULED if step == _SCHEDULED else 'runs'}"


def _tables_folder(spec: ClusterSpec, audit: AuditSpec) -> str:
    return f"{audit.result}/{spec.name}/tables"


def _logs_request(spec: ClusterSpec, audit: AuditSpec, earlier: Sequence[str] = ()) -> dict[str, Any]:
    """The part of a request that compares logs with those before the first roll, or at the last gate's PASS."""
    if audit.topics == ():
        return {}
    before, *renewed = (f"{_result_folder(spec, audit, step)}/fingerprint.json" for step in (_FINGERPRINT, *earlier))
    return {
        "logs": {
            "topics": None if audit.topics is None else list(audit.topics),
            "exclude_topics": list(audit.exclude_topics),
            "before": before,
            "refreshed": renewed,
            "resetting_groups": list(audit.resetting_groups),
            **_sample_request(audit),
        }
    }


def _sample_request(audit: AuditSpec) -> dict[str, Any]:
    """Which records are read. Named topics whole; of all topics the newest, which are what an unclean election cuts off."""
    if audit.sample_fraction is not None:
        return {"sample": {"share": audit.sample_fraction}}
    return {"sample": {"share": 1.0}} if audit.topics else {"sample": {"share": 0.0, "tail": _TAIL}, "block": _TAIL}


def _has_events(audit: AuditSpec) -> bool:
    return bool(audit.events or audit.ledgers or audit.events_topic)
