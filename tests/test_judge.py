"""The judge that shares no line with kmigrate, from recorded words of Kafka's tools: what it finds, and that every lane fails of it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import demo, finalization, handover, handover_faults, machines, overhead, rollback, rollback_faults
from tests.kit import judge
from tests.kit.account import Account, figures_of
from tests.kit.judge import (
    Acknowledged,
    Judgement,
    Kafka,
    Received,
    Side,
    Told,
    Unfit,
    differences,
    dump,
    dumped,
    judge_records,
    judge_told,
    read_described,
    read_metadata,
)
from tests.system.cells import Cell, ended
from tests.waiting import wait_until

RECORDS = [(partition, offset) for partition in range(2) for offset in range(4)]


def value(partition: int, offset: int) -> str:
    return f"7.{10 * partition + offset}"


def acked(partition: int, offset: int) -> str:
    said = {"name": "producer_send_success", "key": None, "value": value(partition, offset), "offset": offset}
    return json.dumps({"timestamp": 1, **said, "topic": "foreign", "partition": partition})


def totals(sent: int, acknowledged: int) -> str:
    return json.dumps({"timestamp": 2, "name": "tool_data", "sent": sent, "acked": acknowledged, "target_throughput": 20})


def read(partition: int, offset: int) -> str:
    said = {"name": "record_data", "key": None, "value": value(partition, offset), "topic": "foreign"}
    return json.dumps({"timestamp": 3, **said, "partition": partition, "offset": offset})


def committed(partition: int, offset: int, *, success: bool = True) -> str:
    offsets = [{"topic": "foreign", "partition": partition, "offset": offset}]
    return json.dumps({"timestamp": 4, "name": "offsets_committed", "offsets": offsets, "success": success})


def log(broker: int, records: list[tuple[int, int]], valid: str = "true") -> list[str]:
    lines = []
    for partition in range(2):
        lines += [f"Dumping /data/{broker}/foreign-{partition}/00000000000000000000.log", "Log starting offset: 0"]
        for offset in (offset for where, offset in records if where == partition):
            lines.append(f"baseOffset: {offset} lastOffset: {offset} count: 1 baseSequence: 0 position: 0 isvalid: {valid}")
            facts = f"| offset: {offset} CreateTime: 1 keySize: 1 valueSize: 2 sequence: 0 headerKeys: [] key: 5"
            lines.append(f"{facts} payload: {value(partition, offset)}")
    return lines


@dataclass
class Heard:
    """What Kafka's tools said of eight records on two brokers, all good."""

    producer: list[str] = field(default_factory=lambda: [*(acked(*one) for one in RECORDS), totals(8, 8), "a line of a logger"])
    logs: dict[int, list[str]] = field(default_factory=lambda: {broker: log(broker, RECORDS) for broker in range(2)})
    live: list[str] = field(default_factory=lambda: [*(read(*one) for one in RECORDS), committed(0, 4), committed(1, 4)])
    fresh: list[str] = field(default_factory=lambda: [read(*one) for one in RECORDS])

    def judged(self) -> Judgement:
        logs = {
            f"broker {broker}": {Path(folder).name: one for folder, one in dumped("\n".join(lines)).items()}
            for broker, lines in self.logs.items()
        }
        live, fresh = Received.read(self.live), Received.read(self.fresh)
        return judge_records("foreign", Acknowledged.read(self.producer), logs, [live], fresh)


