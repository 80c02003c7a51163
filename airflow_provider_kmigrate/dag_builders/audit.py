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
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_kmigrate.core.cluster import AuditSpec, ClusterSpec, GroupSpec
from airflow_provider_kmigrate.dag_builders.chaining import AFTER_SKIPS, cluster_dag
from airflow_provider_kmigrate.dag_builders.task_docs import doc

_DOC = """\
### {name}: are all records there?

Audits with Spark the events that the clients of cluster `{cluster_id}` recorded, and where all commits of its groups are if the cluster file
asks for that (`offsets_history`). It changes nothing. The result of each run
is in `{result}`. A failure means a finding or too little evidence; the log of `verdict` says which.
"""
_RUN = "{{ run_id | replace(':', '_') | replace('+', '_') }}"
_FINGERPRINT = "fingerprint_logs"
_TAIL = 1_000  # offsets of each partition, and up to as many again, since it begins where a block does
_SCHEDULED = "scheduled"
_BEGAN = "kmigrate_began_ms"
SKIP_AUDIT: Final = "skip_audit"
"""The param of a rollback's run that leaves the audit out."""
ROLLBACK_POSSIBLE: Final = (
    "No later task has started, and the cluster keeps serving. Until 'finalize' begins everything can be rolled back. "
    "Read the findings, then decide on a rollback (from this phase: `kmigrate runbook`, section 2)."
)
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


def build(spec: ClusterSpec) -> DAG | None:
    """The DAG on the schedule of the file's `audit`; None without that section, or events or `offsets_history` in it."""
    audit = spec.audit
    if audit is None or not (_has_events(audit) or audit.offsets_history):
        return None
    text = _DOC.format(name=spec.name, cluster_id=spec.cluster_id, result=audit.result)
    with cluster_dag(spec, "kmigrate_audit", text, doc, tags=["audit"], schedule=audit.schedule or None) as dag:
        demand = {"since": round(1000 * datetime.fromisoformat(audit.baseline_time).timestamp())} if audit.baseline_time else None
        offsets = {"offsets": {"folder": f"{audit.result}/{spec.name}/commits"}} if audit.offsets_history else {}
        chain(*_tasks(spec, audit, _SCHEDULED, "", demand=demand, more=offsets))
    return dag


def probe_begins(spec: ClusterSpec) -> list[BaseOperator]:
    """Tasks that start kmigrate's own records and check that they arrive; none if the file wants none."""
    if not spec.probes:
        return []
    from airflow_provider_kmigrate.operators.probe import CheckProbeOperator, StartProbeOperator

    given: dict[str, Any] = {"cluster_file": spec.path, "folder": spec.probes, "run": _RUN}
    return [StartProbeOperator(task_id="start_probe", **given), CheckProbeOperator(task_id="check_probe", **given)]


def rollback_evidence(spec: ClusterSpec) -> list[TaskGroup]:
    """The group `evidence`: what the audit of a rollback compares with. It never fails the run: a rollback does not depend on Spark."""
    if spec.audit is None:
        return []
    from airflow.providers.standard.operators.empty import EmptyOperator

    arguments: dict[str, Any] = {"execution_timeout": _EVIDENCE_TIMEOUT, "retries": 0}
    with TaskGroup("evidence", default_args=arguments) as group:  # type: ignore[arg-type] # attrs' converter hides the field's type
        taken = EmptyOperator(task_id="taken", trigger_rule=TriggerRule.ALL_DONE)
        for line in (probe_begins(spec), fingerprint(spec, retries=0)):
            chain(*line, taken)
    _skippable(group)
    return [group]


def rollback_gate(spec: ClusterSpec, after: str) -> list[TaskGroup]:
    """The group `audit_after_rollback`. `after`: the task with which the rollback began, which has `begins`."""
    groups = gate(spec, "after_rollback", after=after, advice=_ROLLED_BACK)
    for group in groups:
        _skippable(group)
    return groups


def _skippable(group: TaskGroup) -> None:
    for task in group.iter_tasks():
        if isinstance(task, BaseOperator):
            task._pre_execute_hook = _skip_if_unwanted  # noqa: SLF001 - BaseOperator's argument `pre_execute`, given after its creation


def _skip_if_unwanted(context: Context) -> None:
    if context["params"].get(SKIP_AUDIT):
        raise AirflowSkipException("The run was started with 'Roll back without an audit'.")


