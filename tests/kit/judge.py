"""A judge that shares no line with kmigrate: says whether a cluster has every record that it acknowledged, and whether its two sides are equal.

It knows Kafka's own programs and kazoo only. `Foreign` is a load of Kafka's VerifiableProducer and VerifiableConsumer; what they printed is
judged against the log of every replica (DumpLogSegments), against the ends of the partitions (GetOffsetShell), and against a second consumer
that reads everything from the beginning. The sides are ZooKeeper's znodes, the controllers' metadata log (DumpLogSegments) and what the brokers
answer (TopicCommand).

Everything is started as `java MAIN`: Kafka's shell scripts have limits and defaults of their own. Measured with Kafka 3.9.2.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

TOPIC: Final = "foreign"
GROUP: Final = "foreign"
METADATA: Final = "__cluster_metadata-0"
_JSON = dict[str, Any]
_SHOWN: Final = 3  # examples of each problem
_PROGRAM_S: Final = 180.0
_PARTITIONS: Final = 300  # whose files' names go into one argument, which holds 128 KiB
_END_S: Final = 60.0
_AGAIN_S: Final = 1.0
# A JVM that ends when this process does, whatever ends this process: its standard input closes then. One that does not end itself within 60 s, as
# a producer whose brokers are gone, is killed; `sleep` makes the shell take note of its end.
UNTIL_INPUT_ENDS: Final = """
"$@" </dev/null &
read -r _
kill -TERM $!
for _ in $(seq 300); do kill -0 $! 2>/dev/null || exit 0; sleep 0.2; done
kill -KILL $!
"""
_FLAGS: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", "-Djava.net.preferIPv4Stack=true")
_LOGGING: Final = (
    "log4j.rootLogger=ERROR, err\nlog4j.appender.err=org.apache.log4j.ConsoleAppender\nlog4j.appender.err.Target=System.err\n"
    "log4j.appender.err.layout=org.apache.log4j.SimpleLayout\n"
)
# The tool sets retries=0 where the file does not: a producer that loses records on the first move of a leader.
_PRODUCER: Final = {"enable.idempotence": "true", "retries": "2147483647", "delivery.timeout.ms": "300000"}


class Place(NamedTuple):
    """Where a record is."""

    partition: int
    offset: int


Span = tuple[int, int]  # offsets, the last one included
Logs = Mapping[str, Mapping[str, "Dumped"]]  # by broker and partition, such as `orders-3`


class Unfit(Exception):
    """A program of Kafka's did not do what it is there for: nothing can be said."""


