"""A real JVM application with the old consumer, cut over to its KafkaConsumer build under load and back: no record lost or skipped."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.groups.move import Goal
from airflow_provider_kmigrate.exceptions import Refused
from benchmarks import direct
from tests.kit.account import kafka_of, log_dirs
from tests.kit.judge import TOPIC, Acknowledged, Foreign
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.old_consumer import jvm_instance
from tests.old_consumer.cutover import OLD, PLAIN, Running, check_nothing_lost, in_cluster_file
from tests.old_consumer.jvm_application import JvmApplication, Load, Record
from tests.old_consumer.old_consumers import BEFORE_1_0, BEFORE_LISTENERS, LATEST
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=45), pytest.mark.timeout(300)]
PARTITIONS = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("cutover"), Shape(name="cutover", brokers=1, controllers=1)) as there:
        yield there


@pytest.fixture
def running(cluster: LocalCluster, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts the application under load, by its group's name; everything ends with the test."""
    ends: list[Callable[[], None]] = []

    def start(group: str, version: str = LATEST, **fields: object) -> Running:
        properties = {"bootstrap.servers": cluster.bootstrap}
        topics = {group, *filter(None, str(fields.get("new_topics", "")).split(","))}
        create_topics(properties, [TopicPlan(topic, PARTITIONS, 1) for topic in topics])
        application = JvmApplication(
            tmp_path / group, cluster.bootstrap, cluster.zookeeper, group, group, version=version, **fields
        )  # type: ignore[arg-type]
        application.prepare()
        ends.append(application.end)
        application.switch_all("zookeeper")
        load_ = Load(cluster.bootstrap, group, PARTITIONS).__enter__()
        ends.append(load_.stop)
        there = Running(cluster, application, load_)
        wait_until(lambda: there.kinds() == [OLD] * application.instances and bool(application.processed()), "it consumes")
        return there

    yield start
    for end in reversed(ends):
        with suppress(OSError):
            end()


@pytest.mark.parametrize("version", [LATEST, pytest.param(BEFORE_1_0, marks=pytest.mark.long)])
def test_there_and_back_under_load(running: Callable[..., Running], version: str) -> None:
    there = running(f"there-{version.replace('.', '-')}", version)
    said = there.cut_over()
    assert "was stopped for" in said
    assert there.kinds() == [PLAIN, PLAIN]
    there.roll_back()
    assert there.kinds() == [OLD, OLD]
    account = there.settle()
    check_nothing_lost(account)
    assert account.repeated == 0, "every instance ended in order, with everything committed"


@pytest.mark.long
def test_an_application_of_kafka_0_8_is_cut_over_and_back(running: Callable[..., Running]) -> None:
    """Its consumer commits in a rebalance while the application reads on: what it took meanwhile comes again, and nothing is skipped."""
    there = running("ancient", BEFORE_LISTENERS)
    there.cut_over()
    there.roll_back()
    assert there.kinds() == [OLD, OLD]
    account = there.settle()
    assert account.acked > 0
    assert (account.lost, account.skipped) == (0, 0), account


@pytest.mark.long
def test_a_judge_that_shares_no_line_with_kmigrate_says_the_same(cluster: LocalCluster, tmp_path: Path) -> None:
    """The application reads what Kafka's own producer writes, beside Kafka's own consumer."""
    with closing(Foreign(kafka_of(cluster, tmp_path / "foreign"), rate=100)) as foreign:
        foreign.create_topic(PARTITIONS)
        foreign.start()
        application = JvmApplication(tmp_path / "judged", cluster.bootstrap, cluster.zookeeper, "judged", TOPIC)
        application.prepare()
        there = Running(cluster, application, Load(cluster.bootstrap, TOPIC, PARTITIONS))
        try:
            application.switch_all("zookeeper")
            wait_until(lambda: there.kinds() == [OLD, OLD] and bool(application.processed()), "it consumes")
            there.cut_over()
            there.roll_back()
            foreign.stop()
            acked: set[Record] = {(TOPIC, *place) for place in Acknowledged.read(foreign.lines("producer")).values}
            wait_until(lambda: acked <= application.processed().keys(), "everything is processed")
        finally:
            application.end()
        check_nothing_lost(application.account(acked))
        judgement = foreign.judge(log_dirs(cluster))
    assert (judgement.problems, judgement.doubts) == ((), ())
    assert judgement.acknowledged == len(acked)


@pytest.mark.long
def test_a_new_version_that_reads_another_topic_is_turned_back(running: Callable[..., Running]) -> None:
    there = running("other", new_topics="other,surprise")
    assert there.refused() == ["K69", "K93"]
    assert there.kinds() == [OLD, OLD]
    check_nothing_lost(there.settle())


@pytest.mark.long
def test_an_instance_that_something_else_starts_again_rolls_the_cutover_back(running: Callable[..., Running]) -> None:
    there = running("revived")
    with revived(there.application, there.application.names[1]):
        assert there.refused() == ["K69", "K91"]
    wait_until(lambda: there.kinds() == [OLD, OLD], "both run as before")
    check_nothing_lost(there.settle())


