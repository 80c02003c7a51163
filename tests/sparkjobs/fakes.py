"""A streaming query without Spark: batches over a log of records, a checkpoint on disk as Spark writes it, and a sink that counts."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class FakeClock:
    """Time passes in sleeps only; `on_tick` is what the world does meanwhile."""

    t: float = 1_000.0
    on_tick: list[Callable[[], None]] = field(default_factory=list)

    def now(self) -> float:
        return self.t

    def sleep(self, seconds: float) -> None:
        self.t += max(seconds, 0.01)
        for act in list(self.on_tick):
            act()


@dataclass
class FakeStream:
    """The log, the checkpoint and the sink that survive queries. A tick is a step of the running query, if there is one."""

    folder: Path
    write: Callable[[list[int], int], None] | None = None
    end: int = 0
    sink: list[int] = field(default_factory=list)
    query: FakeQuery | None = None
    started: int = 0
    fail: Exception | None = None

    def __post_init__(self) -> None:
        for name in ("offsets", "commits"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if not (self.folder / "metadata").exists():
            (self.folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))

    def start(self) -> FakeQuery:
        assert self.query is None or not self.query.isActive, "two queries on one checkpoint"
        self.started += 1
        self.query = FakeQuery(self)
        return self.query

    def tick(self) -> None:
        if self.query is not None and self.query.isActive:
            self.query.step()

    def numbers(self, log: str) -> list[int]:
        return sorted(int(path.name) for path in (self.folder / log).iterdir() if path.name.isdigit())

    def ends(self, number: int) -> int:
        if number < 0:
            return 0
        return int(json.loads((self.folder / "offsets" / str(number)).read_text().splitlines()[2])["t"]["0"])

    def append(self, records: list[int], number: int) -> None:
        """A sink that takes a repeated batch twice."""
        del number
        self.sink += records


class FakeQuery:
    """Plans, writes and commits in three steps, so that it can be stopped between any two; `pause` steps lie between batches."""

    pause = 0

    def __init__(self, stream: FakeStream) -> None:
        self._stream, self._stage, self._error, self.isActive = stream, 0, stream.fail, stream.fail is None
        self.id = json.loads((stream.folder / "metadata").read_text())["id"]
        self.lastProgress: dict[str, Any] | None = None
        committed, planned = stream.numbers("commits"), stream.numbers("offsets")
        self._number = (committed[-1] if committed else -1) + 1
        self._replays = bool(planned) and planned[-1] == self._number

    @property
    def status(self) -> dict[str, Any]:
        waiting = self._stage == 0 and self._stream.end == self._stream.ends(self._number - 1)
        return {"isTriggerActive": self._stage > 0, "message": "Waiting for data to arrive" if waiting else "Processing new data"}

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        self.isActive = False

    def step(self) -> None:
        begin = self._stream.ends(self._number - 1)
        if self._stage == 0 and (self._replays or self._stream.end > begin):
            self._plan()
        elif self._stage == 1:
            self._write(begin)
        elif self._stage == 2:
            self._commit(begin)

    def _plan(self) -> None:
        if not self._replays:
            text = "v1\n{}\n" + json.dumps({"t": {"0": self._stream.end}})
            (self._stream.folder / "offsets" / str(self._number)).write_text(text)
        self._replays, self._stage = False, 1

    def _write(self, begin: int) -> None:
        write = self._stream.write or self._stream.append
        try:
            write(list(range(begin, self._stream.ends(self._number))), self._number)
            self._stage = 2
        except Exception as error:  # noqa: BLE001  # as Spark: whatever the sink raises ends the query
            self._error, self.isActive = error, False

    def _commit(self, begin: int) -> None:
        (self._stream.folder / "commits" / str(self._number)).write_text("v1\n{}")
        offsets = json.dumps({"t": {"0": begin}})
        self.lastProgress = {"batchId": self._number, "sources": [{"startOffset": offsets}]}
        self._number, self._stage = self._number + 1, 0
