"""The store of event lines: decoded as the strict decoder does, each line once, whatever happens to the files and to the audit in between."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the audit has its own environment")
pytest.importorskip("pyspark", reason="the audit has its own environment")

import pyarrow.parquet as pq

from airflow_provider_kmigrate.audit import event_store
from airflow_provider_kmigrate.audit.event_store import EventStore
from airflow_provider_kmigrate.audit.job import audit_sources
from airflow_provider_kmigrate.audit.line_tables import decode_batch
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.audit.sources import RowKind, Source, rows_of_event, rows_of_line, table_of
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.clients.foreign_files import read_line_blocks
from airflow_provider_kmigrate.core.audit.verdict import AuditOutcome, Level
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.events.model import (
    Ack,
    Commit,
    DeliveryRun,
    Event,
    Heartbeat,
    Latencies,
    LogExtent,
    Ownership,
    OwnershipChange,
    Position,
    Stamp,
    TopicPartition,
)
from airflow_provider_kmigrate.core.ledger import balance
from tests.audit.random_histories import history
from tests.audit.stored_events import load_events
from tests.core.histories import calm
from tests.kit.event_rows import load_rows, read_rows

_STAMP = Stamp("w", 3, 1_795_000_000_000)
_EVERY: tuple[Event, ...] = (
    DeliveryRun(_STAMP, "g", "m", 4, "t", 0, 5, 9, 5, 0, 10, 20, 8, 3, "p", 17, ((3, 4), (80, 1))),
    DeliveryRun(_STAMP, "grüße", "m", None, "t", 0, 5, 9, 2, 0, 10, 20),
    DeliveryRun(_STAMP, 'g"', "m\\n", 4, "t", 0, 5, 5, 1, 0, 10, 20),
    Ack(_STAMP, "p", "t", 1, 5, 9, 5, 17, 21, 3, 4, 5_000, ((600, 5),)),
    Ack(_STAMP, "p", "t", 1, -1, -1, 5, 17, 21, None, 4),
    Heartbeat(_STAMP, 17),
    Latencies(_STAMP, "p", 5, (1, 2, 3)),
    Latencies(_STAMP, "p", 5, ()),
    Commit(_STAMP, "g", "m", 3, (Position("t", 0, 5), Position("u.v-w_x", 7, 0)), ok=True),
    Commit(_STAMP, "g", "m", None, (Position("no topic", 0, 5),), ok=True),
    Commit(_STAMP, "g", "m", 3, (Position("t", 0, 5),), ok=False, error="rebalance"),
    Commit(_STAMP, "g", "m", 3, (), ok=True),
    Commit(_STAMP, "g", "m", 3, (Position("t", 0, 5),), ok=True, error="none"),
)
_VALUES: tuple[object, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1.0,
        1.5,
        2**31,
        2**31 - 1,
        -(2**31) - 1,
        2**53,
        2**53 - 1,
        2**63 - 1,
        -(2**63),
        2**64,
        10**30,
        253_402_300_800_000,
    ),
    *(
        "",
        "5",
        "é",
        "\ud800",
        "\x00",
        "a\nb",
        "\u2028",
        "/",
        "\\",
        [],
        [[]],
        [[1, 2]],
        [[1, 2, 3]],
        [["t", 0, 5]],
        [["t", 0.0, 5]],
        [["t", "0", 5]],
    ),
    *(
        [["t", 0, None]],
        [["t", 2**31, 5]],
        [["t", 0, 2**60]],
        [[None, 0, 5]],
        [None],
        [1, None],
        {},
        {"a": 1},
        [["t", 0, 5], ["u", 1]],
        [[-1, 2]],
    ),
)


def _changed(rng: random.Random) -> list[bytes]:
    """Lines that only nearly are events."""
    found: list[bytes] = []
    for event in _EVERY:
        line = encode(event)
        value = json.loads(line)
        compact = {"separators": (",", ":")}
        found += [line.encode(), line.encode() + b"\r", b" " + line.encode(), json.dumps(value).encode()]
        found.append(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
        for name in value:
            found.append(json.dumps({key: item for key, item in value.items() if key != name}, **compact).encode())  # type: ignore[arg-type]
            found += [json.dumps(value | {name: other}, **compact).encode() for other in _VALUES]  # type: ignore[arg-type]
            found.append(line.replace(f'"{name}":', f'"{name}":1,"{name}":', 1).encode())
        found.append(json.dumps(value | {"more": 1}, **compact).encode())  # type: ignore[arg-type]
        for _ in range(60):
            data = bytearray(line.encode())
            data[rng.randrange(len(data))] = rng.choice(b'0129-.,:[]{}"\\ aetx\xff\x00')
            found.append(bytes(data))
    return [line.replace(b"\n", b" ") for line in found]


_PLAIN = (DeliveryRun, Ack, Heartbeat)


def is_plain(event: Event) -> bool:
    """Whether the quick decoder must take it: without escapes, and with columns for all of it."""
    return encode(event).isascii() and "\\" not in encode(event)


def bag(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    """Rows in any order."""
    return Counter(repr(sorted(row.items())) for row in rows)


def strict(line: bytes) -> list[dict[str, Any]]:
    """The rows that the decoder of one line makes of it."""
    return list(table_of(rows_of_line(line.decode(errors="replace"))).to_pylist())


def test_the_quick_decoder_says_what_the_strict_one_says_or_nothing() -> None:
    decoded = Counter[bool]()
    for line in _changed(random.Random(7)):  # noqa: S311  # for a test
        batch = decode_batch([line])
        decoded[batch is not None] += 1
        if batch is not None:
            assert batch.table.to_pylist() == strict(line), line
    assert min(decoded[True], decoded[False]) > 300


def test_lines_that_are_events_only_together_are_none() -> None:
    """Pieces of objects, of arrays and of several objects: all pairs and triples of them."""
    heartbeat, commit = encode(_EVERY[5]).encode(), encode(_EVERY[8]).encode()
    begin, end = commit.split(b",[")
    pieces = [
        *(
            heartbeat,
            commit,
            b"",
            b"{}",
            heartbeat + b"," + heartbeat,
            heartbeat + heartbeat,
            begin,
            b"[" + end,
            heartbeat[:-1],
            b"}",
        ),
        *(
            b'{"v":2,"offsets":[{"a":1}',
            b'{"b":2}],"kind":"commit"}',
            b'{"v":2,"x":[' + heartbeat,
            heartbeat + b"]}",
            b'{"":' + heartbeat,
        ),
    ]
    for first in pieces:
        for second in pieces:
            for third in (None, heartbeat, b"{}", heartbeat + b"," + heartbeat):
                lines = [line for line in (first, second, third) if line is not None]
                batch = decode_batch(lines)
                if batch is not None:
                    assert bag(batch.table.to_pylist()) == bag(row for line in lines for row in strict(line)), lines


@pytest.mark.parametrize("event", [event for event in _EVERY if is_plain(event)], ids=repr)
def test_events_as_they_are_written_are_decoded_quickly(event: Event) -> None:
    batch = decode_batch([encode(event).encode()] * 3)
    assert batch is not None
    assert batch.table.to_pylist() == list(table_of(rows_of_event(event)).to_pylist()) * 3


def test_a_batch_has_all_kinds_and_its_changes_of_ownership_apart() -> None:
    change = Ownership(_STAMP, "g", "m", 3, OwnershipChange.ACQUIRED, (TopicPartition("t", 0),), 17)
    events = [event for event in _EVERY if is_plain(event)]
    batch = decode_batch([encode(event).encode() for event in (*events, change)])
    assert batch is not None
    assert batch.owned == [change]
    assert bag(batch.table.to_pylist()) == bag(table_of(row for event in events for row in rows_of_event(event)).to_pylist())


def write_events(folder: Path, events: Iterable[Event], share: float = 1.0) -> None:
    """A file a writer; of each the first bytes."""
    texts: dict[str, bytes] = {}
    for event in events:
        texts[event.stamp.writer] = texts.get(event.stamp.writer, b"") + encode(event).encode() + b"\n"
    folder.mkdir(exist_ok=True)
    for writer, data in texts.items():
        (folder / f"{writer}.jsonl").write_bytes(data[: round(share * len(data))])


@pytest.mark.parametrize("seed", range(4))
def test_a_history_in_pieces_is_the_same_as_in_one(duck: Engine, tmp_path: Path, seed: int) -> None:
    """Each audit takes in what was written since, also within a line, and finds what the ledger finds in all of it."""
    events, folder, store = history(random.Random(seed)), tmp_path / "events", tmp_path / "store"  # noqa: S311  # for a test
    source = Source(Level.CONSUMER, lines=(str(folder),), store=str(store))
    for share in (0.3, 0.7, 1.0):
        inodes = {path.name: path.stat().st_ino for path in folder.glob("*")} if folder.exists() else {}
        write_events(folder, events, share)
        assert all((folder / name).stat().st_ino == inode for name, inode in inodes.items()), "as an application appends"
        facts = audit_sources([source], AuditPolicy(), duck).sources[0].facts
    assert facts == audit_sources([replace(source, store="")], AuditPolicy(), duck).sources[0].facts
    assert bag(read_rows([str(folder)], store)) == bag(read_rows([str(folder)], tmp_path / "other"))
    assert len(list(store.glob("*.parquet"))) == 3, "a part for each reading"


class Killed(BaseException):
    """Ends an audit where it stands."""


@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize(
    "place", [(event_store._PartWriter, "_write_group"), (event_store._PartWriter, "_close_part"), (atomic, "replace")]
)
def test_an_audit_that_is_killed_anywhere_repeats_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str], call: int
) -> None:
    folder, store = tmp_path / "events", tmp_path / "store"
    write_events(folder, calm().end(), 0.5)
    read_rows([str(folder)], store)
    write_events(folder, calm().end())
    calls = iter(range(1, 100))
    real = getattr(*place)

    def end_at(*arguments: object, **more: object) -> object:
        if next(calls) == call:
            raise Killed
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(*place, end_at)
        try:
            read_rows([str(folder)], store)
        except Killed:
            assert next(calls) == call + 1
    assert bag(read_rows([str(folder)], store)) == bag(read_rows([str(folder)], tmp_path / "other"))


def test_parts_are_bounded_and_small_ones_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, store = tmp_path / "events", tmp_path / "store"
    events = list(calm().end())
    monkeypatch.setattr(event_store, "_GROUP_ROWS", 5)
    monkeypatch.setattr(event_store, "_PART_ROWS", 20)
    monkeypatch.setattr(event_store, "_MERGED_PARTS", 3)
    write_events(folder, events)
    for number in range(10):
        (folder / f"more{number}.jsonl").write_text(f"{encode(LogExtent(Stamp(f'w{number}', 0, 5), 't', 0, 0, 5))}\n")
        rows = read_rows([str(folder)], store)
    assert bag(rows) == bag(read_rows([str(folder)], tmp_path / "other"))
    state = json.loads((store / "state.json").read_text())
    assert len(state["parts"]) <= 7
    assert len(list(store.glob("*.parquet"))) > len(state["parts"]), "another audit may still read what was merged"
    os.utime(store / "00000001.parquet", (0, time.time() - 90_000))
    if "00000001.parquet" not in state["parts"]:
        read_rows([str(folder)], store)
        assert not (store / "00000001.parquet").exists()


def test_an_old_part_stays_for_a_day_after_it_was_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of an audit that began before reads it."""
    folder, store = tmp_path / "events", tmp_path / "store"
    write_events(folder, calm().end())
    read_rows([str(folder)], store)
    (old,) = store.glob("*.parquet")
    os.utime(old, (0, time.time() - 90_000))
    (folder / "more.jsonl").write_text(f"{encode(LogExtent(Stamp('w', 0, 5), 't', 0, 0, 5))}\n")
    monkeypatch.setattr(event_store, "_MERGED_PARTS", 0)
    read_rows([str(folder)], store)
    assert old.name not in json.loads((store / "state.json").read_text())["parts"]
    assert old.exists()


