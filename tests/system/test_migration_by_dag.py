"""The product's promise: the real DAG, through Airflow, on a real cluster under load; nothing lost, and no secret printed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tenacity
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from airflow_provider_kmigrate.clients.settings import ClusterSettings, KafkaSettings, WireSecurity, ZooKeeperSettings
from airflow_provider_kmigrate.clients.tools import open_tools
from airflow_provider_kmigrate.commands import plan as plan_command
from airflow_provider_kmigrate.commands import status as status_command
from airflow_provider_kmigrate.core.cluster_state.model import Partition, PropertyChange, TopicMetadata
from airflow_provider_kmigrate.core.events.model import SendFailure
from airflow_provider_kmigrate.core.migration.phase import Phase, position_of
from airflow_provider_kmigrate.exceptions import Unavailable
from airflow_provider_kmigrate.hooks.connections import KafkaAdminHook, KRaftControllerHook, ZooKeeperHook
from airflow_provider_kmigrate.observe import Observer
from airflow_provider_kmigrate.spec import load
from benchmarks.rehearsal import Rehearsal
from tests.core.plan_facts import tasks_of
from tests.kit.account import Account
from tests.kit.held import Held
from tests.kit.judge import TOPIC
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.plan import Shape
from tests.kit.workload import GroupPlan, WorkloadPlan
from tests.system.evidence import EVERYTHING
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=225), pytest.mark.timeout(600)]

CHROOT = "/kafka/system"
TOPICS = (
    TopicPlan("orders", 24),
    TopicPlan("audit.log_v2-final", 6, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.9"}),
    TopicPlan("_internal.-_.", 3, config={"min.insync.replicas": "1", "retention.ms": "-1", "cleanup.policy": "compact,delete"}),
    TopicPlan("single", 3, 1),
    TopicPlan("pair", 4, 2, config={"min.insync.replicas": "1", "max.message.bytes": "2000012"}),
    TopicPlan("x" * 249, 1),
    TopicPlan("new-before", 2),
)
DOOMED = (TopicPlan("doomed-in-first-roll", 6), TopicPlan("doomed-in-second-roll", 6))
LOADED = ("orders", "single", "pair", "^new-.*")  # compacted topics refuse records without a key
NEW = ("new-in.first_roll", "new-in.second_roll")
CANARIES = {name: f"canary-{name}-5up3r" for name in ("zookeeper", "kafka", "keystore", "jaas", "own")}
SECRET_KEYS = (
    f"ssl.keystore.password={CANARIES['keystore']}\n"
    "listener.name.plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="kafka" password="{CANARIES["jaas"]}";\n'
    f"com.example.vault.token={CANARIES['own']}\n"
)
FORGOTTEN = {"_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "_DESTROY", "UNKNOWN_TOPIC_OR_PART"}
ACTS = (
    [f"provision controller {node}" for node in (3000, 3001, 3002)]
    + [f"broker {node} to {mode}" for mode in ("migration", "kraft") for node in range(3)]
    + [f"finalize controller {node}" for node in (3000, 3001, 3002)]
)


# The broker that an admin client asks may be just the one that stops.
in_the_end = tenacity.retry(
    retry=tenacity.retry_if_exception_type((Unavailable, KafkaException)),
    stop=tenacity.stop_after_delay(60),
    wait=tenacity.wait_fixed(0.5),
    reraise=True,
)
create_topics_in_the_end = in_the_end(create_topics)


@in_the_end
def delete_topics_in_the_end(properties: dict[str, str], topics: list[str]) -> None:
    admin = AdminClient({**properties})  # a client without a reference ends its calls
    there = admin.list_topics(timeout=20).topics.keys() & set(topics)
    for deleted in admin.delete_topics(sorted(there), operation_timeout=30).values() if there else ():
        deleted.result(60)


@dataclass
class Meanwhile:
    """What others do to the cluster while it is migrated, each once, when the journal shows a certain act."""

    properties: dict[str, str]
    doings: dict[str, tuple[list[TopicPlan], list[str]]]  # the act's step -> topics to create, topics to delete
    threads: list[threading.Thread] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def tell(self, line: Mapping[str, Any]) -> None:
        if line["kind"] == "act" and line["step"] in self.doings:
            thread = threading.Thread(target=self._do, args=self.doings.pop(line["step"]))
            thread.start()
            self.threads.append(thread)

    def _do(self, new: list[TopicPlan], old: list[str]) -> None:
        try:
            create_topics_in_the_end(self.properties, new)
            delete_topics_in_the_end(self.properties, old)
        except Exception as error:  # noqa: BLE001  # shown by `join` in the test's thread
            self.failures.append(error)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(90)
        assert (self.failures, self.doings) == ([], {})


@dataclass(frozen=True)
class Outcome:
    """All that is left of the run, gathered once; the cluster is still up."""

    rehearsal: Rehearsal
    dag: dict[str, Any]
    account: Account
    before: dict[str, TopicMetadata]
    after: dict[str, TopicMetadata]
    phase: Phase


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    shape = Shape(name="system", chroot=CHROOT)
    rehearsal = Rehearsal(tmp_path_factory.mktemp("dag"), shape, (*TOPICS, *DOOMED), policy={"min_soak": "3s"})
    with closing(rehearsal):
        rehearsal.up()
        settings = plant_secrets(rehearsal)
        restart(rehearsal)  # preflight refuses brokers that do not run with what their files say
        with open_tools(settings) as tools:
            before = tools.zk.topics()
        load_on(rehearsal)
        meanwhile = Meanwhile(
            {"bootstrap.servers": rehearsal.cluster.bootstrap},
            {
                "broker 1 to migration": ([TopicPlan(NEW[0], 3, 2)], ["doomed-in-first-roll"]),
                "broker 1 to kraft": ([TopicPlan(NEW[1], 3, 2)], ["doomed-in-second-roll"]),
            },
        )
        dag = rehearsal.migrate(tell=meanwhile.tell)
        meanwhile.join()
        account = rehearsal.account([*LOADED[:-1], *(plan.name for plan in TOPICS if plan.name.startswith("new-")), *NEW])
        spec = load(rehearsal.cluster.spec_path)
        with open_tools(settings) as tools, Observer(spec, tools) as observer:
            after, phase = tools.wire(spec.brokers[0]).topics(), position_of(observer.observe(EVERYTHING)).phase
        yield Outcome(rehearsal, dag, account, before, after, phase)


def plant_secrets(rehearsal: Rehearsal) -> ClusterSettings:
    """Into both connections and every broker's file; the settings with which the tests' own clients get in."""
    plan = rehearsal.cluster.plan
    known = json.loads(plan.connections_path.read_text())
    known["system_zookeeper"] |= {"login": "kmigrate", "password": CANARIES["zookeeper"]}
    known["system_kafka"]["extra"] |= {"sasl.password": CANARIES["kafka"], "ssl.key.password": CANARIES["kafka"]}
    plan.connections_path.write_text(json.dumps(known))
    for node in plan.brokers:
        path = Path(node.hosts.properties)
        path.write_text(path.read_text() + SECRET_KEYS)
    zookeeper = ZooKeeperSettings(plan.zookeeper, CHROOT)
    return ClusterSettings(zookeeper, KafkaSettings({"bootstrap.servers": plan.bootstrap}), WireSecurity(), WireSecurity())


def restart(rehearsal: Rehearsal) -> None:
    """The whole cluster; what its start writes again is as it was afterwards."""
    plan = rehearsal.cluster.plan
    kept = {path: path.read_text() for path in (plan.connections_path, plan.spec_path)}
    rehearsal.cluster.down()
    rehearsal.cluster.up()
    for path, text in kept.items():
        path.write_text(text)


def load_on(rehearsal: Rehearsal) -> None:
    groups = (GroupPlan("all"), GroupPlan("eager", 2, "eager", ("orders", "pair")))
    rehearsal.load(plan=WorkloadPlan(LOADED, 500.0, groups=groups))


def test_every_task_does_its_part(outcome: Outcome) -> None:
    tasks = outcome.dag["tasks"]
    skipped = {task for task, state in tasks.items() if state == "skipped"}
    others = {task: state for task, state in tasks.items() if task not in skipped and state != "success"}
    assert (outcome.dag["state"], others) == ("success", {}), f"the log: {outcome.rehearsal.dag_log}"
    controllers = {task for task in skipped if task.startswith("first_roll.broker_")}
    active = {task for task in skipped if task.startswith("finalize.controller_")}
    assert skipped == controllers | active | {"start_rollback", "rollback_started"}, (
        "those two controllers are done later, and the answer was to finalize"
    )
    assert len(controllers) <= 1
    assert len(active) <= 1
    assert outcome.phase is Phase.FINALIZED


def test_clients_lose_nothing(outcome: Outcome) -> None:
    assert outcome.account.failures == ()
    assert outcome.account.ledger["acked"] > 500 * 20


def test_what_producers_were_refused_if_anything_is_the_first_rolls_forgetfulness(outcome: Outcome) -> None:
    """A broker that restarts with ZooKeeper answers before a controller has sent it the metadata; a KRaft broker waits."""
    assert outcome.rehearsal.workload is not None
    failures = [event for event in outcome.rehearsal.workload.read_all_events().events if isinstance(event, SendFailure)]
    assert {failure.error for failure in failures} <= FORGOTTEN
    acts = [line for line in outcome.rehearsal.journal() if line["kind"] == "act"]
    begun, ended = (next(act["at"] * 1000 for act in acts if mode in act["step"]) for mode in ("to migration", "to kraft"))
    assert [failure for failure in failures if not begun < failure.t_failed_ms < ended] == []


def test_every_act_is_in_the_journal_with_what_allowed_it(outcome: Outcome) -> None:
    journal = outcome.rehearsal.journal()
    acts = [line for line in journal if line["kind"] == "act"]
    assert sorted(line["step"] for line in acts if line["step"] in ACTS) == sorted(ACTS), "each act once"
    assert {line["step"] for line in acts} - set(ACTS) <= {"preferred leaders", "metadata copy"}
    assert [line["step"] for line in journal if line["kind"] == "acted"] == [line["step"] for line in acts]
    for act in acts:
        assert {"at", "run", "text", "took_s", "modes", "flags", "under_replicated", "migration_offset"} <= act.keys()
    for act in (act for act in acts if act["step"].startswith("broker ")):
        assert act["under_replicated"] == 0
        assert act["flags"] == dict.fromkeys(("3000", "3001", "3002"), True)
        assert None not in act["modes"].values()
    assert [line for line in journal if line["kind"] == "alarm"] == []


def test_the_plan_named_each_line_that_was_written_and_nothing_has_changed_it(
    outcome: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan is the one that the run's preflight left; it is compared with the cluster of afterwards, by the command."""
    folder, plan = outcome.rehearsal.home / "kmigrate", outcome.rehearsal.cluster.plan
    reviewed, log = folder / "preflight" / "system" / "plan.json", outcome.rehearsal.dag_log.read_text()
    restarts = [task for task in tasks_of(json.loads(reviewed.read_text())).values() if task["node"]]
    lines = [str(PropertyChange(**change)) for task in restarts for change in task["file"]]
    assert len(restarts) == len(ACTS)
    assert [line for line in lines if line not in log] == []
    words = ["--connections", str(plan.connections_path), "--folder", str(folder), "--compare", str(reviewed)]
    assert plan_command.main([str(plan.spec_path), *words]) == 3
    drift = capsys.readouterr().out
    assert drift.count(" is done.\n") == len(ACTS), drift
    assert "changed" not in drift
    # a broker that answers late under load is not known for one look
    wait_until(lambda: status_command.main([str(plan.spec_path), *words[:4]]) == 0, "everything was read")
    status = capsys.readouterr().out
    assert "phase 'finalized'" in status, status
    assert "No action is required." in status