@dataclass(frozen=True)
class Kafka:
    """How Kafka's classes are run. `properties`: of every client, such as its security. `folder` gets files and outputs."""

    java: str
    class_path: str
    bootstrap: str
    folder: Path
    properties: Mapping[str, str] = field(default_factory=dict)

    def argv(self, main: str, *arguments: str, heap: str = "96m") -> list[str]:
        """The arguments of a JVM."""
        self.folder.mkdir(parents=True, exist_ok=True)
        logging = self.folder / "log4j.properties"
        logging.write_text(_LOGGING)
        return [self.java, f"-Xmx{heap}", *_FLAGS, f"-Dlog4j.configuration=file:{logging}", main, *arguments]

    def config(self, name: str = "client", more: Mapping[str, str] | None = None) -> str:
        """The path of a client's properties."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in {**self.properties, **(more or {})}.items()))
        return str(path)

    @property
    def environment(self) -> dict[str, str]:
        """With the class path, so that `ps` stays readable."""
        return {**os.environ, "CLASSPATH": self.class_path}

    def run(self, main: str, *arguments: str, seconds: float = _PROGRAM_S, heap: str = "96m") -> str:
        """What a program printed. Raises `Unfit` if it failed, or took longer than `seconds`."""
        argv = self.argv(main, *arguments, heap=heap)
        try:
            done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as error:
            raise Unfit(f"{main} did not end within {seconds:g} s") from error
        if done.returncode:
            raise Unfit(f"{main} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
        return done.stdout


# --- what a load and a log say ---------------------------------------------------------------------------------------------------------


@dataclass
class Acknowledged:
    """What a VerifiableProducer printed: each acknowledged value with its place, and whether its account is whole."""

    values: dict[Place, str] = field(default_factory=dict)
    failed: int = 0
    doubts: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, lines: Iterable[str]) -> Acknowledged:
        """From the lines; where a line is missing, or broken, the account is not whole."""
        found, totals = cls(), None
        for event in _events(lines, found.doubts):
            if event["name"] == "producer_send_success":
                found.values[Place(event["partition"], event["offset"])] = str(event["value"])
            elif event["name"] == "producer_send_error":
                found.failed += 1
            elif event["name"] == "tool_data":
                totals = (event["sent"], event["acked"])
        seen = (len(found.values) + found.failed, len(found.values))
        if totals is None:
            found.doubts.append("the producer did not say how much it sent")
        elif totals != seen:
            found.doubts.append(
                f"the producer says that of {totals[0]} records {totals[1]} were acknowledged; its lines say {seen}"
            )
        if not found.values:
            found.doubts.append("no record was acknowledged")
        return found


@dataclass
class Received:
    """What one VerifiableConsumer printed, started with `--verbose`: how often it read each place, and where it went back."""

    times: Counter[Place] = field(default_factory=Counter)
    values: dict[Place, str] = field(default_factory=dict)
    went_back: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, lines: Iterable[str]) -> Received:
        """From the lines: a read below what it had committed before is a step back."""
        found, committed = cls(), dict[int, int]()
        for event in _events(lines, found.doubts):
            if event["name"] == "record_data":
                place = Place(event["partition"], event["offset"])
                found.times[place] += 1
                found.values[place] = str(event["value"])
                if place.offset < committed.get(place.partition, 0):
                    found.went_back.append(f"{place.partition}@{place.offset} after a commit of {committed[place.partition]}")
            elif event["name"] == "offsets_committed" and event["success"]:
                committed |= {each["partition"]: each["offset"] for each in event["offsets"]}
        return found


def _events(lines: Iterable[str], doubts: list[str]) -> Iterator[_JSON]:
    """The JSON lines; a broken one is a doubt."""
    for line in lines:
        if not line.lstrip().startswith("{"):
            continue
        try:
            event = json.loads(line)
            yield event | {"name": str(event["name"])}
        except (ValueError, KeyError, TypeError) as error:
            doubts.append(f"a line that cannot be read ({error!r}): {line.strip()[:100]}")


_DUMPING = re.compile(r"^Dumping (?P<path>.*)$")
_RECORD = re.compile(r"^\|? ?offset: (?P<offset>\d+) .*?headerKeys: \[.*?\](?: key: .*?)? payload: (?P<payload>.*)$")
_BATCH = re.compile(r"^baseOffset: (?P<first>\d+) lastOffset: (?P<last>\d+) .*isvalid: (?P<valid>\w+)")


@dataclass
class Dumped:
    """One partition's log on one broker, as DumpLogSegments shows it: spans of offsets, and payloads where they were printed."""

    spans: list[Span] = field(default_factory=list)
    payloads: dict[int, str] = field(default_factory=dict)
    invalid: list[int] = field(default_factory=list)


def dumped(text: str) -> dict[str, Dumped]:
    """The logs by folder, as DumpLogSegments prints them one after the other."""
    found: dict[str, Dumped] = defaultdict(Dumped)
    log = Dumped()
    for line in text.splitlines():
        if match := _DUMPING.match(line):
            log = found[str(Path(match["path"]).parent)]
        elif match := _BATCH.match(line):
            log.spans.append((int(match["first"]), int(match["last"])))
            if match["valid"] != "true":
                log.invalid.append(int(match["first"]))
        elif match := _RECORD.match(line):
            log.payloads[int(match["offset"])] = match["payload"]
    return dict(found)


