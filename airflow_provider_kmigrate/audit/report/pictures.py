"""The course of events: the run as bars on a time axis, and tables of phases, changes, owners and the canary's comparison.

Positions are percentages, so that a picture fills any width and its text keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_kmigrate.audit.report.labels import mark, scrolling
from airflow_provider_kmigrate.core.audit.commit_copies import OffsetsFacts, ShownCopies
from airflow_provider_kmigrate.core.audit.report_facts import OwnerTrack, ReportFacts, ReportWindow
from airflow_provider_kmigrate.core.audit.verdict import CanaryVerdict
from airflow_provider_kmigrate.core.journal_lines import ActSpan, PhaseSpan
from airflow_provider_kmigrate.core.ledger.facts import Gap
from airflow_provider_kmigrate.core.text import duration, moment, number, safe

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800)
_TICKS = 7
BAR = 14  # height of a row's bars in px
_LEAST = 0.15  # the narrowest bar, in %


@dataclass(frozen=True, slots=True)
class Axis:
    """A time axis: times as places from 0 to 100 %."""

    window: ReportWindow

    def place(self, t_ms: float) -> float:
        """A time (ms since the epoch) as a place in %; times outside the window are moved to its nearer edge."""
        return min(100.0, max(0.0, 100 * (t_ms - self.window.from_ms) / self.window.length))

    def ticks(self) -> list[int]:
        """Round times, at most `_TICKS` of them."""
        length = self.window.length
        step = 1000 * next((size for size in _STEPS_S if length <= 1000 * size * _TICKS), _STEPS_S[-1] * (1 + length // 10**9))
        first = -(-self.window.from_ms // step) * step
        return list(range(first, self.window.to_ms + 1, step))

    def row(self) -> str:
        """The axis itself; every second time is left out if there is little room."""
        texts = []
        for index, tick in enumerate(self.ticks()):
            at = self.place(tick)
            anchor = "start" if at < 5 else "end" if at > 95 else "middle"
            sparse = ' class="sparse"' if index % 2 else ""
            texts.append(f'<text{sparse} x="{at:.2f}%" y="12" text-anchor="{anchor}">{moment(tick, millis=False)}</text>')
        return f'<div class="row axis" aria-hidden="true"><div class="label soft">UTC</div><svg class="plot" height="16">{"".join(texts)}</svg></div>'

    def guides(self, times: Iterable[int]) -> str:
        """Thin lines that every row shows."""
        lines = (
            f'<line class="guide" x1="{at}%" x2="{at}%" y1="0" y2="100%"/>' for at in (f"{self.place(t):.2f}" for t in times)
        )
        return f'<g id="guides">{"".join(lines)}</g>'

    def bar(self, css: str, from_ms: float, to_ms: float, title: str, y: float = 1, height: float = BAR - 2) -> str:  # noqa: PLR0917  # a bar has these parts
        """A bar of a row, never so narrow that it vanishes."""
        left = self.place(from_ms)
        width = max(_LEAST, self.place(to_ms) - left)
        left = min(left, 100 - width)
        place = f'x="{left:.2f}%" y="{y:g}" width="{width:.2f}%" height="{height:g}"'
        return f'<rect class="{css}" {place}><title>{safe(title)}</title></rect>'

    def mark(self, css: str, t_ms: int, title: str) -> str:
        """An upright line at one moment."""
        at = f"{self.place(t_ms):.2f}%"
        return f'<line class="{css}" x1="{at}" x2="{at}" y1="0" y2="100%"><title>{safe(title)}</title></line>'


_GUIDES = '<use href="#guides"/>'


def row(label: str, name: str, content: str, height: int = BAR, guides: str = _GUIDES) -> str:
    """One line of the picture: `label` is HTML, `name` is for a screen reader. `guides` empty: it has no time axis."""
    picture = f'<svg class="plot" height="{height}" role="img" aria-label="{safe(name)}">{guides}{content}</svg>'
    return f'<div class="row"><div class="label">{label}</div>{picture}</div>'


def period(from_ms: int, to_ms: int) -> str:
    """A time span as text: `12:00:01.000 to 12:00:02.500 (1.5 s)`."""
    return f"{moment(from_ms)} to {moment(to_ms)} ({duration(to_ms - from_ms)})"


MAX_TRACKS = 60  # rows of the table of owners
MAX_GAPS = 400
_TALL, _WITH_NAMES = 44, 32
_PERCENT_PER_LETTER = 0.75  # in a picture of ordinary width


def run(facts: ReportFacts, axis: Axis) -> str:
    """Phases and acts, and their effects on clients."""
    lines = [*_steps(facts, axis), *_effects(facts, axis)]
    if not lines:
        return (
            '<section id="run"><h2>The run</h2><p class="soft">Neither a journal nor events of clients were given.</p></section>'
        )
    picture = f'<div class="rows">{"".join(lines)}{axis.row()}</div>'
    return f'<section id="run"><h2>The run</h2>{picture}{_legend(facts)}{_phase_table(facts)}</section>'


def _legend(facts: ReportFacts) -> str:
    items = [("act", "a change is carried out"), ("settling", "until its step observed that everything is healthy")]
    items += [("open", "its end was not recorded")] if any(act.to_ms is None for act in facts.acts) else []
    items += [("gap", "sent records waited, the group received nothing of the partition")] if facts.gaps else []
    entry = '<li><svg aria-hidden="true"><rect class="{}" width="12" height="12"/></svg>{}</li>'
    return f'<ul class="legend">{"".join(entry.format(css, safe(text)) for css, text in items)}</ul>'


def _steps(facts: ReportFacts, axis: Axis) -> Iterator[str]:
    if facts.phases:
        name = f"Phases: {', '.join(_phase_words(phase) for phase in facts.phases)}"
        yield row("Phases", name, "".join(_phase(axis, phase) for phase in facts.phases), _WITH_NAMES)
    if facts.acts:
        bars = (_act(axis, act, facts.window.to_ms) for act in facts.acts)
        yield row("Changes", f"{len(facts.acts)} changes of the cluster, listed below", "".join(bars))
    if facts.alarms:
        marks = (axis.mark("alarm", alarm.at_ms, f"{alarm.step}: {alarm.text}") for alarm in facts.alarms)
        yield row("Alarms", "; ".join(alarm.text for alarm in facts.alarms), "".join(marks))


def _phase(axis: Axis, phase: PhaseSpan) -> str:
    """A bar, and its name below it if there is room."""
    left, right = axis.place(phase.from_ms), axis.place(phase.to_ms)
    fits = right - left >= _PERCENT_PER_LETTER * len(phase.name)
    name = f'<text class="name sparse" x="{left:.2f}%" y="27">{safe(phase.name)}</text>' if fits else ""
    return axis.bar("phase", phase.from_ms, phase.to_ms, _phase_words(phase)) + name


def _phase_words(phase: PhaseSpan) -> str:
    return f"{phase.name} {period(phase.from_ms, phase.to_ms)}"


def _act(axis: Axis, act: ActSpan, end_ms: int) -> str:
    title = f"{act.step}, {act.verb}"
    if act.to_ms is None:
        return axis.bar(
            "open", act.from_ms, act.settled_ms or min(end_ms, act.from_ms + 1_000), f"{title}: its end was not written"
        )
    settling = axis.bar("settling", act.to_ms, act.settled_ms, f"{title}: well again") if act.settled_ms else ""
    return settling + axis.bar("act", act.from_ms, act.to_ms, f"{title} {period(act.from_ms, act.to_ms)}")


def _phase_table(facts: ReportFacts) -> str:
    """The same in words: phases with their longest stall and gap, and every change."""
    if not facts.phases:
        return ""
    columns = {"Phase": "th", "When (UTC)": "keep"} | dict.fromkeys(
        ("Steps done", "Longest produce stall", "Longest delivery gap"), "right"
    )
    phases = scrolling("Phases", columns, (_phase_row(phase, facts) for phase in facts.phases))
    changes = [(safe(act.step), safe(act.verb), safe(_act_words(act))) for act in facts.acts]
    all_changes = scrolling("Changes", {"Step": "", "Change": "", "When (UTC)": "keep"}, changes)
    return f"<h3>Phase by phase</h3>{phases}<details><summary>All {len(facts.acts)} changes</summary>{all_changes}</details>"


def _phase_row(phase: PhaseSpan, facts: ReportFacts) -> tuple[str, ...]:
    stalls = [stall.ms for stall in facts.stalls if stall.from_ms < phase.to_ms and phase.from_ms < stall.to_ms]
    gaps = [gap.ms for gap in facts.gaps if gap.from_ms < phase.to_ms and phase.from_ms < gap.to_ms]
    stall, gap = (duration(max(found)) if found else "" for found in (stalls, gaps))
    return safe(phase.name), safe(period(phase.from_ms, phase.to_ms)), str(phase.done), stall, gap


def _act_words(act: ActSpan) -> str:
    if act.to_ms is None:
        return f"{period(act.from_ms, act.from_ms).partition(' ')[0]}, its end was not written"
    settled = f", well after {duration(act.settled_ms - act.from_ms)}" if act.settled_ms else ""
    return period(act.from_ms, act.to_ms) + settled


class _Column(NamedTuple):
    """A bar that is higher for a larger value."""

    from_ms: float
    to_ms: float
    value: float
    title: str


def _effects(facts: ReportFacts, axis: Axis) -> Iterator[str]:
    """What clients noticed: waits for acknowledgements, delivery gaps and lag."""
    if facts.stalls:
        stalls = [_Column(stall.from_ms, stall.to_ms, stall.ms, duration(stall.ms)) for stall in facts.stalls]
        yield _columns(axis, "stall", "Longest acknowledgement", stalls, duration)
    for group in sorted({gap.group for gap in facts.gaps}):
        gaps = [_Column(gap.from_ms, gap.to_ms, gap.ms, _gap_words(gap)) for gap in facts.gaps if gap.group == group]
        yield _columns(axis, "gap", f"Delivery gaps, {group}", gaps[:MAX_GAPS], duration)
    for track in facts.lag:
        starts = [facts.window.from_ms, *(t_ms for t_ms, _ in track.points)]
        lag = [_Column(start, *point, _records(point[1])) for start, point in zip(starts, track.points, strict=False)]
        yield _columns(axis, "lag", f"Lag, {track.group}", lag, _records)


def _columns(axis: Axis, css: str, name: str, found: Sequence[_Column], words: Callable[[float], str]) -> str:
    highest = max((column.value for column in found), default=0)
    tall = ((column, max(1.0, (_TALL - 2) * column.value / highest)) for column in found if column.value)
    bars = (axis.bar(css, one.from_ms, one.to_ms, one.title, _TALL - height, height) for one, height in tall)
    most = f"at most {words(highest)}"
    return row(f'{safe(name)}<br><span class="soft">{most}</span>', f"{name}: {most}", "".join(bars), _TALL)


def _records(count: float) -> str:
    return f"{number(count)} records"


def _gap_words(gap: Gap) -> str:
    return f"{gap.topic}-{gap.partition} {period(gap.from_ms, gap.to_ms)}{', to the end' if gap.open else ''}"


def owners(facts: ReportFacts) -> str:
    """The owners of partitions: where there were two at once, or none."""
    title = '<section id="owners"><h2>Owners of partitions</h2>'
    if not facts.owners:
        return f'{title}<p class="soft">Not measured: no client recorded which partitions it acquired and released.</p></section>'
    wrong = sorted((track for track in facts.owners if track.double_ms or track.unowned_ms), key=_badness)
    columns = {"Group": "", "Partition": "th", "Two owners for": "right", "No owner for": "right", "Owners, in order": ""}
    table = scrolling("Partitions with two owners at once, or none", columns, map(_track, wrong[:MAX_TRACKS])) if wrong else ""
    more = f'<p class="soft">{number(len(wrong) - MAX_TRACKS)} more are in the JSON file.</p>' if len(wrong) > MAX_TRACKS else ""
    return f"{title}<p>{_summary(facts.owners)}</p>{table}{more}</section>"


def _badness(track: OwnerTrack) -> tuple[int, int, str, str, int]:
    return -track.double_ms, -track.unowned_ms, track.group, track.topic, track.partition


def _track(track: OwnerTrack) -> tuple[str, ...]:
    double, unowned = (duration(ms) if ms else "" for ms in (track.double_ms, track.unowned_ms))
    members = ", ".join(dict.fromkeys(member for span in track.held for member in span.owners))
    return safe(track.group), f"{safe(track.topic)}-{track.partition}", double, unowned, safe(members)


def _summary(tracks: Sequence[OwnerTrack]) -> str:
    double, unowned = (sum(getattr(track, name) for track in tracks) for name in ("double_ms", "unowned_ms"))
    longest = max((span.ms for track in tracks for span in track.held if not span.owners), default=0)
    two = f"<strong>Two owners at once for {duration(double)} in all.</strong>" if double else "Never two owners at once."
    return f"{number(len(tracks))} partitions. {two} Without an owner: at most {duration(longest)} at a time, {duration(unowned)} summed over all partitions."


MAX_COPIES = 20  # rows of the picture of commits


def offsets(facts: OffsetsFacts | None) -> str:
    """Commits outside their partition of `__consumer_offsets`: each state, and the course of the worst ones."""
    if facts is None:
        return ""
    title = '<section id="offsets"><h2>Commits of consumer groups</h2>'
    if not facts.totals:
        return f"{title}<p>{_all_read(facts)} Each is in the partition of its group, and nowhere else.</p></section>"
    states = ((safe(state), number(count)) for state, count in facts.totals.items())
    table = scrolling("States of commits", {"State": "th", "Commits": "right"}, states)
    rows = "".join(_course(shown) for shown in facts.shown[:MAX_COPIES])
    return f'{title}<p>{_all_read(facts)} {_concerned(facts)}</p>{table}<h3>The worst of them</h3>{_COPIES_LEGEND}<div class="rows">{rows}</div>{_copies_table(facts)}</section>'


_COPIES_LEGEND = (
    '<ul class="legend"><li><svg aria-hidden="true"><rect class="home" width="12" height="12"/></svg>in the partition of the group</li>'
    '<li><svg aria-hidden="true"><rect class="stray" width="12" height="12"/></svg>in another one</li>'
    "<li>left to right in the order of commit times, higher is a larger offset</li></ul>"
)


def _all_read(facts: OffsetsFacts) -> str:
    what = f"{number(facts.commits)} commits of {number(facts.groups)} groups"
    return f"{what} were read from the {facts.count} partitions of <code>__consumer_offsets</code>."


def _concerned(facts: OffsetsFacts) -> str:
    was = f" The topic had {facts.earlier[0]} partitions when they were written; since then" if len(facts.earlier) == 1 else ""
    moved = f"{was} {number(facts.moved)} groups have another partition." if was else ""
    return f"<strong>{number(sum(facts.totals.values()))} commits of {number(facts.concerned)} groups are not only where they belong.</strong>{moved}"


def _course(shown: ShownCopies) -> str:
    """One group's commits for one partition as dots."""
    judged, course = shown.judged, shown.course
    lowest, highest = (pick((one.offset or 0 for one in course), default=0) for pick in (min, max))
    name = f"{judged.key.group}, {judged.key.where.name}"
    dots = (
        f'<circle class="{"home" if one.place == judged.home else "stray"}" r="4" cx="{2 + 96 * (at + 0.5) / len(course):.2f}%" '
        f'cy="{_TALL - 6 - (_TALL - 12) * ((one.offset or 0) - lowest) / max(1, highest - lowest):.1f}">'
        f"<title>{safe(one.text)}</title></circle>"
        for at, one in enumerate(course)
    )
    words = f"{name}: {judged.state}; {len(course)} commits"
    return row(f'{safe(name)}<br><span class="soft">{safe(judged.state)}</span>', words, "".join(dots), _TALL, guides="")


