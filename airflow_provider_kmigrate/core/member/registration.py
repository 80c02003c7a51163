"""Reads and writes the znodes of a group that ZooKeeper coordinates, `/consumers/<group>`, as the ZooKeeper consumer does.

Sources: Kafka 1.1.1 (TopicCount, ZkUtils, utils/Json) and the bytes of its real processes. Foreign contents may be anything: they
are read as the ZooKeeper consumer reads them, and what freezes it is `Unreadable` with its `Flaw`, never an exception. The two
tests on real consumers (`tests/old_consumer`) check both directions.

Hazard: one unreadable registration freezes its whole group: every ZooKeeper consumer releases everything and fails until the
znode is gone. So a registration is written in one create and never changed afterwards.

Wildcards: only a Java regular expression that Python reads exactly alike is accepted, the rest is refused (`None`). A member that
computes another set of topics takes partitions that are not its own. Topic names are ASCII without blanks and line ends, which
leaves few differences: escapes of single languages, braces, flags, sets within sets.

`GroupHold` is the note at a group that was rolled back, by a canary's verdict or by the operator: which run did it, and why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import printable

OFFSETS_TOPIC = "__consumer_offsets"  # with the next one Kafka's own topics
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})

_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))  # what String.trim takes away
_ESCAPED: Final = r"\\[^A-Za-z0-9]|\\[dDwWsS]"  # a sign, or a class that is one in both languages
_SET: Final = rf"\[\^?(?:(?!--|\|\||~~)[^\[\]\\&^]|{_ESCAPED})+\]"
_PIECE: Final = re.compile(
    rf"{_ESCAPED}|\\[bB]|{_SET}"
    r"|\((?!\?)|\(\?(?::|=|!|<=|<!)"  # no flags, no names
    r"|\{[0-9]+\}[?+]?"  # a comma became a bar, so that other braces are errors in Java and plain signs in Python
    r"|[^\\\[\]{}(]"
)

_WHOLE: Final = re.compile(r"(?<!\\)(?:\\\\)*(?:\$|\.\*)\Z")  # it shows itself where a name ends
# Constructs that Java has and POSIX has not, and characters that `trim_wildcard` changes.
_OTHERWISE: Final = re.compile(r"\(\?|\\[A-Za-z0-9]|[*+?}][?+]|[, \"']|\[[^\]]*\\")


def trim_wildcard(wildcard: str) -> str:
    """Prepares a wildcard for Java as the ZooKeeper consumer does: commas become bars, blanks and outer quotes go."""
    text = wildcard.strip(_JAVA_BLANKS).replace(",", "|").replace(" ", "")
    return re.sub(r"""["']+\Z""", "", re.sub(r"""\A["']+""", "", text))


def compile_wildcard(wildcard: str) -> re.Pattern[str] | None:
    """The wildcard compiled for Python; None if it is no expression, or one that the two languages may read differently."""
    text, at = trim_wildcard(wildcard), 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            return None
        at = piece.end()
    try:
        return re.compile(text, re.ASCII)
    except re.error:
        return None


def is_same_in_librdkafka(subscription: str) -> bool:
    """True if a Kafka consumer that subscribes to this text (begins with `^`) gets the topics of the registered white list.

    librdkafka uses POSIX extended expressions, which match from the beginning of a name, not whole names. False: perhaps not.
    """
    return _WHOLE.search(subscription) is not None and not _OTHERWISE.search(subscription) and not _has_open_bar(subscription)


def _has_open_bar(expression: str) -> bool:
    """True for a bar outside brackets: in POSIX it separates the anchors, too."""
    parts = re.sub(r"\\.|\[[^\]]*\]", "", expression)
    while (inner := re.sub(r"\([^()]*\)", "", parts)) != parts:
        parts = inner
    return "|" in parts


def select_topics(pattern: str, expression: re.Pattern[str], topics: Iterable[str], *, internal: bool = False) -> frozenset[str]:
    """The topics that a wildcard of this kind selects; Kafka's internal ones only if the group does not exclude them."""
    must_match = pattern == WHITE_LIST
    return frozenset(
        topic
        for topic in topics
        if (expression.fullmatch(topic) is not None) == must_match and (internal or topic not in INTERNAL)
    )


STATIC: Final = "static"
WHITE_LIST: Final = "white_list"
BLACK_LIST: Final = "black_list"
WILDCARDS: Final = frozenset({WHITE_LIST, BLACK_LIST})

_SHOWN: Final = 200  # characters of a znode that a message may carry
_LONGEST = 4_000  # characters of the reason of a hold
_INT: Final = 2**31
_DIGITS: Final = 10  # of its largest number
_LONG: Final = 2**63
_DECIMAL: Final = re.compile(r"[+-]?[0-9]+")