def dump(kafka: Kafka, log_dirs: Mapping[str, Sequence[Path]], topics: Iterable[str], *, payloads: bool = True) -> Logs:
    """The logs of these topics; `log_dirs`: where each broker keeps its partitions. Raises `Unfit` if a broker has one in two directories."""
    of = re.compile(rf"({'|'.join(map(re.escape, topics))})-\d+")
    folders = {
        broker: [path for folder in those for path in sorted(folder.iterdir()) if of.fullmatch(path.name)]
        for broker, those in log_dirs.items()
    }
    for broker, those in folders.items():
        if twice := [name for name, count in Counter(path.name for path in those).items() if count > 1]:
            raise Unfit(f"{broker} has {', '.join(twice[:_SHOWN])} in two directories")
    every = [folder for those in folders.values() for folder in those]
    found: dict[str, Dumped] = {}
    for some in (every[at : at + _PARTITIONS] for at in range(0, len(every), _PARTITIONS)):
        files = [str(path) for folder in some for path in sorted(folder.glob("*.log"))]
        found |= dumped(_dump(kafka, files, "--print-data-log" if payloads else "")) if files else {}
    return {
        broker: {folder.name: found.get(str(folder), Dumped()) for folder in those} for broker, those in folders.items() if those
    }


def _dump(kafka: Kafka, files: Sequence[str], how: str) -> str:
    return kafka.run("kafka.tools.DumpLogSegments", *filter(None, [how]), "--files", ",".join(files), heap="256m")


