"""Random groups as ZooKeeper may hold them: every kind of subscription, odd registrations by others, and broken ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from kazoo.client import KazooClient

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.member.assignors import Assigned, Frozen, Strategy, assign
from airflow_provider_kmigrate.core.member.registration import (
    Registration,
    consumer_of,
    read_registration,
    write_registration,
)

TOPICS = {
    **{name: n for n, name in enumerate(("t", "t1", "t10", "app.a", "app.b", "appxa", "Topic", "UPPER", "a-b_c.d"), start=1)},
    "orders": 24,
    "payments": 12,
    "one": 1,
    "a-very-long-topic-name-with-numbers-1234567890": 30,
    "__consumer_offsets": 10,
}
WILDCARDS = (
    *(
        "t.*",
        "t1?",
        "orders,payments",
        "'app.*'",
        "[a-t].*",
        ".*",
        "app\\.a",
        "app\\\\.a",
        "(?!app).*",
        " t , t1 ",
        "nothing",
        "\\w+",
    ),
    *("t[0-9]{2}", "[^a].*", "(app|t).*", "a-b_c\\.d", "T1|UPPER|", "one\\b", "^orders$"),
)
BROKEN = (
    *(b"", b"t1", b"[]", b'{"pattern":"static"}', b'{"subscription":{"t":1}}', b'{"pattern":"static","subscription":{"t":0}}'),
    *(b'{"pattern":"static","subscription":{"t":"1"}}', b'{"pattern":"static","subscription":{"t":1.0}}', b'{"pattern":3}'),
    *(b'{"pattern":"white_list","subscription":{"*":1}}', b'{"pattern":"white_list","subscription":{"t{1,2}":1}}'),
    *(b'{"pattern":"black_list","subscription":{"(":1}}', b'{"pattern":"static","subscription":["t"]}', b'{"pattern":"static'),
)
ODD = (
    b'{"pattern":"static","subscription":{"t":2,"one":1},"timestamp":1795226356}',
    rb'{"version":1,"subscription":{"app\.a":1},"pattern":"white_list","timestamp":"1"}',
    b' {"pattern":"other","subscription":{"orders":3}} and more',
    b'{"pattern":"static","subscription":{}}',
    b'{"pattern":"white_list","subscription":{}}',
    b'{"pattern":"white_list","subscription":{"t":1,"orders":2}}',
    b'{"pattern":"static","subscription":{"t":1},"subscription":{"one":2}}',
)
HOSTS = ("vm", "host-1", "host-10", "host-2", "h\u00fc", "\uffee", "Z", "a.b.c")


@dataclass(frozen=True)
class RandomGroup:
    name: str
    data: dict[str, bytes]

    def owned(self, strategy: Strategy) -> dict[str, dict[TopicPartition, str] | None]:
        """Consumer -> what it owns by our reckoning; None: it cannot compute anything."""
        registrations = {consumer: read_registration(data) for consumer, data in self.data.items()}
        found = assign(strategy, registrations, {name: range(count) for name, count in TOPICS.items()})
        if isinstance(found, Frozen):
            return dict.fromkeys(self.data)
        return {consumer: _own(found, consumer) for consumer in self.data}


def _own(found: Assigned, consumer: str) -> dict[TopicPartition, str]:
    return {where: thread for where, thread in found.owners.items() if consumer_of(thread) == consumer}


def groups(count: int, seed: int, *, odd: bool = True) -> Iterator[RandomGroup]:
    """The same ones for the same seed; `odd`: with what only others write, and with what is unreadable."""
    rng = random.Random(seed)  # noqa: S311  # no secret
    for number in range(count):
        name = f"g{seed}.{number}"
        broken, missing = odd and rng.random() < 0.08, rng.random() < 0.1
        data = {
            f"{name}_{rng.choice(HOSTS)}-{rng.randrange(10**12, 2 * 10**12)}-{rng.randrange(2**32):08x}": _registered(
                rng, missing, odd
            )
            for _ in range(rng.randint(1, 7))
        }
        if broken:
            data[rng.choice(sorted(data))] = rng.choice(BROKEN)
        yield RandomGroup(name, data)


def _registered(rng: random.Random, missing: bool, odd: bool) -> bytes:
    if odd and rng.random() < 0.1:
        return rng.choice(ODD)
    if rng.random() < 0.4:
        pattern = rng.choice(("white_list", "white_list", "black_list"))
        return write_registration(Registration(pattern, {rng.choice(WILDCARDS): rng.randint(1, 4)}, "1795226356203"))
    topics = rng.sample(sorted(TOPICS), rng.randint(1, 5)) + (["is-not-there"] if missing and rng.random() < 0.5 else [])
    return write_registration(Registration("static", {topic: rng.choice((1, 1, 2, 3, 12)) for topic in topics}, "1795226356203"))


def put(zookeeper: str, chroot: str, made: list[RandomGroup]) -> None:
    """A tree that looks like a cluster's to an old consumer's assignor."""
    client = KazooClient(zookeeper)
    client.start()
    try:
        for topic, count in TOPICS.items():
            partitions = {str(number): [0] for number in range(count)}
            client.create(
                f"{chroot}/brokers/topics/{topic}", json.dumps({"version": 3, "partitions": partitions}).encode(), makepath=True
            )
        for group in made:
            client.ensure_path(f"{chroot}/consumers/{group.name}/ids")
        pending = [
            client.create_async(f"{chroot}/consumers/{group.name}/ids/{consumer}", data)
            for group in made
            for consumer, data in group.data.items()
        ]
        for each in pending:
            each.get(timeout=60)
    finally:
        client.stop()
        client.close()