PLANTED: dict[str, tuple[Callable[[Heard], object], str]] = {
    "an acknowledged line is dropped": (lambda heard: heard.producer.pop(3), "8 were acknowledged; its lines say (7, 7)"),
    "the producer's end is missing": (lambda heard: heard.producer.pop(8), "did not say how much it sent"),
    "a line is torn": (lambda heard: heard.producer.append('{"name": "producer_se'), "a line that cannot be read"),
    "nothing was acknowledged": (lambda heard: heard.producer.__setitem__(slice(0, 8), []), "no record was acknowledged"),
    "a replica's log is cut off": (
        lambda heard: heard.logs.update({1: log(1, RECORDS[:-1])}),
        "1 acknowledged records are not in the log of broker 1: 1@3",
    ),
    "a replica holds another record": (
        lambda heard: heard.logs.update({0: [line.replace("payload: 7.3", "payload: 7.99") for line in heard.logs[0]]}),
        "1 acknowledged records are not in the log of broker 0: 0@3",
    ),
    "a batch is broken": (
        lambda heard: heard.logs.update({1: log(1, RECORDS, "false")}),
        "8 batches are broken in the log of broker 1",
    ),
    "no broker has the partition": (
        lambda heard: heard.logs.update({broker: log(broker, RECORDS)[:10] for broker in range(2)}),
        "1 partitions have no log: foreign-1",
    ),
    "no log was read": (lambda heard: heard.logs.clear(), "no log was read"),
    "a record is stored twice": (
        lambda heard: heard.logs.update({0: [*heard.logs[0], heard.logs[0][3].replace("offset: 0", "offset: 9")]}),
        "1 records are stored twice: 7.0",
    ),
    "the group skipped one": (lambda heard: heard.live.pop(2), "1 acknowledged records were not read by the group: 0@2"),
    "the group lost its offset": (
        lambda heard: heard.live.append(read(1, 0)),
        "went back behind its commits: 1@0 after a commit of 4",
    ),
    "one cannot be read any more": (lambda heard: heard.fresh.pop(5), "1 acknowledged records cannot be read: 1@1"),
    "one is read twice": (lambda heard: heard.fresh.append(read(0, 0)), "1 records are read twice by one consumer: 0@0"),
}


def test_what_is_good_is_good() -> None:
    assert Heard().judged() == Judgement(8)


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_fault_is_found(name: str) -> None:
    heard = Heard()
    plant, said = PLANTED[name]
    plant(heard)
    found = heard.judged()
    assert not found.is_good
    assert any(said in text for text in (*found.problems, *found.doubts)), found


def test_a_record_that_comes_again_before_its_commit_is_no_fault() -> None:
    heard = Heard()
    heard.live = [*heard.live[:8], committed(0, 4, success=False), read(0, 3), *heard.live[8:]]
    assert heard.judged() == Judgement(8, read_again=1)


# --- what clients wrote themselves -------------------------------------------------------------------------------------------------------


def told(*events: dict[str, Any]) -> Told:
    start = {"kind": "start", "group": "billing", "topics": ["^ord.*"], "reset": "earliest"}
    return Told.read(json.dumps(event) for event in (start, *events))


def span(kind: str, first: int, last: int, topic: str = "orders") -> dict[str, Any]:
    where = {"topic": topic, "partition": 3, "first": first, "last": last, "count": last - first + 1}
    return {"kind": kind, "group": "billing", **where}


HELD = {"broker 0": {"orders-3": dumped("\n".join(["Dumping /d/orders-3/0.log", *(
    f"baseOffset: {first} lastOffset: {last} count: 5 isvalid: true" for first, last in ((0, 4), (5, 9))
)]))["/d/orders-3"]}}  # fmt: skip


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([span("ack", 0, 9), span("delivery", 0, 3), span("delivery", 4, 9)], ""),
        ([span("ack", 0, 9), span("delivery", 0, 9), span("ack", -1, -1)], ""),
        ([span("ack", 0, 9), span("ack", 10, 10), span("delivery", 0, 10)], "not in the log of broker 0: orders-3@10@10"),
        ([span("ack", 0, 9), span("delivery", 0, 3), span("delivery", 5, 9)], "not delivered to group billing: orders-3@0@9"),
        ([span("ack", 0, 9)], "not delivered to group billing"),
        ([span("ack", 0, 9), {**span("delivery", 0, 9), "count": 9}], "which ones is not said"),
        ([span("ack", 0, 9, "payments")], "no record was acknowledged"),
    ],
)
def test_what_was_acknowledged_is_in_the_logs_and_was_delivered(events: list[dict[str, Any]], said: str) -> None:
    found = judge_told(told(*events), ["orders"], HELD)
    assert found.is_good == (not said), found
    assert said in str(found)


class Printing(Kafka):
    """Prints what DumpLogSegments would of these files: one batch each."""

    def run(self, *arguments: str, **_: Any) -> str:
        files = arguments[arguments.index("--files") + 1].split(",")
        return "".join(f"Dumping {path}\nbaseOffset: 0 lastOffset: 4 isvalid: true\n" for path in files)