# --- the records -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
    """`problems`: what was lost, is there twice, or differs. `doubts`: why that cannot be told. Good without either."""

    acknowledged: int = 0
    read_again: int = 0
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost and both sides are equal, as far as this was asked, and everything could be read."""
        return not self.problems and not self.doubts

    def __add__(self, other: Judgement) -> Judgement:
        return Judgement(
            self.acknowledged + other.acknowledged,
            self.read_again + other.read_again,
            (*self.problems, *other.problems),
            (*self.doubts, *other.doubts),
        )


def judge_records(topic: str, acknowledged: Acknowledged, replicas: Logs, live: Sequence[Received], fresh: Received) -> Judgement:
    """Whether every acknowledged record is in the log of each replica once, was read by the group, and can be read, once.

    `replicas`: by broker the logs of its partitions. `live`: the members of the group that read all along; `fresh`: a consumer that has read
    everything afterwards.
    """
    acks = acknowledged.values
    where = {place: f"{topic}-{place.partition}" for place in acks}
    problems = _without_log(where.values(), replicas)
    for broker, logs in replicas.items():
        here = {place: logs[where[place]].payloads for place in acks if where[place] in logs}
        missing = [place for place, payloads in here.items() if payloads.get(place.offset) != acks[place]]
        problems += _named(f"acknowledged records are not in the log of {broker}", missing)
    problems += _named("records are stored twice", _twice(replicas))
    read = Counter[Place]()
    for member in live:
        read += member.times
        problems += _named("reads of the group went back behind its commits", member.went_back)
    problems += _named("acknowledged records were not read by the group", [place for place in acks if not read[place]])
    unreadable = [place for place, value in acks.items() if fresh.values.get(place) != value]
    problems += _named("acknowledged records cannot be read", unreadable)
    problems += _named("records are read twice by one consumer", [place for place, times in fresh.times.items() if times > 1])
    doubts = [*acknowledged.doubts, *(doubt for member in (*live, fresh) for doubt in member.doubts)]
    doubts += [] if replicas else ["no log was read"]
    return Judgement(len(acks), sum(times - 1 for times in read.values()), tuple(problems), tuple(doubts))


def _without_log(partitions: Iterable[str], replicas: Logs) -> list[str]:
    """Partitions that no broker has, and batches that are broken where they are."""
    everywhere = {partition for logs in replicas.values() for partition in logs}
    problems = _named("partitions have no log", sorted(set(partitions) - everywhere))
    for broker, logs in replicas.items():
        problems += _named(
            f"batches are broken in the log of {broker}", [(p, at) for p, log in logs.items() for at in log.invalid]
        )
    return problems


@dataclass
class Told:
    """What clients that write their own account say, as it lies in their files; nothing of kmigrate's is asked to read it.

    `acknowledged`: spans by partition; `delivered`: by group and partition; `topics`: what each group subscribed to that began at the beginning.
    An acknowledgement without an offset is left out: what was a repetition for the broker has none.
    """

    acknowledged: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    delivered: dict[str, dict[str, list[Span]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    topics: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    doubts: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, lines: Iterable[str]) -> Told:
        """From lines of JSON; one that cannot be read may have been anything."""
        found, late = cls(), set[str]()
        for line in lines:
            try:
                event = json.loads(line)
                if event["kind"] == "start" and event["group"] is not None:
                    found.topics[event["group"]] |= set(event["topics"])
                    late |= {event["group"]} if event["reset"] != "earliest" else set()
                elif event["kind"] in {"ack", "delivery"}:
                    found._note(event)
            except (ValueError, KeyError, TypeError) as error:
                found.doubts.append(f"a line that cannot be read ({error!r}): {line.strip()[:100]}")
        found.topics = {group: topics for group, topics in found.topics.items() if group not in late}
        return found

    def _note(self, event: _JSON) -> None:
        where, span = f"{event['topic']}-{event['partition']}", (event["first"], event["last"])
        if event["first"] < 0:
            return
        if event["count"] != event["last"] - event["first"] + 1:
            self.doubts.append(f"{event['kind']} of {event['count']} records in {where} {span}: which ones is not said")
        (self.acknowledged if event["kind"] == "ack" else self.delivered[event["group"]])[where].append(span)


def judge_told(told: Told, topics: Collection[str], replicas: Logs | None = None) -> Judgement:
    """Whether everything that was acknowledged in these topics is in each replica's log, in whole batches, and was delivered to each group.

    Without `replicas` no log is asked.
    """
    acknowledged = {where: spans for where, spans in told.acknowledged.items() if where.rpartition("-")[0] in topics}
    problems = _without_log(acknowledged, replicas) if replicas is not None else []
    for broker, logs in (replicas or {}).items():
        held = {where: log.spans for where, log in logs.items()}
        missing = _uncovered({where: spans for where, spans in acknowledged.items() if where in held}, held)
        problems += _named(f"acknowledged spans are not in the log of {broker}", missing)
    for group, patterns in told.topics.items():
        wanted = {where: spans for where, spans in acknowledged.items() if _wants(patterns, where.rpartition("-")[0])}
        missing = _uncovered(wanted, told.delivered.get(group, {}))
        problems += _named(f"acknowledged spans were not delivered to group {group}", missing)
    count = sum(last - first + 1 for spans in acknowledged.values() for first, last in spans)
    return Judgement(count, problems=tuple(problems), doubts=(*told.doubts, *([] if count else ["no record was acknowledged"])))


def _wants(patterns: Iterable[str], topic: str) -> bool:
    return any(re.match(one, topic) if one.startswith("^") else one == topic for one in patterns)


def _uncovered(wanted: Mapping[str, Sequence[Span]], held: Mapping[str, Sequence[Span]]) -> list[tuple[str, int, int]]:
    merged = {where: _merged(held.get(where, ())) for where in wanted}
    return [(where, *span) for where, spans in wanted.items() for span in spans if not _covers(merged[where], span)]


def _merged(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def _covers(merged: Sequence[Span], span: Span) -> bool:
    at = bisect_right(merged, span[0], key=lambda one: one[0]) - 1
    return at >= 0 and merged[at][1] >= span[1]


def _twice(replicas: Logs) -> list[str]:
    found = set[str]()
    for logs in replicas.values():
        times = Counter(payload for log in logs.values() for payload in log.payloads.values())
        found |= {payload for payload, count in times.items() if count > 1}
    return sorted(found)


def _named(what: str, found: Sequence[object]) -> list[str]:
    shown = ", ".join("@".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in found[:_SHOWN])
    return [f"{len(found)} {what}: {shown}{', ...' if len(found) > _SHOWN else ''}"] if found else []


# --- the sides -------------------------------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """What one side holds: topic -> id, topic -> partition -> replicas, `topic NAME` or `broker N` -> settings, and access rules."""

    ids: dict[str, str] = field(default_factory=dict)
    replicas: dict[str, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    acls: set[str] = field(default_factory=set)

    def facts(self) -> dict[str, str]:
        """One line for each thing that the other side must have, too."""
        found = {f"id of topic {name}": one for name, one in self.ids.items()}
        found |= {
            f"replicas of {name}-{index}": str(list(on)) for name, parts in self.replicas.items() for index, on in parts.items()
        }
        found |= {f"{of}: {key}": value for of, held in self.settings.items() for key, value in held.items()}
        return found | dict.fromkeys(self.acls, "there")


def read_zookeeper(connect: str, **options: Any) -> Side:
    """ZooKeeper's side; `options`: of kazoo's client."""
    client = KazooClient(connect, **options)
    client.start(timeout=20)
    try:
        return _zookeeper(client)
    finally:
        client.stop()
        client.close()


def _zookeeper(client: KazooClient) -> Side:
    side = Side()
    for name in _children(client, "/brokers/topics"):
        held = _object(client, f"/brokers/topics/{name}")
        if held:  # a topic that was deleted meanwhile has none
            side.ids[name] = str(held.get("topic_id"))
            side.replicas[name] = {int(index): tuple(on) for index, on in held["partitions"].items()}
    for kind, of in (("topics", "topic"), ("brokers", "broker")):
        for name in _children(client, f"/config/{kind}"):
            settings = _object(client, f"/config/{kind}/{name}").get("config", {})
            if settings:
                side.settings[f"{of} {name}"] = settings
    for pattern, root in (("literal", "/kafka-acl"), ("prefixed", "/kafka-acl-extended/prefixed")):
        for kind in _children(client, root):
            for name in _children(client, f"{root}/{kind}"):
                side.acls |= {
                    _acl(pattern, kind, name, rule) for rule in _object(client, f"{root}/{kind}/{name}").get("acls", [])
                }
    return side


def _children(client: KazooClient, path: str) -> list[str]:
    try:
        return sorted(client.get_children(path))
    except NoNodeError:
        return []


def _object(client: KazooClient, path: str) -> _JSON:
    try:
        data = client.get(path)[0]
    except NoNodeError:
        return {}
    return json.loads(data) if data else {}


def _acl(pattern: str, kind: str, name: str, rule: Mapping[str, str]) -> str:
    words = (rule["permissionType"], rule["operation"], kind)
    return f"{'-'.join(_word(word) for word in words)} {name} ({pattern}) for {rule['principal']} from {rule['host']}"


def _word(name: str) -> str:
    return name.replace("_", "").lower()


# Kafka's codes (clients/.../acl, clients/.../resource).
_RESOURCES = {2: "topic", 3: "group", 4: "cluster", 5: "transactionalid", 6: "delegationtoken", 7: "user"}
_PATTERNS = {3: "literal", 4: "prefixed"}
_OPERATIONS = (
    *("", "", "all", "read", "write", "create", "delete", "alter", "describe", "clusteraction", "describeconfigs"),
    *("alterconfigs", "idempotentwrite", "createtokens", "describetokens"),
)
_PERMISSIONS = {2: "deny", 3: "allow"}
_CONFIGURED = {2: "topic", 4: "broker"}


def read_metadata(payloads: Mapping[int, str]) -> Side:
    """KRaft's side: the records of a whole metadata log, one after the other, without transactions that were broken off."""
    side, names, rules = Side(), dict[str, str](), dict[str, str]()
    for record in _settled(json.loads(payloads[offset]) for offset in sorted(payloads)):
        try:
            _apply(record["type"], record["data"], side, names, rules)
        except KeyError as error:
            raise Unfit(f"the metadata log has a record about what is not there: {record}") from error
    side.acls = set(rules.values())
    return side


