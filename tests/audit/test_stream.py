"""Events through a real topic into Parquet: exactly once, foreign ones aside, through restarts of query and broker."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

pytest.importorskip("py4j", reason="only Spark's own environment has it")

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from airflow_provider_kmigrate.applications.event_log import TopicSink
from airflow_provider_kmigrate.audit import connector, job
from airflow_provider_kmigrate.audit.kafka_source import translate_properties
from airflow_provider_kmigrate.audit.session import SparkEngine
from airflow_provider_kmigrate.audit.sources import RowKind
from airflow_provider_kmigrate.audit.stream import EventStream, StreamPlan
from airflow_provider_kmigrate.clients.hadoop_files import HadoopFiles
from airflow_provider_kmigrate.core.audit.events_kept import check_retention
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.events.lines import decode, encode
from airflow_provider_kmigrate.core.events.model import (
    Event,
    Ownership,
    OwnershipChange,
    Stamp,
    Start,
    TopicPartition,
    WriterRole,
)
from airflow_provider_kmigrate.core.ledger import balance
from airflow_provider_kmigrate.core.reasons.entry import AuditCause
from airflow_provider_kmigrate.exceptions import Failed, Refused, Unavailable
from tests.audit.stored_events import load_events
from tests.core.histories import History
from tests.kit.load import create_topic_again
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape, folder_of
from tests.kit.processes import NodeProcess
from tests.verdicts import verdict_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow(seconds=90)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lent(tmp_path_factory.mktemp("stream"), Shape(name="stream", brokers=1, controllers=1, racks=0)) as found:
        yield found


@pytest.fixture(scope="module")
def spark(spark_session: SparkSession) -> SparkSession:
    return spark_session


@pytest.fixture(scope="module")
def properties(cluster: LocalCluster) -> Mapping[str, str]:
    return {"bootstrap.servers": cluster.bootstrap}


@pytest.fixture
def plan(cluster: LocalCluster, properties: Mapping[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> StreamPlan:
    cluster.up()  # whatever the test before left of it
    name = f"{request.node.name}-{tmp_path.name}".replace("[", "-").replace("]", "")
    admin = AdminClient(dict(properties))
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(30)
    return StreamPlan(name, str(tmp_path / "events"), str(tmp_path / "checkpoint"))


def send(properties: Mapping[str, str], topic: str, lines: list[bytes], partition: int = 0, lost: int = -1) -> None:
    producer = Producer(dict(properties))
    for line in lines:
        producer.produce(topic, line, partition=partition)
    assert producer.flush(30) == 0


def history(run: str, records: int = 20, partition: int = 0, lost: int = -1) -> list[Event]:
    """A calm history of one producer and one member; the polls number `lost` never came."""
    made = History()
    made.producer(f"p-{run}")
    made.consumer(f"m-{run}", "g")
    made.own("g", f"m-{run}", OwnershipChange.ACQUIRED, (partition,))
    for number in range(records):
        made.ack(f"p-{run}", partition, number * 5, number * 5, 5)
        if number != lost:
            made.deliver("g", f"m-{run}", partition, number * 5, 5, number * 5, producer=f"p-{run}")
    made.commit("g", f"m-{run}", partition, records * 5)
    made.own("g", f"m-{run}", OwnershipChange.RELEASED, (partition,))
    made.end()
    return made.events


def lines(events: list[Event]) -> list[bytes]:
    return [encode(event).encode() for event in events]


def rows(spark: SparkSession, plan: StreamPlan) -> list[dict[str, object]]:
    return spark.read.parquet(plan.folder).toArrow().to_pylist()


def written(spark: SparkSession, plan: StreamPlan) -> Counter[tuple[object, object]]:
    """How often each event is there; one that is about several partitions has several rows."""
    return Counter((row["writer"], row["number"]) for row in rows(spark, plan) if row["nth"] == 0 and row["writer"] is not None)


def test_everything_arrives_once_and_foreign_lines_stand_aside(
    spark: SparkSession, properties: Mapping[str, str], plan: StreamPlan
) -> None:
    reported = history("one")
    foreign = [b"no JSON", b'{"other":1}', b"\xff\xfe", b'{"v":99,"kind":"start"}', b""]
    send(properties, plan.topic, [*lines(reported), *foreign])
    stream = EventStream(spark, properties, plan)
    stream.catch_up()
    stream.catch_up()
    found = rows(spark, plan)
    assert written(spark, plan) == Counter((event.stamp.writer, event.stamp.event_seq) for event in reported)
    aside = [row for row in found if row["row_kind"] in {RowKind.REFUSED, RowKind.VERSION}]
    assert len(aside) == len(foreign)
    assert {str(row["why"]).split(" b")[0].split("'")[0] for row in aside}
    assert all(f"{plan.topic}-0 offset {len(reported) + at}" in "".join(str(row["why"]) for row in aside) for at in range(5))
    assert [row["row_kind"] for row in aside].count(RowKind.VERSION.value) == 1
    engine = SparkEngine(spark)
    engine.attach("events", [plan.folder])
    assert verdict_of(balance(load_events(engine))) is AuditOutcome.PASS
    at = stream.read_progress()
    assert at.begun == at.done, "no batch is half done"


def test_ownership_is_ordered_by_its_place_in_the_topic(
    spark: SparkSession, properties: Mapping[str, str], plan: StreamPlan
) -> None:
    sink = TopicSink(properties, plan.topic)
    for number, change in enumerate((OwnershipChange.ACQUIRED, OwnershipChange.RELEASED)):
        sink.write_ownership(
            Ownership(Stamp("m", number, 5), "g", "m", 1, change, (TopicPartition("t", 0), TopicPartition("t", 1)))
        )
    sink.append("m", [encode(Start(Stamp("m", 2, 6), WriterRole.CONTROL))])
    sink.close("m", 3, clean=True)
    EventStream(spark, properties, plan).catch_up()
    changes = [decode(str(row["line"])) for row in rows(spark, plan) if '"ownership"' in str(row["line"])]
    assert sorted((change.position, change.change) for change in changes if isinstance(change, Ownership)) == [
        (0, "acquired"),
        (1, "released"),
    ]


def test_the_event_stream_resumes_where_it_ended_and_after_a_broker_died(
    spark: SparkSession, cluster: LocalCluster, properties: Mapping[str, str], plan: StreamPlan
) -> None:
    reported = history("before", 10)
    send(properties, plan.topic, lines(reported), 1)
    EventStream(spark, properties, plan).catch_up()
    more = history("since", 10)
    send(properties, plan.topic, lines(more), 2)
    EventStream(spark, properties, plan).catch_up()
    assert written(spark, plan).total() == len(reported) + len(more)
    broker = NodeProcess(folder_of(cluster.plan.brokers[0]))
    assert broker.wait_gone(broker.signal(signal.SIGKILL), 60.0), "a dying broker still counts as running"
    cluster.up()
    last = history("after", 10)
    send(properties, plan.topic, lines(last), 0)
    EventStream(spark, properties, plan).catch_up()
    expected = Counter((event.stamp.writer, event.stamp.event_seq) for event in [*reported, *more, *last])
    assert written(spark, plan) == expected, "exactly once"


def _until_it_ends(stream: EventStream) -> None:
    with suppress(Failed):
        stream.catch_up()


def test_a_query_that_is_cut_down_in_a_batch_repeats_nothing(
    spark: SparkSession, properties: Mapping[str, str], plan: StreamPlan
) -> None:
    total = 0
    for run in range(4):
        reported = history(f"r{run}", 200)
        total += len(reported)
        send(properties, plan.topic, lines(reported), run % 3)
        stream = EventStream(spark, properties, plan, spark_options={"maxOffsetsPerTrigger": "150"})
        begun = stream.read_progress().begun or 0
        catching_up = threading.Thread(target=_until_it_ends, args=(stream,))
        catching_up.start()
        wait_until(
            lambda stream=stream, begun=begun: (stream.read_progress().begun or 0) > begun, "a batch is under way", timeout=120
        )  # type: ignore[misc]
        for query in spark.streams.active:
            query.stop()  # wherever it is
        catching_up.join(60)
    EventStream(spark, properties, plan).catch_up()
    found = written(spark, plan)
    assert (found.total(), max(found.values())) == (total, 1)


def cause(error: pytest.ExceptionInfo[Refused]) -> object:
    return error.value.reasons[0].cause


def test_checkpoints_and_outputs_that_do_not_belong_together_are_refused(
    spark: SparkSession, properties: Mapping[str, str], plan: StreamPlan, tmp_path: Path
) -> None:
    send(properties, plan.topic, lines(history("x", 2)))
    EventStream(spark, properties, plan).catch_up()
    for other in (
        StreamPlan("another-topic", plan.folder, plan.checkpoint),
        StreamPlan(plan.topic, str(tmp_path / "other"), plan.checkpoint),
        StreamPlan(plan.topic, plan.folder, str(tmp_path / "new")),
    ):
        with pytest.raises(Refused) as error:
            EventStream(spark, properties, other).catch_up()
        assert cause(error) == AuditCause.CHECKPOINT_MISMATCH
    foreign = tmp_path / "foreign"
    (foreign / "offsets").mkdir(parents=True)
    with pytest.raises(Refused) as error:
        EventStream(spark, properties, StreamPlan(plan.topic, str(tmp_path / "o"), str(foreign))).catch_up()
    assert cause(error) == AuditCause.CHECKPOINT_MISMATCH
    Path(plan.folder).rename(tmp_path / "gone")
    with pytest.raises(Refused) as error:
        EventStream(spark, properties, plan).catch_up()
    assert cause(error) == AuditCause.CHECKPOINT_MISMATCH
    (Path(plan.checkpoint) / "kmigrate-stream.json").write_text("damaged")
    (Path(plan.checkpoint) / ".kmigrate-stream.json.crc").unlink()
    with pytest.raises(Refused):
        EventStream(spark, properties, plan).catch_up()


def test_a_checkpoint_or_an_output_that_was_restored_is_refused(
    spark: SparkSession, properties: Mapping[str, str], plan: StreamPlan, tmp_path: Path
) -> None:
    """Three batches; a copy of the time after the first one would have Spark pass over the events that come next."""
    old = tmp_path / "old"
    for number in range(3):
        send(properties, plan.topic, lines(history(f"x{number}", 2)))
        EventStream(spark, properties, plan).catch_up()
        if number == 0:
            shutil.copytree(plan.checkpoint, old / "checkpoint")
            shutil.copytree(plan.folder, old / "folder")
    new = tmp_path / "new"
    new.mkdir()
    for name, place in (("checkpoint", plan.checkpoint), ("folder", plan.folder)):
        Path(place).rename(new / name)
        shutil.copytree(old / name, place)
        with pytest.raises(Refused, match="an older one") as error:
            EventStream(spark, properties, plan).catch_up()
        assert cause(error) == AuditCause.CHECKPOINT_MISMATCH
        shutil.rmtree(place)
        (new / name).rename(place)
    for name in ("0", ".0.crc"):  # as Spark does, of all but the last hundred
        (Path(plan.checkpoint) / "commits" / name).unlink()
    EventStream(spark, properties, plan).catch_up()
    Path(plan.folder).rename(tmp_path / "gone")
    with pytest.raises(Refused, match="is gone"):
        EventStream(spark, properties, plan).catch_up()


def test_events_that_were_removed_before_they_were_read(
    spark: SparkSession, properties: Mapping[str, str], plan: StreamPlan
) -> None:
    send(properties, plan.topic, lines(history("x", 2)))
    stream = EventStream(spark, properties, plan)
    stream.catch_up()
    assert [finding.reason.cause for finding in check_retention(plan.topic, stream.read_topic_marks())] == [
        AuditCause.EVENTS_EXPIRE
    ], "Kafka's own seven days"
    send(properties, plan.topic, lines(history("y", 2)))
    ends = {where: mark.end for where, mark in stream.read_topic_marks().items()}
    removed = [KafkaPartition(*where, end) for where, end in ends.items()]
    admin = AdminClient(dict(properties))
    for future in admin.delete_records(removed).values():
        future.result(30)
    with pytest.raises(Refused) as error:
        EventStream(spark, properties, plan).catch_up()
    assert cause(error) == AuditCause.EVENTS_REMOVED


@pytest.mark.parametrize("more", [1, 5], ids=["fewer", "more"])
def test_a_topic_that_was_deleted_and_created_again(
    spark: SparkSession, properties: Mapping[str, str], plan: StreamPlan, more: int
) -> None:
    send(properties, plan.topic, lines(history("x", 2)))
    EventStream(spark, properties, plan).catch_up()
    admin = AdminClient(dict(properties))
    admin.delete_topics([plan.topic])[plan.topic].result(30)
    wait_until(lambda: not EventStream(spark, properties, plan).read_topic_marks(), "the topic is gone")
    with pytest.raises(Unavailable, match="does not report"):
        EventStream(spark, properties, plan).catch_up()
    create_topic_again(properties, plan.topic, 3)
    wait_until(lambda: bool(EventStream(spark, properties, plan).read_topic_marks()), "the topic is there")
    for number in range(more):
        send(properties, plan.topic, lines(history(f"y{number}", 2)))
    before = written(spark, plan)
    with pytest.raises(Refused, match="deleted and created again") as error:
        EventStream(spark, properties, plan).catch_up()
    assert cause(error) == AuditCause.EVENTS_REMOVED
    assert written(spark, plan) == before


def test_a_topic_that_is_not_there(spark: SparkSession, properties: Mapping[str, str], tmp_path: Path) -> None:
    nowhere = StreamPlan("nowhere", str(tmp_path / "e"), str(tmp_path / "c"))
    stream = EventStream(spark, properties, nowhere, spark_options={"fetchOffset.retryIntervalMs": "100"})
    with pytest.raises(Failed):
        stream.catch_up(60)


def test_each_audit_takes_in_what_came_since_the_last_one(
    properties: Mapping[str, str],
    plan: StreamPlan,
    tmp_path: Path,
    *,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a gate runs it: a process of its own goes on where the last one ended; before anybody wrote there is no answer."""
    (tmp_path / "kafka.json").write_text(json.dumps(dict(properties)))
    request = {
        "spark": {"master": "local[2]", "jars": [str(jar) for jar in connector.resolve_kafka_jars()]},
        "sources": [{"level": "L2", "ledgers": [plan.folder]}],
        "stream": {
            "properties": str(tmp_path / "kafka.json"), "topic": plan.topic, "folder": plan.folder, "checkpoint": plan.checkpoint,
        },
    }  # fmt: skip
    (tmp_path / "request.json").write_text(json.dumps(request))
    words, outcomes = [str(tmp_path / "request.json"), str(tmp_path / "result")], []
    for reported in ([], history("first")):
        send(properties, plan.topic, lines(reported))
        assert job.main(words, lambda _: nullcontext(SparkEngine(spark))) == 0  # its own engine would end the tests' session
        outcomes.append(capsys.readouterr().out.partition(":")[0])
    send(properties, plan.topic, lines(history("second", partition=1, lost=10)))
    program = [sys.executable, "-m", job.__name__, *words]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [*outcomes, done.stdout.partition(":")[0]] == ["INCONCLUSIVE", "PASS", "FAIL"]
    found = json.loads((tmp_path / "result" / "verdict.json").read_text())
    causes = {finding["reason"]["cause"] for finding in found["findings"] if finding["outcome"] == "FAIL"}
    assert causes == {AuditCause.LOST, AuditCause.COMMIT_GAP}, found


