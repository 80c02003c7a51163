"""An instance of an application that consumes, as the tests and the demo restart it: zookeeper, migrating or kafka, by one command.

`python -m tests.old_consumer.instance FOLDER NAME KIND` stops what runs of the instance and starts it as KIND; `stop` only stops it. Beside the
three there are `python`, ours as a ZooKeeper consumer, and `jvm`, a Kafka consumer: Kafka's own VerifiableConsumer (3.9).
FOLDER/group.json says what all instances of the group share (`Application`). What each was delivered, committed and owned goes to the
folder of events, one writer a life.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from airflow_provider_kmigrate.applications.event_log import FileSink, new_writer_name
from airflow_provider_kmigrate.applications.migrating.consumer import audited_of
from airflow_provider_kmigrate.applications.migrating.settings import ClientStage
from airflow_provider_kmigrate.clients.atomic import locked
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.events.model import Ownership
from airflow_provider_kmigrate.core.member.group_seen import MemberKind
from tests.kit.localcluster import runtime
from tests.kit.processes import Launch, NodeProcess
from tests.kit.stream import ProcessLifetime
from tests.kit.verifiable import consumer_events
from tests.old_consumer.old_consumers import java_program

ROOT: Final = Path(__file__).parents[2]
_STAGES: Final = {
    "python": ClientStage.ZOOKEEPER,
    MemberKind.MIGRATING: ClientStage.MIGRATING,
    MemberKind.KAFKA: ClientStage.KAFKA,
}
_STOP_S: Final = 30.0
_LEAVE_S: Final = 15.0
_LOGGING: Final = (
    "log4j.rootLogger=ERROR, err\nlog4j.appender.err=org.apache.log4j.ConsoleAppender\nlog4j.appender.err.target=System.err\n"
    "log4j.appender.err.layout=org.apache.log4j.PatternLayout\nlog4j.appender.err.layout.ConversionPattern=%m%n\n"
)


@dataclass(frozen=True, slots=True)
class Application:
    """What the instances of one group share; `zookeeper` with its chroot, `events` where they write down what they do."""

    bootstrap: str
    zookeeper: str
    group: str
    topic: str
    events: str

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "group.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Application:
        return cls(**json.loads((folder / "group.json").read_text()))


def switch_command(folder: Path) -> list[str]:
    """The command for the cluster file."""
    module = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.old_consumer.instance")
    return [*module, str(folder.resolve()), "{instance}", "{kind}"]


def restart(folder: Path, name: str, kind: str) -> None:
    """Stop the instance, and start it as `kind` unless that is `stop`."""
    process = NodeProcess(folder / name)
    process.folder.mkdir(parents=True, exist_ok=True)
    with locked(process.folder, 60.0):
        if not process.wait_gone(process.signal(signal.SIGTERM), _STOP_S):
            process.wait_gone(process.signal(signal.SIGKILL), _STOP_S)
        if kind != "stop":
            argv = (sys.executable, "-m", "tests.old_consumer.instance", str(folder.resolve()), name, f"run:{kind}")
            process.define(Launch(argv, env={"PYTHONPATH": str(ROOT)}))
            process.start()


def run(folder: Path, name: str, kind: str) -> None:
    """Be the instance, until SIGTERM."""
    application = Application.read(folder)
    events = Path(application.events)
    sink, lifetime = FileSink(events), ProcessLifetime(folder)
    writer = new_writer_name(f"{name}-{kind}-")
    if kind == MemberKind.ZOOKEEPER:
        _old(application, name, sink, writer, lifetime)
    elif kind in _STAGES:
        _ours(folder, name, sink, writer, lifetime, kind=kind)
    elif kind == "jvm":
        _jvm(application, folder / name, sink, writer, lifetime)
    else:
        raise ValueError(f"nothing is {kind!r}")


def slow_down(folder: Path, name: str, seconds: float) -> None:
    """From its next start on the instance needs so long for each record, wherever it migrates."""
    (folder / f"{name}.slow").write_text(str(seconds))


def _late(folder: Path, name: str) -> float:
    path = folder / f"{name}.slow"
    return float(path.read_text()) if path.exists() else 0.0


def _ours(folder: Path, name: str, sink: FileSink, writer: str, lifetime: ProcessLifetime, *, kind: str) -> None:
    """An application that changes one setting a restart."""
    application = Application.read(folder)
    properties = {
        "bootstrap.servers": application.bootstrap,
        "group.id": application.group,
        "zookeeper.connect": application.zookeeper,
        "zookeeper.session.timeout.ms": 6000,
        "consumer.id": name,
        "coordination.migration.stage": _STAGES[kind],
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 500,
        "session.timeout.ms": 10000,
    }
    consumer = audited_of(properties, sink, writer=writer)
    consumer.subscribe([application.topic])
    late = _late(folder, name) if kind == MemberKind.MIGRATING else 0.0
    while not lifetime.over:
        consumer.poll(0.2)
        time.sleep(late)
    consumer.close()


def _old(application: Application, name: str, sink: FileSink, writer: str, lifetime: ProcessLifetime) -> None:
    argv = java_program("OldInstance", application.zookeeper, application.group, name, application.topic)
    _written(argv, {}, application, sink, writer, lifetime)


def _jvm(application: Application, folder: Path, sink: FileSink, writer: str, lifetime: ProcessLifetime) -> None:
    """With the one assignor that is asked of plain consumers."""
    found, client = runtime.find(), folder / "client.properties"
    client.write_text(f"client.id={writer}\n")
    (folder / "log4j.properties").write_text(_LOGGING)
    where = ["--bootstrap-server", application.bootstrap, "--topic", application.topic, "--group-id", application.group]
    how = ["--group-protocol", "classic", "--assignment-strategy", "org.apache.kafka.clients.consumer.RangeAssignor"]
    more = ["--reset-policy", "earliest", "--session-timeout", "10000", "--consumer.config", str(client)]
    main = "org.apache.kafka.tools.VerifiableConsumer"
    argv = found.command(main, [*where, *how, *more], kind="tool", heap="96m", folder=folder)
    _written(argv, found.env, application, sink, writer, lifetime)


def _written(  # noqa: PLR0917  # what one writer is made of
    argv: Sequence[str], env: Mapping[str, str], application: Application, sink: FileSink, writer: str, lifetime: ProcessLifetime
) -> None:
    """The JVM is a child; what it says is written down line by line, until it has said all."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, encoding="utf-8", env={**os.environ, **env}) as child:
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        try:
            for event in consumer_events(_lines(child), writer, application.group, (application.topic,)):
                if isinstance(event, Ownership):
                    sink.write_ownership(event)
                else:
                    sink.append(writer, [encode(event)])
                if lifetime.abandoned:
                    break
        finally:
            child.terminate()
            child.wait(_LEAVE_S)


def _lines(child: subprocess.Popen[str]) -> Iterator[str]:
    assert child.stdout is not None
    yield from child.stdout


def main(folder: str, name: str, kind: str) -> int:
    """By the command line; the exit code is 0 when the instance was restarted."""
    os.chdir(ROOT)
    if kind.startswith("run:"):
        run(Path(folder), name, kind.removeprefix("run:"))
    else:
        restart(Path(folder), name, kind)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