def test_after_a_verdict_small_parts_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as many as before a verdict, which waits for it."""
    folder, store = tmp_path / "events", EventStore(tmp_path / "store")
    monkeypatch.setattr(event_store, "_MERGED_PARTS", 3)
    for number in range(5):
        write_events(folder, [LogExtent(Stamp(f"w{number}", 0, 5), "t", 0, 0, 5)])
        stored = store.read([str(folder)])
    assert len(stored.parts) == 5
    assert store.keep_settled(stored.parts, b"{}", table_of([]))
    assert all(Path(part).exists() for part in stored.parts), "the report still reads them"
    after = store.read([str(folder)])
    assert len(after.parts) == 1
    assert after.settled is not None
    assert after.settled.parts == after.parts


def test_a_kind_of_rows_has_row_groups_of_its_own(tmp_path: Path) -> None:
    folder, store = tmp_path / "events", tmp_path / "store"
    write_events(folder, calm().end())
    read_rows([str(folder)], store)
    [part] = store.glob("*.parquet")
    file = pq.ParquetFile(part)
    kinds = [set(file.read_row_group(number)["row_kind"].to_pylist()) for number in range(file.num_row_groups)]
    assert all(len(kind) == 1 for kind in kinds)
    assert len(kinds) > 2


def change_content(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data.replace(b"first", b"other"))


def change_nothing_but_the_inode(file: Path) -> None:
    other = file.with_suffix(".new")
    other.write_bytes(file.read_bytes().replace(b"first", b"other"))
    other.replace(file)


def truncate(file: Path) -> None:
    os.truncate(file, 0)


def remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("change", [change_content, change_nothing_but_the_inode, truncate, remove])
def test_the_store_has_what_the_files_have(tmp_path: Path, change: Any) -> None:
    folder, store = tmp_path / "events", tmp_path / "store"
    folder.mkdir()
    (folder / "w.jsonl").write_text(encode(LogExtent(Stamp("first", 0, 5), "t", 0, 0, 5)) + "\n")
    (folder / "x.jsonl").write_text(encode(LogExtent(Stamp("x", 0, 5), "t", 0, 0, 5)) + "\n")
    assert {row["writer"] for row in read_rows([str(folder)], store)} == {"first", "x"}
    change(folder / "w.jsonl")
    assert bag(read_rows([str(folder)], store)) == bag(read_rows([str(folder)], tmp_path / "other"))
    assert "first" not in {row["writer"] for row in read_rows([str(folder)], store)}


def cut_part(store: Path) -> None:
    [part] = store.glob("*.parquet")
    os.truncate(part, 100)


def remove_part(store: Path) -> None:
    [part] = store.glob("*.parquet")
    part.unlink()


def harm_part(at: int) -> Callable[[Path], None]:
    """Other bytes at a place, from the end on; the size stays."""

    def harm(store: Path) -> None:
        [part] = store.glob("*.parquet")
        content = bytearray(part.read_bytes())
        content[at : at + 4 or None] = b"\xff" * 4
        part.write_bytes(content)

    return harm


def change_state(**changed: Any) -> Callable[[Path], None]:
    """Values of another type in `state.json`, in each file's progress too."""

    def harm(store: Path) -> None:
        state = json.loads((store / "state.json").read_text())
        files = {
            name: known | {key: changed[key] for key in known.keys() & changed.keys()} for name, known in state["files"].items()
        }
        (store / "state.json").write_text(
            json.dumps(state | {key: changed[key] for key in state.keys() & changed.keys()} | {"files": files})
        )

    return harm