def probe_ends(spec: ClusterSpec) -> list[BaseOperator]:
    """The task that ends all such streams of the cluster."""
    if not spec.probes:
        return []
    from airflow_provider_kmigrate.operators.probe import StopProbeOperator

    return [StopProbeOperator(task_id="stop_probe", cluster_file=spec.path, folder=spec.probes, **AFTER_SKIPS)]


def fingerprint(spec: ClusterSpec, **arguments: Any) -> list[BaseOperator]:
    """The fingerprint of the logs with which the gates compare; none if the file has an empty list of topics for it.

    `arguments` of the operator, instead of the file's.
    """
    audit = spec.audit
    if audit is None or audit.topics == ():
        return []
    from airflow_provider_kmigrate.operators.spark_audit import SparkFingerprintOperator

    request = {**_request(spec, audit, _FINGERPRINT), "stream": None, "report": None, **_logs(spec, audit)}
    result = _result(spec, audit, _FINGERPRINT)
    return [SparkFingerprintOperator(task_id=_FINGERPRINT, request=request, result=result, **(_spark(spec, audit) | arguments))]


def begins(spec: ClusterSpec) -> dict[str, Any]:
    """Arguments of the first task of a step that a gate judges: it stores its start, from which on the gate requires evidence."""
    return {"pre_execute": _leave_time} if spec.audit is not None else {}


