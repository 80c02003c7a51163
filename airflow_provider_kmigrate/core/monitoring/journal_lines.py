"""A journal's phases, acts and alarms with their times, for reports and for callers that wait until nothing is restarted.

A line that cannot be read (the last one of a process killed while writing) is counted and left out. Journals are evidence: no
migration decision is ever based on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import median
from typing import Final, NamedTuple

from airflow_provider_kmigrate.core.shared.foreign_json import read_json


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One line; `seconds`: how long an act or a step took, if the line says so."""

    at_ms: int
    run: str
    kind: str
    step: str
    text: str
    seconds: float | None = None

    @property
    def began_ms(self) -> int:
        """When what the line reports began, ms since the epoch."""
        return self.at_ms - round(1000 * (self.seconds or 0))


class JournalLines(NamedTuple):
    """What could be read, oldest first, and how many lines could not."""

    lines: tuple[JournalLine, ...]
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A stretch of steps that belong together; `done`: how many of them ended in it."""

    name: str
    from_ms: int
    to_ms: int
    done: int = 0


@dataclass(frozen=True, slots=True)
class ActSpan:
    """One change of the cluster. `to_ms`: when it was carried out; None: not recorded (killed, or still under way).

    `settled_ms`: when its step observed everything healthy again; None: not yet, or another act of the step followed.
    """

    run: str
    step: str
    verb: str
    from_ms: int
    to_ms: int | None = None
    settled_ms: int | None = None


OBSERVATIONS: Final = "observations"
"""The run of the lines of read-only tasks (`utils.step_context.read_only_context`): they belong to the run that acted before them."""
ASKED: Final = "asked"
"""The kind of a line that says that a task asks for an approval."""
_ANSWERED: Final = frozenset({"approval"})
MOST_REQUESTS: Final = 5


class OpenRequest(NamedTuple):
    """A request for an approval without one: the run's name, its task, and since when, in ms since the epoch."""

    run: str
    task: str
    asked_ms: int


def list_open_requests(lines: Iterable[JournalLine]) -> tuple[OpenRequest, ...]:
    """The newest requests that no approval followed, at most `MOST_REQUESTS`; a task that was answered otherwise has ended, which Airflow knows."""
    requests: dict[tuple[str, str], OpenRequest] = {}
    for line in lines:
        if line.kind == ASKED:
            requests.setdefault((line.run, line.step), OpenRequest(line.run, line.step, line.at_ms))
        elif line.kind in _ANSWERED:
            requests.pop((line.run, line.step), None)
    return tuple(sorted(requests.values(), key=lambda request: -request.asked_ms)[:MOST_REQUESTS])


_PHASES = {
    "rollback": re.compile(
        r"rollback|roll(ed)? back| to zookeeper$|^(restore flag|controller failover|handover|ZooKeeper controller|wipe)"
    ),
    "preflight and backup": re.compile(r"^(preflight|backup)"),
    "controllers": re.compile(r"^(provision controller|controllers ready)"),
    "first roll": re.compile(r" to migration$"),
    "copy": re.compile(r"^metadata copy"),
    "second roll": re.compile(r" to kraft$"),
    "soak": re.compile(r"^soak"),
    "finalize": re.compile(r"^finaliz"),
}
_ANYWHERE = re.compile(r"^(preferred leaders|all brokers registered|dual-write lag|metadata equivalence|migration phase)")
_OF_PHASES = frozenset({"act", "acted", "done", "findings"})


_LATEST_MS: Final = 253_402_300_799_000
"""The end of the calendar."""


def parse_lines(texts: Iterable[str]) -> JournalLines:
    """Lines of one or several journals, in the order of their times."""
    parsed = [_parse_line(text) for text in texts if text.strip()]
    lines = sorted((line for line in parsed if line is not None), key=lambda line: line.at_ms)
    return JournalLines(tuple(lines), len(parsed) - len(lines))


def _parse_line(text: str) -> JournalLine | None:
    try:
        fields = read_json(text)
        seconds = fields.get("seconds")
        run, kind, step, words = (str(fields[name]) for name in ("run", "kind", "step", "text"))
        at_ms, seconds = round(1000 * fields["at"]), None if seconds is None else float(seconds)
        is_time = 0 <= at_ms <= _LATEST_MS and (seconds is None or 0 <= seconds <= _LATEST_MS / 1000)  # a line may be of anyone
        return JournalLine(at_ms, run, kind, step, words, seconds) if is_time else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def phase_of(step: str) -> str | None:
    """The phase that a step belongs to; None if it occurs in several. An unknown step is its own phase."""
    if _ANYWHERE.match(step):
        return None
    return next((name for name, pattern in _PHASES.items() if pattern.search(step)), step)


def list_phases(lines: Sequence[JournalLine]) -> tuple[PhaseSpan, ...]:
    """Stretches of lines of one phase, oldest first, never overlapping."""
    spans: list[PhaseSpan] = []
    for line in lines:
        if line.kind not in _OF_PHASES:
            continue
        name = phase_of(line.step) or (spans[-1].name if spans else line.step)
        if not spans or spans[-1].name != name:
            earliest = spans[-1].to_ms if spans else line.began_ms
            spans.append(PhaseSpan(name, max(earliest, line.began_ms), line.at_ms))
        spans[-1] = replace(spans[-1], to_ms=line.at_ms, done=spans[-1].done + (line.kind == "done"))
    return tuple(spans)


