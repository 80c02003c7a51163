"""The page's pictures, as rows of SVG: the run on a time axis, owners of partitions, the canary's ratios.

Positions are percentages, so that a picture fills any width and its text keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow_provider_kmigrate.audit.report.words import mark, scrolling
from airflow_provider_kmigrate.core.audit.report_facts import (
    Held,
    LagTrack,
    OwnerTrack,
    ReportFacts,
    Stall,
    Window,
    alike,
    simpler,
)
from airflow_provider_kmigrate.core.audit.verdict import CanaryVerdict
from airflow_provider_kmigrate.core.journal_lines import ActSpan, PhaseSpan
from airflow_provider_kmigrate.core.ledger.facts import Gap
from airflow_provider_kmigrate.core.text import duration, moment, number, ranges, safe

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800)
_TICKS = 7
BAR = 14  # height of a row's bars in px


@dataclass(frozen=True, slots=True)
class Axis:
    """A time axis: times as places from 0 to 100 %."""

    window: Window

    def place(self, t_ms: float) -> float:
        length = max(1, self.window.to_ms - self.window.from_ms)
        return min(100.0, max(0.0, 100 * (t_ms - self.window.from_ms) / length))

    def ticks(self) -> list[int]:
        """Round times, at most `_TICKS` of them."""
        length = max(1, self.window.to_ms - self.window.from_ms)
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

    def bar(  # noqa: PLR0917  # a bar has these parts
        self, css: str, from_ms: float, to_ms: float, title: str = "", y: float = 1, height: float = BAR - 2, least: float = 0.15
    ) -> str:
        """A bar of a row. `least`: the narrowest it may be, in %; an important moment must not vanish."""
        left = self.place(from_ms)
        width = max(least, self.place(to_ms) - left)
        left = min(left, 100 - width)
        shown = f"><title>{safe(title)}</title></rect>" if title else "/>"
        return f'<rect class="{css}" x="{left:.2f}%" y="{y:g}" width="{width:.2f}%" height="{height:g}"{shown}'

    def mark(self, css: str, t_ms: int, title: str) -> str:
        """An upright line at one moment."""
        at = f"{self.place(t_ms):.2f}%"
        return f'<line class="{css}" x1="{at}" x2="{at}" y1="0" y2="100%"><title>{safe(title)}</title></line>'

    def curve(self, points: Sequence[tuple[int, float]], highest: float) -> str:
        """A line and the area below it, over the whole row."""
        tops = [(10 * self.place(t_ms), 100 - 96 * value / (highest or 1)) for t_ms, value in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in tops)
        area = f"{tops[0][0]:.1f},100 {line} {tops[-1][0]:.1f},100"
        return (
            '<svg width="100%" height="100%" viewBox="0 0 1000 100" preserveAspectRatio="none">'
            f'<polygon class="area" points="{area}"/><polyline class="line" points="{line}"/></svg>'
        )


def row(label: str, name: str, content: str, height: int = BAR, *, timed: bool = True) -> str:
    """One line of a picture: `label` is HTML, `name` is for a screen reader. `timed`: it lies on the time axis."""
    guides = '<use href="#guides"/>' if timed else ""
    picture = f'<svg class="plot" height="{height}" role="img" aria-label="{safe(name)}">{guides}{content}</svg>'
    return f'<div class="row"><div class="label">{label}</div>{picture}</div>'


def rows(axis: Axis, lines: Iterable[str]) -> str:
    """Lines below each other, with the axis."""
    return f'<div class="rows">{"".join(lines)}{axis.row()}</div>'


def legend(items: Iterable[tuple[str, str]]) -> str:
    """(CSS class, text) each."""
    entries = (
        f'<li><svg aria-hidden="true"><rect class="{css}" width="12" height="12"/></svg>{safe(text)}</li>' for css, text in items
    )
    return f'<ul class="legend">{"".join(entries)}</ul>'


def lasting(from_ms: int, to_ms: int) -> str:
    """A time span as text: `12:00:01.000 to 12:00:02.500 (1.5 s)`."""
    return f"{moment(from_ms)} to {moment(to_ms)} ({duration(to_ms - from_ms)})"


MAX_TRACKS = 120  # rows of partitions
MAX_BARS = 8_000  # bars of all those rows: about 1 MB
MAX_GAPS = 400
_COLOURS = 8
_TALL, _WITH_NAMES = 44, 32
_PERCENT_PER_LETTER = 0.75  # in a picture of ordinary width


def run(facts: ReportFacts, axis: Axis) -> str:
    """Phases and acts, and their effects on clients."""
    lines = [*_steps(facts, axis), *_produce(facts.stalls, axis), *_gaps(facts.gaps, axis), *_lag(facts.lag, axis)]
    if not lines:
        return (
            '<section id="run"><h2>The run</h2><p class="soft">Neither a journal nor events of clients were given.</p></section>'
        )
    return f'<section id="run"><h2>The run</h2>{rows(axis, lines)}{_run_legend(facts)}{_phase_table(facts)}</section>'


def _run_legend(facts: ReportFacts) -> str:
    items = [("act", "a change is carried out"), ("settling", "until its step observed that everything is healthy")]
    items += [("open", "its end was not recorded")] if any(act.to_ms is None for act in facts.acts) else []
    items += [("gap", "sent records waited, the group was given none of the partition")] if facts.gaps else []
    return legend(items)


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
    return f"{phase.name} {lasting(phase.from_ms, phase.to_ms)}"


def _act(axis: Axis, act: ActSpan, end_ms: int) -> str:
    title = f"{act.step}, {act.verb}"
    if act.to_ms is None:
        return axis.bar(
            "open", act.from_ms, act.settled_ms or min(end_ms, act.from_ms + 1_000), f"{title}: its end was not written"
        )
    settling = axis.bar("settling", act.to_ms, act.settled_ms, f"{title}: well again") if act.settled_ms else ""
    return settling + axis.bar("act", act.from_ms, act.to_ms, f"{title} {lasting(act.from_ms, act.to_ms)}")


def _phase_table(facts: ReportFacts) -> str:
    """The same in words: phases with their longest stall and gap, and every change."""
    if not facts.phases:
        return ""
    lines = [_phase_line(phase, facts) for phase in facts.phases]
    phases = scrolling("Phases", ("Phase", "When (UTC)", "Steps done", "Longest produce stall", "Longest delivery gap"), lines)
    changes = [
        f"<tr><td>{safe(act.step)}</td><td>{safe(act.verb)}</td><td class=keep>{safe(_act_words(act))}</td></tr>"
        for act in facts.acts
    ]
    all_changes = scrolling("Changes", ("Step", "Change", "When (UTC)"), changes)
    return f"<h3>Phase by phase</h3>{phases}<details><summary>All {len(facts.acts)} changes</summary>{all_changes}</details>"


def _phase_line(phase: PhaseSpan, facts: ReportFacts) -> str:
    stalls = [stall.ms for stall in facts.stalls if stall.from_ms < phase.to_ms and phase.from_ms < stall.to_ms]
    gaps = [gap.ms for gap in facts.gaps if gap.from_ms < phase.to_ms and phase.from_ms < gap.to_ms]
    stall, gap = (duration(max(found)) if found else "" for found in (stalls, gaps))
    times = lasting(phase.from_ms, phase.to_ms)
    cells = f"<td class=keep>{safe(times)}</td><td class=right>{phase.done}</td><td class=right>{stall}</td><td class=right>{gap}</td>"
    return f"<tr><th scope=row>{safe(phase.name)}</th>{cells}</tr>"


def _act_words(act: ActSpan) -> str:
    if act.to_ms is None:
        return f"{lasting(act.from_ms, act.from_ms).partition(' ')[0]}, its end was not written"
    settled = f", well after {duration(act.settled_ms - act.from_ms)}" if act.settled_ms else ""
    return lasting(act.from_ms, act.to_ms) + settled


def _produce(stalls: Sequence[Stall], axis: Axis) -> Iterator[str]:
    if not stalls:
        return
    worst = max(stall.ms for stall in stalls)
    heights = ((stall, max(1.0, (_TALL - 2) * stall.ms / (worst or 1))) for stall in stalls)
    bars = (axis.bar("stall", each.from_ms, each.to_ms, duration(each.ms), _TALL - tall, tall) for each, tall in heights)
    label = f'Longest acknowledgement<br><span class="soft">at most {duration(worst)}</span>'
    yield row(label, f"Longest time to an acknowledgement, at most {duration(worst)}", "".join(bars), _TALL)


def _gaps(gaps: Sequence[Gap], axis: Axis) -> Iterator[str]:
    """Longer gaps are higher; `gaps` come longest first."""
    for group in sorted({gap.group for gap in gaps}):
        found = [gap for gap in gaps if gap.group == group][:MAX_GAPS]
        longest = found[0].ms or 1
        bars = (
            axis.bar("gap", gap.from_ms, gap.to_ms, _gap_words(gap), _TALL - tall, tall)
            for gap, tall in ((gap, max(1.0, (_TALL - 2) * gap.ms / longest)) for gap in found)
        )
        label = f'Delivery gaps, {safe(group)}<br><span class="soft">at most {duration(longest)}</span>'
        yield row(label, f"Delivery gaps of group {group}, longest: {_gap_words(found[0])}", "".join(bars), _TALL)


def _gap_words(gap: Gap) -> str:
    return f"{gap.topic}-{gap.partition} {lasting(gap.from_ms, gap.to_ms)}{', to the end' if gap.open else ''}"


def _lag(tracks: Sequence[LagTrack], axis: Axis) -> Iterator[str]:
    for track in tracks:
        if track.points:
            label = f'Lag, {safe(track.group)}<br><span class="soft">at most {number(track.largest)} records</span>'
            name = (
                f"Lag of group {track.group}: at most {number(track.largest)} records, {number(track.points[-1][1])} at the end"
            )
            yield row(label, name, axis.curve(track.points, track.largest), _TALL)


def owners(facts: ReportFacts, axis: Axis) -> str:
    """The owners of partitions over time; two at once and none stand out."""
    title = '<section id="owners"><h2>Owners of partitions</h2>'
    if not facts.owners:
        return f'{title}<p class="soft">Not measured: no client wrote down which partitions it took and gave up.</p></section>'
    merged = alike(facts.owners)
    tracks = _affordable(merged[:MAX_TRACKS], axis)
    colours = _colours(tracks)
    parts = [f"{title}<p>{_summary(facts.owners)}</p>"]
    for group in sorted({track.group for track in tracks}):
        lines = [_track(track, axis, colours) for track in tracks if track.group == group]
        parts.append(f"<h3>Group {safe(group)}</h3>{rows(axis, lines)}")
    return "".join([*parts, _owner_legend(colours), _left_out(merged[MAX_TRACKS:]), "</section>"])


def _summary(tracks: Sequence[OwnerTrack]) -> str:
    double, unowned = (sum(getattr(track, name) for track in tracks) for name in ("double_ms", "unowned_ms"))
    longest = max((span.ms for track in tracks for span in track.held if not span.owners), default=0)
    two = f"<strong>Two owners at once for {duration(double)} in all.</strong>" if double else "Never two owners at once."
    return f"{number(len(tracks))} partitions. {two} Without an owner: at most {duration(longest)} at a time, {duration(unowned)} summed over all partitions."


def _affordable(tracks: Sequence[OwnerTrack], axis: Axis) -> list[OwnerTrack]:
    """Drawn more coarsely until it fits; two owners at once are never left out."""
    step_ms, found = max(1, (axis.window.to_ms - axis.window.from_ms) // 2000), list(tracks)
    while sum(len(track.held) for track in found) > MAX_BARS:
        found = [simpler(track, step_ms) for track in tracks]
        step_ms *= 2
    return found


def _colours(tracks: Iterable[OwnerTrack]) -> dict[str, str]:
    members = sorted({member for track in tracks for span in track.held for member in span.owners})
    return {member: f"o{index % _COLOURS}" for index, member in enumerate(members)}


def _track(track: OwnerTrack, axis: Axis, colours: dict[str, str]) -> str:
    bars = "".join(_span(span, axis, colours) for span in track.held)
    count = f' <span class="soft">({len(track.partitions)})</span>' if len(track.partitions) > 1 else ""
    return row(f"{safe(track.topic)} {ranges(track.partitions)}{count}", _track_words(track), bars)


def _track_words(track: OwnerTrack) -> str:
    troubles = [f"two owners for {duration(track.double_ms)}"] if track.double_ms else []
    troubles += [f"no owner for {duration(track.unowned_ms)}"] if track.unowned_ms else []
    members = len({member for span in track.held for member in span.owners})
    return f"{track.topic} {ranges(track.partitions)}: {members} owners in turn; {', '.join(troubles) or 'always exactly one'}"


def _span(span: Held, axis: Axis, colours: dict[str, str]) -> str:
    if len(span.owners) > 1:
        title = f"two owners: {', '.join(span.owners)}, {lasting(span.from_ms, span.to_ms)}"
        red = axis.bar("double", span.from_ms, span.to_ms, title, 0, BAR, least=0.4)
        return red + axis.bar("striped", span.from_ms, span.to_ms, "", 0, BAR, least=0.4)
    if not span.owners:
        return axis.bar("unowned", span.from_ms, span.to_ms, f"no owner, {lasting(span.from_ms, span.to_ms)}", 5, BAR - 10)
    return axis.bar(colours[span.owners[0]], span.from_ms, span.to_ms, f"{span.owners[0]}, {lasting(span.from_ms, span.to_ms)}")


def _owner_legend(colours: dict[str, str]) -> str:
    named = [(css, member) for member, css in colours.items()][:24]
    more = [("unowned", f"colours repeat for {len(colours) - 24} more members")] if len(colours) > 24 else []
    return legend([("double", "two owners at once"), ("unowned", "no owner"), *named, *more])


def _left_out(tracks: Sequence[OwnerTrack]) -> str:
    if not tracks:
        return ""
    partitions = sum(len(track.partitions) for track in tracks)
    return f'<p class="soft">{number(partitions)} more partitions, with less time of that kind, are in the JSON file.</p>'


def canary(verdict: CanaryVerdict | None) -> str:
    """The canary's comparison: its estimate, its bounds and what is still accepted, in a picture and a table."""
    if verdict is None:
        return ""
    state = f"{number(verdict.measured)} of {number(verdict.window)} intervals: {mark(verdict.outcome)}"
    table = scrolling(
        "Comparison of the canary", ("Metric", "Says", "Canary against baseline", "Interval", "Accepted", "Smallest effect it could see"),
        [_compared(verdict)],
    )  # fmt: skip
    items = [("allowed", "accepted"), ("dot", "estimate, with the interval that the decision uses")]
    return f'<section id="canary"><h2>Canary</h2><p>{state}</p><div class="rows">{_picture(verdict)}</div>{legend(items)}{table}</section>'


