"""KIP-125's table of who may be in a group with whom, on real processes under load, and what is promised of those who may not.

One group, one load: the tests are the stations of its way, in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.core.events.model import DeliveryRun, Event, Remark, TopicPartition
from airflow_provider_kmigrate.core.groups.members import instability_reasons
from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.groups import main
from airflow_provider_kmigrate.spec import load
from benchmarks import direct
from benchmarks.rehearsal import Rehearsal
from tests.consumer.migrating_group import places
from tests.kit.processes import NodeProcess
from tests.old_consumer.instance import restart
from tests.system.group_under_load import (
    APPLICATION,
    GROUP,
    PARTITIONS,
    drained,
    events_of,
    judged,
    messages,
    observe,
    under_load,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.proof, pytest.mark.timeout(240)]
OLD, MIGRATING, PLAIN = MemberKind.ZOOKEEPER, MemberKind.MIGRATING, MemberKind.KAFKA
ONE, TWO = APPLICATION.names
GUEST, THIRD = f"{GROUP}9", f"{GROUP}8"  # instances of no group; the guest is never delivered anything
MODE = f"/consumers/{GROUP}/migration/mode"
MALFORMED = f"/consumers/{GROUP}/ids/pykafka:1"
FAULTS = ("lost", "redelivered", "reordered", "double_owned", "commit_gap")


class Group:
    """The processes of the group, and its mode, as they are wanted."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.folder = rehearsal.folder / "applications" / GROUP
        self.spec = next(group for group in load(rehearsal.cluster.spec_path).groups if group.name == GROUP)
        self.runs = dict.fromkeys((ONE, TWO), "zookeeper")

    def become(self, one: str, two: str, mode: Mode) -> None:
        """One restart after the other, then the mode; the group rests after each."""
        for name, kind in ((ONE, one), (TWO, two)):
            if self.runs[name] != kind:
                restart(self.folder, name, kind)
                self.runs[name] = kind
                wait_until(self.rests, f"{name} takes part as {kind}")
        now = self.observe()
        if now.zk is not None and now.zk.requested_mode is not mode:
            self.step("mode", mode=mode)
        wait_until(self.rests, f"{mode} mode is settled")

    def observe(self) -> GroupSeen:
        return observe(self.rehearsal)

    def kinds(self) -> dict[str, MemberKind]:
        return {name: {"jvm": PLAIN, "python": OLD}.get(kind) or MemberKind(kind) for name, kind in self.runs.items()}

    def rests(self) -> bool:
        """Everybody is what was wanted, and holds what is to be held."""
        now = self.observe()
        there = [(member.name.removeprefix(f"{GROUP}_").partition("-")[0], member.kind) for member in now.members or ()]
        return sorted(there) == sorted(self.kinds().items()) and not instability_reasons(now, self.spec) and holds(now) == [3, 3]

    def step(self, kind: str, **arguments: object) -> None:
        with direct.context(self.rehearsal.cluster) as context:
            direct.step(context, kind, group=GROUP, **arguments)

    def goes_on(self) -> None:
        """Some seconds of records come, of every partition; nothing that was written down so far shows a fault."""
        before = self.delivered()
        wait_until(lambda: all(count >= before[n] + 120 for n, count in self.delivered().items()), "records come")
        facts = judged(self.rehearsal)
        assert not facts.violations, messages(facts, FAULTS)

    def delivered(self) -> Counter[int]:
        """Different records, by partition."""
        found = Counter(dict.fromkeys(range(PARTITIONS), 0))
        found.update(partition for _, partition, _ in places(events_of(self.rehearsal)))
        return found


def holds(now: GroupSeen) -> list[int]:
    return [len(member.holds) for member in now.members or ()]


def refused(group: Group, kind: str, **arguments: object) -> list[str]:
    """The codes with which the tool refuses the step."""
    with pytest.raises(Refused) as error:
        group.step(kind, **arguments)
    return [reason.code for reason in error.value.reasons]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with under_load(tmp_path_factory.mktemp("matrix"), "matrix") as rehearsal:
        made = Group(rehearsal)
        try:
            yield made
        finally:
            for name in (GUEST, THIRD):
                restart(made.folder, name, "stop")