_OTHER_KEPT: tuple[object, ...] = (7, [], {"parts": 7}, {"parts": [7]}, {"rows": []})
_OTHER_PROGRESS: tuple[object, ...] = (7.5, "x", [7], {"a": "x"})
_STATES = (
    "",
    "[]",
    "{}x",
    '{"version": 99}',
    '{"files": {"a": 1}}',
    '{"files": []}',
    '{"more": 1}',
    '{"parts": {"../x": 1}}',
    "[" * 100_000,
    "\udcff",
)


@pytest.mark.parametrize(
    "harm",
    [
        cut_part,
        remove_part,
        *map(harm_part, (-4, -8, -200, -1_000)),
        *(change_state(**{name: value}) for name in ("settled", "figures") for value in _OTHER_KEPT),
        *(change_state(**{name: value}) for name in ("owned", "refused", "read", "inode") for value in _OTHER_PROGRESS),
        *(lambda store, text=text: (store / "state.json").write_bytes(os.fsencode(text)) for text in _STATES),
    ],
)
def test_a_damaged_store_is_filled_anew_and_nothing_counts_twice(tmp_path: Path, harm: Any) -> None:
    folder, store = tmp_path / "events", tmp_path / "store"
    write_events(folder, calm().end())
    before = read_rows([str(folder)], store)
    harm(store)
    assert bag(read_rows([str(folder)], store)) == bag(before)


