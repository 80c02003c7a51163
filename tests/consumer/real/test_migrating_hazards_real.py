"""What hurts a group on its way, on a real cluster under load: a member gone in the middle of a toggle, an old consumer that wakes too
late, and one that is started beside plain ones.
"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.groups import main
from tests.consumer.migrating_group import (
    Load,
    Member,
    Plain,
    again_after_commit,
    at_once,
    deliverers,
    facts,
    places,
    process,
)
from tests.consumer.real_group import (
    PARTITIONS,
    goes_on,
    in_zookeeper,
    metric,
    settle,
    shares,
)
from tests.kit.localcluster.cluster import LocalCluster
from tests.old_consumer.old_consumers import console_consumer
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=35)]


@pytest.mark.long
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(("was", "becomes"), [(b"zookeeper", b"kafka"), (b"kafka", b"zookeeper")])
def test_a_member_that_is_gone_in_the_middle_of_a_mode_switch(  # noqa: PLR0917  # fixtures
    cluster: LocalCluster,
    zookeeper: KazooClient,
    properties: dict[str, Any],
    group: str,
    tmp_path: Path,
    was: bytes,
    becomes: bytes,
    fault: signal.Signals,
) -> None:
    """The mode is written, and a moment later one of two members does nothing any more: the other one follows it alone."""
    mode = f"/consumers/{group}/migration/mode"
    zookeeper.create(mode, was, makepath=True)
    hit = process({**properties, "enable.auto.commit": False}, tmp_path, [group])
    try:
        with Member(properties, tmp_path, [group]) as other, Load(cluster.bootstrap, tmp_path, group, PARTITIONS) as load:
            wait_until(lambda: len(deliverers(tmp_path)) == 2 and len(other.owned) == PARTITIONS // 2, "both are delivered")
            wait_until(lambda: metric((other,), "ActiveKafkaCoordinationCount") == [int(was == b"kafka")], "the mode as it was")
            zookeeper.set(mode, becomes)
            time.sleep(0.15)  # a toggle takes a quarter of a second, as a rule
            hit.send_signal(fault)
            wait_until(lambda: len(other.owned) == PARTITIONS, "the other one owns everything")
            wait_until(lambda: metric((other,), "ActiveKafkaCoordinationCount") == [int(becomes == b"kafka")], "it follows")
            goes_on(tmp_path)
            hit.send_signal(signal.SIGCONT)
            if fault is signal.SIGSTOP:
                wait_until(lambda: len(other.owned) == PARTITIONS // 2, "it takes part again")
                hit.kill()
                wait_until(lambda: len(other.owned) == PARTITIONS, "the other one owns everything again")
            settle((other,), load, tmp_path)
        found = facts(tmp_path)
    finally:
        hit.kill()
        hit.wait(30)
    assert (found.lost.count, found.unseen.count, found.double_owned.cases) == (0, 0, ())
    assert at_once(tmp_path) == []
    assert again_after_commit(read_events(tmp_path).events) == []
    assert in_zookeeper(zookeeper, group) == dict.fromkeys(range(PARTITIONS), load.sent // PARTITIONS)


def test_an_old_consumer_that_wakes_after_its_session_sets_no_offset_back_for_good(
    cluster: LocalCluster,
    zookeeper: KazooClient,
    properties: dict[str, Any],
    group: str,
    tmp_path: Path,
) -> None:
    """It cannot be kept from one last delivery and commit of what it had (R14): whether that comes while ours still owns is a race."""
    audit, printed = tmp_path / "audit", tmp_path / "printed"
    settings = "zookeeper.session.timeout.ms=4000", "auto.commit.interval.ms=500"
    with Member(properties, audit, [group]) as ours, Load(cluster.bootstrap, audit, group, PARTITIONS) as load:
        wait_until(lambda: len(ours.owned) == PARTITIONS, "all is ours")
        with console_consumer(cluster.zookeeper, group, group, printed, *settings) as old:
            wait_until(lambda: len(ours.owned) == PARTITIONS // 2 and printed.stat().st_size > 1000, "it delivers its half")
            theirs = set(range(PARTITIONS)) - {where.partition for where in ours.owned}
            old.send_signal(signal.SIGSTOP)
            wait_until(lambda: len(ours.owned) == PARTITIONS, "all is ours again")
            goes_on(audit)
            before = in_zookeeper(zookeeper, group)
            old.send_signal(signal.SIGCONT)
            wait_until(lambda: len(ours.owned) == PARTITIONS // 2, "it takes part again")
            old.terminate()
            old.wait(30)
        wait_until(lambda: len(ours.owned) == PARTITIONS, "all is ours at last")
        load.end()
        last = {(group, partition, load.sent // PARTITIONS - 1) for partition in range(PARTITIONS)}
        wait_until(lambda: last <= places(audit), "the rest comes")
    numbers = {int(line) for line in printed.read_text().splitlines() if line.isdigit()}
    shown = {(group, number % PARTITIONS, number // PARTITIONS) for number in numbers} | places(audit)
    assert len(shown) == load.sent, "nothing is lost"
    ends = in_zookeeper(zookeeper, group)
    assert ends == dict.fromkeys(range(PARTITIONS), load.sent // PARTITIONS)
    assert all(ends[partition] > before[partition] for partition in theirs)
    assert ours.late == []


def test_the_owner_commits_over_the_commit_of_a_non_owner(  # noqa: PLR0917  # fixtures
    cluster: LocalCluster,
    zookeeper: KazooClient,
    properties: dict[str, Any],
    group: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R14 as ZooKeeper sees it: the bytes of a late writer, beneath a member that goes on delivering and committing."""
    with Member(properties, tmp_path, [group]) as ours, Load(cluster.bootstrap, tmp_path, group, PARTITIONS) as load:
        wait_until(lambda: len(ours.owned) == PARTITIONS, "all is ours")
        wait_until(lambda: in_zookeeper(zookeeper, group).get(0, 0) > 1, "ours has committed", despite=(NoNodeError,))
        zookeeper.set(f"/consumers/{group}/offsets/{group}/0", b"1")
        wait_until(lambda: in_zookeeper(zookeeper, group)[0] > 1, "ours commits over it")
        settle((ours,), load, tmp_path)
    assert any("committed 1; overwriting it" in record.getMessage() for record in caplog.records)
    assert in_zookeeper(zookeeper, group) == dict.fromkeys(range(PARTITIONS), load.sent // PARTITIONS)
    assert facts(tmp_path).lost.count == 0


@pytest.mark.parametrize("migrating", [False, True])
def test_an_old_consumer_that_is_started_by_hand_beside_a_plain_one(  # noqa: PLR0917  # fixtures
    cluster: LocalCluster,
    zookeeper: KazooClient,
    properties: dict[str, Any],
    group: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    migrating: bool,
) -> None:
    """Nothing keeps it out (R6). What it claims it reads beside the plain one: twice, and none is lost. The scan names both, and a
    migrating member leaves to the plain one what that one holds.
    """
    audit, printed = tmp_path / "audit", tmp_path / "printed"
    zookeeper.create(f"/consumers/{group}/migration/mode", b"kafka", makepath=True)
    with ExitStack() as stack:
        ours = stack.enter_context(Member(properties, audit, [group])) if migrating else None
        wait_until(lambda: ours is None or shares(ours) == [PARTITIONS], "all is ours")
        plain = stack.enter_context(Plain(properties, audit, [group]))
        load = stack.enter_context(Load(cluster.bootstrap, audit, group, PARTITIONS))
        half = PARTITIONS // 2 if migrating else PARTITIONS
        wait_until(lambda: len(plain.owned) == half, "the plain one has its share")
        shared = {where.partition for where in plain.owned}
        with console_consumer(cluster.zookeeper, group, group, printed, "auto.commit.interval.ms=500") as old:
            wait_until(lambda: printed.stat().st_size > 1000, "it delivers")
            goes_on(audit)
            assert {where.partition for where in plain.owned} == shared, "it hears nothing of it"
            at = ["--zookeeper", cluster.zookeeper, "--bootstrap", cluster.bootstrap]
            code, said = main(["scan", *at, "--group", group, "--wait", "1"]), capsys.readouterr().out
            old.terminate()
            old.wait(30)
        before = load.sent
        wait_until(lambda: load.sent > before + 500, "records go on")
        load.end()
        last = {(group, partition, load.sent // PARTITIONS - 1) for partition in range(PARTITIONS)}
        wait_until(lambda: last <= places(audit), "the rest comes")
    assert code == 1
    assert all(word in said for word in ("[K38]", "[K45]")), said
    numbers = {int(line) for line in printed.read_text().splitlines() if line.isdigit()}
    shown = {(group, number % PARTITIONS, number // PARTITIONS) for number in numbers}
    assert len(shown | places(audit)) == load.sent, "nothing is lost"
    twice = [partition for _, partition, _ in shown & places(audit)]
    assert sum(partition not in shared for partition in twice) <= PARTITIONS, "what a migrating member had, it let go of before"
    assert migrating or set(twice) == set(range(PARTITIONS)), "every partition is read by both"