def list_acts(lines: Sequence[JournalLine]) -> tuple[ActSpan, ...]:
    """Every act, oldest first."""
    spans: list[ActSpan] = []
    last: dict[tuple[str, str], int] = {}  # (run, step) -> place in `found`
    for line in lines:
        key = (line.run, line.step)
        if line.kind == "act":
            last[key] = len(spans)
            spans.append(ActSpan(line.run, line.step, line.text.partition(":")[0], line.at_ms))
        elif line.kind in {"acted", "done"} and key in last:
            spans[last[key]] = _with_end(spans[last[key]], line)
    return tuple(spans)


def _with_end(act: ActSpan, line: JournalLine) -> ActSpan:
    if line.kind == "acted":
        return replace(act, to_ms=line.at_ms) if act.to_ms is None else act
    return replace(act, settled_ms=line.at_ms) if act.settled_ms is None else act


def unsettled_acts(spans: Iterable[ActSpan]) -> Iterator[ActSpan]:
    """The last act of each step, if the step has not seen everything healthy since."""
    latest = {(span.run, span.step): span for span in spans}
    return (span for span in latest.values() if span.settled_ms is None)


def act_times(spans: Iterable[ActSpan]) -> tuple[tuple[float, float], ...]:
    """When kmigrate acted, in seconds since the epoch: from each act to a minute after it had settled, or after its last line."""
    return tuple((span.from_ms / 1000, (span.settled_ms or span.to_ms or span.from_ms) / 1000 + _AFTER) for span in spans)


_AFTER = 60.0  # seconds in which a new leader still writes what an act caused
_NODES = re.compile(r"\b(?:broker|controller) \d+\b")
_BROKERS_RESTART = re.compile(r"^(?:roll back )?broker \d+ to ")
_BAKING_RESTART = re.compile(r"^broker \d+ to (?P<mode>\w+)")


def last_act_by_node(spans: Iterable[ActSpan]) -> dict[str, ActSpan]:
    """The newest act on each node, such as "broker 1", of the steps and acts that name one."""
    acts_by_node = ((node, span) for span in spans for node in nodes_of_act(span))
    return dict(sorted(acts_by_node, key=lambda pair: pair[1].from_ms))


def nodes_of_act(span: ActSpan) -> tuple[str, ...]:
    """The nodes that its step and it name, such as "broker 1"."""
    return tuple(dict.fromkeys(_NODES.findall(f"{span.step}, {span.verb}")))


class BakeFilter:
    """Takes the bake of a pass's first broker out of the seconds of its restart: no other restart of the pass has it.

    `bake`: seconds of the policy's `canary_bake`. A restart that took no longer has not baked: a pass that another run continues does not bake again.
    """

    def __init__(self, bake: float) -> None:
        self._bake = bake
        self._begun: set[tuple[str, str]] = set()  # (run, mode) of passes

    def remove_bake(self, run: str, step: str, seconds: float) -> float:
        """The seconds without the bake. To be asked in the order of the restarts."""
        match = _BAKING_RESTART.match(step)
        if match is None or (pass_of_run := (run, match["mode"])) in self._begun:
            return seconds
        self._begun.add(pass_of_run)
        return seconds - self._bake if seconds > self._bake else seconds


def median_restart_seconds(spans: Iterable[ActSpan], bake: float) -> float | None:
    """How long a restart of a broker took at the median of the newest run that restarted any, without bakes; None: none is recorded.

    Of the newest run only: machines, their load and logs change between two runs, and a run's own restarts say most of the next one. `bake`: see `BakeFilter`.
    """
    bakes = BakeFilter(bake)
    took = [(span.run, bakes.remove_bake(span.run, span.step, seconds)) for span, seconds in _list_restarts(spans)]
    return median(seconds for run, seconds in took if run == took[-1][0]) if took else None


def restart_seconds(spans: Iterable[ActSpan]) -> list[float]:
    """How long each restart of a broker took, until all was healthy again, in seconds."""
    return [seconds for _, seconds in _list_restarts(spans)]


def _list_restarts(spans: Iterable[ActSpan]) -> Iterator[tuple[ActSpan, float]]:
    for span in spans:
        if span.verb == "restart" and span.settled_ms is not None and _BROKERS_RESTART.search(span.step):
            yield span, (span.settled_ms - span.from_ms) / 1000


def readiness_kind(verdict: str) -> str:
    """The kind of a journal's line about whether a rollback is assured; `verdict`: ready, degraded or lost."""
    return f"{_READINESS}{verdict}"


_READINESS = "readiness: "


def last_readiness(lines: Sequence[JournalLine]) -> tuple[str, float] | None:
    """The last recorded verdict (ready, degraded or lost), and since when it holds, in seconds since the epoch; None if there is none.

    Degraded and lost count as one stretch: since when a rollback is not assured.
    """
    verdicts = [(line.kind.removeprefix(_READINESS), line.at_ms / 1000) for line in lines if line.kind.startswith(_READINESS)]
    if not verdicts:
        return None
    last = verdicts[-1][0]
    stretch = takewhile(lambda row: (row[0] == _READY) is (last == _READY), reversed(verdicts))
    return last, min(at for _, at in stretch)


_READY = "ready"


def list_alarms(lines: Iterable[JournalLine]) -> tuple[JournalLine, ...]:
    """Every alarm, oldest first: a forbidden state was observed."""
    return tuple(line for line in lines if line.kind == "alarm")
