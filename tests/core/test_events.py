"""The audit's vocabulary as lines: what goes out comes back, and whatever is no event is named."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_provider_kmigrate.core.events import model as events
from airflow_provider_kmigrate.core.events.lines import KINDS, BadEvent, UnknownVersion, decode, encode
from airflow_provider_kmigrate.core.events.model import Ack, DeliveryRun, Event, Expect, SlowRecord, Stamp, Start, WriterRole

RUN = DeliveryRun(
    Stamp("w", 3, 1_000),
    "g",
    "m",
    2,
    "t",
    1,
    5,
    9,
    5,
    0,
    990,
    999,
    980,
    3,
    producer="p",
    producer_seq=4,
    latency=((1, 2), (3, 3)),
)
RUN_LINE = (
    '{"v":2,"kind":"delivery","writer":"w","event_seq":3,"t_ms":1000,"group":"g","member":"m","generation":2,"topic":"t",'
    '"partition":1,"first":5,"last":9,"count":5,"seq":0,"t_first_ms":990,"t_last_ms":999,"t_sent_ms":980,"gap_ms":3,'
    '"producer":"p","producer_seq":4,"latency":[[1,2],[3,3]]}'
)


def changed(**values: Any) -> str:
    return json.dumps(json.loads(RUN_LINE) | values)


def without(name: str) -> str:
    return json.dumps({key: value for key, value in json.loads(RUN_LINE).items() if key != name})


def test_a_line_stays_what_it_is() -> None:
    """Files outlive releases: version 1 of an event reads and writes exactly this."""
    assert encode(RUN) == RUN_LINE
    assert decode(RUN_LINE) == RUN


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", BadEvent),
        ("{", BadEvent),
        (RUN_LINE[:-9], BadEvent),
        ("[1]", BadEvent),
        ("null", BadEvent),
        ('{"name":"startup_complete","timestamp":1}', BadEvent),
        (changed(kind="telepathy"), BadEvent),
        (changed(kind=["delivery"]), BadEvent),
        (changed(v=1), UnknownVersion),
        (changed(v="2"), UnknownVersion),
        (changed(v=True), UnknownVersion),
        (without("v"), BadEvent),
        (without("topic"), BadEvent),
        (without("writer"), BadEvent),
        (changed(topik="t"), BadEvent),
        (changed(partition="1"), BadEvent),
        (changed(partition=True), BadEvent),
        (changed(count=5.0), BadEvent),
        (changed(latency=[[1, 2, 3]]), BadEvent),
        (changed(latency=[[1]]), BadEvent),
        (changed(latency={"1": 2}), BadEvent),
        (changed(first=10), BadEvent),
        (changed(count=0), BadEvent),
        (changed(event_seq=-1), BadEvent),
        (changed(producer=None), BadEvent),
        (changed(count=4), BadEvent),
    ],
)
def test_what_is_no_event_is_refused(line: str, error: type[BadEvent]) -> None:
    with pytest.raises(BadEvent) as caught:
        decode(line)
    assert type(caught.value) is error


def test_a_role_that_is_none_is_named_for_what_it_is() -> None:
    with pytest.raises(BadEvent, match="a str is no WriterRole"):
        decode(json.dumps(json.loads(encode(Start(RUN.stamp, WriterRole.CONTROL))) | {"role": "spy"}))


def _why_not(line: str) -> str:
    try:
        decode(line)
    except BadEvent as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_why_a_line_is_no_event_quotes_nothing_of_it(kind: str) -> None:
    """It may be a line of a file with secrets."""
    names = ["v", "kind", *Stamp._fields, *(item.name for item in fields(KINDS[kind]) if item.name != "stamp")]
    values: list[Any] = ["S3CRET", ["S3CRET"], {"S3CRET": "S3CRET"}, 5315953159, 5315953159e9, [["S3CRET", "S3CRET"]]]
    lines = [json.dumps({"v": 2, "kind": kind, **dict.fromkeys(names[2:], 1), name: value}) for name in names for value in values]
    lines += [json.dumps({"v": 2, "kind": kind, **dict.fromkeys(names[2:], 1), "S3CRET": 1}), "S3CRET", '"S3CRET"', "53159" * 30]
    told = [text.replace("schema version 5315953159", "") for text in filter(None, map(_why_not, lines))]
    assert len(told) > len(lines) / 2
    assert not [text for text in told if "S3CRET" in text or "53159" in text]


@pytest.mark.parametrize(
    ("changes", "fine"),
    [
        ({}, True),
        ({"first": -1, "last": -1}, True),
        ({"first": -1, "last": 4}, False),
        ({"seq_last": 5}, False),
        ({"last": 11}, False),
        ({"count": 0, "seq_last": 0, "last": 9}, False),
    ],
)
def test_an_ack_is_consecutive_or_refused(changes: dict[str, int], fine: bool) -> None:
    base = {"producer": "p", "topic": "t", "partition": 0, "first": 10, "last": 12, "count": 3, "seq_first": 1, "seq_last": 3}
    ack = Ack(Stamp("p", 0, 1), **base | changes, t_sent_ms=None, t_acked_ms=1)  # type: ignore[arg-type]
    assert (ack.flaw() is None) is fine


def from_hints(hints: Mapping[str, Any]) -> dict[str, st.SearchStrategy[Any]]:
    return {name: st.from_type(hint) for name, hint in hints.items()}


def any_event() -> st.SearchStrategy[Event]:
    """Every kind with any values of its fields' types; those that contradict themselves are left out."""
    kinds = [st.builds(cls, **from_hints(get_type_hints(cls))) for cls in KINDS.values()]
    return st.one_of(kinds).filter(lambda event: event.flaw() is None)