def test_small_files(spark: SparkSession, tmp_path: Path) -> None:
    files, path = HadoopFiles(spark), str(tmp_path / "folder" / "file")
    assert (files.read(path), files.names(str(tmp_path / "folder"))) == (None, [])
    for text in ("grüße", "twice"):
        files.write(path, text)
        assert (files.read(path), files.names(str(tmp_path / "folder"))) == (text, ["file"])
    with pytest.raises(Unavailable, match="exist"):
        files.write(path, "of another program", new=True)
    assert (files.read(path), files.names(str(tmp_path / "folder"))) == ("twice", ["file"])
    files.delete(path)
    files.write(path, "new", new=True)
    files.delete(path)
    files.delete(path)
    assert files.read(path) is None
    with pytest.raises(Unavailable):
        files.names("nosuchscheme://host/x")


@pytest.mark.parametrize(
    ("thrown", "missing"), [("(Permission denied)", (None,)), ("(No such file or directory)", ())], ids=["refused", "a write"]
)
def test_only_a_file_that_is_not_there_is_missing(spark: SparkSession, thrown: str, missing: tuple[None, ...]) -> None:
    """The JDK throws one class for a missing file and for a refused one."""

    def act() -> None:
        raise OSError(f"java.io.FileNotFoundException: /x {thrown}")

    with pytest.raises(Unavailable, match="/x"):
        HadoopFiles(spark)._call_hadoop("/x", act, *missing)
    with pytest.raises(Unavailable):
        HadoopFiles(spark).write("/proc/nothing/x", "text")


def test_identities_are_translated(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(name.upper())
    found = translate_properties(
        {
            "bootstrap.servers": "h:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": 'a"b',
            "sasl.password": "p\\w",
            "ssl.ca.location": str(tmp_path / "ca"),
            "ssl.certificate.location": str(tmp_path / "cert"),
            "ssl.key.location": str(tmp_path / "key"),
            "ssl.key.password": "secret",
            "statistics.interval.ms": "5",
        }
    )
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    assert found["kafka.sasl.jaas.config"] == f'{module} required username="a\\"b" password="p\\\\w";'
    assert found["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert {found[f"kafka.ssl.{name}"] for name in ("truststore.certificates", "keystore.certificate.chain", "keystore.key")} == {
        "CA",
        "CERT",
        "KEY",
    }
    assert not any("statistics" in name for name in found)
    assert translate_properties({"bootstrap.servers": "h:1"}) == {"kafka.bootstrap.servers": "h:1"}
    with pytest.raises(Refused) as error:
        translate_properties({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"})
    assert cause(error) == AuditCause.MECHANISM_UNKNOWN
    assert json.dumps(found)