def _picture(verdict: CanaryVerdict) -> str:
    """One row: where the canary lies between no difference and the margin, on a logarithmic scale."""
    known = [value for value in (verdict.low, verdict.estimate, verdict.high) if value and math.isfinite(value)]
    place = _Scale([1.0, verdict.margin, *known])
    low, high = (limit if value is None else place(value) for value, limit in ((verdict.low, 0.0), (verdict.high, 100.0)))
    parts = [f'<rect class="allowed" x="0" y="0" width="{place(verdict.margin):.2f}%" height="100%"/>']
    parts += [_upright("margin", place(verdict.margin)), _upright("neutral", place(1.0))]
    if verdict.estimate is not None:
        parts.append(f'<line class="whisker" x1="{low:.2f}%" x2="{high:.2f}%" y1="50%" y2="50%"/>')
        parts.append(f'<circle class="dot" cx="{place(verdict.estimate):.2f}%" cy="50%" r="5"/>')
    words = _interval(verdict) or "not enough to compute it"
    return row(
        safe(verdict.metric),
        f"{verdict.metric}: {_shown(verdict.estimate)}, {words}, accepted up to {verdict.margin:g}",
        "".join(parts),
        26,
        timed=False,
    )


class _Scale:
    """A logarithmic scale from a factor to a place from 4 to 96 %; 0 and infinity are at the edges."""

    def __init__(self, factors: Sequence[float]) -> None:
        logs = list(map(math.log, factors))
        self._low, self._high = min(logs), max(logs)

    def __call__(self, factor: float) -> float:
        if factor == 0 or not math.isfinite(factor):
            return 100.0 if factor > 0 else 0.0
        return 4 + 92 * (math.log(factor) - self._low) / (self._high - self._low)


def _upright(css: str, place: float) -> str:
    return f'<line class="{css}" x1="{place:.2f}%" x2="{place:.2f}%" y1="0" y2="100%"/>'


def _compared(verdict: CanaryVerdict) -> str:
    accepted = f"up to {verdict.margin:g}"
    seen = "" if verdict.smallest is None else f"{_shown(verdict.smallest)} (with a probability of 80 %)"
    members = f"{_shown(verdict.estimate)} (against {verdict.baseline} members)"
    cells = "".join(f"<td class=keep>{safe(text)}</td>" for text in (members, _interval(verdict), accepted, seen))
    return f"<tr><th scope=row>{safe(verdict.metric)}</th><td>{mark(verdict.outcome)}</td>{cells}</tr>"


def _shown(value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:.3g}" if math.isfinite(value) else "no limit"


def _interval(verdict: CanaryVerdict) -> str:
    if verdict.low is None or verdict.high is None:
        return ""
    return f"{_shown(verdict.low)} to {_shown(verdict.high)}"
