"""python -m airflow_provider_kmigrate.consumer.workload produce | consume | status | stop | summary"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from airflow_provider_kmigrate.clients.hosts import files
from airflow_provider_kmigrate.consumer.workload.control import Workload, all_run, told
from airflow_provider_kmigrate.consumer.workload.life import MAX_SECONDS, Life
from airflow_provider_kmigrate.consumer.workload.receiver import Receiver, ReceiverSettings
from airflow_provider_kmigrate.consumer.workload.sender import Sender, SenderSettings
from airflow_provider_kmigrate.core.ledger import LedgerVerdict
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused

_FAILED, _NOT_CLEAN = 1, 3


def main(argv: list[str] | None = None) -> int:
    """Exit code 0: done; 1: it failed and says why; 3: `summary` is no PASS, or `status` found a process that ended, or none."""
    arguments = _parser().parse_args(argv)
    verbs = {"produce": _produce, "consume": _consume, "status": _status, "stop": _stop, "summary": _summary}
    try:
        return verbs[arguments.verb](arguments)
    except KMigrateError as error:
        print(f"{arguments.verb} failed: {error}", file=sys.stderr)  # noqa: T201  # a command line
        return _FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_kmigrate.consumer.workload", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    client = argparse.ArgumentParser(add_help=False)
    client.add_argument(
        "--events", type=Path, required=True, help="folder for the event files; the process ends when it is removed"
    )
    client.add_argument("--writer", required=True, help="name of this run of this process, unlike any other")
    client.add_argument("--properties", type=Path, help="JSON file of librdkafka properties")
    client.add_argument("--bootstrap", help="instead of bootstrap.servers in --properties")
    client.add_argument(
        "--topic", action="append", required=True, help="a name, or a pattern that begins with ^; may be repeated"
    )
    client.add_argument("--max-seconds", type=float, default=MAX_SECONDS)
    produce = verbs.add_parser("produce", parents=[client], help="numbered records at an exact rate until SIGTERM")
    produce.add_argument("--rate", type=float, default=500.0, help="records per second (%(default)s)")
    produce.add_argument("--bytes", type=int, default=100, help="size of a record's value (%(default)s)")
    produce.add_argument("--share", default="0/1", help="i/n: feed one n-th of the partitions (%(default)s)")
    consume = verbs.add_parser("consume", parents=[client], help="one member of a classic group until SIGTERM")
    consume.add_argument("--group", required=True)
    consume.add_argument("--protocol", choices=("cooperative", "eager"), default="cooperative")
    consume.add_argument("--batch-seconds", type=float, default=1.0, help="time between commits (%(default)s)")
    for verb, text in (
        ("status", "what runs"),
        ("stop", "stop producers, let consumers read the rest, then stop consumers"),
        ("summary", ""),
    ):
        verbs.add_parser(verb, help=text or "print a short ledger").add_argument("--dir", type=Path, required=True)
    return parser


def _properties(arguments: argparse.Namespace) -> Mapping[str, str]:
    found = files.read_object(arguments.properties) if arguments.properties else {}
    if found is None:
        raise _unconnected(f"There is no file {arguments.properties}.")
    if arguments.bootstrap:
        found["bootstrap.servers"] = arguments.bootstrap
    if not found.get("bootstrap.servers"):
        raise _unconnected("There is no bootstrap.servers.")
    return found


def _unconnected(text: str) -> Refused:
    return Refused.because(Reason("Y01", text))


def _life(arguments: argparse.Namespace) -> Life:
    return Life(arguments.events, arguments.max_seconds).listen()


def _produce(arguments: argparse.Namespace) -> int:
    index, _, count = arguments.share.partition("/")
    settings = SenderSettings(
        arguments.events,
        arguments.writer,
        _properties(arguments),
        tuple(arguments.topic),
        rate=arguments.rate,
        share=(int(index), int(count)),
        record_bytes=arguments.bytes,
    )
    Sender(settings, _life(arguments)).run()
    return 0


def _consume(arguments: argparse.Namespace) -> int:
    settings = ReceiverSettings(
        arguments.events,
        arguments.writer,
        arguments.group,
        _properties(arguments),
        tuple(arguments.topic),
        protocol=arguments.protocol,
        batch_s=arguments.batch_seconds,
    )
    Receiver(settings, _life(arguments)).run()
    return 0


def _status(arguments: argparse.Namespace) -> int:
    found = Workload.attach(arguments.dir).status()
    print(told(found), end="")  # noqa: T201
    return 0 if all_run(found) else _NOT_CLEAN


def _stop(arguments: argparse.Namespace) -> int:
    Workload.attach(arguments.dir).stop()
    return 0


def _summary(arguments: argparse.Namespace) -> int:
    found = Workload.attach(arguments.dir).summary()
    print(json.dumps(found, indent=1))  # noqa: T201
    return 0 if found["verdict"] == LedgerVerdict.PASS else _NOT_CLEAN


if __name__ == "__main__":
    sys.exit(main())