class Flaw(StrEnum):
    """What is wrong with a znode of foreign origin."""

    EMPTY = "it has no data"
    NOT_JSON = "it is not JSON"
    NO_PATTERN = "it names no pattern (static, white_list or black_list)"
    NO_SUBSCRIPTION = "it has no subscription"
    NO_STREAMS = "a number of streams is not a positive 32-bit integer"
    BAD_WILDCARD = "its wildcard is no regular expression, or only Java can read it"
    NOT_A_NUMBER = "it is not a decimal number"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A znode that cannot be used, with the beginning of its contents."""

    flaw: Flaw
    content: str

    def __str__(self) -> str:
        return f"{self.flaw}: {self.content!r}"


class Mode(StrEnum):
    """The assignment that a group's migrating members follow."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"


def parse_mode(data: bytes | None) -> Mode:
    """`migration/mode`: exactly `kafka` is Kafka mode. Another case, a newline behind it, no data, no znode: ZooKeeper mode."""
    return Mode.KAFKA if data == b"kafka" else Mode.ZOOKEEPER


@dataclass(frozen=True, slots=True)
class Registration:
    """One member's subscription: topics (or one wildcard) -> streams. An unknown pattern counts as static, as in Kafka."""

    pattern: str
    subscription: Mapping[str, int]
    timestamp: str = field(default="", compare=False)

    @property
    def wildcard(self) -> str | None:
        """The wildcard as it was registered; None for a static subscription, and for one without a topic."""
        return next(iter(self.subscription), None) if self.pattern in WILDCARDS else None


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """A migrating member's report in its own `migration/ids` znode: the last mode that it observed and how far it has come."""

    epoch: int  # the mode znode's mzxid; 0 while there is none
    mode: Mode
    settled: bool  # it delivers exactly its share in that mode, and holds nothing else


def write_registration(registration: Registration) -> bytes:
    """The bytes of `ids/<consumer>`: four keys in the ZooKeeper consumer's order, nothing escaped twice (1.0.1 and later do)."""
    return _encode_json(_registration_fields(registration))


def write_progress(registration: Registration, progress: MemberProgress) -> bytes:
    """The bytes of `migration/ids/<consumer>`: the registration as in KIP-125's patch, followed by the progress."""
    reported = {"epoch": progress.epoch, "mode": str(progress.mode), "settled": progress.settled}
    return _encode_json(_registration_fields(registration) | {"migration": reported})


def _registration_fields(registration: Registration) -> dict[str, object]:
    return {
        "version": 1,
        "subscription": dict(registration.subscription),
        "pattern": registration.pattern,
        "timestamp": registration.timestamp,
    }


