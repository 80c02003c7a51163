"""An audit that reads what came after settled cuts says what an audit of everything says, whatever arrives below the cuts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the audit has its own environment")
pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit import settling
from airflow_provider_kmigrate.audit.job import Audited, audit_source
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.core.audit import settled as cuts
from airflow_provider_kmigrate.core.audit.settled import SettledKey
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.events.model import Event
from airflow_provider_kmigrate.core.ledger import Demand
from tests.audit.random_histories import FAULTS, _Made, history, renamed
from tests.audit.test_differential import ALL, differences, messages, reported_by_ledger

KEY = SettledKey("abc", ALL.skew_ms)


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
        opened = audited.judged.opened
        self.narrowed += opened.settled is not None
        self.reopened += len(opened.reopened)
        self.suspects, self.partitions = self.suspects + audited.suspects, self.partitions + audited.partitions
        text = settling.settle(self.engine, opened, audited.judged.screened, audited.judged.context, KEY)
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


def pack(rng: random.Random, count: int, holes: Any) -> list[Event]:
    events = [event for number in range(count) for event in renamed(history(rng, holes=holes), f"{number}.")]
    return sorted(events, key=lambda event: event.stamp.t_ms)


@pytest.mark.usefixtures("many_may_reopen")
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 60))])
def test_random_histories_with_random_cuts(duck: Engine, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    gates = Gates(duck, tmp_path)
    run_history(gates, pack(rng, 12, []), rng, seed)
    assert gates.narrowed
    assert gates.settled


@pytest.mark.parametrize("seed", range(2))
def test_with_holes_in_the_accounts_everything_is_read(duck: Engine, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    run_history(Gates(duck, tmp_path), pack(rng, 6, None), rng, seed)


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
@pytest.mark.parametrize("fault", sorted({*FAULTS}, key=lambda fault: fault.__name__))
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
