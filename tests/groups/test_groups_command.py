"""The command for groups: its table, its document, its exit codes; without a server and on a real cluster."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import jsonschema
import pytest
from confluent_kafka import Consumer, Producer
from kazoo.client import KazooClient

from airflow_provider_kmigrate import groups
from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.clients.group_reads import read_retention, seen
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan, OffsetWrite
from airflow_provider_kmigrate.core.groups.scan import GroupSituation, TwoObservations, scan_group
from airflow_provider_kmigrate.core.member.assignors import KafkaMember
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, KafkaGroup, MemberKind, Store, StoredOffset, ZkGroup
from airflow_provider_kmigrate.core.member.registration import Flaw, MemberProgress, Mode, Registration, Unreadable
from airflow_provider_kmigrate.core.preflight.findings import Severity
from airflow_provider_kmigrate.groups import SCHEMA, as_document, format_copy, main, render_table, scan_groups
from tests.consumer.migrating_group import Member as Migrating
from tests.kit.hostile import CONTROLS
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.old_consumer.old_consumers import Member, console_consumer, members
from tests.waiting import wait_until

SHIPPED = json.loads((Path(__file__).parents[2] / "airflow_provider_kmigrate" / "groups.schema.json").read_text(encoding="utf-8"))
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
OLD = GroupSeen(
    "billing",
    ZkGroup(
        registrations={"billing_a": Registration("static", {"t": 1})},
        owners={A: "billing_a-0", B: "billing_a-0"},
        offsets={A: StoredOffset(7, 1.0), B: StoredOffset(9, 1.0)},
        partitions=frozenset({A, B}),
    ),
    KafkaGroup("Stable", (KafkaMember("uuid", "app", frozenset({A}), "/10.0.0.1"),)),
    {},
    {A: 10, B: 9},
)
FROZEN = replace(OLD, name="ads", zk=ZkGroup(registrations={"x": Unreadable(Flaw.EMPTY, "")}), kafka=None)
SETTINGS = {"t": {"compression.type": "producer"}}
SCANS = [scan_group(TwoObservations(FROZEN)), scan_group(TwoObservations(OLD, OLD, 5.0, SETTINGS))]


class Known:
    """A ZooKeeper that has this cluster."""

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = lambda: cluster_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""


ADDRESSES = ["--zookeeper", "zk:2181", "--bootstrap", "kafka:9092"]


def test_nothing_is_done_between_two_clusters(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(groups, "ZooKeeper", lambda _: Known("one"))
    monkeypatch.setattr(groups, "read_cluster_id", lambda _: "other")
    monkeypatch.setattr(groups, "seen", lambda *_: pytest.fail("the group was read"))
    assert main(["copy-offsets", *ADDRESSES, "--group", "billing", "--to", "kafka"]) == 1
    assert "[I01] These are different clusters: ZooKeeper has one, the brokers has other." in capsys.readouterr().err


def test_a_copy_that_cannot_be_planned_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(groups, "ZooKeeper", lambda _: Known("one"))
    monkeypatch.setattr(groups, "read_cluster_id", lambda _: "one")
    monkeypatch.setattr(groups, "seen", lambda *_: {"billing": OLD})
    assert main(["copy-offsets", *ADDRESSES, "--group", "billing", "--to", "kafka", "--dry-run"]) == 1
    assert "[K71]" in capsys.readouterr().err


def test_offsets_that_kafka_may_remove_before_the_application_runs_again_are_copied_only_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = TopicPartition("t", 0)
    idle = GroupSeen("billing", ZkGroup(offsets={where: StoredOffset(3, 1000.0)}), KafkaGroup("Dead"), {}, {where: 5})
    monkeypatch.setattr(groups, "ZooKeeper", lambda _: Known("one"))
    monkeypatch.setattr(groups, "read_cluster_id", lambda _: "one")
    monkeypatch.setattr(groups, "seen", lambda *_: {"billing": idle})
    monkeypatch.setattr(groups, "read_retention", lambda _: 7 * 86_400.0)
    copying = ["copy-offsets", *ADDRESSES, "--group", "billing", "--to", "kafka", "--dry-run"]
    assert main(copying) == 1
    assert "[K96]" in capsys.readouterr().err
    assert main([*copying, "--expiring"]) == 0
    monkeypatch.setattr(groups, "read_retention", lambda _: None)
    assert main(copying) == 1, "unknown is not healthy"
    assert "was not read" in capsys.readouterr().err
    assert main([*copying, "--expiring"]) == 0
    stopped = replace(idle, zk=ZkGroup(offsets={where: StoredOffset(3, time.time() - 3_600.0)}))
    monkeypatch.setattr(groups, "seen", lambda *_: {"billing": stopped})
    assert main(copying) == 0, "it stopped an hour ago, to be moved"


def test_the_table_has_a_line_a_group_and_every_finding() -> None:
    lines = render_table(SCANS).splitlines()
    assert lines[1].split()[:7] == ["ads", "frozen", "?", "?", "?", "zookeeper", "0/0"]
    assert lines[2].split()[:9] == ["billing", "mixed", "with", "kafka", "1", "0", "1", "zookeeper", "2/2"]
    reported = {line.split(":")[0] + " " + line.split("[")[-1][:3] for line in lines if ": block" in line or ": warn" in line}
    assert len(reported) >= 2, lines
    assert lines[-1] == "2 groups, 2 of them blocked"


def test_members_are_listed_where_groups_are_named() -> None:
    messages = render_table(SCANS, members=True).splitlines()
    assert "billing: zookeeper billing_a holds t-0, t-1" in messages
    assert "billing: kafka app on /10.0.0.1 holds t-0" in messages
    follows = replace(OLD, zk=replace(OLD.zk or ZkGroup(), progress={"billing_a": MemberProgress(1, Mode.KAFKA, settled=False)}))
    messages = render_table([scan_group(TwoObservations(follows))], members=True).splitlines()
    assert "billing: migrating billing_a holds t-0, t-1, not settled in kafka mode" in messages
    clients = {"/consumers/billing/ids/billing_a": "10.0.0.7:5000"}
    messages = render_table(SCANS, members=True, clients=clients).splitlines()
    assert "billing: zookeeper billing_a from 10.0.0.7:5000 holds t-0, t-1" in messages
    assert "billing: kafka app on /10.0.0.1 holds t-0" in messages


@pytest.mark.parametrize(("changed_at", "shown"), [(1.0, "1970-01-01T00:00:01Z"), (1e18, "?"), (-1e18, "?")])
def test_the_table_says_when_a_group_committed_last_and_where_it_breaks(changed_at: float, shown: str) -> None:
    assert OLD.zk is not None
    group = replace(OLD, zk=replace(OLD.zk, offsets={A: StoredOffset(7, changed_at)}))
    (line,) = [line for line in render_table([scan_group(TwoObservations(group))]).splitlines() if line.startswith("billing  ")]
    assert f"  {shown}  " in line
    assert "last broker into KRaft mode" in line


def test_the_document_has_all_in_json() -> None:
    found = json.loads(json.dumps(as_document(SCANS, 5.0, 0.25, clock=lambda: 3.0)))
    assert (found["schema"], found["made_ms"], found["gap_s"], found["took_s"]) == (SCHEMA, 3000, 5.0, 0.25)
    follows = replace(OLD, zk=replace(OLD.zk or ZkGroup(), progress={"billing_a": MemberProgress(1, Mode.KAFKA, settled=False)}))
    for message in (found, json.loads(json.dumps(as_document([scan_group(TwoObservations(follows))], None, 0.0)))):
        jsonschema.validate(message, SHIPPED)
    ads, billing = found["groups"]
    assert (ads["state"], ads["members"], ads["findings"][0]["code"]) == ("frozen", None, "K30")
    assert [(member["name"], member["kind"]) for member in billing["members"]] == [("billing_a", "zookeeper"), ("app", "kafka")]
    assert billing["partitions"][0] == {"topic": "t", "partition": 0, "offset": 7, "end": 10}
    assert (billing["last_commit_ms"], billing["breaks_at"]) == (1000, "last broker into KRaft mode")
    assert billing["owners"] == {"t-0": "billing_a-0", "t-1": "billing_a-0"}
    assert [member["address"] for member in billing["members"]] == ["", ""]
    assert (billing["lag"], billing["advanced"], billing["blocked"]) == (3, {"zookeeper": 0, "kafka": 0}, True)


def test_the_schema_knows_every_state() -> None:
    assert set(SHIPPED["$defs"]["group"]["properties"]["state"]["enum"]) == set(GroupSituation)


def test_a_copy_is_reported_by_partition() -> None:
    plan = CopyPlan("g", Store.KAFKA, (OffsetWrite(A, 5, None), OffsetWrite(B, 6, 2)), (TopicPartition("u", 0),))
    assert format_copy(plan, done=False).splitlines() == [
        "t-0: nothing -> 5",
        "t-1: 2 -> 6",
        "u-0: not written, kafka is ahead",
        "g: 2 offsets to write to kafka",
    ]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["scan"],
        ["scan", "--zookeeper", "h:1"],
        ["scan", "cluster.yaml"],
        ["scan", "--zookeeper", "h:1", "--bootstrap", "h:2", "--wait", "-1"],
        ["copy-offsets", "--to", "kafka", "--zookeeper", "h:1", "--bootstrap", "h:2"],
        ["copy-offsets", "--to", "elsewhere", "--group", "g", "--zookeeper", "h:1", "--bootstrap", "h:2"],
    ],
    ids=" ".join,
)
def test_what_is_not_said_is_asked_for(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2


def test_what_cannot_be_reached_is_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "--zookeeper", "no host at all", "--bootstrap", "127.0.0.1:1"]) == 2
    assert "N03" in capsys.readouterr().err
    (tmp_path / "connections.json").write_text("{}")
    assert main(["scan", str(tmp_path / "absent.yaml"), "--connections", str(tmp_path / "connections.json")]) == 2


# ------------------------------------------------------------------------------------------------------ a real cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker in ZooKeeper mode below a chroot, with a topic of four partitions."""
    with lent(
        tmp_path_factory.mktemp("command") / "cluster", Shape(name="command", brokers=1, controllers=1, chroot="/kafka")
    ) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan("t", 4, 1)])
        yield there