def test_the_logs_of_a_broker_lie_in_all_its_directories(tmp_path: Path) -> None:
    directories = [tmp_path / "data", tmp_path / "data-2"]
    for directory, partition in zip(directories, ("orders-0", "orders-1"), strict=True):
        (directory / partition).mkdir(parents=True)
        (directory / partition / "0.log").touch()
    kafka = Printing("java", "", "", tmp_path)
    assert {name: log.spans for name, log in dump(kafka, {"broker 0": directories}, ["orders"])["broker 0"].items()} == {
        "orders-0": [(0, 4)],
        "orders-1": [(0, 4)],
    }
    (directories[1] / "orders-0").mkdir()
    with pytest.raises(Unfit, match="broker 0 has orders-0 in two directories"):
        dump(kafka, {"broker 0": directories}, ["orders"])


def test_a_line_that_cannot_be_read_is_a_doubt() -> None:
    assert Told.read(['{"kind": "ack"', "[]"]).doubts != []


# --- both sides --------------------------------------------------------------------------------------------------------------------------


def record(kind: str, **data: object) -> dict[str, Any]:
    return {"type": kind, "version": 0, "data": data}


METADATA = [
    record("TOPIC_RECORD", name="orders", topicId="id1"),
    record("PARTITION_RECORD", partitionId=0, topicId="id1", replicas=[0, 1], isr=[0, 1]),
    record("PARTITION_CHANGE_RECORD", partitionId=0, topicId="id1", leader=1),
    record("CONFIG_RECORD", resourceType=2, resourceName="orders", name="retention.ms", value="5"),
    record("CONFIG_RECORD", resourceType=4, resourceName="", name="log.cleaner.threads", value="2"),
    record("TOPIC_RECORD", name="gone", topicId="id2"),
    record("REMOVE_TOPIC_RECORD", topicId="id2"),
    record("BEGIN_TRANSACTION_RECORD", name="copy"),
    record("TOPIC_RECORD", name="half", topicId="id3"),
    record("ABORT_TRANSACTION_RECORD", reason="-"),
    record(
        "ACCESS_CONTROL_ENTRY_RECORD",
        id="a",
        resourceType=2,
        resourceName="orders",
        patternType=3,
        principal="User:alice",
        host="*",
        operation=3,
        permissionType=3,
    ),
]
ZOOKEEPER = Side(
    {"orders": "id1"},
    {"orders": {0: (0, 1)}},
    {"topic orders": {"retention.ms": "5"}, "broker <default>": {"log.cleaner.threads": "2"}},
    {"allow-read-topic orders (literal) for User:alice from *"},
)


def kraft(*more: dict[str, Any]) -> Side:
    return read_metadata({offset: json.dumps(one) for offset, one in enumerate([*METADATA, *more])})


def test_equal_sides_are_equal() -> None:
    assert differences("ZooKeeper", ZOOKEEPER, "KRaft", kraft()) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (record("TOPIC_RECORD", name="new", topicId="id9"), "id of topic new is missing and id9"),
        (record("REMOVE_TOPIC_RECORD", topicId="id1"), "replicas of orders-0 is [0, 1] and missing"),
        (record("PARTITION_CHANGE_RECORD", partitionId=0, topicId="id1", replicas=[1, 0]), "is [0, 1] and [1, 0]"),
        (record("CONFIG_RECORD", resourceType=2, resourceName="orders", name="retention.ms", value=None), "is 5 and missing"),
        (
            record("CONFIG_RECORD", resourceType=4, resourceName="1", name="log.cleaner.threads", value="3"),
            "broker 1: log.cleaner.threads",
        ),
        (record("REMOVE_ACCESS_CONTROL_ENTRY_RECORD", id="a"), "allow-read-topic orders (literal) for User:alice"),
    ],
)
def test_each_difference_is_named(more: dict[str, Any], said: str) -> None:
    assert any(said in text for text in differences("ZooKeeper", ZOOKEEPER, "KRaft", kraft(more)))


