"""A real consumer that a command stops and another one starts, on a real broker: held by what its group committed, and released exactly where it stood."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_kmigrate.exceptions import Refused
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.steps.spark_jobs import CommandedJobControl
from airflow_provider_kmigrate.utils.spark_jobs import make_job_control, make_log_reader
from tests.core.spec_text import GOOD
from tests.kit.account import kafka_of
from tests.kit.judge import Received
from tests.kit.load import TopicPlan, create_topics
from tests.kit.localcluster.cluster import LocalCluster, lent
from tests.kit.localcluster.plan import Shape
from tests.old_consumer.jvm_application import Load
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.slow(seconds=60), pytest.mark.timeout(300)]

TOPIC = GROUP = "sink"
# It answers once the process has begun, or has ended.
JOBCTL = """#!/bin/sh
cd {folder}
test "$1" = pause -a ! -e lies && {{ kill -TERM $(cat pid) 2>/dev/null; while kill -0 $(cat pid) 2>/dev/null; do sleep 0.1; done; }}
test "$1" = resume && ! kill -0 $(cat pid) 2>/dev/null && {{ setsid {program} </dev/null >>out 2>>err & echo $! >pid; }}
exit 0
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with lent(tmp_path / "cluster", Shape("cmdjob", brokers=1, controllers=1)) as there:
        create_topics({"bootstrap.servers": there.bootstrap}, [TopicPlan(TOPIC, 3, 1)])
        yield there


@pytest.fixture
def jobctl(cluster: LocalCluster, tmp_path: Path) -> Iterator[Path]:
    """The command of the cluster file; what runs of the job ends with the test."""
    kafka = kafka_of(cluster, tmp_path / "job")
    where = ["--bootstrap-server", cluster.bootstrap, "--topic", TOPIC, "--group-id", GROUP, "--verbose"]
    argv = kafka.argv("org.apache.kafka.tools.VerifiableConsumer", *where, "--reset-policy", "earliest")
    program = shlex.join(["env", f"CLASSPATH={kafka.class_path}", *argv])
    path = tmp_path / "job" / "jobctl"
    path.write_text(JOBCTL.format(folder=path.parent, program=program))
    path.chmod(0o755)
    yield path
    if (path.parent / "pid").exists():
        pid = int((path.parent / "pid").read_text())
        if Path(f"/proc/{pid}").exists():
            os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def control(cluster: LocalCluster, jobctl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandedJobControl:
    kafka: dict[str, Any] = {"conn_type": "kafka", "extra": {"bootstrap.servers": cluster.bootstrap}}
    monkeypatch.setenv("AIRFLOW_CONN_PROD_KAFKA", json.dumps(kafka))
    commands = {"hold_command": f"{jobctl} pause", "release_command": f"{jobctl} resume"}
    job = {"name": "sink", "group": GROUP, "hold_folder": str(tmp_path / "hold"), "quiet": "4s", "hold_timeout": "60s"}
    file = tmp_path / "prod.yaml"
    file.write_text(GOOD + yaml.safe_dump({"spark_jobs": [job | commands]}))
    control = make_job_control(load(str(file)), "sink", print)
    assert isinstance(control, CommandedJobControl)
    control.call(control.job.release_command)
    return control


def test_a_consumer_is_held_where_it_stands(cluster: LocalCluster, control: CommandedJobControl, jobctl: Path) -> None:
    logs, folder = make_log_reader(load(str(jobctl.parents[1] / "prod.yaml"))), jobctl.parent
    with Load(cluster.bootstrap, TOPIC, 3, rate=60.0) as load_on_topic:
        wait_until(lambda: len(read(folder).times) > 100, "the job reads")
        (folder / "lies").touch()
        with pytest.raises(Refused) as refused:
            control.hold("dag/run", "roll")
        assert [reason.code for reason in refused.value.reasons] == ["J14"]
        (folder / "lies").unlink()
        outcome = control.hold("dag/run", "roll")
        assert "records wait, and it moved in none of 3 partitions" in outcome
        before = len(read(folder).times)
        assert control.resume("dag/run", logs) == "The job reads on from where it stopped."
        wait_until(lambda: len(read(folder).times) > before + 100, "it reads on")
        load_on_topic.stop()
        wait_until(lambda: len(read(folder).times) == len(load_on_topic.acked), "everything is read")
    control.call(control.job.hold_command)
    assert set(read(folder).times.values()) == {1}, "nothing twice"


def read(folder: Path) -> Received:
    """What the job printed in all its lives."""
    text = (folder / "out").read_text() if (folder / "out").exists() else ""
    return Received.read(line for line in text.splitlines(keepends=True) if line.endswith("\n"))
