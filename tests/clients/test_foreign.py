"""Text that others wrote, against every function that reads it: an answer, or one of our exceptions; never another one.

The contents are hostile ones that were found to end a watch, a scan of all groups or an audit, and their random relatives.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kmigrate.clients import fence, znodes
from airflow_provider_kmigrate.clients import zookeeper as zk
from airflow_provider_kmigrate.core.events import lines as event_lines
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.events.model import LogExtent, Stamp
from airflow_provider_kmigrate.core.member import registration
from airflow_provider_kmigrate.core.monitoring import journal_lines
from airflow_provider_kmigrate.core.shared import foreign_json
from airflow_provider_kmigrate.core.spark import hold
from airflow_provider_kmigrate.exceptions import KMigrateError
from airflow_provider_kmigrate.observe import stored
from tests.clients.group_tree import GroupTree

DEEP = 100_000
_EXTENT = json.loads(encode(LogExtent(Stamp("w", 0, 1), "t", 0, 0, 5)))
_COMMIT_AT = {
    "v": 1,
    "kind": "ownership",
    "writer": "w",
    "event_seq": 0,
    "t_ms": 1,
    "group": "g",
    "member": "m",
    "change": "acquired",
}


def _extent(**fields: object) -> bytes:
    return json.dumps(_EXTENT | fields).encode()


CONTENTS: dict[str, bytes] = {
    "deep lists": b"[" * DEEP,
    "deep lists, closed": b"[" * DEEP + b"]" * DEEP,
    "nested 900 times": b'{"partitions":{"0":' + b"[" * 900 + b"]" * 900 + b"}}",
    "deep objects": b'{"version":1,"partitions":' * 30_000,
    "500,000 digits": b"9" * 500_000,
    "4,000 digits": b"9" * 4_000,
    "400 digits in a text": b'{"timestamp":"' + b"9" * 400 + b'","issueTimestamp":"' + b"9" * 400 + b'"}',
    "invalid UTF-8": b"\xff\xfe\x00",
    "NUL": b"\0" * 1_000,
    "empty": b"",
    "null": b"null",
    "list": b"[1]",
    "number": b"1",
    "NaN": b"NaN",
    "infinite": b'{"timestamp": 1e999, "brokerid": 1e999, "id": NaN, "block_end": 1e999, "at": 1e999}',
    "wrong types": b'{"brokerid":"1","partitions":[1],"config":[1],"acls":{"a":1},"id":5,"leader":null,"isr":"x","timestamp":[],'
    b'"pattern":5,"subscription":[],"migration":[],"owner":[],"renewers":5,"run":{},"at":"x"}',
    "huge numbers": b'{"timestamp":' + b"1" * 4000 + b',"brokerid":' + b"1" * 4000 + b',"id":"x"}',
    "partition -5": b'{"version":3,"topic_id":5,"partitions":{"-5":[1,-7],"1_0":[99999999999999999999]}}',
    "lone surrogates": b'{"version":1,"subscription":{"t\\ud800":1},"pattern":"static\\ud800","timestamp":"1","id":"\\udfff",'
    b'"migration":{"epoch":1,"mode":"\\uD800","settled":true},"owner":"\\ud800","since":"","host":"","run":"\\ud800","why":""}',
    "true as a number": b'{"migration":{"epoch":true,"mode":"kafka","settled":true},"version":1,"subscription":{"t":1},"pattern":"static"}',
    "time 10^30": _extent(t_ms=10**30),
    "time after the year 9999": _extent(t_ms=10**15),
    "partition 2^40": _extent(partition=2**40),
    "sequence 10^20": _extent(event_seq=10**20),
    "end 10^30": _extent(end=10**30),
    "writer is a lone surrogate": _extent(writer="\ud800"),
    "partition 2^40 in a row": json.dumps(_COMMIT_AT | {"partitions": [["t", 2**40]]}).encode(),
}


def _text(read: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: read(data.decode(errors="replace"))


def _event(line: str) -> object:
    try:
        return event_lines.decode(line)
    except event_lines.BadEvent as error:
        return str(error)


def _understood(parse: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    return lambda data: stored._parse_znode("/p", parse, data)


def _acls(data: bytes) -> list[object]:
    reads = zk._TreeReads(GroupTree({"/kafka-acl/Topic/n": data}))  # type: ignore[arg-type]
    return [*reads.read_topic_acls(), *reads.malformed]


PARSERS: dict[str, Callable[[bytes], Any]] = {
    "/cluster/id": znodes.parse_cluster_id,
    "/controller": lambda data: znodes.parse_controller(data, ephemeral=True),
    "/controller_epoch": znodes.parse_controller_epoch,
    "/migration": lambda data: znodes.parse_migration(data, 0),
    "topic": lambda data: znodes.parse_topic("t", data),
    "partition state": lambda data: znodes.parse_partition_state("/p", data),
    "state's epoch": lambda data: znodes.parse_state_epoch("/p", data),
    "configs": lambda data: znodes.parse_configs("/p", data),
    "rolled back": znodes.parse_rolled_back,
    "node ids": lambda data: znodes.parse_node_ids("/p", data),
    "ACL": _acls,
    "changed entity": zk._describe_entity,
    "registration": registration.read_registration,
    "member's progress": registration.read_progress,
    "offset": registration.read_offset,
    "mode": registration.parse_mode,
    "group's hold": registration.read_hold,
    "lock's owner": fence._parse_owner,
    "stored ACLs": _understood(stored._parse_acls),
    "stored token": _understood(stored._parse_token_znode),
    "stored config": _understood(stored._parse_config),
    "event": _text(_event),
    "journal": _text(lambda line: journal_lines.parse_lines([line])),
    "held record": _text(hold.read_held),
    "query's id": _text(hold.query_id),
    "batch's offsets": _text(lambda text: hold.batch_offsets(f"v1\n{{}}\n{text}")),
}


def _shown(parse: Callable[[bytes], Any], data: bytes) -> str:
    try:
        return str(parse(data))
    except KMigrateError as error:
        return str(error)


def _surrogates(text: str) -> list[str]:
    return [character for character in text if "\ud800" <= character <= "\udfff"]


@pytest.mark.parametrize("parser", PARSERS)
def test_hostile_content_never_escapes(parser: str) -> None:
    for content, data in CONTENTS.items():
        try:
            shown = _shown(PARSERS[parser], data)
        except Exception as error:
            error.add_note(content)
            raise
        assert not _surrogates(shown), f"{content}: it would fail later, in a log or on a page"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=4) | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["v", "kind", "version", "partitions", "acls", "config", "id", "0", "-1", "at"]), inner, max_size=5
        )
    ),
    max_leaves=10,
)


@pytest.mark.slow
@given(_JSON)
def test_random_json_never_escapes(value: object) -> None:
    data = json.dumps(value).encode()
    for parse in PARSERS.values():
        assert not _surrogates(_shown(parse, data))


@given(_JSON)
def test_just_plain_json_is_read_and_as_it_is(value: object) -> None:
    text = json.dumps(value)
    try:
        found = foreign_json.read_json(text)
    except ValueError:
        assert not _is_plain(value)
    else:
        assert found == json.loads(text)
        assert _is_plain(value)


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    return not isinstance(value, float | int) or abs(value) < 2**63 or (isinstance(value, float) and math.isfinite(value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * DEEP, "nested too deep"),
        ("[" * 600 + "]" * 600, "nested too deep"),
        ("9" * 5_000, "5000 digits"),
        ("1e999", "too large"),
        ("NaN", "no number of JSON"),
        ("1 2", "more text follows"),
        ('"\\ud800"', "surrogates not allowed"),
    ],
)
def test_the_reason_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        foreign_json.read_json(text)


@pytest.mark.parametrize("text", ["[[[]]]", "[1, 2, 3]", '{"a": {}, "b": 1}', '["[[,"]'])
def test_more_values_than_asked_for_are_refused_before_they_are_read(text: str) -> None:
    assert foreign_json.read_json(text, most=4) == json.loads(text)
    with pytest.raises(ValueError, match="more than 2 values"):
        foreign_json.read_json(text, most=2)


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert foreign_json.read_json('"\\ud83d\\ude00"') == "😀"


@pytest.mark.parametrize("content", [name for name in CONTENTS if _extent()[:20] in CONTENTS[name] or "row" in name])
def test_an_absurd_event_is_one_refused_row(content: str) -> None:
    with pytest.raises(event_lines.BadEvent):
        event_lines.decode(CONTENTS[content].decode())


def test_the_plain_event_is_read() -> None:
    assert event_lines.decode(_extent().decode()).stamp.t_ms == 1
