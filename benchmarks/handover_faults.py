"""Two migrating members under load, one of which is killed, stopped for longer than its sessions, or cut off; the other takes over.

Who owned what comes from the members' own log, in which no clock decides; who delivered what, by both members' events.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient

from airflow_provider_kmigrate.applications.event_log import read_events
from tests.consumer.cut_off import BROKER, ZOOKEEPER, Cut
from tests.consumer.migrating_group import (
    Load,
    Member,
    again_after_commit,
    at_once,
    delivered,
    deliverers,
    facts,
    process,
)
from tests.kit.account import told_in
from tests.kit.judge import judge_told
from tests.kit.load import TopicPlan, create_topics
from tests.system.proxy import BLACK_HOLE
from tests.waiting import wait_until

PARTITIONS: Final = 6
_SESSION_MS: Final = 6000
#: A member that only ZooKeeper does not reach keeps its place in the Kafka group: in Kafka mode no member takes over from it.
FAULTS: Final = (
    *(("killed", "zookeeper"), ("killed", "kafka"), ("stopped", "zookeeper"), ("stopped", "kafka")),
    *((ZOOKEEPER, "zookeeper"), (BROKER, "kafka")),
)


class Met(NamedTuple):
    """`taken_over_ms`: from the fault until the other member owned everything."""

    taken_over_ms: float
    double_owned: int
    at_once: int
    lost: int
    redelivered: int
    again_after_commit: int
    wrong: int
    judged: int


def hurt(cut: Cut, folder: Path, rounds: int) -> dict[str, object]:
    """Every fault `rounds` times."""
    numbers, met = count(), list[Met]()
    for fault, mode in FAULTS * rounds:
        met.append(_meet(cut, folder / f"{next(numbers)}", fault, mode))
        print(f"{fault} in {mode} mode: {met[-1]}", flush=True)
    return {
        "faults_met": len(met),
        "fault_taken_over_ms_p50": round(statistics.median(one.taken_over_ms for one in met)),
        "fault_taken_over_ms_max": round(max(one.taken_over_ms for one in met)),
        "fault_double_owned": sum(one.double_owned for one in met),
        "fault_delivered_at_once": sum(one.at_once for one in met),
        "fault_lost": sum(one.lost for one in met),
        "fault_judged": sum(one.judged for one in met),
        "fault_other_violations": sum(one.wrong for one in met),
        "fault_again_after_commit": sum(one.again_after_commit for one in met),
        "fault_redelivered_max": max(one.redelivered for one in met),
    }


def _meet(cut: Cut, folder: Path, fault: str, mode: str) -> Met:
    cluster, group = cut.cluster, f"{fault}-{mode}-{folder.name}"
    create_topics({"bootstrap.servers": cluster.bootstrap}, [TopicPlan(group, PARTITIONS, 1)])
    _put_mode(cluster.zookeeper, group, mode)
    near: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "zookeeper.connect": cluster.zookeeper,
        "zookeeper.session.timeout.ms": _SESSION_MS,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 500,
        "coordination.migration.stage": "migrating",
        "coordination.migration.session.timeout.ms": _SESSION_MS,
        "log_level": 0,
    }
    with (
        _other(cut, near, folder, group, fault) as hit,
        Member(near, folder, [group]) as stays,
        Load(cluster.bootstrap, folder, group, PARTITIONS) as load,
    ):
        half = PARTITIONS // 2
        wait_until(
            lambda: len(stays.owned) == half and len(deliverers(folder)) > 1 and delivered(folder) > 1000, "both are delivered"
        )
        with hit():
            began = time.monotonic()
            wait_until(lambda: len(stays.owned) == PARTITIONS, "the other one owns everything")
            took = 1000 * (time.monotonic() - began)
            before = load.sent
            wait_until(lambda: delivered(folder) > before, "and delivers it")
        if fault != "killed":
            wait_until(lambda: len(stays.owned) == PARTITIONS // 2, "each owns half again")
        load.end()
        wait_until(lambda: delivered(folder) == load.sent, "the rest comes")
    found = facts(folder)
    wrong = {name: finding.count for name, finding in found.violations.items()}
    expected = {name: wrong.pop(name, 0) for name in ("double_owned", "lost", "redelivered")}
    lost = expected["lost"] + found.unseen.count
    beyond = sum(case.count for case in again_after_commit(read_events(folder).events))
    again, others = expected["redelivered"], sum(wrong.values())
    return Met(took, expected["double_owned"], len(at_once(folder)), lost, again, beyond, others, judged(folder, group))


def judged(folder: Path, topic: str) -> int:
    """What the judge that shares no line with kmigrate finds missing, or cannot tell, of what these clients wrote."""
    found = judge_told(told_in(folder), [topic])
    for text in (*found.problems, *found.doubts):
        print(text, flush=True)
    return len(found.problems) + len(found.doubts)


@contextmanager
def _other(cut: Cut, near: dict[str, Any], folder: Path, group: str, fault: str) -> Iterator[Any]:
    """The member that is hit, and the block during which it is."""
    if fault in {ZOOKEEPER, BROKER}:
        with Member({**near, **cut.properties}, folder, [group]):
            yield lambda: cut.links.broken(BLACK_HOLE, fault)
        return
    running = process({**near, "enable.auto.commit": False}, folder, [group])

    @contextmanager
    def hit() -> Iterator[None]:
        running.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        yield
        running.send_signal(signal.SIGCONT)

    try:
        yield hit
    finally:
        running.kill()
        running.wait(30)


def _put_mode(zookeeper: str, group: str, mode: str) -> None:
    client = KazooClient(zookeeper)
    client.start()
    client.create(f"/consumers/{group}/migration/mode", mode.encode(), makepath=True)
    client.stop()
    client.close()