@pytest.mark.cluster
@pytest.mark.slow(seconds=45)
def test_scan_and_copy_on_a_real_cluster(cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real old consumers, then one whose registration cannot be read; offsets go to Kafka, and not back while members live."""
    where = ["--zookeeper", cluster.zookeeper, "--bootstrap", cluster.bootstrap, "--group", "real"]
    scanning = ["scan", *where, "--wait", "0.2", "-o", "json"]
    zookeeper = KazooClient(cluster.zookeeper)
    zookeeper.start()
    with members(cluster.zookeeper, [Member("real", name, "range", "static", {"t": 1}) for name in "ab"], tmp_path / "log"):
        wait_until(lambda: all_owned(zookeeper), "the old consumers own the topic")
        assert main(scanning) == 0
        (found,) = json.loads(capsys.readouterr().out)["groups"]
        assert (found["state"], found["unowned"]) == ("zookeeper", [])
        assert [(member["name"], member["kind"], len(member["holds"])) for member in found["members"]] == [
            ("real_a", "zookeeper", 2),
            ("real_b", "zookeeper", 2),
        ]
        assert all(member["address"].startswith("127.0.0.1:") for member in found["members"]), "as ZooKeeper's server shows it"
        assert len(set(found["owners"].values())) == 2
        assert found["breaks_at"] == "last broker into KRaft mode"
        for partition in range(4):
            zookeeper.ensure_path("/consumers/real/offsets/t")
            zookeeper.create(f"/consumers/real/offsets/t/{partition}", b"0")
        assert main(["copy-offsets", "--to", "zookeeper", *where]) == 1
        assert "K71" in capsys.readouterr().err
        copying = ["copy-offsets", "--to", "kafka", *where]
        assert read_retention({"bootstrap.servers": cluster.bootstrap}) == 7 * 86_400.0, "Kafka's default"
        assert main([*copying, "--dry-run"]) == 0
        assert main(copying) == 0
        assert main(copying) == 0
        written, again = capsys.readouterr().out.split("real: 4 offsets written and read back to kafka\n")
        assert written.count("nothing -> 0") == 8  # the dry run said the same
        assert again == "real: 0 offsets written and read back to kafka\n"
        assert main(["scan", "--zookeeper", cluster.plan.zookeeper, "--bootstrap", cluster.bootstrap]) == 2, "another chroot"
        assert "Z01" in capsys.readouterr().err
        zookeeper.create("/consumers/real/ids/pykafka:1", b"t", ephemeral=True)
        assert main(scanning) == 1
        (found,) = json.loads(capsys.readouterr().out)["groups"]
        assert (found["state"], found["findings"][0]["code"]) == ("frozen", "K31")
    zookeeper.stop()
    zookeeper.close()


def all_owned(zookeeper: KazooClient) -> bool:
    path = "/consumers/real/owners/t"
    return bool(zookeeper.exists(path)) and len(zookeeper.get_children(path)) == 4


@pytest.mark.cluster
@pytest.mark.slow(seconds=45)
def test_the_store_that_a_real_old_consumer_uses_shows_between_two_observations(cluster: LocalCluster, tmp_path: Path) -> None:
    """Whose commits go to Kafka would lose them as soon as a migrating member joins (R19); no znode says so."""
    properties, commits = {"bootstrap.servers": cluster.bootstrap}, "auto.commit.interval.ms=200"
    producer = Producer(properties)

    def read_on() -> None:
        before = {group: position(zk, properties, group) for group in ("inkafka", "inzookeeper")}
        for _ in range(20):
            producer.produce("t", b"x", partition=0)
        producer.flush(30)
        wait_until(
            lambda: all(position(zk, properties, group) >= at + 20 for group, at in before.items()), "both groups commit", 60
        )

    with (
        ZooKeeper(ZooKeeperSettings(cluster.plan.zookeeper, "/kafka")) as zk,
        console_consumer(cluster.zookeeper, "inkafka", "t", tmp_path / "k", "offsets.storage=kafka", commits),
        console_consumer(cluster.zookeeper, "inzookeeper", "t", tmp_path / "z", commits),
    ):
        wait_until(lambda: all(owning(zk, properties, group) == 4 for group in ("inkafka", "inzookeeper")), "both own all", 60)
        read_on()
        scans, _, _ = scan_groups(zk, properties, ["inkafka", "inzookeeper"], 1.0, sleep=lambda _: read_on())
    reported = [{finding.code for finding in one.findings} for one in scans]
    assert [str(one.situation) for one in scans] == ["zookeeper", "zookeeper"]
    assert ("K37" in reported[0], "K37" in reported[1]) == (True, False)
    assert [one.advanced["zookeeper"] for one in scans] == [1, 1], "dual.commit.enabled is the default with Kafka's store"
    assert [one.advanced["kafka"] for one in scans] == [1, 0]
    assert not {"K44", "K42"} & (reported[0] | reported[1])


@pytest.mark.cluster
@pytest.mark.slow(seconds=45)
def test_a_group_that_moves_is_reported_by_its_state_and_blocks_nowhere(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two migrating members, an old one beside them, Kafka mode, and a plain one. In an emergency the mode goes back by one command."""
    properties = {"bootstrap.servers": cluster.bootstrap, "group.id": "moving", "session.timeout.ms": 10000, "log_level": 2}
    migrating = {**properties, "zookeeper.connect": cluster.zookeeper, "coordination.migration.enabled": True}
    reported: list[tuple[str, dict[str, int], set[str]]] = []
    where = ["--zookeeper", cluster.zookeeper, "--bootstrap", cluster.bootstrap, "--group", "moving"]
    zookeeper_mode = ["zookeeper-mode", *where]

    def observe() -> None:
        wait_until(lambda: at_rest(zk, properties), "every partition has an owner")
        (one,), _, _ = scan_groups(zk, {"bootstrap.servers": cluster.bootstrap}, ["moving"], 0.1)
        kinds = Counter(str(member.kind) for member in one.seen.members or ())
        reported.append(
            (str(one.situation), dict(kinds), {each.code for each in one.findings if each.severity is Severity.BLOCK})
        )

    client = KazooClient(cluster.zookeeper)
    client.start()
    if client.exists("/consumers/moving"):  # a try before this one
        client.delete("/consumers/moving", recursive=True)
    with (
        ZooKeeper(ZooKeeperSettings(cluster.plan.zookeeper, "/kafka")) as zk,
        Migrating(migrating, tmp_path, ["t"]) as one,
        Migrating(migrating, tmp_path, ["t"]) as two,
    ):
        wait_until(lambda: len(one.owned) == len(two.owned) == 2, "each owns half")
        observe()
        with members(cluster.zookeeper, [Member("moving", "old", "range", "static", {"t": 1})], tmp_path / "old"):
            wait_until(lambda: "moving_old-0" in holders(zk, properties), "the old one owns its part")
            observe()
        wait_until(lambda: len(one.owned) == len(two.owned) == 2, "each owns half again")
        client.create("/consumers/moving/migration/mode", b"kafka", makepath=True)
        wait_until(lambda: settled(zk, properties) == 2, "both follow to Kafka")
        observe()
        plain = Consumer(properties)
        try:
            plain.subscribe(["t"])
            wait_until(lambda: plain.poll(0.1) is None and plain.assignment(), "the plain one has its part")
            observe()
            assert main(zookeeper_mode) == 1, "not under plain members"
            assert "NOTHING WAS WRITTEN. [K58]" in capsys.readouterr().out
        finally:
            plain.close()
        wait_until(lambda: len(one.owned) == len(two.owned) == 2, "each owns half once more")
        with Fence(zk, zk.cluster_id(), "a dead run"):
            pass
        assert main(zookeeper_mode) == 1, "the cluster is another run's"
        assert "H01" in capsys.readouterr().err
        assert main([*zookeeper_mode, "--take-over"]) == 0
        said = capsys.readouterr().out
        assert "a dead run" in said
        assert "kafka -> zookeeper" in said
        assert client.get("/consumers/moving/migration/mode")[0] == b"zookeeper"
        assert main(zookeeper_mode) == 0, "again: nothing is left to do"
    client.stop()
    client.close()
    assert reported == [
        ("migrating", {"migrating": 2}, set()),
        ("mixed", {"migrating": 2, "zookeeper": 1}, set()),
        ("in kafka mode", {"migrating": 2}, set()),
        ("mixed with kafka", {"migrating": 2, "kafka": 1}, set()),
    ]


def at_rest(zk: ZooKeeper, properties: dict[str, Any]) -> bool:
    found = seen(zk, properties, ["moving"])["moving"]
    held = {where for member in found.members_of_kind(MemberKind.KAFKA) for where in member.holds}
    return found.zk is not None and not found.zk.unowned - held and found.kafka is not None and found.kafka.stable


def holders(zk: ZooKeeper, properties: dict[str, Any]) -> set[str]:
    found = seen(zk, properties, ["moving"])["moving"].zk
    return set(found.owners.values()) if found else set()


def settled(zk: ZooKeeper, properties: dict[str, Any]) -> int:
    """Members that say that they deliver in Kafka mode what is theirs, and nothing else."""
    found = seen(zk, properties, ["moving"])["moving"].zk
    known = found.progress.values() if found else ()
    return sum(each is not None and each.settled and each.mode is Mode.KAFKA for each in known)


def position(zk: ZooKeeper, properties: dict[str, str], group: str) -> int:
    """What both stores, if both are used, have of partition 0."""
    observed = seen(zk, properties, [group])[group]
    stored = observed.zk.offsets.get(A) if observed.zk else None
    return min(stored.offset if stored and isinstance(stored.offset, int) else 0, (observed.committed or {}).get(A, 10**9))


def owning(zk: ZooKeeper, properties: dict[str, str], group: str) -> int:
    observed = seen(zk, properties, [group])[group]
    return len(observed.zk.owners) if observed.zk else 0


def _named(text: str) -> Iterator[GroupSeen]:
    """A group of which each name is this text, one after the other: clients choose them all."""
    yield replace(OLD, name=text)
    for field in ("member_id", "client_id", "host"):
        (member,) = OLD.kafka.members if OLD.kafka else ()
        yield replace(OLD, kafka=KafkaGroup("Stable", (member._replace(**{field: text}),)))
    zk = OLD.zk
    assert zk is not None
    yield replace(OLD, zk=replace(zk, registrations={text: Registration("static", {text: 1})}))
    yield replace(OLD, zk=replace(zk, registrations={"m": Registration("white_list", {text: 1})}))
    yield replace(OLD, zk=replace(zk, registrations={"m": Unreadable(Flaw.EMPTY, text)}))
    yield replace(OLD, zk=replace(zk, owners={A: f"{text}-0"}))
    yield replace(OLD, zk=replace(zk, partitions=frozenset({TopicPartition(text, 0)}), owners={TopicPartition(text, 0): "x-0"}))


@pytest.mark.parametrize("text", [*CONTROLS, "x\nbilling: [K00] nothing speaks against it"])
def test_no_name_of_a_client_moves_the_cursor_or_forges_a_line_of_the_table(text: str) -> None:
    for seen_group in _named(text):
        shown = render_table([scan_group(TwoObservations(seen_group))], members=True)
        assert all(char.isprintable() or char == "\n" for char in shown)
        assert not [line for line in shown.splitlines() if line.startswith(("billing: [K00]", "ok "))]
        assert len(shown.splitlines()) == len(
            render_table([scan_group(TwoObservations(replace(seen_group, name="g")))], members=True).splitlines()
        )
    made = format_copy(CopyPlan("g" + text, Store.KAFKA, (OffsetWrite(TopicPartition(text, 0), 1, 2),)), done=False)
    assert all(char.isprintable() or char == "\n" for char in made)
    assert len(made.splitlines()) == 2
