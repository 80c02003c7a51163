"""Hostile peers: what a node, a broker, ZooKeeper, a webhook, a metrics endpoint and the writer of event files may answer.

The answers are made of each peer's own schema (`clients.hosts.answers`, kafka-python's messages, the znodes that Kafka writes, the
events): one good answer, with each field of another type, missing, without measure or full of escapes; its bytes torn, turned and
prolonged; and what no schema has: drips, floods, silence, links, pipes, sparse files. `tried` asks as the product does, and judges
each answer by its end: an answer that was read, or one coded sentence of the exception tree, within time and memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import UnionType
from typing import Any, Final, NamedTuple, Self, get_args, get_origin, get_type_hints

from kafka.protocol.admin import (
    DescribeClusterResponse,
    DescribeConfigsResponse,
    DescribeGroupsResponse,
    DescribeLogDirsResponse,
    DescribeQuorumResponse,
    ListGroupsResponse,
    ListPartitionReassignmentsResponse,
)
from kafka.protocol.consumer import ListOffsetsResponse
from kafka.protocol.consumer.group import OffsetFetchResponse
from kafka.protocol.metadata import ApiVersionsResponse, FindCoordinatorResponse, MetadataResponse

from airflow_provider_kmigrate.clients import metrics, wire, wire_groups
from airflow_provider_kmigrate.clients.group_reads import read_groups
from airflow_provider_kmigrate.clients.hosts import answers
from airflow_provider_kmigrate.clients.hosts.agent import AgentHost, Connection, Program, Restart
from airflow_provider_kmigrate.clients.settings import WebhookSettings, ZooKeeperSettings
from airflow_provider_kmigrate.clients.tools import Instances
from airflow_provider_kmigrate.clients.wire import Wire
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster_state.model import Cause, Reason, TopicMetadata
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, GroupSpec, HostSpec, InstanceSpec, NodeRole, NodeSpec
from airflow_provider_kmigrate.core.events.lines import KINDS
from airflow_provider_kmigrate.core.reasons import ENTRIES
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.node.check import check_machine
from airflow_provider_kmigrate.observe import reads

#: Texts that a terminal, a log or a page would obey.
CONTROLS: Final = (
    "\x1b[2J\x1b[1;1H\x1b[32mok    all nodes\x1b[0m",
    "\x1b]0;owned\x07",
    "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",  # OSC 8: a link
    "\x9b2J",  # CSI in one character
    "a\rok    all nodes",
    "a\b\b\bok",
    "a\0b",
    "a\x85ok\u2028ok\u2029ok\x0bok\x0cok\x1cok",  # what ends lines besides a newline
    "\u202egnp.exe\u2066x\u2069",  # bidirectional overrides
    "a\u200b\u200d\ufeff\u00adb",  # nothing that is seen
    "\ud800",
    "\U000e0041\U000e0042",  # tags
    "a\n\nok    broker 2 on k2: forged\n",
)
#: Texts that Markdown, HTML or a chat would obey.
MARKUP: Final = (
    "[a](http://evil.example)",
    "[x](javascript:alert(1))",
    "![i](http://evil.example/p.png)",
    "[x][y]\n\n[y]: http://evil.example",
    "[x]\n\n[x]: /api/v2/dags",
    "<https://evil.example>",
    "https://evil.example/login",
    "HTTPS://EVIL.EXAMPLE",
    "www.evil.example",
    "https&#58;//evil.example",
    "https&colon;//evil.example",
    "https:\\/\\/evil.example",
    "ops@evil.example",
    "<ops@evil.example>",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</td></tr></table>",
    "<!-- hidden",
    "<?php 1 ?>",
    "<!channel>",
    "<!subteam^S1>",
    "<@U012AB3CD>",
    "<http://evil.example|ok>",
    "@channel",
    "x@everyone",
    "<at>all</at>",
)

_MIB: Final = 1 << 20
MOST_MEMORY: Final = 64 * _MIB
BEYOND: Final = 1.0  # seconds that a call may take beyond its own time
SECONDS: Final = 1.0  # of a call here

#: Values of other types, sizes and meanings than any field has.
_BAD: Final[tuple[Any, ...]] = (
    *(None, True, 0, 1, -1, 2**31, 2**63 - 1, 10**30, 1e300, 0.5, "", "x", "\x1b[2J\nok", "\ud800", "0" * 100_000),
    *([], [None], ["x"], {}, {"a": 1}, [[]] * 3_000),
)


def altered(value: Any) -> Iterator[tuple[str, Any]]:
    """A JSON value with each of its parts, itself too, of another kind, missing, or there twice; and where it was altered."""
    for bad in _BAD:
        yield f"={repr(bad)[:20]}", bad
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f".{name} missing", {key: each for key, each in value.items() if key != name}
            for where, other in altered(inner):
                yield f".{name}{where}", {**value, name: other}
    if isinstance(value, list) and value:
        yield "[0] twice", [value[0], *value]
        for where, other in altered(value[0]):
            yield f"[0]{where}", [other, *value[1:]]


def turned(data: bytes, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Bytes that are torn at each of some places, turned into others, and prolonged."""
    for place in sorted(chance.sample(range(len(data)), min(len(data), 24))):
        yield f"torn at {place}", data[:place]
        for name, other in (("zeros", b"\0" * 4), ("-1", b"\xff" * 4), ("large", b"\x7f\xff\xff\xff")):
            yield f"{name} at {place}", data[:place] + other + data[place + 4 :]
    yield "prolonged", data + b"\0" * 1_000
    yield "empty", b""
    yield "noise", bytes(chance.randrange(256) for _ in range(max(64, len(data))))


