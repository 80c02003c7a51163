"""The judge on a real broker: a load without a loss is good, and each loss that is planted in a copy of what it reads is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from benchmarks.rehearsal import Rehearsal
from tests.kit.account import Account, judge_equal, log_dirs, told_in
from tests.kit.judge import TOPIC, Acknowledged, Judgement, Received, dump, judge_records, judge_told
from tests.kit.load import TopicPlan
from tests.kit.localcluster.plan import Shape
from tests.kit.workload import GroupPlan
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=40), pytest.mark.timeout(400)]

BROKER = "broker 0"


@dataclass(frozen=True)
class Told:
    """A load that is over, with its account; its broker still runs."""

    rehearsal: Rehearsal
    account: Account

    def copied(self, folder: Path) -> Path:
        """The broker's logs, to be spoilt."""
        [(_, (logs,))] = log_dirs(self.rehearsal.cluster).items()
        return Path(shutil.copytree(logs, folder / "data"))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    shape, topics = Shape("judged", brokers=1, controllers=1, racks=0), [TopicPlan("orders", 3)]
    with closing(
        Rehearsal(tmp_path_factory.mktemp("judged"), shape, topics, [GroupPlan("billing", 1)], rate=100.0, producers=1)
    ) as rehearsal:
        rehearsal.up()
        workload = rehearsal.load()
        progress = workload.progress()
        wait_until(lambda: progress.update().acked > 200, "some records")
        yield Told(rehearsal, rehearsal.account())


def test_both_accounts_of_a_quiet_load_are_good(told: Told) -> None:
    assert told.account.failures == ()
    assert told.account.judged.acknowledged > told.account.ledger["acked"] > 200


def cut_off(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)


def altered(path: Path) -> None:
    """A value in a batch in the middle, before the count of its headers: of a batch's first 16 bytes no check sum knows (RecordBatch.java),
    and of an altered length Kafka's program makes an end.
    """
    data = bytearray(path.read_bytes())
    end = 0
    while end < len(data) // 2:
        end += 12 + int.from_bytes(data[end + 8 : end + 12], "big")
    data[end - 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(("topic", "spoil"), [(TOPIC, cut_off), (TOPIC, altered), ("orders", cut_off), ("orders", Path.unlink)])
def test_a_spoilt_copy_of_a_segment_is_found(told: Told, tmp_path: Path, spoil: Callable[[Path], None], topic: str) -> None:
    logs = told.copied(tmp_path)
    spoil(max(logs.glob(f"{topic}-*/*.log"), key=lambda path: path.stat().st_size))
    assert judged(told, topic, logs).problems


def judged(told: Told, topic: str, logs: Path) -> Judgement:
    foreign, workload = told.rehearsal.beside, told.rehearsal.workload
    assert foreign is not None
    assert workload is not None
    if topic == TOPIC:
        read = [Received.read(foreign.lines(member)) for member in foreign.members]
        held = dump(foreign.kafka, {BROKER: [logs]}, [TOPIC])
        return judge_records(TOPIC, Acknowledged.read(foreign.lines("producer")), held, read, read[0])
    return judge_told(told_in(workload.events), [topic], dump(foreign.kafka, {BROKER: [logs]}, [topic], payloads=False))


def test_a_line_that_is_gone_from_the_producers_account_is_a_doubt(told: Told) -> None:
    foreign = told.rehearsal.beside
    assert foreign is not None
    path = foreign.kafka.folder / "producer.out"
    kept = path.read_text()
    try:
        lines = kept.splitlines(keepends=True)
        path.write_text("".join(lines[:20] + lines[21:]))
        [doubt] = foreign.judge(log_dirs(told.rehearsal.cluster), 0.0).doubts
    finally:
        path.write_text(kept)
    assert "its lines say" in doubt


def test_a_delivery_that_is_gone_from_the_clients_account_is_found(told: Told, tmp_path: Path) -> None:
    workload = told.rehearsal.workload
    assert workload is not None
    for path in workload.events.glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        gone = next((at for at, line in enumerate(lines) if '"kind":"delivery"' in line), len(lines))
        (tmp_path / path.name).write_text("".join(lines[:gone] + lines[gone + 1 :]))
    found = judge_told(told_in(tmp_path), ["orders"])
    assert any("not delivered to group billing" in text for text in found.problems)


def test_zookeeper_and_the_brokers_differ_where_an_id_was_changed(told: Told) -> None:
    foreign = told.rehearsal.beside
    assert foreign is not None
    assert judge_equal(told.rehearsal.cluster, foreign.kafka).is_good
    keeper = KazooClient(told.rehearsal.cluster.zookeeper)
    keeper.start(timeout=20)
    try:
        data = keeper.get("/brokers/topics/orders")[0]
        keeper.set("/brokers/topics/orders", data.replace(b'"topic_id":"', b'"topic_id":"A'))
        [problem] = judge_equal(told.rehearsal.cluster, foreign.kafka, 0.0).problems
        keeper.set("/brokers/topics/orders", data)
    finally:
        keeper.stop()
        keeper.close()
    assert "1 differences between ZooKeeper and the brokers: id of topic orders" in problem
