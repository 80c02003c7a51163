"""Loss, repeats and two owners that really happen to real clients: each is named by its cause, its offsets and its number, and nothing else is.

On librdkafka's mock brokers, which are there at once, and on a real one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("duckdb", reason="the audit has its own environment")

from confluent_kafka import Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from airflow_provider_kmigrate.applications import runs
from airflow_provider_kmigrate.applications.audited import AuditedConsumer
from airflow_provider_kmigrate.applications.event_log import FileSink
from airflow_provider_kmigrate.applications.producer import AuditedProducer
from airflow_provider_kmigrate.audit import job
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.core.audit.verdict import AuditFinding, AuditOutcome, Level
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from tests.consumer.mock_kafka import MockKafka
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import lent
from tests.kit.localcluster.plan import Shape

pytestmark = [pytest.mark.slow(seconds=80), pytest.mark.timeout(300)]
COUNT = 100


class Brokers(NamedTuple):
    """Where they are, and how a topic of one partition is made."""

    bootstrap: str
    make: Callable[[str], object]
    real: bool


@pytest.fixture(
    scope="module", params=[pytest.param("mock", marks=pytest.mark.long), pytest.param("real", marks=pytest.mark.cluster)]
)
def brokers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    if request.param == "mock":
        with MockKafka() as mock:
            yield Brokers(mock.bootstrap, lambda name: mock.topic(name, 1), real=False)
        return
    with lent(tmp_path_factory.mktemp("planted"), Shape(name="planted", brokers=1, controllers=1, racks=0)) as cluster:
        reached = {"bootstrap.servers": cluster.bootstrap}
        yield Brokers(cluster.bootstrap, lambda name: create_topics(reached, [TopicPlan(name, 1, replication=1)]), real=True)


def packed(name: str, number: int) -> bytes:
    return runs.pack_content(name.encode(), number, 1_000 * number, 60)


def content(message: Message) -> runs.Content | None:
    return runs.unpack_content(message.value())


class Scene:
    """One topic of one partition, one group, and a folder of events."""

    def __init__(self, brokers: Brokers, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.properties = {"bootstrap.servers": brokers.bootstrap}
        brokers.make(name)

    def send(self, first: int, last: int) -> None:
        """Numbered records of a wrapped producer, whose name is in them."""
        inner = Producer({**self.properties, "enable.idempotence": True})
        with AuditedProducer(inner, FileSink(self.folder), identify=content, writer=f"app-{first}") as producer:
            for number in range(first, last + 1):
                producer.produce(self.name, packed(f"app-{first}", number), partition=0)
            assert producer.flush(30) == 0

    def send_unseen(self, name: str, *numbers: int) -> None:
        """Records of a producer that writes no events."""
        producer = Producer(self.properties)
        for number in numbers:
            producer.produce(self.name, packed(name, number), partition=0)
        assert producer.flush(30) == 0

    def member(self, **more: Any) -> AuditedConsumer:
        given = {"group.id": self.name, "auto.offset.reset": "earliest", "enable.auto.commit": False, **more}
        member = AuditedConsumer.of({**self.properties, **given}, FileSink(self.folder), identify=content)
        member.subscribe([self.name])
        return member

    def read(self, member: AuditedConsumer, upto: int, *, commit: bool = True) -> None:
        """Poll until the record at this offset came, then commit."""
        deadline, offset = time.monotonic() + 60, -1
        while offset != upto:
            assert time.monotonic() < deadline, f"offset {upto} of {self.name} did not come, {offset} did"
            message = member.poll(0.2)
            offset = offset if message is None or message.error() else message.offset()
        if commit:
            member.commit(asynchronous=False)

    def go_to(self, member: AuditedConsumer, offset: int) -> None:
        member.seek(KafkaPartition(self.name, 0, offset))


def nothing(scene: Scene) -> None:
    scene.send(0, COUNT - 1)
    with scene.member() as member:
        scene.read(member, COUNT - 1)


def skip(scene: Scene) -> None:
    """The group's position jumps over seven records."""
    scene.send(0, COUNT - 1)
    with scene.member() as member:
        scene.read(member, 39)
        scene.go_to(member, 47)
        scene.read(member, COUNT - 1)


def repeat_by_itself(scene: Scene) -> None:
    """A client goes back in one generation of its group."""
    scene.send(0, COUNT - 1)
    with scene.member() as member:
        scene.read(member, 39)
        scene.go_to(member, 35)
        scene.read(member, COUNT - 1)