def _settled(records: Iterable[_JSON]) -> Iterator[_JSON]:
    """Without those of a transaction that was aborted, or did not end."""
    waiting: list[_JSON] | None = None
    for record in records:
        kind = record["type"]
        if kind == "BEGIN_TRANSACTION_RECORD":
            waiting = []
        elif kind in {"END_TRANSACTION_RECORD", "ABORT_TRANSACTION_RECORD"}:
            yield from (waiting or []) if kind.startswith("END") else []
            waiting = None
        elif waiting is not None:
            waiting.append(record)
        else:
            yield record


def _apply(kind: str, data: _JSON, side: Side, names: dict[str, str], rules: dict[str, str]) -> None:
    match kind:
        case "TOPIC_RECORD":
            names[data["topicId"]] = data["name"]
            side.ids[data["name"]] = data["topicId"]
            side.replicas[data["name"]] = {}
        case "REMOVE_TOPIC_RECORD":
            name = names.pop(data["topicId"])
            side.replicas.pop(name)
            side.ids.pop(name)
            side.settings.pop(f"topic {name}", None)
        case "PARTITION_RECORD" | "PARTITION_CHANGE_RECORD":
            if data.get("replicas") is not None:
                side.replicas[names[data["topicId"]]][data["partitionId"]] = tuple(data["replicas"])
        case "CONFIG_RECORD":
            of = f"{_CONFIGURED.get(data['resourceType'], data['resourceType'])} {data['resourceName'] or '<default>'}"
            held = side.settings.setdefault(of, {})
            held.pop(data["name"], None)
            held |= {} if data["value"] is None else {data["name"]: data["value"]}
        case "ACCESS_CONTROL_ENTRY_RECORD":
            rules[data["id"]] = _rule(data)
        case "REMOVE_ACCESS_CONTROL_ENTRY_RECORD":
            rules.pop(data["id"], None)
        case _:
            pass