@pytest.fixture(scope="module")
def zookeeper(group: Group) -> Iterator[KazooClient]:
    client = KazooClient(group.rehearsal.cluster.zookeeper)
    client.start()
    yield client
    client.stop()
    client.close()


def check_flows(group: Group, one: str, two: str, mode: Mode) -> None:
    group.become(one, two, mode)
    group.goes_on()
    assert group.rests(), "nothing moved meanwhile"
    now = group.observe()
    assert now.zk is not None
    assert now.zk.mode is mode


def held(group: Group) -> dict[str, frozenset[TopicPartition]]:
    return {member.name: member.holds for member in group.observe().members or ()}


def owned_by(group: Group, kind: MemberKind) -> frozenset[TopicPartition]:
    return frozenset().union(*(member.holds for member in group.observe().members_of_kind(kind)))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("zookeeper", "zookeeper"),
        ("zookeeper", "python"),
        ("python", "python"),
        ("migrating", "python"),
        ("migrating", "zookeeper"),
    ],
)
def test_old_ones_in_zookeeper_mode(group: Group, one: str, two: str) -> None:
    """Kafka's own, and ours as one of them."""
    check_flows(group, one, two, Mode.ZOOKEEPER)


def test_all_three_that_zookeeper_coordinates_at_once(group: Group) -> None:
    group.become("migrating", "python", Mode.ZOOKEEPER)
    restart(group.folder, THIRD, "zookeeper")
    wait_until(lambda: holds(group.observe()) == [2, 2, 2], "each of three has its share")
    group.goes_on()
    assert sorted(member.kind for member in group.observe().members or ()) == [MIGRATING, OLD, OLD]
    assert holds(group.observe()) == [2, 2, 2], "nothing moved meanwhile"
    restart(group.folder, THIRD, "stop")
    wait_until(group.rests, "the two have all again")


@pytest.mark.parametrize("one", ["zookeeper", "migrating"])
def test_old_consumers_freeze_at_an_unreadable_registration_and_recover(
    group: Group, zookeeper: KazooClient, capsys: pytest.CaptureFixture[str], one: str
) -> None:
    """They let go of everything until it is gone, and the scan names it; a migrating member keeps what it holds."""
    group.become(one, "zookeeper", Mode.ZOOKEEPER)
    kept = owned_by(group, MIGRATING)
    zookeeper.create(MALFORMED, b"orders", ephemeral=True)  # what pykafka registers
    wait_until(lambda: not owned_by(group, OLD), "old consumers let go")
    code, said = scan(group, capsys)
    assert code == 1
    assert all(word in said for word in ("frozen", "[K31]", MALFORMED)), said
    assert owned_by(group, MIGRATING) == kept
    assert refused(group, "switch", instance=TWO, target=MIGRATING) == ["K31", "K56"]
    zookeeper.delete(MALFORMED)
    wait_until(group.rests, "old consumers recover")
    group.goes_on()


