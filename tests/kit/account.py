"""What came of a load: by the ledger of its own events, and by a judge that shares no line with kmigrate. Good only where both say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.kit.judge import (
    METADATA,
    Foreign,
    Judgement,
    Kafka,
    Told,
    dump,
    judge_sides,
    judge_told,
    read_zookeeper,
    settled,
)
from tests.kit.load import summary_of
from tests.kit.localcluster import runtime
from tests.kit.localcluster.cluster import LocalCluster
from tests.kit.localcluster.jaas import kazoo_options
from tests.kit.workload import Workload

NOTHING_OF: Final = ("lost", "unseen", "duplicated", "reordered", "diverged", "committed_unprocessed")
MUST_BE_ZERO: Final = (*NOTHING_OF, "incomplete", "failures")  # of `figures_of`: what a benchmark fails for
_SETTLE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Account:
    """Both accounts of one load; `ledger` as `tests.kit.load.summary_of`."""

    ledger: Mapping[str, Any]
    judged: Judgement

    @property
    def failures(self) -> tuple[str, ...]:
        """Why it does not count as nothing lost and both sides equal; empty only where both accounts are whole and say so."""
        return (*ledger_failures(self.ledger), *(f"judge: {text}" for text in (*self.judged.problems, *self.judged.doubts)))

    def summary(self) -> dict[str, Any]:
        """The ledger's summary, with what the judge says."""
        judge = {"acknowledged": self.judged.acknowledged, "read_again": self.judged.read_again, "is_good": self.judged.is_good}
        return {**self.ledger, "judge": judge, "failures": list(self.failures)}


def ledger_failures(ledger: Mapping[str, Any]) -> list[str]:
    """Why a ledger does not say that nothing was lost: what is missing of it counts as well."""
    found = [f"ledger: {ledger[key]} {key}" for key in NOTHING_OF if ledger[key]]
    found += [] if ledger["complete"] else [f"ledger: it is not complete: {'; '.join(ledger['reasons']) or 'no reason is given'}"]
    found += [] if ledger["verdict"].upper() == "PASS" else [f"ledger: {ledger['verdict']}"]
    return found + ([] if ledger["acked"] else ["ledger: no record was acknowledged"])


def figures_of(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What benchmarks keep of accounts, as `Account.summary` has them: sums, how many ledgers are not whole, and every failure as a sentence."""
    sums = {key: sum(one[key] for one in summaries) for key in (*NOTHING_OF, "acked")}
    return {
        **sums,
        "incomplete": sum(not one["complete"] for one in summaries),
        "judged": sum(one["judge"]["acknowledged"] for one in summaries),
        "failures": [text for one in summaries for text in one["failures"]],
    }


def kafka_of(cluster: LocalCluster, folder: Path, properties: Mapping[str, str] | None = None, bootstrap: str = "") -> Kafka:
    """Kafka's own programs for this cluster; `properties` of their clients, `bootstrap` where it is another listener."""
    found = runtime.find()
    return Kafka(found.java, found.class_path, bootstrap or cluster.bootstrap, folder, properties or {})


def log_dirs(cluster: LocalCluster) -> dict[str, tuple[Path, ...]]:
    """Where each broker keeps its partitions."""
    return {node.name: cluster.log_dirs_of(node) for node in cluster.plan.brokers}


def metadata_logs(cluster: LocalCluster) -> list[Path]:
    """The metadata logs of the controllers that have one: none before a migration, and after a rollback."""
    folders = [cluster.data_of(node) / METADATA for node in cluster.plan.controllers]
    return [folder for folder in folders if folder.is_dir()]


def judge_equal(cluster: LocalCluster, kafka: Kafka, seconds: float = _SETTLE_S) -> Judgement:
    """Whether ZooKeeper, KRaft if there is one, and the brokers hold the same."""
    return settled(
        lambda: judge_sides(kafka, read_zookeeper(cluster.zookeeper, **kazoo_options(cluster.plan)), metadata_logs(cluster)),
        seconds,
    )


def judge_acknowledged(cluster: LocalCluster, kafka: Kafka, events: Path, topics: Iterable[str]) -> Judgement:
    """Whether each replica holds what was acknowledged in these topics, and each group was delivered it."""
    wanted, told = tuple(topics), told_in(events)
    return settled(lambda: judge_told(told, wanted, dump(kafka, log_dirs(cluster), wanted, payloads=False)), _SETTLE_S)


def told_in(events: Path) -> Told:
    """What the clients wrote into this folder."""
    return Told.read(line for path in sorted(events.glob("*.jsonl")) for line in path.read_text().splitlines())


def account_of(cluster: LocalCluster, workload: Workload, foreign: Foreign, topics: Sequence[str]) -> Account:
    """Of both loads, of which the workload was stopped; `topics`: of the workload, those whose logs keep everything."""
    foreign.stop()
    judged = foreign.judge(log_dirs(cluster)) + judge_equal(cluster, foreign.kafka)
    return Account(summary_of(workload), judged + judge_acknowledged(cluster, foreign.kafka, workload.events, topics))