def _rule(data: _JSON) -> str:
    words = (_PERMISSIONS[data["permissionType"]], _OPERATIONS[data["operation"]], _RESOURCES[data["resourceType"]])
    pattern = _PATTERNS[data["patternType"]]
    return f"{'-'.join(words)} {data['resourceName']} ({pattern}) for {data['principal']} from {data['host']}"


_TOPIC_LINE = re.compile(r"^Topic: (?P<name>\S+)\s+TopicId: (?P<id>\S+)")
_PARTITION_LINE = re.compile(
    r"^\s+Topic: (?P<name>\S+)\s+Partition: (?P<index>\d+)\s+Leader: (?P<leader>\S+)\s+Replicas: (?P<replicas>[\d,]+)\s+Isr: (?P<isr>[\d,]*)"
)


def read_described(text: str) -> tuple[Side, list[str]]:
    """What TopicCommand printed of all topics: replicas and ids, and the partitions that no broker leads."""
    side, leaderless = Side(), []
    for line in text.splitlines():
        if match := _TOPIC_LINE.match(line):
            side.ids[match["name"]] = match["id"]
        elif match := _PARTITION_LINE.match(line):
            on = tuple(int(broker) for broker in match["replicas"].split(","))
            side.replicas.setdefault(match["name"], {})[int(match["index"])] = on
            if match["leader"] in {"none", "-1"}:
                leaderless.append(f"{match['name']}-{match['index']}")
    return side, leaderless


def differences(first: str, one: Side, second: str, other: Side) -> list[str]:
    """What only one of the two sides has, or both have otherwise."""
    ours, theirs = one.facts(), other.facts()
    differing = [what for what in sorted(ours.keys() | theirs.keys()) if ours.get(what) != theirs.get(what)]
    shown = [f"{what} is {ours.get(what, 'missing')} and {theirs.get(what, 'missing')}" for what in differing]
    return _named(f"differences between {first} and {second}", shown)


