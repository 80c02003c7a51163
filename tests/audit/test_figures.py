"""The sums of parts that are kept say what all events say, whatever arrives later; what does not fit is not used."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the audit has its own environment")
pytest.importorskip("duckdb", reason="the audit has its own environment")

from airflow_provider_kmigrate.audit import event_store, figures, job, tables
from airflow_provider_kmigrate.audit.figures import Figures
from airflow_provider_kmigrate.audit.queries import Engine
from airflow_provider_kmigrate.audit.request import AuditPolicy
from airflow_provider_kmigrate.audit.sources import Source
from airflow_provider_kmigrate.audit.tables import AuditedSource
from airflow_provider_kmigrate.clients import atomic
from airflow_provider_kmigrate.core.audit.restarts import StepRestart
from airflow_provider_kmigrate.core.audit.verdict import Level
from airflow_provider_kmigrate.core.events.lines import encode
from airflow_provider_kmigrate.core.events.model import Event
from airflow_provider_kmigrate.exceptions import Failed
from tests.audit.random_histories import packed


class Audits:
    """Audits of files that grow, whose tables are made of kept sums and of all events."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder, self.events = engine, folder, folder / "events"
        self.events.mkdir(parents=True)
        self.source = Source(Level.PRODUCER, lines=(str(self.events),), store=str(folder / "store"))

    def write(self, events: Sequence[Event], name: str = "all") -> None:
        with (self.events / f"{name}.jsonl").open("a") as file:
            file.writelines(encode(event) + "\n" for event in events)

    def audit(self) -> job.Result:
        return job.audit_sources([self.source], AuditPolicy(), self.engine)

    def compare(self) -> AuditedSource:
        """One audit: its tables are those of all events."""
        (source,) = job.list_audited(self.audit(), self.engine)
        whole = AuditedSource(source.level, source.facts, source.drawn)
        assert self.measure(source) == self.measure(whole)
        return source

    def measure(self, source: AuditedSource) -> tuple[Any, Any]:
        rows = tables.measure_completeness(self.engine, [source])
        times = [row["minute_ms"] for row in rows]
        half = (min(times) + max(times)) // 2
        restarts = (
            StepRestart("r", "one", (), (), min(times), half, half),
            StepRestart("r", "two", (), (), half, max(times) + 60_000, None),
        )
        return rows, tables.measure_restarts(self.engine, [source], restarts)

    def count_summed(self, source: AuditedSource, kept: Figures) -> int:
        """How many events are not in these sums."""
        figures.attach_figures(self.engine, source.drawn, kept)
        count = self.engine.ask("SELECT count(*) AS n FROM events WHERE row_kind IN ('ack', 'delivery')")["n"][0].as_py()
        assert isinstance(count, int)
        return count