@settings(max_examples=150, deadline=None)
@given(any_event())
def test_every_event_survives_the_line(event: Event) -> None:
    line = encode(event)
    assume(not re.search("[0-9]{10}", line))  # tests/clients/test_foreign.py has the numbers that are too large
    assert "\n" not in line
    assert decode(line) == event


@given(st.text(max_size=40) | st.recursive(st.none() | st.integers(), lambda inner: st.lists(inner, max_size=3)).map(json.dumps))
def test_no_line_crashes_the_reader(line: str) -> None:
    with pytest.raises(BadEvent):
        decode(line)


def test_rows_come_back_as_their_types() -> None:
    line = '{"v":2,"kind":"slow","writer":"p","event_seq":0,"t_ms":1,"producer":"p","threshold_us":100000,"records":[["t",0,7,8,1,200000]]}'
    event = decode(line)
    assert getattr(event, "records", None) == (SlowRecord("t", 0, 7, 8, 1, 200_000),)


def test_every_field_of_every_event_is_read() -> None:
    """A field type that the reader does not know would fail at import; a kind left out of the table would not."""
    assert {cls.__name__ for cls in KINDS.values()} == {cls.__name__ for cls in Event.__subclasses__()}
    assert all(fields(cls)[0].name == "stamp" for cls in KINDS.values())


def test_events_are_values() -> None:
    assert Expect(Stamp("w", 0, 0), ("a",)) == Expect(Stamp("w", 0, 0), ("a",))
    with pytest.raises(AttributeError):
        RUN.first = 4  # type: ignore[misc]


@given(st.integers(0, 10**12))
def test_a_bucket_is_within_its_error(value: int) -> None:
    assert abs(events.bucket_middle(events.latency_bucket(value)) - value) <= 0.0079 * value


@given(st.integers(-(10**6), 10**9))
def test_buckets_are_ordered_and_dense(value: int) -> None:
    assert 0 <= events.latency_bucket(value + 1) - events.latency_bucket(value) <= 1


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=50), st.sampled_from([0.5, 0.99, 0.999, 1.0]))
def test_quantiles_of_values_and_of_buckets_agree(values: list[int], share: float) -> None:
    exact = events.counted_quantile([(value, 1) for value in sorted(values)], share)
    rough = events.bucket_quantile(
        events.merge_histograms([events.build_histogram(values[:7]), events.build_histogram(values[7:])]), share
    )
    assert exact is not None
    assert rough is not None
    assert abs(rough - exact) <= 0.0079 * exact


def test_nearest_rank_is_exact_at_a_thousand() -> None:
    assert events.counted_quantile([(value, 1) for value in range(1, 1001)], 0.999) == 999
    assert events.counted_quantile([(value, 1) for value in range(1, 1002)], 0.999) == 1000
    assert events.counted_quantile([], 0.5) is None
    assert events.bucket_quantile((), 0.5) is None
