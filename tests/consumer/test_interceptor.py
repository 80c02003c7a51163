"""The interceptor for JVM clients, called as Kafka's clients call it: what it writes is read as events, and no failure reaches the client."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_kmigrate
from airflow_provider_kmigrate.applications.event_log import read_events
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome
from airflow_provider_kmigrate.core.events.model import (
    Ack,
    Commit,
    DeliveryRun,
    Heartbeat,
    Position,
    Remark,
    SendFailure,
    Start,
    Stop,
    build_histogram,
)
from airflow_provider_kmigrate.core.ledger import balance
from tests.kit import interceptor
from tests.kit.localcluster import jars
from tests.old_consumer.old_consumers import compiled
from tests.verdicts import verdict_of

pytestmark = [pytest.mark.slow(seconds=15), pytest.mark.timeout(300)]

HOSTILE = 'a"b\\c\nd\te@NUL@f\x7fé漢🙂/../../@HALF@x' + "y" * 300


@pytest.fixture(scope="module")
def class_path() -> str:
    known = [*jars.jars(), interceptor.classes()]
    program = compiled([Path(__file__).with_name("InterceptorTrial.java")], known, "interceptor-trial")
    return ":".join(str(path) for path in (program, interceptor.classes(), *jars.jars()))


def tried(class_path: str, what: str, events: Path | str, *, limit: str = "", **more: str) -> None:
    """Run the trial; it ends with a mistake if the interceptor harmed it."""
    settings = interceptor.settings("", events, **more)
    flags = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
    argv = [jars.java(), *flags, "InterceptorTrial", what, *(f"{key}={value}" for key, value in settings.items())]
    limited = ["sh", "-c", f'{limit} exec "$@"', "sh", *argv]
    environment = {"CLASSPATH": class_path, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(limited, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "unharmed\n", done.stderr[-2000:]


def written(events: Path, kind: type) -> list[Any]:
    """The events of a kind, in their order; every line is an event."""
    found = read_events(events)
    assert not found.refused
    return sorted((event for event in found.events if type(event) is kind), key=lambda event: event.stamp.event_seq)


def test_a_producers_account(class_path: str, tmp_path: Path) -> None:
    tried(class_path, "produce", tmp_path, client_id="shop", trial_count="5")
    [start], [stop] = written(tmp_path, Start), written(tmp_path, Stop)
    assert (start.stamp.event_seq, start.role, stop.clean, stop.reason) == (0, "producer", True, "")
    acks = written(tmp_path, Ack)
    assert [(ack.first, ack.last, ack.seq_first, ack.seq_last) for ack in acks] == [(0, 1, 0, 1), (3, 4, 2, 3), (6, 6, 4, 4)]
    assert [(failure.topic, failure.partition, failure.error) for failure in written(tmp_path, SendFailure)] == [
        ("orders", -1, "TimeoutException"),
        ("", -1, "NullPointerException"),
    ]
    assert written(tmp_path, Heartbeat)
    assert {ack.producer for ack in acks} == {start.stamp.writer}
    assert start.stamp.writer.startswith("shop_")


def test_a_consumers_account(class_path: str, tmp_path: Path) -> None:
    tried(class_path, "consume", tmp_path, group_id="billing", client_id="app-1")
    first, learnt = written(tmp_path, Start)
    assert (first.stamp.event_seq, first.group, first.topics, learnt.topics) == (0, "billing", (), ("orders",))
    runs = written(tmp_path, DeliveryRun)
    assert [(run.partition, run.first, run.last, run.count, run.seq) for run in runs] == [
        (0, 7, 16, 10, 0),
        (1, 0, 1, 2, 0),
        (1, 5, 5, 1, 2),
    ]
    assert [run.t_sent_ms is None for run in runs] == [False, True, True], "the year 292,278,994 is no time"
    latency_ms = runs[0].t_first_ms - runs[0].t_sent_ms
    assert latency_ms >= 250
    assert runs[0].latency == build_histogram([latency_ms * 1000] * 10)
    [commit] = written(tmp_path, Commit)
    assert (commit.ok, commit.offsets) == (True, (Position("orders", 0, 17), Position("orders", 1, 6)))
    [done] = tmp_path.glob("*.done")
    assert json.loads(done.read_text()) == {"events": len(read_events(tmp_path).events), "clean": True}


def test_hostile_names_are_read_as_they_are(class_path: str, tmp_path: Path) -> None:
    tried(class_path, "consume", tmp_path, group_id=HOSTILE, client_id=HOSTILE)
    first, _ = written(tmp_path, Start)
    assert first.group == HOSTILE.replace("@NUL@", "\0").replace("@HALF@", "\ufffd"), "half a character is none"
    [path] = tmp_path.glob("*.jsonl")
    assert re.fullmatch(r"[\w.-]+", path.name, re.ASCII)


@pytest.mark.parametrize(
    ("what", "more", "because"),
    [
        ("produce", {"transactional_id": "t"}, "transactional"),
        ("consume", {}, "no group.id"),
        ("produce", {"kmigrate_events_queue": "2"}, "events are missing: more than 2 waited"),
        ("consume", {"group_id": "g", "kmigrate_events_queue": "2"}, "events are missing: more than 2 waited"),
        ("consume", {"group_id": "g", "trial_defect": "1"}, "events are missing: java.lang.NullPointerException"),
    ],
)
def test_what_cannot_be_told_whole_is_no_pass(
    class_path: str, tmp_path: Path, what: str, more: dict[str, str], because: str
) -> None:
    tried(class_path, what, tmp_path, **more)
    [stop] = written(tmp_path, Stop)
    assert not stop.clean
    assert because in stop.reason
    facts = balance(read_events(tmp_path).events)
    assert any("stopped with an incomplete record" in reason.text for reason in facts.reasons)
    assert verdict_of(facts) is not AuditOutcome.PASS
    if "missing" in because:
        assert any("is missing 1 of its events" in reason.text for reason in facts.reasons), "the hole has its number"
        assert written(tmp_path, Remark)


def test_a_full_disk_is_a_hole_and_harms_nobody(class_path: str, tmp_path: Path) -> None:
    tried(class_path, "produce", tmp_path, limit="ulimit -f 64;", trial_count="2000")
    found = read_events(tmp_path)
    assert len(found.events) > 10
    facts = balance(found.events, refused=found.refused)
    assert any("no stop event" in reason.text for reason in facts.reasons)
    assert verdict_of(facts) is not AuditOutcome.PASS


def test_a_folder_that_cannot_be_made_harms_nobody(class_path: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for what in ("produce", "consume"):
        tried(class_path, what, tmp_path / "file" / "events", group_id="g")
        tried(class_path, what, "", group_id="g")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_jar_has_the_providers_version_and_every_setting_is_documented() -> None:
    pom, docs = (interceptor.SOURCES / "pom.xml").read_text(), (interceptor.SOURCES.parent / "docs" / "consumers.md").read_text()
    assert f"<version>{airflow_provider_kmigrate.__version__}</version>" in pom
    for name in (interceptor.PRODUCER, interceptor.CONSUMER, interceptor.FOLDER, interceptor.QUEUE):
        assert f"`{name}" in docs or f"={name}" in docs