def scan(group: Group, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    cluster = group.rehearsal.cluster
    at = ["--zookeeper", cluster.zookeeper, "--bootstrap", cluster.bootstrap]
    capsys.readouterr()
    code = main(["scan", *at, "--group", GROUP, "--wait", "1"])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(("one", "two"), [("migrating", "zookeeper"), ("migrating", "python"), ("zookeeper", "python")])
def test_the_mode_kafka_has_no_effect_while_an_old_member_is_inside(
    group: Group, zookeeper: KazooClient, one: str, two: str
) -> None:
    """The tool refuses to set it; an operator who writes it by hand changes nothing, until the last one that cannot migrate is gone."""
    group.become(one, two, Mode.ZOOKEEPER)
    assert refused(group, "mode", mode=Mode.KAFKA) == ["K58"]
    was = held(group)
    zookeeper.create(MODE, b"kafka", makepath=True)
    group.goes_on()
    now = group.observe()
    assert now.zk is not None
    assert (now.zk.requested_mode, now.zk.mode) == (Mode.KAFKA, Mode.ZOOKEEPER)
    assert held(group) == was
    assert group.rests(), "settled under the new mode, which is ZooKeeper's"
    zookeeper.delete(MODE)
    wait_until(group.rests, "settled again")


def test_migrating_alone_in_zookeeper_mode(group: Group) -> None:
    check_flows(group, "migrating", "migrating", Mode.ZOOKEEPER)


@pytest.mark.parametrize(
    ("kind", "error"), [("kafka", "INCONSISTENT_GROUP_PROTOCOL"), ("jvm", "InconsistentGroupProtocolException")]
)
def test_a_plain_consumer_is_refused_in_zookeeper_mode_and_disturbs_no_member(group: Group, kind: str, error: str) -> None:
    group.become("migrating", "migrating", Mode.ZOOKEEPER)
    now, guest = group.observe(), NodeProcess(group.folder / GUEST)
    restart(group.folder, GUEST, kind)
    wait_until(lambda: error in remarks(group) + guest.log_tail(50), "it is refused")
    group.goes_on()
    after = group.observe()
    assert (after.members, after.kafka) == (now.members, now.kafka)
    restart(group.folder, GUEST, "stop")
    assert not any(event.member.startswith(GUEST) for event in written(group) if isinstance(event, DeliveryRun))


def written(group: Group) -> list[Event]:
    return list(read_events(events_of(group.rehearsal)).events)


def remarks(group: Group) -> str:
    """Of the guest."""
    return " ".join(e.text for e in written(group) if isinstance(e, Remark) and e.stamp.writer.startswith(GUEST))


def test_migrating_alone_in_kafka_mode(group: Group) -> None:
    check_flows(group, "migrating", "migrating", Mode.KAFKA)


@pytest.mark.parametrize("two", ["kafka", "jvm"])
def test_migrating_and_plain_in_kafka_mode(group: Group, two: str) -> None:
    check_plain_ones(group, "migrating", two)


@pytest.mark.parametrize("two", ["jvm", "kafka"])
def test_the_mode_zookeeper_by_hand_beside_a_plain_one(group: Group, zookeeper: KazooClient, two: str) -> None:
    """A migrating member leaves to it what it holds, and the group is none the worse for the mistake once it is undone."""
    group.become("migrating", two, Mode.KAFKA)
    was = held(group)
    zookeeper.set(MODE, b"zookeeper")
    group.goes_on()
    group.goes_on()
    assert held(group) == was
    zookeeper.set(MODE, b"kafka")
    wait_until(group.rests, "settled again")
    group.goes_on()


@pytest.mark.parametrize("two", ["kafka", "jvm"])
def test_plain_ones_alone(group: Group, two: str) -> None:
    check_plain_ones(group, "kafka", two)


def check_plain_ones(group: Group, one: str, two: str) -> None:
    """Beside them the tool neither gives ZooKeeper the coordination nor lets an old consumer in."""
    check_flows(group, one, two, Mode.KAFKA)
    admin = AdminClient({"bootstrap.servers": group.rehearsal.cluster.bootstrap})
    (described,) = admin.describe_consumer_groups([GROUP]).values()
    assert described.result(10).partition_assignor == "range"
    assert refused(group, "mode", mode=Mode.ZOOKEEPER) == ["K58"]
    assert "K58" in refused(group, "switch", instance=ONE, target=OLD)
    assert group.rests()


def test_back_to_old_ones_and_the_ledger_of_all_of_it(group: Group) -> None:
    group.step("roll back group", goal=Goal.ZOOKEEPER_CONSUMERS)
    group.runs = dict.fromkeys(group.runs, "zookeeper")
    wait_until(group.rests, "old ones again")
    group.goes_on()
    drained(group.rehearsal)
    group.rehearsal.stop_applications()
    facts = judged(group.rehearsal)
    assert facts.acked > 1000
    assert not facts.violations, messages(facts, FAULTS)
    assert facts.complete, facts.reasons
    assert facts.delivered == {GROUP: facts.acked}