def _leave_time(context: Context) -> None:
    """Store the start. A deferred task keeps it; a retry begins again, so that its own acts have evidence too."""
    ti: Any = context["ti"]
    if ti.xcom_pull(task_ids=ti.task_id, key=_BEGAN) is None:
        ti.xcom_push(_BEGAN, time.time_ns() // 1_000_000)


def gate(
    spec: ClusterSpec, step: str, *, after: str, earlier: Sequence[str] = (), advice: str = ROLLBACK_POSSIBLE
) -> list[TaskGroup]:
    """The group `audit_<step>`, which passes only at PASS; none without a section `audit`.

    `after`: the task with which the step began, which has `begins`. `earlier`: the gates before, whose fingerprints replace the
    first. `advice`: what to do if it does not pass.
    """
    if spec.audit is None:
        return []
    with TaskGroup(f"audit_{step}") as group:
        logs = _logs(spec, spec.audit, earlier)
        chain(*_tasks(spec, spec.audit, step, advice, more=logs, demand=_since(after), probed=True))
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
    the instances to compare, as from `canary_of`. `mixed`: some of its members may write no events yet.
    """
    if spec.audit is None or not _has_events(spec.audit):
        return []
    demand = _since(after) | {"groups": [group], "mixed": [group] if mixed else []}
    more = {"canary": dict(canary)} if canary else {}
    advice = _OF_GROUP.format(cluster=spec.name)
    return _tasks(spec, spec.audit, f"{group}/{name}", advice, suffix=f"_{name}", demand=demand, more=more)


def _since(task_id: str) -> dict[str, Any]:
    """When that task began; if it was marked as done, when the run did."""
    began = f"ti.xcom_pull(task_ids='{task_id}', key='{_BEGAN}')"
    return {"since": f"{{{{ {began} or (1000 * dag_run.start_date.timestamp()) | int }}}}"}


def canary_of(spec: ClusterSpec, group: GroupSpec) -> dict[str, Any] | None:
    """The group's first instance against its others, for a request; None if the file does not want it, or they are too few."""
    wanted = spec.audit.canary if spec.audit else None
    if wanted is None:
        return None
    from airflow_provider_kmigrate.core.audit.canary import MIN_BASELINE

    first, *others = (instance.name for instance in group.instances)
    if len(others) < MIN_BASELINE:
        return None
    times = {"interval_ms": round(1000 * wanted.interval), "settle_ms": round(1000 * wanted.settle)}
    return {
        "group": group.name, "canary": first, "baseline": others, "window": wanted.window, "margin": wanted.margin, **times
    }  # fmt: skip


def verdict_of(spec: ClusterSpec, step: str) -> str:
    """The path of the verdict on a step, as a template; empty without a section `audit`."""
    return f"{_result(spec, spec.audit, step)}/verdict.json" if spec.audit else ""


def _tasks(
    spec: ClusterSpec,
    audit: AuditSpec,
    step: str,
    advice: str,
    *,
    suffix: str = "",
    demand: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
    probed: bool = False,
) -> list[BaseOperator]:
    """The tasks of an audit.

    `demand` as the policy's; `more` of the request; `probed`: our own records are judged, if there are any.
    """
    from airflow_provider_kmigrate.operators.spark_audit import SparkAuditOperator
    from airflow_provider_kmigrate.sensors.waits import AuditVerdictSensor

    result = _result(spec, audit, step)
    events = f"{spec.probes}/{_RUN}/events" if probed and spec.probes else ""
    submit = SparkAuditOperator(
        task_id=f"audit{suffix}",
        request=_request(spec, audit, step, events, demand) | dict(more),
        result=result,
        retry_inconclusive=True,
        **_spark(spec, audit),
    )
    verdict = AuditVerdictSensor(
        task_id=f"verdict{suffix}",
        path=f"{result}/verdict.json",
        inconclusive="fail",
        advice=advice,
        timeout=600.0,
        poke_interval=10.0,
    )
    return [submit, verdict]


def _spark(spec: ClusterSpec, audit: AuditSpec) -> dict[str, Any]:
    """Arguments of both operators; a fingerprint, too, is tried again: a partition may have no leader."""
    return {
        "conn_id": audit.conn_id,
        "environment": audit.environment,
        "cluster_file": spec.path,
        "jars": ",".join(audit.jars) or None,
        "retries": audit.retries,
        "retry_delay": timedelta(seconds=audit.retry_delay),
    }


def _result(spec: ClusterSpec, audit: AuditSpec, step: str) -> str:
    return f"{audit.result}/{spec.name}/{step}/{_RUN}"


def _request(
    spec: ClusterSpec, audit: AuditSpec, step: str, probe: str = "", demand: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """As `audit.request` has it; master and deploy mode are those of the Spark connection. `probe`: where its events are."""
    from airflow_provider_kmigrate.core.audit.verdict import Level

    levels = {"probe": Level.PROBE, "consumers": Level.CONSUMER, "producers": Level.PRODUCER}
    stream = _stream(spec, audit, step)
    ledgers = [*audit.ledgers, *([stream["folder"]] if stream else [])]
    source = {"level": levels[audit.level].label, "lines": list(audit.events), "ledgers": ledgers}
    ours = {"level": Level.PROBE.label, "lines": [probe], "ledgers": []}
    policy: dict[str, Any] = {"allow": list(audit.allow), "max_lag_ms": round(audit.max_lag * 1000)}
    policy |= {"required_evidence": dict(demand)} if demand else {}
    sources = [*([source] if _has_events(audit) else []), *([ours] if probe else [])]
    report = {"cluster": spec.name, "cluster_id": spec.cluster_id, "run": _RUN}
    return {"policy": policy, "sources": sources, "stream": stream, "report": report}


def _stream(spec: ClusterSpec, audit: AuditSpec, step: str) -> dict[str, Any] | None:
    """The part of a request that reads the topic.

    Runs' audits, of which there is one at a time, continue from each other; scheduled ones do so in a folder of their own.
    """
    if not audit.events_topic:
        return None
    place = f"{audit.result}/{spec.name}/events/{_SCHEDULED if step == _SCHEDULED else 'runs'}"
    return {"topic": audit.events_topic, "folder": f"{place}/ledger", "checkpoint": f"{place}/checkpoint"}


def _logs(spec: ClusterSpec, audit: AuditSpec, earlier: Sequence[str] = ()) -> dict[str, Any]:
    """The part of a request that compares logs with those before the first roll, or at the last gate's PASS."""
    if audit.topics == ():
        return {}
    before, *renewed = (f"{_result(spec, audit, step)}/fingerprint.json" for step in (_FINGERPRINT, *earlier))
    return {
        "logs": {
            "topics": None if audit.topics is None else list(audit.topics),
            "exclude_topics": list(audit.exclude_topics),
            "before": before,
            "refreshed": renewed,
            "resetting_groups": list(audit.resetting_groups),
            **_sample(audit),
        }
    }


def _sample(audit: AuditSpec) -> dict[str, Any]:
    """Which records are read. Named topics whole; of all topics the newest, which are what an unclean election cuts off."""
    if audit.sample_fraction is not None:
        return {"sample": {"share": audit.sample_fraction}}
    return {"sample": {"share": 1.0}} if audit.topics else {"sample": {"share": 0.0, "tail": _TAIL}, "block": _TAIL}


def _has_events(audit: AuditSpec) -> bool:
    return bool(audit.events or audit.ledgers or audit.events_topic)
