"""Judges what could hurt a Spark job while its cluster is rolled (`find_job_risks`), and whether the cluster is quiet for users' own DAGs (`decide`).

Measured: a job on Spark's defaults survives clean rolls exactly. What kills it is a partition without a leader for longer than
the shortest of its limits; what harms it without notice is an option that hides truncation.

It is quiet when no run owns the cluster, or when the owning run has changed nothing for a while, everything it changed is healthy
again, and all replicas are in sync. Soaking and waiting for approval are quiet; the pause between two restarts of a roll is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_kmigrate.core.cluster_state.decision import Decision, Done, Wait
from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Partition, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import HoldPolicy, SparkJobSpec
from airflow_provider_kmigrate.core.monitoring.journal_lines import ActSpan, JournalLine, list_acts, unsettled_acts
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.core.shared.text import count_of, summarize

_GROUP = "kafka.group.id"
#: option -> the default of Spark, or of the client; less makes the job die sooner (measured)
_LIMITS = {"fetchOffset.numRetries": 3, "kafkaConsumer.pollTimeoutMs": 120_000, "kafka.default.api.timeout.ms": 60_000}


@dataclass(frozen=True, slots=True)
class JobRisk:
    """One flag of one job; `BLOCK`: do not roll before it is cleared."""

    job: str
    severity: Severity
    reason: Reason


def find_job_risks(jobs: Sequence[SparkJobSpec], view: ClusterView) -> tuple[JobRisk, ...]:
    """Every flag, job by job. `view` needs partitions and min_insync; a partition missing in it is a flag of its own."""
    groups = Counter(job.options[_GROUP] for job in jobs if _GROUP in job.options)
    return tuple(
        JobRisk(job.name, severity, reason)
        for job in jobs
        for severity, reason in (*_check_options(job, groups), *_check_leaders(job, view), *_check_spare_replicas(job, view))
    )


def leaderless_reasons(job: SparkJobSpec, view: ClusterView) -> tuple[Reason, ...]:
    """Why rolling the brokers may leave the job without a leader; empty: it cannot. `view` as for `find_job_risks`.

    Replicas that are behind are no reason: no broker is stopped while there are any (S02).
    """
    return tuple(reason for _, reason in _check_leaders(job, view))


def _check_options(job: SparkJobSpec, groups: Counter[str]) -> Iterator[tuple[Severity, Reason]]:
    options = {key.lower(): value for key, value in job.options.items()}  # Spark's options ignore case
    if _equals_word(options.get("failondataloss"), "false"):
        yield Severity.WARN, Reason("J20", "It sets failOnDataLoss=false.")
    if groups[job.options.get(_GROUP, "")] > 1:
        deprecated = _equals_word(options.get("usedeprecatedoffsetfetching"), "true")
        text = f"Another job has its {_GROUP}, {job.options[_GROUP]}."
        yield Severity.BLOCK if deprecated else Severity.WARN, Reason("J20", text)
    if "zookeeper.connect" in options:
        yield Severity.BLOCK, Reason("J22", "It reads through a receiver that uses ZooKeeper for coordination.")
    low = [f"{key}={value}" for key, least in _LIMITS.items() if _is_below(value := options.get(key.lower()), least)]
    if low:
        yield Severity.WARN, Reason("J20", f"It lowers its limits: {', '.join(low)}.")
    if options.get("partition.metadata.cache.ttl.ms", "-1") not in {"-1", "0"}:
        yield Severity.WARN, Reason("J20", "It caches partitions' metadata.")


def _check_leaders(job: SparkJobSpec, view: ClusterView) -> Iterator[tuple[Severity, Reason]]:
    """Risks that leave the job's partitions without a leader. With `hold: never` they block: no hold prevents the harm."""
    job_partitions = _list_job_partitions(job, view)
    missing = sorted(set(job.topics) - {partition.topic for partition in job_partitions})
    if not job.topics or missing or view.min_insync is None:
        topics_text = f"These topics were not found: {', '.join(missing)}." if missing else "Its topics are not fully known."
        yield Severity.WARN, Reason("J24", topics_text)
    single_replica_partitions = [partition for partition in job_partitions if len(partition.replicas) == 1]
    if single_replica_partitions:
        severity = Severity.BLOCK if job.hold is HoldPolicy.NEVER else Severity.WARN
        yield severity, Reason("J24", f"{summarize(partition.name for partition in single_replica_partitions)} have one replica.")


