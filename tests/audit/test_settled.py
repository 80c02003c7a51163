"""An audit that reads what came after settled cuts says what an audit of everything says, whatever arrives below the cuts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the audit has its own environment")
pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit import event_store, job, settling
from airflow_provider_kmigrate.audit.job import Audited, audit_source
from airflow_provider_kmigrate.audit.judge import Judged
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.core.audit import settled as cuts
from airflow_provider_kmigrate.core.audit.settled import SettledKey
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.events.model import Event, OwnershipChange
from airflow_provider_kmigrate.core.ledger import Demand
from tests.audit.compared import ALL, differences, messages, reported_by_ledger
from tests.audit.random_histories import FAULTS, Uneven, _Made, history, overwrite, renamed, skip, truncate

KEY = SettledKey("abc", ALL.skew_ms)


def judged_of(audited: Audited) -> Judged:
    assert audited.judged is not None
    return audited.judged


class Gates:
    """Audits one after the other, of files that grow: each narrowed by cuts and whole, which must say the same."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.events = folder / "events"
        self.events.mkdir(parents=True)
        self.source = Source(Level.PRODUCER, lines=(str(self.events),), store=str(folder / "store"))
        self.narrowed = self.reopened = self.suspects = self.partitions = self.settled = 0

    def write(self, events: Sequence[Event], name: str = "all") -> None:
        with (self.events / f"{name}.jsonl").open("a") as file:
            file.writelines(encode(event) + "\n" for event in events)

    def audit(self, policy: AuditPolicy = ALL, key: SettledKey | None = KEY) -> Audited:
        return audit_source(self.source, policy, self.engine, settled=key)

    def compare(self, policy: AuditPolicy = ALL, *, why: object = "") -> Audited:
        """One gate: audits, holds it against everything, and settles."""
        audited = self.audit(policy)
        whole = self.audit(policy, None)
        assert differences(messages(audited.facts), messages(whole.facts)) == {}, why
        assert (audited.findings, audited.health, audited.partitions) == (whole.findings, whole.health, whole.partitions), why
        assert sorted(audited.drawn.readings) == sorted(whole.drawn.readings), why
        opened = judged_of(audited).opened
        self.narrowed += opened.settled is not None
        self.reopened += len(opened.reopened)
        self.suspects, self.partitions = self.suspects + audited.suspects, self.partitions + audited.partitions
        text = settling.settle(self.engine, opened, judged_of(audited).screened, judged_of(audited).context, KEY)
        self.settled += text.startswith("settled: ") and not text.startswith("settled: 0 ")
        return audited


@pytest.fixture(autouse=True)
def short_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "OPEN_MS", 2_000)


@pytest.fixture
def many_may_reopen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "MOST_REOPENED", 1.0)


def pieces(events: Sequence[Event], rng: random.Random, count: int) -> list[list[Event]]:
    times = sorted(event.stamp.t_ms for event in events)
    ends = sorted(rng.choice(times) for _ in range(count - 1))
    spans = zip([-1, *ends], [*ends, times[-1]], strict=True)
    return [[event for event in events if begin < event.stamp.t_ms <= end] for begin, end in spans]


def run_history(gates: Gates, events: Sequence[Event], rng: random.Random, why: object) -> None:
    """Random cuts; some writers' files arrive late."""
    late = {writer for writer in sorted({event.stamp.writer for event in events}) if rng.random() < 0.1}
    kept: list[Event] = []
    for piece in pieces(events, rng, rng.randint(2, 4)):
        gates.write([event for event in piece if event.stamp.writer not in late])
        kept += [event for event in piece if event.stamp.writer in late]
        if kept and rng.random() < 0.5:
            gates.write(kept, "late")
            kept = []
        now = piece[-1].stamp.t_ms if piece else 0
        policy = rng.choice([ALL, replace(ALL, alive_since=now - 3_000, required_evidence=Demand(now - 10_000))])
        gates.compare(policy, why=why)
    gates.write(kept, "late")
    gates.compare(why=why)


def pack(rng: random.Random, count: int, holes: Any, make: type[_Made] = _Made) -> list[Event]:
    events = [event for number in range(count) for event in renamed(history(rng, holes=holes, make=make), f"{number}.")]
    return sorted(events, key=lambda event: event.stamp.t_ms)