def judge_sides(kafka: Kafka, zookeeper: Side, metadata_logs: Sequence[Path]) -> Judgement:
    """Whether ZooKeeper, the controllers' log if there is one, and the brokers hold the same topics, replicas, settings and access rules."""
    described, leaderless = read_described(kafka.run("org.apache.kafka.tools.TopicCommand", *_asked(kafka), "--describe"))
    served = Side(zookeeper.ids, zookeeper.replicas)  # settings and rules of the brokers are ZooKeeper's or KRaft's
    problems = _named("partitions have no leader", leaderless) + differences("ZooKeeper", served, "the brokers", described)
    doubts = [] if zookeeper.replicas else ["ZooKeeper has no topic"]
    if metadata_logs:
        longest = max(metadata_logs, key=lambda folder: sum(path.stat().st_size for path in folder.glob("*.log")))
        log = _metadata(kafka, longest)
        doubts += (
            []
            if len(held := _merged(log.spans)) == 1 and held[0][0] == 0
            else [f"the log {longest} is not whole: {held[:_SHOWN]}"]
        )
        problems += differences("ZooKeeper", zookeeper, "KRaft", read_metadata(log.payloads)) if not doubts else []
    return Judgement(problems=tuple(problems), doubts=tuple(doubts))


def _metadata(kafka: Kafka, folder: Path) -> Dumped:
    files = [str(path) for path in sorted(folder.glob("*.log"))]
    return dumped(_dump(kafka, files, "--cluster-metadata-decoder")).get(str(folder), Dumped())


def _asked(kafka: Kafka) -> list[str]:
    return ["--bootstrap-server", kafka.bootstrap, "--command-config", kafka.config()]