@pytest.mark.long
def test_killed_instances_are_cut_over_and_repeat_at_most_what_they_had_not_committed(running: Callable[..., Running]) -> None:
    """Each keeps its place for its session, in ZooKeeper and then in Kafka."""
    there = running("killed")
    for name in there.application.names:
        (there.application.folder / f"{name}.crash").touch()
    there.cut_over()
    there.roll_back()
    assert there.kinds() == [OLD, OLD]
    check_nothing_lost(there.settle())


@pytest.mark.long
def test_an_instance_that_sleeps_through_the_cutover_skips_nothing_when_it_wakes(running: Callable[..., Running]) -> None:
    """Its session ends, the cutover goes on, and the watch finds the instance when it is back."""
    there = running("asleep")
    asleep = there.application.names[1]
    pid = there.application.pid(asleep)
    (there.application.folder / f"{asleep}.asleep").touch()
    try:
        there.cut_over()
        (there.application.folder / f"{asleep}.asleep").unlink()
        assert there.kinds() == [PLAIN, PLAIN]
        os.kill(pid, signal.SIGCONT)
        with there.context() as context, pytest.raises(Refused, match="V30"):
            direct.step(context, "watch group", group=there.application.group)
    finally:
        os.kill(pid, signal.SIGKILL)
    there.roll_back()
    account = there.settle()
    assert (account.lost, account.skipped) == (0, 0), account


POINTS = [("switching", 1), ("switched", 1), ("copied", 1), ("switched", 3)]


@pytest.mark.long
@pytest.mark.timeout(480)
@pytest.mark.parametrize("goes_on", [False, True], ids=["and rolled back", "and goes on"])
def test_a_tool_that_is_killed_at_any_step_loses_nothing(running: Callable[..., Running], goes_on: bool) -> None:
    """Behind the note, within the stop of both, behind the copy, within the start of the new version."""
    there = running(f"tool-{goes_on}".lower())
    with in_cluster_file(there):
        for point, times in POINTS:
            killed = there.run_tool("cutover", "--at", point, "--times", str(times))
            assert killed.returncode == -signal.SIGKILL, killed.stdout
            if goes_on:
                again = there.run_tool("cutover")
                assert again.returncode == 0, again.stdout
                assert there.kinds() == [PLAIN, PLAIN], point
            back = there.run_tool("roll back group", goal=Goal.ZOOKEEPER_CONSUMERS)
            assert back.returncode == 0, back.stdout
            assert there.kinds() == [OLD, OLD], point
    check_nothing_lost(there.settle())


@contextmanager
def revived(application: JvmApplication, name: str) -> Iterator[None]:
    """A supervisor that starts the old version again as soon as the instance was stopped, once."""
    over = threading.Event()

    def watch() -> None:
        pid = application.pid(name)
        while not over.wait(0.05):
            if jvm_instance.find(application.folder, name) != pid:
                with (application.folder / f"{name}.lock").open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)  # the stop command has ended
                    jvm_instance.start(application.folder, name, "zookeeper")
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(5.0)


@pytest.mark.long
def test_an_instance_that_does_not_stop_brings_all_others_back(running: Callable[..., Running]) -> None:
    there = running("deaf")
    (there.application.folder / f"{there.application.names[1]}.deaf").touch()
    assert there.refused() == ["K69", "K91"]
    assert there.kinds() == [OLD, OLD]
    check_nothing_lost(there.settle())


@pytest.mark.long
def test_a_canary_runs_beside_the_old_version_and_skips_nothing(running: Callable[..., Running]) -> None:
    """Records are processed twice while it bakes; where the new version begins is decided by ZooKeeper's offsets alone."""
    there = running("canary", side_by_side=True)
    said = there.cut_over()
    assert there.kinds() == [PLAIN, PLAIN]
    assert float(said.partition("was stopped for ")[2].partition(" s")[0]) < 40.0, "its bake of 16 s is no part of the pause"
    lives = [path.suffixes[-2] for path in sorted(there.application.folder.glob(f"{there.application.names[0]}.*.log"))]
    assert lives == [".zookeeper", ".kafka", ".kafka"], "the old version, the canary, the new version"
    there.roll_back()
    account = there.settle()
    assert account.acked > 0
    assert (account.lost, account.skipped) == (0, 0), account
    assert account.repeated > 0, "the canary ran beside the old version"


@pytest.mark.long
def test_a_canary_that_reads_another_topic_goes_back_alone(running: Callable[..., Running]) -> None:
    there = running("wrong-canary", new_topics="wrong-canary,elsewhere", side_by_side=True)
    other = there.application.pid(there.application.names[1])
    assert there.refused() == ["K69", "K93"]
    assert there.kinds() == [OLD, OLD]
    assert there.application.pid(there.application.names[1]) == other, "the other instance was never stopped"
    observed = there.observe()
    left = {where: offset for where, offset in (observed.committed or {}).items() if where.topic == there.application.topic}
    assert len(left) == PARTITIONS
    assert all(offset <= observed.zookeeper_offsets[where] for where, offset in left.items())
    account = there.settle()
    assert (account.lost, account.skipped) == (0, 0), account