def test_a_transaction_counts_once_it_has_ended() -> None:
    begun = [record("BEGIN_TRANSACTION_RECORD"), record("TOPIC_RECORD", name="new", topicId="id9")]
    assert "new" not in kraft(*begun).ids
    assert "new" in kraft(*begun, record("END_TRANSACTION_RECORD")).ids


def test_a_record_about_what_is_not_there_is_no_side_at_all() -> None:
    with pytest.raises(judge.Unfit, match="id7"):
        kraft(record("PARTITION_RECORD", partitionId=0, topicId="id7", replicas=[0]))


def test_partitions_without_a_leader_are_named() -> None:
    shown = (
        "Topic: orders\tTopicId: id1\tPartitionCount: 1\tReplicationFactor: 2\tConfigs: \n"
        "\tTopic: orders\tPartition: 0\tLeader: none\tReplicas: 0,1\tIsr: \tElr: N/A\n"
    )
    side, leaderless = read_described(shown)
    assert (side.ids, side.replicas, leaderless) == (ZOOKEEPER.ids, ZOOKEEPER.replicas, ["orders-0"])


# --- the lanes ---------------------------------------------------------------------------------------------------------------------------

LEDGER = {
    "verdict": "pass",
    "complete": True,
    "reasons": [],
    "acked": 8,
    "violations": {},
    **dict.fromkeys(("lost", "unseen", "duplicated", "reordered", "diverged", "committed_unprocessed"), 0),
    **dict.fromkeys(("longest_stall_ms", "p999_ms", "stalled_record_s", "longest_delivery_gap_ms"), 1.0),
}
DAG: dict[str, Any] = {"state": "success", "seconds": 1.0, "peak_mib": 1.0, "phases": [], "tasks": {}}
GOOD = Account(LEDGER, Judgement(8))


def truncated() -> Account:
    """A replica's log that was cut off."""
    heard = Heard()
    heard.logs[1] = log(1, RECORDS[:-1])
    return Account(LEDGER, heard.judged())


def without_line() -> Account:
    """A producer's account without a line."""
    heard = Heard()
    del heard.producer[0]
    return Account(LEDGER, heard.judged())


LOSSES: dict[str, Account] = {
    "a log was cut off": truncated(),
    "an acknowledged line was dropped": without_line(),
    "the sides differ": Account(LEDGER, Judgement(8, problems=tuple(differences("ZooKeeper", ZOOKEEPER, "KRaft", Side())))),
    "the ledger lost one": Account({**LEDGER, "lost": 1, "verdict": "fail"}, Judgement(8)),
    "the ledger is incomplete, and calls it unseen": Account(
        {**LEDGER, "complete": False, "unseen": 1, "verdict": "inconclusive", "reasons": ["A writer has no stop."]}, Judgement(8)
    ),
    "the ledger is incomplete, and lost nothing": Account({**LEDGER, "complete": False, "verdict": "inconclusive"}, Judgement(8)),
    "the ledger is empty": Account({**LEDGER, "acked": 0}, Judgement(8)),
}


def by_demo(account: Account) -> bool:
    return demo.summarise(account, DAG)["verdict"] == "PASS"


def by_faults(account: Account) -> bool:
    return ended([Cell("copy", "link cut", "holds", "held", 1.0, passed=True)], account) == 0


def by_machines_and_proofs(account: Account) -> bool:
    return account.failures == ()


def by_overhead(account: Account) -> bool:
    run = {"seconds": 1.0, "peak_mib": 1.0, "longest_stall_ms": 1.0, "p999_ms": 1.0, "stalled_record_s": 1.0, "stalls_by_act": []}
    runs = {kind: [{**run, "account": one.summary()} for one in (GOOD, account)] for kind in ("floor", "dag", "fast")}
    return benchmarks.wrong("overhead", overhead._figures(runs), overhead.MUST_BE_ZERO) == []


def by_rollback(account: Account) -> bool:
    figures = {**figures_of([GOOD.summary()]), **{f"fast_{name}": one for name, one in figures_of([account.summary()]).items()}}
    return benchmarks.wrong("rollback", figures, rollback.MUST_BE_ZERO) == []


def by_finalization(account: Account) -> bool:
    stalls = {kind: [1.0] for kind in finalization._KINDS}
    rounds = [{"stalls": stalls, "load": 1.0, "account": one.summary()} for one in (GOOD, account)]
    return benchmarks.wrong("finalization", finalization._figures(rounds), finalization.MUST_BE_ZERO) == []