def pieces(seed: int, count: int = 3) -> list[list[Event]]:
    """A history of which some events come in a later piece than those around them."""
    rng, events = random.Random(seed), packed(12, seed=seed)  # noqa: S311
    size = len(events) // count + 1
    found: list[list[Event]] = [[] for _ in range(count)]
    for number, event in enumerate(events):
        found[min(count - 1, number // size + (rng.random() < 0.05))].append(event)
    return found


def write_the_first_of_two(duck: Engine, folder: Path, seed: int) -> tuple[Audits, list[Event]]:
    """Audits whose files have the first piece of events; the next piece."""
    audits, (first, second, _) = Audits(duck, folder), pieces(seed)
    audits.write(first)
    return audits, second


@pytest.mark.parametrize("seed", range(4))
def test_tables_of_kept_sums_are_those_of_all_events(duck: Engine, tmp_path: Path, seed: int) -> None:
    audits = Audits(duck, tmp_path)
    for piece in pieces(seed):
        audits.write(piece)
        kept = audits.compare().figures
        assert kept.rows.num_rows
    assert len(kept.parts) == 3


def test_spark_adds_kept_sums_too(spark: Engine, tmp_path: Path) -> None:
    audits = Audits(spark, tmp_path)
    for piece in pieces(5, 2):
        audits.write(piece)
        assert audits.compare().figures.rows.num_rows


def test_only_new_parts_are_summed_up(duck: Engine, tmp_path: Path) -> None:
    audits, second = write_the_first_of_two(duck, tmp_path, 6)
    before = audits.compare()
    audits.write(second)
    after = audits.compare()
    assert audits.count_summed(after, after.figures) == 0
    new = audits.count_summed(after, before.figures)
    assert new == len([event for event in second if type(event).__name__ in {"Ack", "DeliveryRun"}])
    assert new < audits.count_summed(after, Figures()) / 1.5


def damage(audits: Audits) -> None:
    (file,) = (audits.folder / "store" / "figures").iterdir()
    file.write_bytes(file.read_bytes()[:-20])


def remove(audits: Audits) -> None:
    (file,) = (audits.folder / "store" / "figures").iterdir()
    file.unlink()


def set_state(audits: Audits, **values: object) -> None:
    path = audits.folder / "store" / "state.json"
    state = json.loads(path.read_bytes())
    path.write_text(json.dumps({**state, "figures": {**state["figures"], **values}}))


def write_files_again(audits: Audits) -> None:
    file = audits.events / "all.jsonl"
    file.write_bytes(b"\n" + file.read_bytes())


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(damage, id="half a file"),
        pytest.param(remove, id="gone"),
        pytest.param(lambda audits: set_state(audits, release="0.0.1"), id="another release"),
        pytest.param(lambda audits: set_state(audits, parts=["00000009.parquet"]), id="parts that are not there"),
        pytest.param(write_files_again, id="other files"),
    ],
)
def test_sums_that_do_not_fit_are_not_used(duck: Engine, tmp_path: Path, spoil: Callable[[Audits], None]) -> None:
    audits, second = write_the_first_of_two(duck, tmp_path, 7)
    audits.compare()
    audits.write(second)
    spoil(audits)
    (source,) = audits.audit().sources
    stored = source.judged.opened.evidence.stored if source.judged else None
    assert stored is not None
    assert not figures.load_figures(stored).parts
    assert audits.compare().figures.parts


def test_sums_of_events_that_an_audit_has_not_read_are_not_used(duck: Engine, tmp_path: Path) -> None:
    audits, second = write_the_first_of_two(duck, tmp_path, 8)
    earlier = audits.audit()
    audits.write(second)
    audits.compare()
    (source,) = job.list_audited(earlier, duck)
    assert audits.measure(source) == audits.measure(AuditedSource(source.level, source.facts, source.drawn))


def test_too_many_sums_are_not_kept(duck: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_ROWS", 3)
    audits = Audits(duck, tmp_path)
    audits.write(pieces(9)[0])
    assert audits.compare().figures == Figures()
    assert not (tmp_path / "store" / "figures").exists()


def test_sums_that_cannot_be_kept_are_used_and_said(
    duck: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audits = Audits(duck, tmp_path)
    audits.write(pieces(10)[0])
    result = audits.audit()

    def fail(*_: object) -> None:
        raise Failed("the disk is full")

    monkeypatch.setattr(atomic, "make_folder", fail)
    (source,) = job.list_audited(result, duck)
    assert source.figures.rows.num_rows
    assert capsys.readouterr().out == "the sums of the tables are not kept: the disk is full\n"


def test_merged_parts_keep_their_sums(duck: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_store, "_MERGED_PARTS", 1)
    audits = Audits(duck, tmp_path)
    for piece in pieces(11, 6):
        audits.write(piece)
        audits.compare()
    state = json.loads((tmp_path / "store" / "state.json").read_bytes())
    assert len(state["parts"]) < 6
    assert {*state["figures"]["parts"]} == {*state["parts"]}