@dataclass(frozen=True, slots=True)
class Hostile:
    """One hostile answer. `ask` asks for it, as the product does; `seconds`: the time that this call has by itself."""

    name: str
    ask: Callable[[], object]
    seconds: float = SECONDS
    slow: bool = False  # it is waited for


class Ended(NamedTuple):
    """How a call ended. `outside`: why it is no answer and no coded sentence; empty if it is one."""

    name: str
    outside: str
    late: bool
    large: bool
    sentence: str = ""


def tried(reason: Reason, hostile: Hostile) -> Ended:
    """Ask, and judge the end. `reason`: what the product says was not read, if the error has no code of its own."""
    before, began = _memory(reset=True), time.monotonic()
    outside = sentence = ""
    try:
        shown = hostile.ask()
        outside = _unfit(str(shown)) if isinstance(shown, str) else ""
    except KMigrateError as error:
        said = reads.unread_because(reason, error)
        sentence, outside = (
            str(said),
            _unfit(str(error)) or ("" if said.code in ENTRIES else f"the code {said.code!r} has no entry"),
        )
    except BaseException as error:  # noqa: BLE001 - what is looked for
        outside = f"{type(error).__name__}: {str(error)[:100]}"
    took, grown = time.monotonic() - began, _memory() - before
    return Ended(hostile.name, outside, took > hostile.seconds + BEYOND, grown > MOST_MEMORY, sentence)


def _unfit(text: str) -> str:
    """Why a terminal or a log should not get a text; empty if it may."""
    wrong = {char for char in text if not char.isprintable() and char not in "\n\t"}
    if wrong:
        return f"it shows {min(wrong)!r}: {text[:100]!r}"
    forged = [line for line in text.split("\n")[1:] if not line.startswith("    ")]
    if forged:
        return f"it forges the line {forged[0][:100]!r}"
    return "" if len(text) < 20_000 else f"it has {len(text)} characters"


def _memory(*, reset: bool = False) -> int:
    """The highest memory of this process since the last reset, in bytes; 0 where the kernel does not say."""
    with contextlib.suppress(OSError):
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


NODE: Final = NodeSpec(
    0, NodeRole.BROKER, "k0", 9092, HostSpec("agent", properties="/etc/kafka/server.properties", connect=("x",))
)
CONTROLLER: Final = replace(NODE, id=3000, role=NodeRole.CONTROLLER)
_KNOWN: Final = {
    "sha256": sha256(b"log.dirs=/d\n").hexdigest(),
    "text": "log.dirs=/d\n",
    "state": "running",
    "NRestarts": "0",
    "id": "start-1",
    "busy": False,
    "result": None,
    "error": None,
    "properties": NODE.hosts.properties,
}