def _check_spare_replicas(job: SparkJobSpec, view: ClusterView) -> Iterator[tuple[Severity, Reason]]:
    """Topics that have no spare in-sync replica."""
    least = view.min_insync or {}
    tight = [
        partition
        for partition in _list_job_partitions(job, view)
        if len(partition.replicas) > 1 and len(partition.isr) <= max(1, least.get(partition.topic, 1))
    ]
    if tight:
        yield Severity.WARN, Reason("S02", f"{summarize(partition.name for partition in tight)} have no spare in-sync replica.")


def _list_job_partitions(job: SparkJobSpec, view: ClusterView) -> list[Partition]:
    return [partition for partition in view.partitions or () if partition.topic in job.topics]


def _equals_word(value: str | None, word: str) -> bool:
    return value is not None and value.strip().lower() == word


def _is_below(value: str | None, least: int) -> bool:
    return value is not None and value.strip().isdecimal() and int(value) < least


RECENT_MS: Final = 3_600_000  # maximum age of an act that counts if ZooKeeper cannot name the cluster's owner


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that owns the cluster; None: no run. Not `known`: ZooKeeper could not be read, or is switched off after a migration."""

    run: str | None = None
    known: bool = True


def decide_quiet(view: ClusterView, lines: Sequence[JournalLine], holder: Holder, now_ms: int, calm_ms: int) -> Decision:
    """`Done` if it is quiet. `lines`: those of all journals of the cluster; `calm_ms`: for how long nothing may have changed.

    A run that owns the cluster and has written no line has its journal elsewhere: every step writes some.
    """
    if holder.known and holder.run is None:
        return Done("No run of kmigrate owns the cluster.")
    if holder.run is not None and all(line.run != holder.run for line in lines):
        text = f"Run {holder.run} owns the cluster, but its journal is not in this worker's folder."
        return Wait((Reason("O05", text),))
    owner_acts = [
        act for act in list_acts(lines) if (act.run == holder.run if holder.known else now_ms - act.from_ms < RECENT_MS)
    ]
    reasons = [Reason("Q01", f"Run {act.run}: {act.step} is under way ({act.verb}).") for act in unsettled_acts(owner_acts)]
    reasons += _recent_change_reasons(owner_acts, now_ms, calm_ms)
    reasons += _unhealthy_reasons(view.partitions) if holder.known else []
    return Wait(tuple(reasons)) if reasons else Done("No recent change, and the cluster is healthy.")


def _recent_change_reasons(acts: Sequence[ActSpan], now_ms: int, calm_ms: int) -> list[Reason]:
    latest = max((act.settled_ms or act.to_ms or act.from_ms for act in acts), default=0)
    if now_ms - latest >= calm_ms:
        return []
    text = f"The last change was {max(0, now_ms - latest) / 1000:.0f} s ago; waiting for {calm_ms / 1000:.0f} s without a change."
    return [Reason("Q01", text)]


def _unhealthy_reasons(partitions: Sequence[Partition] | None) -> list[Reason]:
    if partitions is None:
        return [Reason("Q01", "The partitions could not be read.")]
    leaderless = sum(partition.leader < 0 for partition in partitions)
    behind = sum(partition.is_under_replicated for partition in partitions)
    if not leaderless and not behind:
        return []
    return [
        Reason(
            "Q01",
            f"{count_of(leaderless, 'partition has', 'partitions have')} no leader, {count_of(behind, 'has', 'have')} out-of-sync replicas.",
        )
    ]