def _copies_table(facts: OffsetsFacts) -> str:
    columns = {"Group": "", "Partition": "th", "Belongs in": "right", "State": "", "Copies": "", "An operator must decide": ""}
    more = f'<p class="soft">The first {len(facts.shown)}; the audit counted {number(sum(facts.totals.values()))}.</p>'
    return scrolling("Commits outside their partition", columns, map(_copies_row, facts.shown)) + more


def _copies_row(shown: ShownCopies) -> tuple[str, ...]:
    judged = shown.judged
    copies = "<br>".join(safe(one.text) for one in judged.values)
    return (
        safe(judged.key.group),
        safe(judged.key.where.name),
        str(judged.home),
        safe(judged.state),
        copies,
        safe("; ".join(judged.doubts)),
    )


def canary(verdict: CanaryVerdict | None) -> str:
    """The canary's comparison: its estimate, its bounds and what is still accepted."""
    if verdict is None:
        return ""
    state = f"{number(verdict.measured)} of {number(verdict.window)} intervals: {mark(verdict.outcome)}"
    kept = ("Canary against baseline", "Interval", "Accepted", "Smallest detectable effect")
    columns = {"Metric": "th", "Says": ""} | dict.fromkeys(kept, "keep")
    table = scrolling("Comparison of the canary", columns, [_compared(verdict)])
    return f'<section id="canary"><h2>Canary</h2><p>{state}</p>{table}</section>'


def _compared(verdict: CanaryVerdict) -> tuple[str, ...]:
    accepted = f"up to {verdict.margin:g}"
    seen = "" if verdict.smallest is None else f"{_shown(verdict.smallest)} (with a probability of 80 %)"
    members = f"{_shown(verdict.estimate)} (against {verdict.baseline} members)"
    return safe(verdict.metric), mark(verdict.outcome), *map(safe, (members, _interval(verdict), accepted, seen))


def _shown(value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:.3g}" if math.isfinite(value) else "no limit"


def _interval(verdict: CanaryVerdict) -> str:
    if verdict.low is None or verdict.high is None:
        return ""
    return f"{_shown(verdict.low)} to {_shown(verdict.high)}"