def sample(schema: Mapping[str, Any], name: str = "", defs: Mapping[str, Any] | None = None) -> Any:
    """A good value of a JSON schema, as pydantic makes it of a type."""
    defs = defs or schema.get("$defs", {})
    if name in _KNOWN:
        return _KNOWN[name]
    if "$ref" in schema or "anyOf" in schema:
        return sample(defs[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema["anyOf"][0], name, defs)
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return {each: sample(inner, each, defs) for each, inner in schema["properties"].items()}
    if kind == "object":
        key = {"roles": "broker", "unit": "NRestarts"}.get(name, "/d")
        return (
            {key: sample(schema["additionalProperties"], key, defs)}
            if isinstance(schema.get("additionalProperties"), dict)
            else {}
        )
    if kind == "array":
        return [sample(schema["items"], "", defs)] * schema.get("minItems", 1)
    return {"integer": 5, "number": 1.0, "boolean": True, "null": None}.get(str(kind), "x")


_JOBS: Final = frozenset({"job", "start", "stop", "restart"})


def good_answer(verb: str) -> Any:
    """What an agent may answer to a verb, by its schema."""
    told = sample(answers.ANSWERS[verb].json_schema())
    return {**told, "state": "done"} if verb in _JOBS else told


class ScriptedPipe:
    """A pipe to an agent without a process: `lines` has the answer to a verb, as it stands behind `ok` or as bytes."""

    command = "kmigrate-node serve"

    def __init__(self, lines: Mapping[str, Any]) -> None:
        self._lines, self._out, self._ends = lines, b"", False
        self.asked: list[str] = []

    def is_open(self) -> bool:
        return True

    def write(self, data: bytes, timeout: float) -> None:
        request = json.loads(data)
        self.asked.append(request["verb"])
        told = self._lines.get(request["verb"], b"")
        if isinstance(told, bytes):
            self._out += told.replace(b"$ID", str(request["id"]).encode())
            self._ends = True
            return
        if request["verb"] in _JOBS and isinstance(told, dict) and told.get("id") == _KNOWN["id"]:
            self._job = request.get("job", getattr(self, "_job", ""))
            told = {**told, "id": self._job}
        self._out += json.dumps({"v": 1, "id": request["id"], "ok": told}).encode() + b"\n"

    def read(self, timeout: float) -> bytes:
        given, self._out = self._out[:65_536], self._out[65_536:]
        if not given and not self._ends:
            raise TimeoutError
        return given

    def ending(self, timeout: float = 0.0) -> tuple[int | None, str]:
        return None, ""

    def close(self) -> None:
        """Nothing is open."""


Acts = Callable[[AgentHost], object]
ACTS: Final[Mapping[str, Acts]] = {
    "facts": lambda host: [
        str(host.observe(NODE).process()),
        host.files(NODE),
        host.read_properties(NODE),
        host.kept_as(NODE, "a"),
    ][0],
    "read_log": lambda host: host.log_tail(NODE) and None,
    "leftovers": lambda host: host.leftovers(NODE),
    "topic_ids": lambda host: host.compare_topic_ids(NODE, [TopicMetadata("orders", "A" * 22, {})]),
    "addresses": lambda host: host.find_addresses(NODE),
    "start": lambda host: host.start(CONTROLLER, 7),
    "stop": lambda host: host.stop(CONTROLLER, 7),
    "restart": lambda host: host.restart(NODE, Restart(), 7),
    "job": lambda host: host.stop(NODE, 7),
    "go_on": lambda host: host.restart(NODE, Restart(), 7),
    "install_file": lambda host: host.put_properties(NODE, "a=b\n", 7),
    "write_meta": lambda host: host.put_meta(NODE, "/d", "a=b\n", 7),
    "format": lambda host: host.format_storage(NODE, "c", "3.9", 7),
    "set_aside": lambda host: host.wipe_storage(CONTROLLER, "c", 7),
    "remove": lambda host: host.remove(NODE, [("kept file", "/s/kept-1")], ["kept file"], 7),
    "boot": lambda host: host.stop(CONTROLLER, 7),
}
_FRAMES: Final[tuple[bytes, ...]] = (
    *(b"", b"\n", b"Welcome to kafka0!\n", b"\x1b[2J\n", b"\xff\xfe\n", b"\0" * 100 + b"\n", b"[" * 100_000 + b"\n", b"{\n"),
    *(
        b'{"v": 1, "id": $ID}\n',
        b'{"v": 1, "id": 99, "ok": {}}\n',
        b'{"v": 1, "id": null, "ok": {}}\n',
        b'{"id": $ID, "ok": {}}{}\n',
    ),
    *(b'{"v": 9, "id": $ID, "error": {"code": "protocol", "text": "\\u001b[2J"}}\n', b'{"v": 1, "id": $ID, "ok": {}'),
    *(b'{"id": $ID, "ok": "%s"}\n' % (b"x" * (12 * _MIB)), b'{"id": $ID, "ok": {"a": [%s0]}}\n' % (b"0," * (3 * _MIB))),
    b'{"id": $ID, "ok": {"log": "%s"}}\n' % (b"\\ud83d\\ude00" + b"x" * (7 * _MIB)),
    b'{"id": $ID, "ok": {"a": "%s"}}\n' % ("\U0001f600".encode() + b"x" * (7 * _MIB)),
)
#: Programs in the place of an agent: error output without end, drips, silence, an end of the output alone.
_PROGRAMS: Final = (
    "while True: os.write(2, b'x' * 60_000)",
    "while True: os.write(1, b'x')",
    "while True: os.write(1, b'x'); os.write(2, b'x' * 60_000)",
    "while True: os.write(1, b'x' * 60_000)",
    "os.write(2, b'\\x1b[2J\\nok    forged\\n' * 9); sys.exit(3)",
    "os.close(1); time.sleep(60)",
    "time.sleep(60)",
)


def _of_node() -> Iterator[Hostile]:
    good = {verb: good_answer(verb) for verb in answers.ANSWERS}

    def host(**told: Any) -> AgentHost:
        return AgentHost(Connection("k0", lambda: ScriptedPipe({**good, **told})), "c")

    def hello(told: Any) -> str:
        connection = Connection("k0", lambda: ScriptedPipe({**good, "hello": told}))
        return "\n    ".join(map(str, check_machine(connection, [NODE], "1.1", ClusterSpec("c", "c", "", "", (NODE,), ()))))

    for verb, act in {"hello": None, **ACTS}.items():
        for where, told in altered(good[verb]):
            if not (
                verb in {"job", "start", "stop", "restart"} and "busy=True" in where
            ):  # a job that is under way is waited for
                ask = partial(hello, told) if act is None else partial(_act, act, host, verb, told)
                yield Hostile(f"{verb}{where}", ask, 30.0)
    for verb, act in ACTS.items():
        for bad in _BAD:
            error = json.dumps({"v": 1, "id": None, "error": bad}).encode() + b"\n"
            text = json.dumps({"v": 1, "id": None, "error": {"code": "failed", "text": bad}}).encode() + b"\n"
            yield from (
                Hostile(f"{verb}: error {line[:60]!r}", partial(_act, act, host, verb, line), 30.0) for line in (error, text)
            )
        for line in _FRAMES if verb in {"facts", "read_log"} else ():
            yield Hostile(f"{verb}: {line[:40]!r}, {len(line)} bytes", partial(_act, act, host, verb, line), 30.0)
    for script in _PROGRAMS:
        yield Hostile(f"program: {script}", partial(_program, script), slow=True)


def _act(act: Acts, host: Callable[..., AgentHost], verb: str, told: Any) -> object:
    return act(host(**{verb: told}))


def _program(script: str) -> object:
    argv = (sys.executable, "-u", "-c", f"import os, sys, time\nsys.stdin.readline()\n{script}")
    connection = Connection("k0", lambda: Program(argv, {"PATH": os.environ["PATH"]}))
    with contextlib.closing(connection):
        return connection.ask("read_log", SECONDS)


class Listener:
    """A server on this machine that lets `serve` answer each connection on a thread, until it is closed."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve, self._open = serve, list[socket.socket]()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._socket, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                self._open.append(peer)
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with contextlib.suppress(Exception):  # it answers with what its message has no room for, too
            self._serve(peer)
        with contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)
        peer.close()


def _whole(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (chunk := stream.recv(size - len(data))):
            raise EOFError
        data += chunk
    return data


Sends = Callable[[socket.socket, bytes], None]  # sends a good answer otherwise


def _as_it_is(peer: socket.socket, frame: bytes) -> None:
    peer.sendall(frame)


def _drips(peer: socket.socket, frame: bytes) -> None:
    for place in range(len(frame) + 1_000_000):
        peer.sendall(frame[place : place + 1] or b"\0")
        time.sleep(0.05)


def _stays_silent(peer: socket.socket, frame: bytes) -> None:
    peer.recv(1)


def _hangs_up(peer: socket.socket, frame: bytes) -> None:
    raise EOFError


def _floods(peer: socket.socket, frame: bytes) -> None:
    chunk = b"\0" * 65_536
    while True:
        peer.sendall(chunk)


def _of_length(length: int, peer: socket.socket, frame: bytes) -> None:
    """A frame that says another length, and content without end."""
    peer.sendall(struct.pack(">i", length) + frame[4:])
    _floods(peer, frame)


def _instead(data: bytes, _good: bytes) -> bytes:
    return data


def _said(data: bytes, peer: socket.socket, frame: bytes) -> None:
    peer.sendall(data)


MANNERS: Final[Mapping[str, Sends]] = {
    "drips": _drips,
    "silent": _stays_silent,
    "hangs up": _hangs_up,
    "floods": _floods,
    **{
        f"length {length}": partial(_of_length, length)
        for length in (-1, 0, 1, 5, 300, 2 * _MIB, 15 * _MIB, 17 * _MIB, 2**31 - 1)
    },
    "HTTP": partial(_said, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "TLS": partial(_said, b"\x15\x03\x03\x00\x02\x02\x46"),
    "escapes": partial(_said, b"\x1b[2J" * 100),
}


_OF_BROKERS: Final = (
    *(ApiVersionsResponse, DescribeClusterResponse, DescribeConfigsResponse, DescribeGroupsResponse, DescribeLogDirsResponse),
    *(
        DescribeQuorumResponse,
        FindCoordinatorResponse,
        ListGroupsResponse,
        ListOffsetsResponse,
        ListPartitionReassignmentsResponse,
    ),
    *(MetadataResponse, OffsetFetchResponse),
)
_RESPONSES: Final[Mapping[int, Any]] = {response.API_KEY: response for response in _OF_BROKERS}
WIRE_READS: Final[Mapping[int, tuple[Callable[[Wire], object], ...]]] = {
    2: (lambda node: node.log_offsets([("t", 0)]),),
    3: (
        lambda node: node.metadata(),
        lambda node: node.partitions(),
        lambda node: node.leaders("t"),
        lambda node: node.locations(["t"]),
    ),
    9: (lambda node: wire_groups.fetch_offsets(node, ["g"]), lambda node: wire_groups.GroupsAt(node).describe_hosted(["g"])),
    10: (lambda node: node.find_coordinators(["g"]),),
    15: (
        lambda node: wire_groups.describe_groups_at(node, ["g"]),
        lambda node: wire_groups.GroupsAt(node).describe_hosted(["g"]),
    ),
    16: (lambda node: node.groups(),),
    18: (lambda node: node.api_versions(),),
    32: (lambda node: node.topic_configs("k", ["t"]), lambda node: wire.read_startup_config(node, 1)),
    35: (wire.describe_log_dirs,),
    46: (wire.list_reassignments,),
    55: (lambda node: node.describe_quorum(),),
    60: (lambda node: node.describe_cluster(),),
}
_SIMPLE: Final = {"string": "x", "bool": False, "bytes": b"", "float64": 0.0, "uuid": None, "bitfield": (), "records": None}
Change = tuple[tuple[str, ...], Any]


def _message(struct_of: Any, change: Change | None = None) -> dict[str, Any]:
    """Good values of a message of kafka-python's, one element in each list; one part of it may be another one."""
    made = {}
    for each in struct_of.fields.values():
        inner = change and change[0][:1] == (each.name,) and (change[0][1:], change[1])
        if inner and not inner[0]:
            made[each.name] = inner[1]
        elif each.name == "api_keys":
            made[each.name] = _KEYS_SERVED
        elif each.is_struct_array():
            made[each.name] = [each.data_class(**_message(each, inner or None))]
        elif each.is_array():
            made[each.name] = [_SIMPLE.get(each.type_str.removeprefix("[]"), 0)]
        elif each.is_struct():
            made[each.name] = each.data_class(**_message(each, inner or None))
        else:
            made[each.name] = _SIMPLE.get(each.type_str, 0)
    return made


def _paths(struct_of: Any) -> Iterator[tuple[str, ...]]:
    for each in struct_of.fields.values():
        yield (each.name,)
        if each.is_struct_array() or each.is_struct():
            yield from ((each.name, *path) for path in _paths(each))


def _changes(response: Any) -> Iterator[Change]:
    """Each field of an answer with values that its type can carry and no broker gives, and null."""
    whole = (-1, 1, 2**15 - 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
    for path in _paths(response._struct):
        values: tuple[Any, ...] = (None, "x\x1b[2J\nok", "\u202e", "y" * 30_000, b"\xff" * 50, [], True, *whole)
        yield from ((path, value) for value in values)


_KEYS_SERVED: Any = [
    ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=_RESPONSES[key].max_version) for key in _RESPONSES
]


class Broker:
    """Answers as a broker of one topic and group; `answers`: to a request's api key, otherwise, and how it is sent."""

    def __init__(
        self, key: int = -1, told: Any = None, sends: Sends = _as_it_is, spoils: Callable[[bytes], bytes] = bytes
    ) -> None:
        self._key, self._told, self._sends, self._spoils = key, told, sends, spoils

    def __call__(self, peer: socket.socket) -> None:
        while True:
            (size,) = struct.unpack(">i", _whole(peer, 4))
            key, version, correlation = struct.unpack_from(">hhi", _whole(peer, size))
            told = self._told if key == self._key and self._told is not None else _message(_RESPONSES[key]._struct)
            frame = _encoded(_RESPONSES[key], told, version, correlation)
            if key == self._key:
                frame = frame[:8] + self._spoils(frame[8:])
                self._sends(peer, struct.pack(">i", len(frame) - 4) + frame[4:] if self._sends is _as_it_is else frame)
            else:
                peer.sendall(frame)


def _encoded(response: Any, values: Mapping[str, Any], version: int, correlation: int) -> bytes:
    answer = response(version=version, **values)
    answer.with_header(correlation_id=correlation)
    return bytes(answer.encode(framed=True, header=True))


def with_broker(broker: Broker, read: Callable[[Wire], object], seconds: float = SECONDS) -> object:
    with Listener(broker) as server, contextlib.closing(Wire("127.0.0.1", server.port, timeout=seconds)) as node:
        return read(node)


def _of_broker(chance: random.Random) -> Iterator[Hostile]:
    for key, all_reads in WIRE_READS.items():
        response = _RESPONSES[key]
        name, good = response.__name__, _encoded(response, _message(response._struct), response.max_version, 1)[8:]
        for path, value in _changes(response):
            told = _message(response._struct, (path, value))
            if _can_be_sent(response, told):
                ask = partial(with_broker, Broker(key, told), chance.choice(all_reads))
                yield Hostile(f"{name} {'.'.join(path)}={repr(value)[:20]}", ask)
        for where, data in turned(good, chance):
            ask = partial(with_broker, Broker(key, spoils=partial(_instead, data)), chance.choice(all_reads))
            yield Hostile(f"{name} {where}", ask)
        for manner, sends in MANNERS.items():
            ask = partial(with_broker, Broker(key, sends=sends), chance.choice(all_reads))
            yield Hostile(f"{name} {manner}", ask, slow=sends in {_drips, _stays_silent} or manner.startswith("length"))


def _can_be_sent(response: Any, told: Mapping[str, Any]) -> bool:
    try:
        _encoded(response, told, response.max_version, 1)
    except Exception:  # noqa: BLE001 - kafka-python encodes no such value
        return False
    return True


#: Good contents of the znodes that a view, the topics and the groups are read from.
TREE: Final[Mapping[str, Any]] = {
    "/": None,
    "/cluster/id": {"version": "1", "id": "abcdefghijklmnopqrstuv"},
    "/controller": {"version": 2, "brokerid": 1, "timestamp": "1", "kraftControllerEpoch": -1},
    "/controller_epoch": 5,
    "/migration": {
        "version": 0,
        "kraft_metadata_offset": 5,
        "kraft_controller_id": 3000,
        "kraft_metadata_epoch": 1,
        "kraft_controller_epoch": 1,
    },
    "/_kmigrate/rolled-back": {"0": "zookeeper"},
    "/_kmigrate/registered": [0, 1],
    "/_kmigrate/unflagged": [3000],
    "/_kmigrate/offsets-topic": {"from": [10], "to": 20, "stage": "deleting"},
    "/_kmigrate/partition-counts": {"__consumer_offsets": 50},
    "/brokers/ids/1": {"version": 5, "host": "k1", "port": 9092, "timestamp": "1"},
    "/brokers/topics/t": {
        "version": 3,
        "topic_id": "x",
        "partitions": {"0": [1, 2]},
        "adding_replicas": {},
        "removing_replicas": {},
    },
    "/brokers/topics/t/partitions/0/state": {"controller_epoch": 1, "leader": 1, "version": 1, "leader_epoch": 0, "isr": [1, 2]},
    "/config/topics/t": {"version": 1, "config": {"retention.ms": "5"}},
    "/consumers/g/ids/m": {"version": 1, "subscription": {"t": 1}, "pattern": "static", "timestamp": "1"},
    "/consumers/g/owners/t/0": "m-0",
    "/consumers/g/offsets/t/0": 7,
    "/consumers/g/migration/mode": "kafka",
    "/consumers/g/migration/hold": {"run": "r", "why": "w"},
    "/consumers/g/migration/ids/m": {
        "version": 1,
        "subscription": {"t": 1},
        "pattern": "static",
        "timestamp": "1",
        "migration": {"epoch": 1, "mode": "kafka", "settled": True},
    },
}
_STAT: Final = struct.pack(">qqqqiiiqiiq", 1, 1, 1_000, 1_000, 0, 0, 0, 0, 0, 0, 1)
READS: Final = (
    lambda zk: zk.view(groups=True),
    lambda zk: zk.topics(),
    lambda zk: zk.state_epoch(),
    read_groups,
    lambda zk: list(zk.tree()),
)
_ZK_SECONDS: Final = 2.0 + 2 * 5.0  # for a session, for the sync before a read, and for the read


def content(value: Any) -> bytes:
    return (
        value
        if isinstance(value, bytes)
        else b""
        if value is None
        else (value if isinstance(value, str) else json.dumps(value)).encode()
    )


class ZooKeeperServer:
    """Answers as a server with these znodes; the first answer to a read may be spoiled, or be sent in another manner."""

    def __init__(self, tree: Mapping[str, bytes], sends: Sends = _as_it_is, spoils: Callable[[bytes], bytes] = bytes) -> None:
        self._tree, self._sends, self._spoils = tree, sends, spoils
        self._children: dict[str, set[str]] = {"/": set()}
        for path in tree:
            parts = [part for part in path.split("/") if part]
            for depth, part in enumerate(parts):
                self._children.setdefault("/" + "/".join(parts[:depth]), set()).add(part)
                self._children.setdefault("/" + "/".join(parts[: depth + 1]), set())

    def __call__(self, peer: socket.socket) -> None:
        _whole(peer, struct.unpack(">i", _whole(peer, 4))[0])
        peer.sendall(_framed(struct.pack(">iiqi16s?", 0, 4_000, 7, 16, b"p" * 16, False)))
        while True:
            request = _whole(peer, struct.unpack(">i", _whole(peer, 4))[0])
            xid, kind = struct.unpack_from(">ii", request)
            body = struct.pack(">i1s", 1, b"/") if kind == 9 else self._read(request[8:]) if kind == 22 else b""
            frame = _framed(struct.pack(">iqi", xid, 1, 0) + (self._spoils(body) if kind == 22 else body))
            (self._sends if kind == 22 else _as_it_is)(peer, frame)

    def _read(self, request: bytes) -> bytes:
        answer, at = b"", 0
        while True:
            kind, done, _ = struct.unpack_from(">i?i", request, at)
            if done:
                return answer + struct.pack(">i?i", -1, True, -1)
            (size,) = struct.unpack_from(">i", request, at + 9)
            path = request[at + 13 : at + 13 + size].decode()
            at += 13 + size + 1
            if path not in self._children:
                answer += struct.pack(">i?ii", -1, False, -101, -101)
            elif kind == 4:
                data = self._tree.get(path, b"")
                answer += struct.pack(">i?ii", kind, False, 0, len(data)) + data + _STAT
            else:
                names = [name.encode() for name in sorted(self._children[path])]
                answer += struct.pack(">i?ii", kind, False, 0, len(names))
                answer += b"".join(struct.pack(">i", len(name)) + name for name in names)


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def with_zookeeper(server: ZooKeeperServer, read: Callable[[ZooKeeper], object]) -> object:
    with Listener(server) as listening:
        settings = ZooKeeperSettings(f"127.0.0.1:{listening.port}", session_timeout=4.0, connect_timeout=2.0)
        with ZooKeeper(settings) as zk:
            return read(zk)


def _of_zookeeper(chance: random.Random) -> Iterator[Hostile]:
    tree = {path: content(value) for path, value in TREE.items()}
    for path, value in TREE.items():
        for where, told in altered(value):
            data = (
                tree[path]
                if told is value
                else json.dumps(told).encode()
                if not isinstance(told, str)
                else told.encode(errors="replace")
            )
            ask = partial(with_zookeeper, ZooKeeperServer({**tree, path: data}), chance.choice(READS))
            yield Hostile(f"{path}{where}", ask, _ZK_SECONDS, slow=True)
        for where, data in turned(tree[path] or b"{}", chance):
            ask = partial(with_zookeeper, ZooKeeperServer({**tree, path: data}), chance.choice(READS))
            yield Hostile(f"{path} {where}", ask, _ZK_SECONDS, slow=True)
    for name in (
        "/brokers/ids/x",
        "/brokers/ids/99999999999",
        "/brokers/topics/t/partitions/\u00b2",
        "/consumers/\x1b[2J",
        "/brokers/ids/-1",
    ):
        ask = partial(with_zookeeper, ZooKeeperServer({**tree, name: b"x"}), chance.choice(READS))
        yield Hostile(f"a child {name!r}", ask, _ZK_SECONDS, slow=True)
    good = ZooKeeperServer(tree)._read(_some_reads())
    for where, data in turned(good, chance):
        ask = partial(with_zookeeper, ZooKeeperServer(tree, spoils=partial(_instead, data)), chance.choice(READS))
        yield Hostile(f"answer {where}", ask, _ZK_SECONDS, slow=True)
    for manner, sends in MANNERS.items():
        for number, read in enumerate(READS):
            yield Hostile(
                f"{manner}, read {number}", partial(with_zookeeper, ZooKeeperServer(tree, sends), read), _ZK_SECONDS, slow=True
            )


def _some_reads() -> bytes:
    paths = [(4, "/cluster/id"), (8, "/brokers/ids"), (4, "/controller"), (4, "/none")]
    reads = b"".join(struct.pack(">i?ii", kind, False, -1, len(path)) + path.encode() + b"\0" for kind, path in paths)
    return reads + struct.pack(">i?i", -1, True, -1)


_STATUS: Final = (
    b"200 OK",
    b"202 Accepted",
    b"204 No Content",
    b"301 Moved",
    b"401 No",
    b"404 Not Found",
    b"500 \x1b[2J",
    b"999 ?",
    b"1 ",
    b"x",
)
_HEADS: Final = (
    *(
        b"",
        b"Content-Length: 2",
        b"Content-Length: 99999999999",
        b"Content-Length: -1",
        b"Content-Length: x",
        b"Transfer-Encoding: chunked",
    ),
    *(
        b"Content-Encoding: gzip",
        b"Content-Encoding: x, gzip, br",
        b"Location: file:///etc/passwd",
        b"Location: http://127.0.0.1:1/\x1b[2J",
    ),
    *(
        b"X: " + b"y" * 200_000,
        b"X\x00: y",
        b"Set-Cookie: a=\xff",
        b": x",
        b"X: \x1b]0;owned\x07",
        b"Content-Type: text/plain; charset=\xff",
    ),
)
_BODIES: Final = (b"", b"ok", b"\x1b[2J\nok    forged", b"\xff\xfe\0", b"zz\r\n", b"ffffffff\r\nx", "\u202e<!channel>".encode())


def _http(head: bytes, send: Sends, peer: socket.socket) -> None:
    """One answer to one request, sent in a manner."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (chunk := peer.recv(65_536)):
            raise EOFError
        data += chunk
    send(peer, head)


def _answers_of_http(
    bodies: Iterable[bytes], chance: random.Random
) -> Iterator[tuple[str, Callable[[socket.socket], None], bool]]:
    bodies = list(bodies)
    for status in _STATUS:
        for head in _HEADS:
            data = b"HTTP/1.1 " + status + b"\r\n" + head + b"\r\nConnection: close\r\n\r\n" + chance.choice(bodies)
            yield f"{status!r} {head[:40]!r}", partial(_http, data, _as_it_is), False
    good = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"
    for body in bodies:
        yield f"body {body[:40]!r}, {len(body)} bytes", partial(_http, good % (len(body), body), _as_it_is), False
    for where, data in turned(good % (2, b"ok"), chance):
        yield where, partial(_http, data, _as_it_is), False
    for manner, sends in MANNERS.items():
        for head in (b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 500 No\r\n\r\n", b"HTTP/1.1 200 OK\r\n"):
            yield f"{manner} after {head!r}", partial(_http, head, partial(_then, head, sends)), sends in {_drips, _stays_silent}


def _then(head: bytes, sends: Sends, peer: socket.socket, frame: bytes) -> None:
    peer.sendall(head)
    sends(peer, b"\0" * 100)


def _of_webhook(chance: random.Random) -> Iterator[Hostile]:
    group, instance = GroupSpec("g", (), switch_timeout=SECONDS), InstanceSpec("app0", "k", webhook="deployer")

    def post(serve: Callable[[socket.socket], None]) -> object:
        with Listener(serve) as server:
            hooks = {"deployer": WebhookSettings(f"http://127.0.0.1:{server.port}/")}
            return Instances("prod", {}, hooks).switch(group, instance, "kafka", 7)

    for name, serve, slow in _answers_of_http(_BODIES, chance):
        yield Hostile(name, partial(post, serve), slow=slow)


GAUGES: Final = {"request": {"mbean": "kafka.controller:name=ZkMigrationState"}, "value": {"Value": 1}, "status": 200}
EXPORTED: Final = b'kafka_controller_Value{name="ZkMigrationState",} 1.0\nkafka_controller_Value{name="ZkWriteBehindLag",} 0.0\n'


def _of_metrics(chance: random.Random) -> Iterator[Hostile]:
    numbers = (b"1e999", b"-1", b"NaN", b"9" * 100_000, b"", b"x", b"1.5", b"\x1b[2J", b"0x10", b"1_0")
    bodies = [
        *_BODIES,
        *(json.dumps(told).encode() for _, told in altered(GAUGES)),
        *(EXPORTED.replace(b"1.0", number) for number in numbers),
        *(
            b"zkmigrationstate{" + b'a="' * 100_000,
            b"zkmigrationstate" + b" " * 1_000_000 + b"1",
            b"\n" * 3_900_000,
            b"[" * 100_000,
        ),
        *(b'{"value": [' + b"0," * 1_900_000 + b"0]}", b"zkmigrationstate 1\n" * 200_000, b"#" * 3_000_000, b"x" * (5 * _MIB)),
        *(data for _, data in turned(EXPORTED, chance)),
    ]

    def read(serve: Callable[[socket.socket], None]) -> str:
        with Listener(serve) as server:
            found = metrics.fetch_gauges(f"http://127.0.0.1:{server.port}/", [CONTROLLER], SECONDS)[CONTROLLER.id]
        return f"{found.state} {found.lag} {found.unread}"

    for name, serve, slow in _answers_of_http(bodies, chance):
        yield Hostile(name, partial(read, serve), slow=slow)


def good_event(kind: str) -> dict[str, Any]:
    """An event of a kind, by its fields."""
    hints = get_type_hints(KINDS[kind])
    values = {each.name: _example(hints[each.name]) for each in fields(KINDS[kind]) if each.name != "stamp"}
    return {"v": 2, "kind": kind, "writer": "w", "event_seq": 0, "t_ms": 1, **values}


def _example(hint: Any) -> Any:
    inner = get_args(hint)
    if get_origin(hint) is UnionType:
        return None if type(None) in inner else _example(inner[0])
    if get_origin(hint) is tuple:
        return [_example(inner[0])] if inner[-1] is Ellipsis else [_example(each) for each in inner]
    if hasattr(hint, "_fields"):
        return [_example(each) for each in get_type_hints(hint).values()]
    if hasattr(hint, "__members__"):
        return next(iter(hint)).value
    return {int: 1, str: "x", bool: True, float: 1.0}[hint]


def _link(place: Path) -> None:
    place.symlink_to(place.parent.parent / "airflow.cfg")


def _sparse(size: int, place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(size)
        file.seek(0, os.SEEK_END)
        file.write(b"\n")


def _written(data: bytes, place: Path) -> None:
    place.write_bytes(data)


def _of_events(chance: random.Random, folder: Path) -> Iterator[Hostile]:
    import airflow_provider_kmigrate.audit.sources  # noqa: F401, PLC0415  # pyarrow takes a second, and memory

    lines = [json.dumps(told).encode() for kind in KINDS for _, told in altered(good_event(kind))]
    lines += [data for kind in KINDS for _, data in turned(json.dumps(good_event(kind)).encode(), chance)]
    lines += [
        b"",
        b"\0" * 1_000,
        b"\xff\xfe",
        b"[" * 100_000,
        b"9" * 500_000,
        *(text.encode(errors="replace") for text in (*CONTROLS, *MARKUP)),
    ]
    traps: dict[str, Callable[[Path], None]] = {
        "link": _link,
        "link to a device": lambda place: place.symlink_to("/dev/zero"),
        "pipe": os.mkfifo,
        "folder": lambda place: place.mkdir(),
        "sparse": partial(_sparse, 300 * _MIB),
        "sparse beyond any": partial(_sparse, 5 << 30),
        "lines without end": partial(_written, b"\n" * 2_000_000),
        "one line": partial(_written, b"x" * (40 * _MIB)),
        "torn": partial(_written, b'{"v":2,"kind":"heart'),
        **{f"line {line[:60]!r}": partial(_written, line + b"\n") for line in lines},
    }
    (folder / "airflow.cfg").write_text("[core]\nfernet_key = S3CRET\n")
    for number, (name, put) in enumerate(traps.items()):
        yield Hostile(name, partial(_read_events, folder / str(number), put), 10.0)


def _read_events(folder: Path, put: Callable[[Path], None]) -> object:
    """As an audit reads them: rows, of which the refused ones are shown."""
    from airflow_provider_kmigrate.audit.sources import RowKind  # noqa: PLC0415  # pyarrow takes a second
    from tests.kit.event_rows import read_rows  # noqa: PLC0415

    folder.mkdir()
    put(folder / "w.jsonl")
    rows = read_rows([str(folder)], folder.with_name(f"{folder.name}-store"))
    shown = " ".join(
        f"{row['why']} {row['line']}"[:2_000] for row in rows[:5] if row["row_kind"] in {RowKind.REFUSED, RowKind.VERSION}
    )
    if "S3CRET" in shown:
        raise AssertionError("it shows a line of a file behind a link")
    return shown


PEERS: Final[Mapping[str, Reason]] = {
    "node": Reason("U04", "could not read the process of broker 0", cause=Cause.UNREAD_PROCESS),
    "broker": Reason("R01", "broker 1 does not answer"),
    "zookeeper": Reason("U01", "could not read ZooKeeper"),
    "webhook": Reason("K55", "the webhook of app0 of group g"),
    "metrics": Reason("G41", "the gauges of controller 3000"),
    "events": Reason("L04", "the events"),
}
"""What the product says of a peer that gave no usable answer, if the error says nothing more exact."""


def hostile(peer: str, seed: int, folder: Path) -> list[Hostile]:
    """Every hostile answer of a peer. `folder`: an empty one, for files."""
    chance = random.Random(f"{seed} {peer}")  # noqa: S311 - the same in each run
    made: dict[str, Callable[[], Iterator[Hostile]]] = {
        "node": _of_node,
        "broker": lambda: _of_broker(chance),
        "zookeeper": lambda: _of_zookeeper(chance),
        "webhook": lambda: _of_webhook(chance),
        "metrics": lambda: _of_metrics(chance),
        "events": lambda: _of_events(chance, folder),
    }
    return list(made[peer]())


def run(peer: str, seed: int, most: int = 0, at_once: int = 6) -> list[Ended]:
    """Try the answers of a peer, or `most` of them, drawn by the seed; those that are waited for at once."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as threads:
        chosen = hostile(peer, seed, Path(folder))
        if most and len(chosen) > most:
            chosen = random.Random(seed).sample(chosen, most)  # noqa: S311
        judge = partial(tried, PEERS[peer])
        ended = [judge(each) for each in chosen if not each.slow]
        return ended + list(threads.map(judge, [each for each in chosen if each.slow]))