def test_topics_are_the_same_afterwards(outcome: Outcome) -> None:
    doomed = {plan.name for plan in DOOMED}
    kept = outcome.before.keys() - doomed
    assert kept >= {plan.name for plan in TOPICS}
    assert outcome.after.keys() - outcome.before.keys() - {"__consumer_offsets", TOPIC} == set(NEW)
    assert not outcome.after.keys() & doomed
    for name in kept:
        before, after = outcome.before[name], outcome.after[name]
        assert before.topic_id is not None
        assert (after.topic_id, after.configs) == (before.topic_id, before.configs), name
        assert _replicas(after) == _replicas(before), name
        assert all(partition.leader >= 0 for partition in after.partitions.values()), name


def _replicas(topic: TopicMetadata) -> dict[int, tuple[int, ...]]:
    return {index: tuple(partition.replicas) for index, partition in topic.partitions.items()}


def test_no_secret_is_printed(outcome: Outcome) -> None:
    """Everything that Airflow and we wrote: logs, journals, the database with XCom and rendered fields. Not the backups, which must."""
    folder = outcome.rehearsal.folder
    written = [path for path in (folder / "airflow").rglob("*") if path.is_file() and "backup" not in path.parts]
    written += [outcome.rehearsal.dag_log, folder / f"{outcome.rehearsal.dag_id}.json"]
    assert {path.name for path in written} >= {"airflow.db", "dag.log"}
    reported = {(path.name, name) for path in written for name, value in CANARIES.items() if value.encode() in path.read_bytes()}
    assert reported == set()
    backups = [path for path in (folder / "airflow").rglob("*") if path.is_file() and "backup" in path.parts]
    assert {path.stat().st_mode & 0o077 for path in backups} == {0}, "backups hold secrets: for their owner only"
    assert any(CANARIES["keystore"].encode() in path.read_bytes() for path in backups)


def test_each_hook_returns_a_client_that_works_on_real_nodes(outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = outcome.rehearsal.cluster
    controller = cluster.plan.controllers[0]
    connections = {
        "ZK": {"conn_type": "kmigrate_zookeeper", "host": cluster.zookeeper},
        "KF": {"conn_type": "kafka", "extra": {"bootstrap.servers": cluster.bootstrap}},
        "CTL": {"conn_type": "kmigrate_controller", "host": f"{controller.host}:{controller.port}"},
    }
    for name, connection in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
    with ZooKeeperHook("zk").get_conn() as zk:
        assert zk.view().cluster_id == cluster.plan.cluster_id
    with KafkaAdminHook("kf").get_admin() as admin:
        admin.elect_preferred([Partition("orders", 0, 0, (0,), (0,))], Held())
    with KRaftControllerHook("ctl").get_conn() as wire:
        cluster_id, leader, _ = wire.describe_cluster()
        assert (cluster_id, leader in {node.id for node in cluster.plan.controllers}) == (cluster.plan.cluster_id, True)
    assert "orders" in KafkaAdminHook("kf").get_conn.list_topics(timeout=20).topics