def by_machines_benchmark(account: Account) -> bool:
    return benchmarks.wrong("machines", figures_of([account.summary()]), machines.MUST_BE_ZERO) == []


def by_rollback_faults(account: Account) -> bool:
    cell = rollback_faults.Cell("step", failures=list(account.failures))
    figures = rollback_faults.figures({"one": cell, "two": replace(cell, failures=[])})
    return benchmarks.wrong("rollback_faults", figures, rollback_faults.MUST_BE_ZERO) == []


LANES = (
    *(by_demo, by_faults, by_machines_and_proofs),
    *(by_overhead, by_rollback, by_finalization, by_machines_benchmark, by_rollback_faults),
)


@pytest.mark.parametrize("passes", LANES)
def test_a_lane_passes_with_two_good_accounts(passes: Callable[[Account], bool]) -> None:
    assert passes(GOOD)


@pytest.mark.parametrize("passes", LANES)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_lane_fails_where_either_account_is_not_good(passes: Callable[[Account], bool], loss: str) -> None:
    assert not passes(LOSSES[loss])


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "PASS"),
        ({"lost": 1}, "FAIL"),
        ({"lost": 1, "skipped": 1}, "FAIL"),
        ({"repeated": 3}, "FAIL"),
        ({"repeated": 3, "uncommitted": 3}, "PASS"),
        ({"acked": 0}, "FAIL"),
    ],
)
def test_a_demo_fails_where_the_application_that_was_cut_over_says_so(changes: dict[str, int], verdict: str) -> None:
    account = {"acked": 9, "processed": 9, "lost": 0, "skipped": 0, "repeated": 0, "uncommitted": 0, "pause_s": 7.1, **changes}
    summary: dict[str, Any] = {"verdict": "PASS"}
    demo.add_cutover(summary, account)
    assert (summary["verdict"], summary["cutover"]) == (verdict, account)


@pytest.mark.parametrize(("kept", "lost"), [(2, 0), (1, 1)])
def test_the_handovers_of_groups_fail_where_a_delivery_is_not_in_what_their_clients_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: int, lost: int
) -> None:
    start = {"kind": "start", "group": "billing", "topics": ["orders"], "reset": "earliest"}
    events = [start, span("ack", 0, 9), *[span("delivery", 0, 4), span("delivery", 5, 9)][:kept]]
    (tmp_path / "member.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    figures = {**dict.fromkeys(handover.MUST_BE_ZERO, 0), "fault_judged": handover_faults.judged(tmp_path, "orders")}
    assert len(benchmarks.wrong("handover", figures, handover.MUST_BE_ZERO)) == lost
    assert ("not delivered to group billing" in capsys.readouterr().out) == bool(lost)


STARTS = """
import subprocess, sys
from tests.kit.judge import UNTIL_INPUT_ENDS
shown = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
argv = ["sh", "-c", UNTIL_INPUT_ENDS, "sh", sys.executable, "-c", shown]
running = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
print(running.stdout.readline().decode(), flush=True)
"""


def test_what_a_load_started_ends_with_the_process_that_started_it() -> None:
    started = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, check=True, timeout=60)
    pid = int(started.stdout)
    wait_until(lambda: not psutil.pid_exists(pid), "it ends")
    assert not psutil.pid_exists(pid), "it would sleep for 600 s"


# --- whose code it is --------------------------------------------------------------------------------------------------------------------


def test_the_judge_loads_nothing_of_kmigrate() -> None:
    """Neither it nor whatever it imports, seen in an interpreter of its own."""
    shown = "import sys, tests.kit.judge; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    ours = {name for name in loaded if name.partition(".")[0] in {"airflow_provider_kmigrate", "benchmarks", "tests", "airflow"}}
    assert ours == {"tests", "tests.kit", "tests.kit.judge"}
    assert "kazoo.client" in loaded


def test_no_function_of_the_judge_imports_anything_later() -> None:
    tree = ast.parse(Path(judge.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert all(node in tree.body for node in imports)
    called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not called & {"__import__", "importlib", "exec", "eval"}