def repeat(scene: Scene) -> None:
    """A member ends before it commits its last records, and the next one begins where the group had committed."""
    scene.send(0, COUNT - 1)
    with scene.member() as member:
        scene.read(member, 34)
        scene.read(member, 39, commit=False)
    with scene.member() as member:
        scene.read(member, COUNT - 1)


def removed(scene: Scene) -> None:
    """The log loses records before the group was given them."""
    scene.send(0, COUNT - 1)
    with scene.member() as member:
        scene.read(member, 39)
    admin = AdminClient(scene.properties)  # a client that nothing refers to ends with its requests
    for future in admin.delete_records([KafkaPartition(scene.name, 0, 60)]).values():
        future.result(30)
    with scene.member() as member:
        scene.read(member, COUNT - 1)


def stored_twice(scene: Scene) -> None:
    """As a producer that sends again what was stored already, under a new producer id."""
    scene.send(0, COUNT - 1)
    scene.send_unseen("app-0", 90, 91, 92)
    with scene.member() as member:
        scene.read(member, COUNT + 2)


def two_owners(scene: Scene) -> None:
    """A member works on one record for longer than it may; another one takes over, and the first finds out late."""
    limits = {"session.timeout.ms": 6_000, "max.poll.interval.ms": 6_000}
    scene.send(0, COUNT - 1)
    with scene.member(**limits) as slow:
        scene.read(slow, COUNT - 1)
        scene.send(COUNT, COUNT + 9)
        with scene.member(**limits) as other:
            scene.read(other, COUNT + 9)
            slow.poll(5.0)


def skip_unreported(scene: Scene) -> None:
    scene.send(0, 39)
    scene.send_unseen("unseen", *range(4))
    scene.send(40, COUNT - 5)
    with scene.member() as member:
        scene.read(member, 39)
        scene.go_to(member, 44)
        scene.read(member, COUNT - 1)


class Planted(NamedTuple):
    """What happens, what must be said, and where; `cause` None: nothing."""

    plant: Callable[[Scene], None]
    outcome: AuditOutcome
    cause: AuditCause | None = None
    count: int | None = None  # None: a time
    offsets: tuple[int, int] = (-1, -1)
    only_real: bool = False


PLANTED = (
    Planted(nothing, AuditOutcome.PASS),
    Planted(skip, AuditOutcome.FAIL, AuditCause.LOST, 7, (40, 46)),
    Planted(repeat, AuditOutcome.FAIL, AuditCause.REDELIVERED, 5, (35, 39)),
    Planted(repeat_by_itself, AuditOutcome.PASS, AuditCause.CLIENT_REPEATED, 5, (35, 39)),
    Planted(removed, AuditOutcome.FAIL, AuditCause.LOST, 20, (40, 59), only_real=True),
    Planted(stored_twice, AuditOutcome.FAIL, AuditCause.STORED_TWICE, 3, (100, 102)),
    Planted(two_owners, AuditOutcome.FAIL, AuditCause.DOUBLE_OWNED),
    Planted(skip_unreported, AuditOutcome.PASS, AuditCause.SKIPPED, 4, (40, 43)),
)
ALSO = {AuditCause.LOST: {AuditCause.COMMIT_GAP}}  # what is lost behind a commit was committed before it was delivered, too


@pytest.fixture(scope="module")
def played(brokers: Brokers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every scene, once for all engines. A second try has topics of its own: what the first one committed would be in its way."""
    folders = {}
    for planted in (each for each in PLANTED if brokers.real or not each.only_real):
        name = planted.plant.__name__
        folders[name] = tmp_path_factory.mktemp(name)
        planted.plant(Scene(brokers, folders[name].name, folders[name]))
    return folders


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.plant.__name__)
def test_what_really_happens_is_named(played: dict[str, Path], duck_or_nightly_spark: Engine, planted: Planted) -> None:
    folder = played.get(planted.plant.__name__)
    if folder is None:
        pytest.skip("mock brokers delete no records")
    verdict = job.audit_sources([Source(Level.PRODUCER, lines=(str(folder),))], AuditPolicy(), duck_or_nightly_spark).verdict
    found: dict[object, AuditFinding] = {finding.reason.cause: finding for finding in verdict.findings}
    bad = {cause for cause, finding in found.items() if finding.outcome is not AuditOutcome.PASS}
    assert verdict.outcome is planted.outcome, verdict.headline
    assert bad - ALSO.get(planted.cause, set()) == ({planted.cause} if planted.outcome is AuditOutcome.FAIL else set()), (
        verdict.headline
    )
    if planted.cause:
        finding = found[planted.cause]
        assert planted.count is None or finding.count == planted.count
        assert {(case.first, case.last) for case in finding.examples} == {planted.offsets}
    else:
        assert AuditCause.SKIPPED not in found