@pytest.mark.usefixtures("many_may_reopen")
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 60))])
def test_random_histories_with_random_cuts(duck: Engine, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    gates = Gates(duck, tmp_path)
    run_history(gates, pack(rng, 12, [], rng.choice([_Made, Uneven])), rng, seed)
    assert gates.narrowed
    assert gates.settled


@pytest.mark.parametrize("seed", range(2))
def test_with_holes_in_the_accounts_everything_is_read(duck: Engine, tmp_path: Path, seed: int) -> None:
    rng, gates = random.Random(seed), Gates(duck, tmp_path)  # noqa: S311
    run_history(gates, pack(rng, 6, None), rng, seed)
    assert not gates.narrowed


def test_the_ledger_says_the_same(duck: Engine, tmp_path: Path) -> None:
    rng, gates = random.Random(7), Gates(duck, tmp_path)  # noqa: S311
    written: list[Event] = []
    for piece in pieces(pack(rng, 10, []), rng, 3):
        gates.write(piece)
        written += piece
        assert differences(messages(gates.compare().facts), reported_by_ledger(written)) == {}
    assert gates.narrowed == 2


_FLOW = Callable[[_Made], None]


def flow(seed: int, after: Sequence[_FLOW], *, many: int = 8) -> tuple[list[Event], list[Event]]:
    """Packed calm histories, and what came after a moment: in the first of them with these faults."""
    before: list[Event] = []
    later: list[Event] = []
    for number in range(many):
        made = _Made(random.Random(seed * 100 + number))  # noqa: S311
        made.numbers_known = True
        for _ in range(8):
            made.step()
        for group, part in made.owner:
            made.catch_up(group, part)
        cut = len(made.story.events)
        for _ in range(2):
            made.step()
        for fault in after if number == 0 else ():
            fault(made)
        made.step()
        events = renamed(made.end(), f"{number}.")
        before += events[:cut]
        later += events[cut:]
    return before, later


@pytest.mark.usefixtures("many_may_reopen")
@pytest.mark.parametrize("fault", sorted({*FAULTS}, key=lambda fault: str(getattr(fault, "__name__", ""))))
@pytest.mark.parametrize("seed", range(2))
def test_a_fault_after_a_cut(duck: Engine, tmp_path: Path, fault: _FLOW, seed: int) -> None:
    gates = Gates(duck, tmp_path)
    before, later = flow(seed, [fault])
    gates.write(before)
    first = gates.compare()
    assert gates.settled
    gates.write(later)
    gates.compare(why=fault.__name__)
    assert gates.narrowed == 1
    assert first.partitions


def deliver_again(made: _Made) -> None:
    made.story.generation += 1
    made.deliver(*_reader(made), made.log[0][0])


def store_again(made: _Made) -> None:
    producer, _, seq, count = made.log[0][0]
    made.log[0].append((producer, made.offset[0], seq, count))
    made.offset[0] += count
    made.catch_up("g", 0)


def ack_late(made: _Made) -> None:
    """A producer that nothing was known of reports records that were delivered long ago."""
    made.story.producer("z")
    made.story.ack("z", 0, 0, 0, 1)


def create_topic_again(made: _Made) -> None:
    made.offset[0] = 0
    made.append(0, 3)
    made.deliver(*_reader(made), made.log[0][-1])


def add_partition(made: _Made) -> None:
    made.story.own("g", "ga", OwnershipChange.ACQUIRED, (2,))
    made.offset[2], made.log[2], made.read["g", 2], made.owner["g", 2] = 0, [], 0, "ga"
    for producer in made.producers:
        made.number[producer, 2] = 0
    made.append(2, 4)
    made.deliver("g", 2, made.log[2][-1])


def set_clock_ahead(made: _Made) -> None:
    made.story.now += 3_600_000
    made.append(0, 2)
    made.story.now -= 3_600_000


def commit_back(made: _Made) -> None:
    made.story.commit("g", made.owner["g", 0], 0, 1)


def commit_late(made: _Made) -> None:
    """The file of a member with a slow disk: it committed before it was delivered."""
    now = made.story.now
    made.story.now = 1_000_000
    made.story.commit("g", made.owner["g", 0], 0, made.offset[0])
    made.story.now = now


def deliver_unowned(made: _Made) -> None:
    made.append(0, 1)
    made.deliver("g", 0, made.log[0][-1], "gb" if made.owner["g", 0] == "ga" else "ga")
    made.read["g", 0] = len(made.log[0])


def give_up_in_the_past(made: _Made) -> None:
    """A member that slept says that it had lost its partition before it was delivered what is settled."""
    made.story.own("g", made.owner["g", 0], OwnershipChange.LOST, (0,), until_ms=1_010_000)


def join_late(made: _Made) -> None:
    made.story.consumer("na", "new", ("^t",))


def own_with_the_owner(made: _Made) -> None:
    other = "gb" if made.owner["g", 0] == "ga" else "ga"
    made.story.own("g", other, OwnershipChange.ACQUIRED, (0,))
    made.append(0, 2)
    made.story.own("g", other, OwnershipChange.RELEASED, (0,))


def _reader(made: _Made) -> tuple[str, int]:
    return "g", 0


@pytest.mark.usefixtures("many_may_reopen")
@pytest.mark.parametrize(
    ("sibling", "finding", "reaches_below"),
    [
        (skip, "lost", False),
        (deliver_again, "redelivered", True),
        (store_again, "stored_twice", True),
        (overwrite, "diverged", False),
        (own_with_the_owner, "double_owned", False),
        (deliver_unowned, "not_owned", False),
        (give_up_in_the_past, "not_owned", True),
        (commit_back, "", False),
        (commit_late, "commit_gap", True),
        (ack_late, "diverged", True),
        (create_topic_again, "redelivered", True),
        (add_partition, "", False),
        (set_clock_ahead, "", False),
        (truncate, "", False),
        (join_late, "unseen", True),
    ],
)
def test_what_reaches_below_a_cut_is_found(
    duck: Engine, tmp_path: Path, sibling: _FLOW, finding: str, reaches_below: bool
) -> None:
    gates = Gates(duck, tmp_path)
    before, later = flow(3, [sibling])
    gates.write(before)
    gates.compare()
    assert gates.settled
    gates.write(later)
    facts = gates.compare(why=sibling.__name__).facts
    assert gates.narrowed == 1, "everything was read: this shows nothing of cuts"
    assert not finding or getattr(facts, finding).count
    assert bool(gates.reopened) == reaches_below


def test_with_many_news_below_the_cuts_everything_is_read(duck: Engine, tmp_path: Path) -> None:
    gates = Gates(duck, tmp_path)
    before, later = flow(3, [deliver_again, lambda made: made.deliver("g", 1, made.log[1][0])])
    gates.write(before)
    gates.compare()
    gates.write(later)
    opened = judged_of(gates.compare()).opened
    assert opened.settled is None
    assert "2 partitions have news of what was read before" in opened.whole_because


def test_a_reopened_partition_with_too_many_events_is_read_with_everything(
    duck: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = Gates(duck, tmp_path)
    before, later = flow(3, [deliver_again])
    gates.write(before)
    gates.compare()
    gates.write(later)
    monkeypatch.setattr(settling, "MOST_OPEN_ROWS", 3)
    opened = judged_of(gates.compare()).opened
    assert opened.settled is None
    assert "1 partition has news of what was read before" in opened.whole_because


def test_a_calm_flow_is_read_after_its_cuts_alone(duck: Engine, tmp_path: Path) -> None:
    gates = Gates(duck, tmp_path)
    before, later = flow(5, [])
    gates.write(before)
    gates.compare()
    gates.write(later)
    opened = judged_of(gates.compare()).opened
    assert opened.settled is not None
    assert (opened.whole_because, opened.reopened) == ("", {})
    duck.attach("events", opened.rows)
    read = duck.ask("SELECT count(*) AS n FROM events WHERE row_kind = 'delivery'")["n"][0].as_py()
    duck.attach("events", opened.evidence.data)
    assert read < duck.ask("SELECT count(*) AS n FROM events WHERE row_kind = 'delivery'")["n"][0].as_py() / 2
    assert "is read" in settling.describe(opened)


def damage(gates: Gates) -> None:
    (file,) = (gates.folder / "store" / "settled").glob("*.json")
    file.write_bytes(file.read_bytes().replace(b'"at": ', b'"at": 1'))


def remove_rows(gates: Gates) -> None:
    (file,) = (gates.folder / "store" / "settled").glob("*.parquet")
    file.unlink()


def write_files_again(gates: Gates) -> None:
    file = gates.events / "all.jsonl"
    file.write_bytes(b"\n" + file.read_bytes())


@pytest.mark.parametrize(
    ("spoil", "key", "why"),
    [
        pytest.param(damage, KEY, "they are not as they were written", id="damaged"),
        pytest.param(remove_rows, KEY, "they cannot be read: No such file or directory", id="rows_gone"),
        pytest.param(lambda _: None, replace(KEY, cluster_id="xyz"), "their cluster_id is 'abc', not 'xyz'", id="foreign"),
        pytest.param(lambda _: None, replace(KEY, skew_ms=7), "their skew_ms is 100, not 7", id="policy"),
        pytest.param(write_files_again, KEY, "", id="other_files"),
        pytest.param(lambda _: None, None, "", id="whole"),
    ],
)
def test_cuts_that_do_not_fit_are_not_used(
    duck: Engine, tmp_path: Path, spoil: Callable[[Gates], None], key: SettledKey | None, why: str
) -> None:
    gates = Gates(duck, tmp_path)
    before, later = flow(5, [])
    gates.write(before)
    gates.compare()
    gates.write(later)
    spoil(gates)
    audited = gates.audit(key=key)
    assert judged_of(audited).opened.settled is None
    assert judged_of(audited).opened.whole_because == why
    assert bool(settling.describe(judged_of(audited).opened)) == bool(why)
    assert differences(messages(audited.facts), messages(gates.audit(key=None).facts)) == {}


def test_merged_parts_keep_their_side_of_the_cut(duck: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_store, "_MERGED_PARTS", 1)
    gates = Gates(duck, tmp_path)
    before, later = flow(5, [])
    for piece in (before[::], later[: len(later) // 3], later[len(later) // 3 : len(later) // 2], later[len(later) // 2 :]):
        gates.write(piece)
        gates.audit()
        gates.compare()
    assert gates.narrowed == 3


def run_program(engine: Engine, gates: Gates, *options: str) -> None:
    document = {"sources": [{"level": "L3", "lines": [str(gates.events)], "store": gates.source.store}]}
    (gates.folder / "request.json").write_text(json.dumps(document))
    arguments = [str(gates.folder / "request.json"), str(gates.folder / "result"), *options]
    assert job.main(arguments, lambda _: nullcontext(engine)) == 0


def test_the_program_settles_and_reads_what_came_later_or_the_whole(
    duck: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gates = Gates(duck, tmp_path)
    before, later = flow(5, [])
    gates.write(before)
    run_program(duck, gates)
    assert "settled: " in capsys.readouterr().out
    gates.write(later)
    run_program(duck, gates, "--whole")
    whole = (gates.folder / "result" / "verdict.json").read_text()
    assert "settled cuts" not in capsys.readouterr().out
    run_program(duck, gates)
    assert "What came after the settled cuts of " in capsys.readouterr().out
    assert (gates.folder / "result" / "verdict.json").read_text() == whole


def test_after_a_fail_nothing_is_settled(duck: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gates = Gates(duck, tmp_path)
    gates.write([event for events in flow(5, [deliver_again]) for event in events])
    run_program(duck, gates)
    assert "FAIL" in (said := capsys.readouterr().out)
    assert "settled" not in said
    assert not (gates.folder / "store" / "settled").exists()


def test_spark_reads_after_the_cuts_too(spark: Engine, tmp_path: Path) -> None:
    gates = Gates(spark, tmp_path)
    before, later = flow(3, [skip, deliver_again])
    gates.write(before)
    gates.compare()
    gates.write(later)
    gates.compare()
    assert gates.narrowed == 1
    assert gates.reopened
