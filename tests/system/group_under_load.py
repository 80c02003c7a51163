"""A group of real processes on a cluster with one broker, under load: what it looks like, and what became of every record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.clients.group_reads import seen
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.ledger import Case, Facts, balance
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind
from benchmarks.old_application import OldApplication
from benchmarks.rehearsal import Rehearsal
from tests.consumer.migrating_group import delivered
from tests.kit.account import told_in
from tests.kit.judge import judge_told
from tests.kit.load import TopicPlan
from tests.kit.localcluster.plan import Shape
from tests.waiting import wait_until

TOPIC, GROUP = "orders", "billing"
APPLICATION = OldApplication(GROUP, TOPIC)
PARTITIONS = 6
RATE = 200.0  # records a second
JAVA = (MemberKind.ZOOKEEPER, "jvm")  # in the name of a Java consumer (`tests.old_consumer.instance`)


@contextmanager
def under_load(folder: Path, name: str, application: OldApplication = APPLICATION) -> Iterator[Rehearsal]:
    """200 records a second into six partitions, and a group with (two old) consumers, each of which owns some."""
    shape, topics = Shape(name=name, brokers=1, controllers=1), [TopicPlan(TOPIC, PARTITIONS, 1)]
    there = Rehearsal(folder, shape, topics, (), rate=RATE, producers=1, applications=[application], foreign=None)
    with closing(there):
        there.up()
        there.load()
        there.start_applications()
        wait_until(lambda: len(set(owners(there).values())) == application.instances, "each of the consumers owns something")
        yield there


def observe(rehearsal: Rehearsal) -> GroupSeen:
    hosts, _, chroot = rehearsal.cluster.zookeeper.partition("/")
    with ZooKeeper(ZooKeeperSettings(hosts, f"/{chroot}" if chroot else "")) as zk:
        return seen(zk, {"bootstrap.servers": rehearsal.cluster.bootstrap}, [GROUP])[GROUP]


def owners(rehearsal: Rehearsal) -> dict[object, str]:
    found = observe(rehearsal).zk
    return dict(found.owners) if found else {}  # type: ignore[arg-type]


def kinds(rehearsal: Rehearsal) -> list[MemberKind]:
    return [member.kind for member in observe(rehearsal).members or ()]


def events_of(rehearsal: Rehearsal) -> Path:
    assert rehearsal.workload is not None
    return rehearsal.workload.events


def drained(rehearsal: Rehearsal) -> None:
    """The load ends, and the group is delivered the rest of it."""
    assert rehearsal.workload is not None
    rehearsal.workload.stop()
    ends = observe(rehearsal).ends or {}
    assert len(ends) == PARTITIONS, ends
    wait_until(lambda: delivered(events_of(rehearsal)) >= sum(ends.values()), "the group is caught up")
    assert judge_told(told_in(events_of(rehearsal)), [TOPIC]).problems == ()


def judged(rehearsal: Rehearsal) -> Facts:
    """Everything that was written down so far, against what was acknowledged."""
    reading = read_events(events_of(rehearsal))
    return balance(reading.events, refused=reading.refused)


def repeated(rehearsal: Rehearsal, facts: Facts) -> list[Case]:
    """What was delivered twice, without the repeats of Kafka's legacy consumer.

    It commits before it releases a partition: what its application takes during that commit goes to the next owner again.
    """
    return [case for case in facts.redelivered.cases if not any(f"-{kind}-" in case.members[0] for kind in JAVA)]


def messages(facts: Facts, names: Iterable[str]) -> str:
    """Counts and first cases, for a message."""
    return "; ".join(f"{name}: {getattr(facts, name).count} {getattr(facts, name).cases[:3]}" for name in names)