def settled(judge: Callable[[], Judgement], seconds: float) -> Judgement:
    """The first good judgement within `seconds`, or the last one: replicas, and the other side, follow a moment later."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = judge()
        except (Unfit, KazooException, KazooTimeoutError) as error:
            found = Judgement(doubts=(f"{type(error).__name__}: {error}",))
        if found.is_good or time.monotonic() > deadline:
            return found
        time.sleep(_AGAIN_S)


# --- the load --------------------------------------------------------------------------------------------------------------------------


class Foreign:
    """One VerifiableProducer and a group of VerifiableConsumers on a topic of their own.

    One at a time on a cluster. `rate`: records a second. `keys`: how many different ones the records have in turn, so that all partitions get some all the time; 0: none,
    and a partition gets as many as a batch holds before the next one does. `producing`, `consuming`: more properties of each kind.
    """

    def __init__(
        self,
        kafka: Kafka,
        topic: str = TOPIC,
        *,
        rate: int = 20,
        keys: int = 120,
        members: int = 1,
        producing: Mapping[str, str] | None = None,
        consuming: Mapping[str, str] | None = None,
    ) -> None:
        self.kafka, self.topic, self._rate, self._keys = kafka, topic, rate, keys
        self._producing, self._consuming = {**_PRODUCER, **(producing or {})}, consuming or {}
        self._members = tuple(f"consumer{number}" for number in range(members))
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def create_topic(self, partitions: int = 12, replicas: int = -1) -> None:
        """With what it acknowledged kept for ever; fine if it is there."""
        factor = ["--replication-factor", str(replicas)] if replicas > 0 else []
        how = ["--partitions", str(partitions), *factor, "--config", "retention.ms=-1", "--if-not-exists"]
        self.kafka.run("org.apache.kafka.tools.TopicCommand", *_asked(self.kafka), "--create", "--topic", self.topic, *how)

    def start(self, seconds: float = 180.0) -> None:
        """Until a record was acknowledged and read. Raises `Unfit`."""
        where = ["--bootstrap-server", self.kafka.bootstrap, "--topic", self.topic]
        for member in self._members:
            self._begin(member, "VerifiableConsumer", *where, *self._reading(GROUP, self._consuming))
        rate = [
            "--throughput",
            str(self._rate),
            "--acks",
            "-1",
            "--producer.config",
            self.kafka.config("producer", self._producing),
        ]
        keys = ["--repeating-keys", str(self._keys)] if self._keys else []
        keys += ["--value-prefix", str(int.from_bytes(os.urandom(3)))]  # another load on this topic has other values
        self._begin("producer", "VerifiableProducer", *where, *rate, *keys)
        if not _within(seconds, lambda: bool(Acknowledged.read(self.lines("producer")).values) and self._read() > 0):
            tails = "; ".join(f"{name}: {self._path(name, 'err').read_text(errors='replace')[-300:]}" for name in self._running)
            raise Unfit(f"nothing was read within {seconds:g} s: {tails}")

    def _reading(self, group: str, more: Mapping[str, str] | None = None) -> list[str]:
        config = ["--consumer.config", self.kafka.config("consumer", more)] if self.kafka.properties or more else []
        return ["--group-id", group, "--reset-policy", "earliest", "--session-timeout", "30000", "--verbose", *config]

    def _begin(self, name: str, tool: str, *arguments: str) -> None:
        argv = ["sh", "-c", UNTIL_INPUT_ENDS, "sh", *self.kafka.argv(f"org.apache.kafka.tools.{tool}", *arguments)]
        with self._path(name, "out").open("wb") as out, self._path(name, "err").open("wb") as err:
            self._running[name] = subprocess.Popen(
                argv, env=self.kafka.environment, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True
            )

    def _path(self, name: str, kind: str) -> Path:
        return self.kafka.folder / f"{name}.{kind}"

    def lines(self, name: str) -> list[str]:
        """What it has printed so far: whole lines only."""
        path = self._path(name, "out")
        text = path.read_text(errors="replace") if path.exists() else ""
        return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]

    @property
    def members(self) -> tuple[str, ...]:
        """The group's members by name, as of `lines`."""
        return self._members

    def _read(self) -> int:
        return len(set().union(*(Received.read(self.lines(member)).times for member in self._members)))

    def stop(self) -> None:
        """The producer first, then the consumers once they have read everything, or did not in a minute."""
        self._end("producer")
        if self._running:
            wanted = Acknowledged.read(self.lines("producer")).values.keys()
            _within(_END_S, lambda: not wanted - set().union(*(Received.read(self.lines(m)).times for m in self._members)))
        for member in self._members:
            self._end(member)

    def close(self) -> None:
        """End whatever runs of it at once; nothing can be judged then."""
        for name in tuple(self._running):
            self._end(name, seconds=0.0)

    def _end(self, name: str, seconds: float = _END_S + 10.0) -> None:
        process = self._running.pop(name, None)
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    def judge(self, log_dirs: Mapping[str, Sequence[Path]], seconds: float = 60.0) -> Judgement:
        """Of the load that was stopped; `log_dirs`: where each broker keeps its partitions.

        Replicas that are on their way into the ISR get `seconds` to come there.
        """
        try:
            fresh = self._reads_everything()
        except Unfit as error:
            return Judgement(doubts=(str(error),))
        acknowledged, live = Acknowledged.read(self.lines("producer")), [Received.read(self.lines(m)) for m in self._members]
        return settled(
            lambda: judge_records(self.topic, acknowledged, dump(self.kafka, log_dirs, [self.topic]), live, fresh), seconds
        )

    def _reads_everything(self) -> Received:
        """A consumer of a new group, which reads as much as there is."""
        ends = self.kafka.run("org.apache.kafka.tools.GetOffsetShell", *_asked(self.kafka), "--topic", self.topic, "--time", "-1")
        count = sum(int(line.rpartition(":")[2]) for line in ends.split())
        where = ["--bootstrap-server", self.kafka.bootstrap, "--topic", self.topic, "--max-messages", str(count)]
        group = f"{GROUP}-afterwards-{os.urandom(4).hex()}"
        if not count:
            return Received()
        return Received.read(
            self.kafka.run("org.apache.kafka.tools.VerifiableConsumer", *where, *self._reading(group)).splitlines(keepends=True)
        )


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.3)
    return True
