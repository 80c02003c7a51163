"""Both rolls of a migration with groups that use ZooKeeper: a JVM application on the legacy consumer, and migrating consumers, which the cluster file lets move later.

Both go on until the last broker. Its restart is refused by name; they leave ZooKeeper while two of three brokers are in KRaft mode, and it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import yaml

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.group_seen import MemberKind
from airflow_provider_kmigrate.core.member.registration import Mode
from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.steps.run import StepContext
from benchmarks import direct
from benchmarks.rehearsal import Rehearsal
from tests.kit.load import TopicPlan
from tests.kit.localcluster.plan import Shape
from tests.kit.old_commits import UNSUPPORTED_VERSION, commit_version_0
from tests.system.by_hand import ByHand
from tests.system.evidence import EVERYTHING
from tests.system.two_groups import JVM, PYTHON, check_account, check_told, kinds, members_in_kafka, positions
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]
OLD, MIGRATING, PLAIN = MemberKind.ZOOKEEPER, MemberKind.MIGRATING, MemberKind.KAFKA
EARLY = "early"  # a group whose client commits by OffsetCommit version 0


@pytest.fixture
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    there = Rehearsal(
        tmp_path_factory.mktemp("rolls"),
        Shape(name="rolls", controllers=1),
        [TopicPlan("orders", 6)],
        (),
        rate=100.0,
        producers=1,
        applications=[JVM, PYTHON],
        foreign=(100, 1),
    )
    with closing(there):
        there.up()
        path = there.cluster.spec_path
        document = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**document, "later_groups": [JVM.group, PYTHON.group]}, sort_keys=False))
        there.load()
        there.start_applications()
        wait_until(lambda: kinds(there) == [[OLD, OLD], [OLD, OLD]], "two instances of each group consume")
        yield there


def test_groups_live_through_both_rolls_and_the_last_broker_waits_for_them(rehearsal: Rehearsal) -> None:
    with direct.context(rehearsal.cluster, "rolls") as context:
        for name in PYTHON.names:
            direct.step(context, "switch", group=PYTHON.group, instance=name, target=MIGRATING)
        direct.prepare(context)
        direct.provision(context)
        direct.roll(context, BrokerMode.MIGRATION)
        check_both_go_on(rehearsal)
        direct.copy(context)
        with pytest.raises(Refused) as refused:
            direct.roll(context, BrokerMode.KRAFT)
        (text,) = [reason.text for reason in refused.value.reasons if reason.code == "G21"]
        assert f"{JVM.group} (2 ZooKeeper)" in text
        assert f"{PYTHON.group} (2 migrating)" in text
        assert list_modes(context) == [BrokerMode.KRAFT, BrokerMode.KRAFT, BrokerMode.MIGRATION]
        check_both_go_on(rehearsal)
        check_first_commits_fail(rehearsal, context)
        move_groups(context)
        assert kinds(rehearsal) == [[PLAIN, PLAIN], [PLAIN, PLAIN]]
        direct.roll(context, BrokerMode.KRAFT)
        assert list_modes(context) == [BrokerMode.KRAFT] * 3
        context.fence.release()
    check_both_go_on(rehearsal)
    assert members_in_kafka(rehearsal) == [2, 2]
    check_account(rehearsal)
    check_told(rehearsal)


def list_modes(context: StepContext) -> list[BrokerMode | None]:
    """The brokers' modes, the one that was rolled last behind the others."""
    view = context.observer.observe(EVERYTHING)
    return sorted(view.modes().values(), key=lambda mode: mode is not BrokerMode.KRAFT)


def check_both_go_on(rehearsal: Rehearsal) -> None:
    """Every partition's offset advances, in the store that counts."""
    before = positions(rehearsal)
    assert all(before)
    wait_until(
        lambda: all(
            now.get(where, -1) > offset
            for now, then in zip(positions(rehearsal), before, strict=True)
            for where, offset in then.items()
        ),
        "every partition of both groups advances",
        90.0,
    )


def check_first_commits_fail(rehearsal: Rehearsal, context: StepContext) -> None:
    """OffsetCommit version 0, by the mode of the broker that is asked."""
    modes, topic_partition = context.observer.observe(EVERYTHING).modes(), TopicPartition("orders", 0)
    errors = {
        node.id: commit_version_0(f"{node.host}:{node.port}", EARLY, topic_partition, 1)
        for node in rehearsal.cluster.plan.brokers
    }
    assert errors == {broker: UNSUPPORTED_VERSION if mode is BrokerMode.KRAFT else 0 for broker, mode in modes.items()}
    with ByHand(rehearsal.cluster).zookeeper() as zookeeper:
        zookeeper.delete(f"/consumers/{EARLY}", recursive=True)  # it has gone, or it would hold the last broker


def move_groups(context: StepContext) -> None:
    """Each group its own way."""
    direct.step(context, "cutover", group=JVM.group)
    direct.step(context, "mode", group=PYTHON.group, mode=Mode.KAFKA)
    for name in PYTHON.names:
        direct.step(context, "switch", group=PYTHON.group, instance=name, target=PLAIN)
    for group in (JVM.group, PYTHON.group):
        direct.step(context, "clean up", group=group)