def _encode_json(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def read_registration(data: bytes | None) -> Registration | Unreadable:
    """Reads `ids/<consumer>`; keys are taken as decoded, so that a key escaped twice matches what it matches in Java."""
    fields = _read_object(data)
    if isinstance(fields, Unreadable):
        return fields
    pattern, subscription = fields.get("pattern"), fields.get("subscription")
    if not isinstance(pattern, str):
        return _mark_unreadable(Flaw.NO_PATTERN, data)
    if not isinstance(subscription, dict):
        return _mark_unreadable(Flaw.NO_SUBSCRIPTION, data)
    if not all(_is_stream_count(streams) for streams in subscription.values()):
        return _mark_unreadable(Flaw.NO_STREAMS, data)
    return Registration(pattern, subscription, str(fields.get("timestamp", "")))


def read_progress(data: bytes | None) -> MemberProgress | None:
    """Reads a member's progress; None if it reports none that we know (KIP-125's own patch reports none)."""
    fields = _read_object(data)
    reported = None if isinstance(fields, Unreadable) else fields.get("migration")
    if not isinstance(reported, dict) or not isinstance(reported.get("epoch"), int):
        return None
    return MemberProgress(reported["epoch"], parse_mode(str(reported.get("mode")).encode()), reported.get("settled") is True)


def _read_object(data: bytes | None) -> dict[str, Any] | Unreadable:
    if not data:
        return _mark_unreadable(Flaw.EMPTY, data)
    text = data.decode(errors="replace")
    for attempt in (text, text.replace("\\", "\\\\")):  # Kafka before 1.0.1 escaped nothing; later readers accept it
        fields = _decode_json(attempt)
        if fields is not None:
            return fields if isinstance(fields, dict) else _mark_unreadable(Flaw.NOT_JSON, data)
    return _mark_unreadable(Flaw.NOT_JSON, data)


def _decode_json(text: str) -> object:
    """The first JSON value; what follows it is ignored (Jackson reads no further)."""
    try:
        return read_json(text, rest=True)
    except ValueError:
        return None


def _is_stream_count(streams: object) -> bool:
    return isinstance(streams, int) and not isinstance(streams, bool) and 0 < streams < _INT


def _mark_unreadable(flaw: Flaw, data: bytes | None) -> Unreadable:
    return Unreadable(flaw, printable((data or b"").decode(errors="replace")[:_SHOWN]))


def read_offset(data: bytes | None) -> int | Unreadable:
    """`offsets/<topic>/<partition>`: the next offset to read, as Java's `Long.parseLong` takes it."""
    text = (data or b"").decode(errors="replace")
    if not text:
        return _mark_unreadable(Flaw.EMPTY, data)
    if not _DECIMAL.fullmatch(text) or len(text) > _SHOWN or not -_LONG <= int(text) < _LONG:
        return _mark_unreadable(Flaw.NOT_A_NUMBER, data)
    return int(text)


def encode_offset(offset: int) -> bytes:
    """The bytes of an offset znode: decimal, as the ZooKeeper consumer writes it."""
    return str(offset).encode()


def consumer_id(group: str, host: str, epoch_ms: int, uuid: int) -> str:
    """A new member's name, as the ZooKeeper consumer forms it; `uuid` is 128 random bits, cut to its first eight digits."""
    return f"{group}_{host}-{epoch_ms}-{uuid >> 96:08x}"


_OWN_ID: Final = re.compile(r"(?P<host>.+)-[0-9]{13}-[0-9a-f]{8}", re.DOTALL)


def host_of_consumer(consumer: str, group: str) -> str:
    """The host name in a consumer id that the ZooKeeper consumer formed itself (`consumer_id`); empty if the application chose the id."""
    own_id = _OWN_ID.fullmatch(consumer.removeprefix(f"{group}_"))
    return printable(own_id["host"]) if own_id else ""


def thread_id(consumer: str, stream: int) -> str:
    """The name of one stream of a member, as an owner znode holds it."""
    return f"{consumer}-{stream}"


def consumer_of(thread: str) -> str:
    """The member that owns a stream, from the contents of an owner znode."""
    return thread.rpartition("-")[0]


class GroupPaths:
    """The paths of a group's znodes, below the cluster's chroot."""

    def __init__(self, group: str) -> None:
        self.root = f"/consumers/{group}"
        self.ids = f"{self.root}/ids"  # the ZooKeeper consumers' registrations
        self.migration_ids = f"{self.root}/migration/ids"  # the migrating members' registrations (KIP-125)
        self.mode = f"{self.root}/migration/mode"
        self.resets = f"{self.root}/migration/reset"
        self.hold = f"{self.root}/migration/hold"  # a note: the group is not migrated again until the operator says so
        self.cutover = f"{self.root}/migration/cutover"  # a note: how far its cutover is

    def owner(self, topic_partition: TopicPartition) -> str:
        """The partition's owner znode."""
        return f"{self.root}/owners/{topic_partition.topic}/{topic_partition.partition}"

    def offset(self, topic_partition: TopicPartition) -> str:
        """The znode with the partition's committed offset."""
        return f"{self.root}/offsets/{topic_partition.topic}/{topic_partition.partition}"

    def reset(self, topic_partition: TopicPartition) -> str:
        """Where the operator records the offset at which the partition's next owner starts; only migrating members read it."""
        return f"{self.resets}/{topic_partition.topic}/{topic_partition.partition}"


def is_number(child: str) -> bool:
    """True if a znode's name is the number of a partition or a broker: 32 bits, as Kafka has them.

    Any client may create other names; Python's isdigit accepts `²`, which is none.
    """
    return child.isascii() and child.isdigit() and len(child) <= _DIGITS and int(child) < _INT


@dataclass(frozen=True, slots=True)
class GroupHold:
    """`run`: the run that rolled the group back, as the fence names it; it may continue if the operator clears its task."""

    run: str
    why: str


def read_hold(data: bytes) -> GroupHold:
    """Reads the note. An unreadable one holds, too: without a run, with its contents as the reason."""
    try:
        note = read_json(data)
        return GroupHold(str(note["run"]), str(note["why"]))
    except (ValueError, KeyError, TypeError):
        return GroupHold("", printable(data.decode(errors="replace")[:_SHOWN]))


def write_hold(hold: GroupHold) -> bytes:
    """The note's bytes; of a long reason the beginning: a znode has 1 MiB."""
    return json.dumps(asdict(replace(hold, why=hold.why[:_LONGEST]))).encode()


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 units, wrapped to a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    total = 0
    for i in range(0, len(units), 2):
        total = (31 * total + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return total - 2**32 if total & 2**31 else total