def test_what_is_not_read_is_said_as_long_as_it_is_there(tmp_path: Path) -> None:
    folder, store = tmp_path / "events", tmp_path / "store"
    folder.mkdir()
    (folder / "w.jsonl.1").write_text("")
    (folder / "x.jsonl").symlink_to("/etc/passwd")
    for _ in range(2):
        assert [row["row_kind"] for row in read_rows([str(folder)], store)] == [RowKind.REFUSED] * 2
    (folder / "w.jsonl.1").unlink()
    (folder / "x.jsonl").unlink()
    assert read_rows([str(folder)], store) == []


def test_changes_of_ownership_in_two_files_lose_their_place_also_if_the_second_comes_later(tmp_path: Path) -> None:
    folder, store = tmp_path / "events", tmp_path / "store"
    for number, writer in enumerate(("a", "b")):
        change = Ownership(Stamp(writer, 0, 5), "g", writer, 3, OwnershipChange.ACQUIRED, (TopicPartition("t", 0),), number)
        write_events(folder, [change])
        lines = [json.loads(row["line"])["position"] for row in read_rows([str(folder)], store)]
        assert lines == ([0] if number == 0 else [None, None])


def test_events_are_decoded_beside_garbage(tmp_path: Path) -> None:
    """A line that is no event costs only its neighbours the quick way."""
    folder, store = tmp_path / "events", tmp_path / "store"
    events = [Heartbeat(Stamp("w", number, 1_000 + number), 5) for number in range(10_000)]
    lines = [encode(event) for event in events]
    lines[5_000:5_000] = ["garbage", '{"v":2,"kind":"heartbeat","t_ms":"S3CRET"}']
    folder.mkdir()
    (folder / "w.jsonl").write_text("".join(f"{line}\n" for line in lines))
    rows = read_rows([str(folder)], store)
    refused = [row for row in rows if row["row_kind"] == RowKind.REFUSED]
    assert (len(rows), len(refused)) == (10_002, 2)
    assert {row["t_ms"] for row in refused} == {6_000}
    assert "S3CRET" not in str(rows)


def test_long_readings_say_how_far_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_store, "_REPORT_EVERY_S", 0.0)
    write_events(tmp_path / "events", calm().end())
    said: list[str] = []
    EventStore(tmp_path / "store", said.append).ingest([str(tmp_path / "events")])
    assert said
    assert all("event lines read in" in line for line in said)


def test_the_columns_hold_the_events(duck: Engine, tmp_path: Path) -> None:
    write_events(tmp_path / "events", calm().end())
    result = audit_sources([Source(Level.CONSUMER, lines=(str(tmp_path / "events"),))], AuditPolicy(), duck)
    assert (result.verdict.outcome, result.sources[0].facts) == (AuditOutcome.PASS, balance(calm().end()))
    events = load_events(duck)
    numbers = Counter((event.stamp.writer, event.stamp.event_seq) for event in events)
    assert numbers == Counter((event.stamp.writer, event.stamp.event_seq) for event in calm().end())
    assert {type(event) for event in events} >= {Ack, Commit, DeliveryRun}


def test_data_in_memory_and_in_files_is_one_set_of_rows(tmp_path: Path) -> None:
    write_events(tmp_path / "events", calm().end())
    data = EventStore(tmp_path / "store").ingest([str(tmp_path / "events")])
    expected = [row for event in calm().end() for row in rows_of_event(event)]
    assert len(load_rows(data)) == len(expected)


def test_a_file_that_breaks_off_counts_once_when_it_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk's error in the middle: what was read before it is judged, and is not in the store beside what is read the next time."""
    folder, store = tmp_path / "events", tmp_path / "store"
    write_events(folder, calm().end())
    read_blocks = read_line_blocks

    def break_off(*arguments: Any) -> Any:
        yield from read_blocks(*arguments)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(event_store, "read_line_blocks", break_off)
        rows = read_rows([str(folder)], store)
    refused = [row["why"] for row in rows if row["row_kind"] == RowKind.REFUSED]
    assert len(refused) == len(list(folder.iterdir()))
    assert all("is not read to its end: Input/output error" in why for why in refused)
    assert bag(read_rows([str(folder)], store)) == bag(read_rows([str(folder)], tmp_path / "other"))


def test_of_all_readings_of_a_file_together_a_thousand_refused_lines_are_kept(tmp_path: Path) -> None:
    folder, store = tmp_path / "events", tmp_path / "store"
    folder.mkdir()
    for _ in range(3):
        with (folder / "w.jsonl").open("a") as file:
            file.write("".join(f"no event {number}\n" for number in range(600)))
        rows = read_rows([str(folder)], store)
    assert len(rows) == 1_002
    assert [row["why"] for row in rows if "more lines" in row["why"]] == [
        f"w.jsonl has {more} more lines that are no events" for more in (200, 600)
    ]
