"""The course of events: the run as bars on a time axis, and tables of phases, changes, owners and the canary's comparison.

Positions are percentages, so that a picture fills any width and its text keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_kmigrate.audit.report.labels import render_outcome, render_table
from airflow_provider_kmigrate.core.audit.commit_copies import OffsetsFacts, ShownCopies
from airflow_provider_kmigrate.core.audit.course import Course, CoursePart, GroupCourse
from airflow_provider_kmigrate.core.audit.report_facts import LagTrack, OwnerTrack, ReportFacts, ReportWindow
from airflow_provider_kmigrate.core.audit.verdict import CanaryVerdict
from airflow_provider_kmigrate.core.ledger.facts import Gap
from airflow_provider_kmigrate.core.monitoring.journal_lines import ActSpan, PhaseSpan
from airflow_provider_kmigrate.core.shared.text import Count, escape_html, format_duration, format_number, format_time

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800)
_TICKS = 7
BAR = 14  # height of a row's bars in px
_LEAST = 0.15  # the narrowest bar, in %


@dataclass(frozen=True, slots=True)
class Axis:
    """A time axis: times as places from 0 to 100 %."""

    window: ReportWindow

    def percent_at(self, t_ms: float) -> float:
        """A time (ms since the epoch) as a place in %; times outside the window are moved to its nearer edge."""
        return min(100.0, max(0.0, 100 * (t_ms - self.window.from_ms) / self.window.length))

    def tick_times(self) -> list[int]:
        """Round times, at most `_TICKS` of them."""
        length = self.window.length
        step = 1000 * next((size for size in _STEPS_S if length <= 1000 * size * _TICKS), _STEPS_S[-1] * (1 + length // 10**9))
        first = -(-self.window.from_ms // step) * step
        return list(range(first, self.window.to_ms + 1, step))

    def render_axis(self) -> str:
        """The axis itself; every second time is left out if there is little room."""
        texts = []
        for index, tick in enumerate(self.tick_times()):
            at = self.percent_at(tick)
            anchor = "start" if at < 5 else "end" if at > 95 else "middle"
            sparse = ' class="sparse"' if index % 2 else ""
            texts.append(f'<text{sparse} x="{at:.2f}%" y="12" text-anchor="{anchor}">{format_time(tick, millis=False)}</text>')
        return f'<div class="row axis" aria-hidden="true"><div class="label soft">UTC</div><svg class="plot" height="16">{"".join(texts)}</svg></div>'

    def render_guides(self, times: Iterable[int], name: str = "guides") -> str:
        """Thin lines that every row shows."""
        lines = (
            f'<line class="guide" x1="{at}%" x2="{at}%" y1="0" y2="100%"/>' for at in (f"{self.percent_at(t):.2f}" for t in times)
        )
        return f'<g id="{name}">{"".join(lines)}</g>'

    def render_bar(self, css: str, from_ms: float, to_ms: float, title: str, y: float = 1, height: float = BAR - 2) -> str:  # noqa: PLR0917  # a bar has these parts
        """A bar of a row, never so narrow that it vanishes."""
        left = self.percent_at(from_ms)
        width = max(_LEAST, self.percent_at(to_ms) - left)
        left = min(left, 100 - width)
        attributes = f'x="{left:.2f}%" y="{y:g}" width="{width:.2f}%" height="{height:g}"'
        return f'<rect class="{css}" {attributes}><title>{escape_html(title)}</title></rect>'

    def render_mark(self, css: str, t_ms: int, title: str) -> str:
        """An upright line at one moment."""
        at = f"{self.percent_at(t_ms):.2f}%"
        return f'<line class="{css}" x1="{at}" x2="{at}" y1="0" y2="100%"><title>{escape_html(title)}</title></line>'


_GUIDES = '<use href="#guides"/>'


def render_row(label: str, name: str, content: str, height: int = BAR, guides: str = _GUIDES) -> str:
    """One line of the picture: `label` is HTML, `name` is for a screen reader. `guides` empty: it has no time axis."""
    picture = f'<svg class="plot" height="{height}" role="img" aria-label="{escape_html(name)}">{guides}{content}</svg>'
    return f'<div class="row"><div class="label">{label}</div>{picture}</div>'


def format_period(from_ms: int, to_ms: int) -> str:
    """A time span as text: `12:00:01.000 to 12:00:02.500 (1.5 s)`."""
    return f"{format_time(from_ms)} to {format_time(to_ms)} ({format_duration(to_ms - from_ms)})"


MAX_TRACKS = 60  # rows of the table of owners
MAX_GAPS = 400
_TALL, _WITH_NAMES = 44, 32
_PERCENT_PER_LETTER = 0.75  # in a picture of ordinary width


def render_run(facts: ReportFacts, axis: Axis) -> str:
    """Phases and acts, and their effects on clients."""
    lines = [*_render_steps(facts, axis), *_render_effects(facts, axis)]
    if not lines:
        return (
            '<section id="run"><h2>The run</h2><p class="soft">Neither a journal nor events of clients were given.</p></section>'
        )
    picture = f'<div class="rows">{"".join(lines)}{axis.render_axis()}</div>'
    return f'<section id="run"><h2>The run</h2>{picture}{_render_legend(facts)}{_render_phase_table(facts)}</section>'


def _render_legend(facts: ReportFacts) -> str:
    items = [("act", "a change is carried out"), ("settling", "until its step observed that everything is healthy")]
    items += [("open", "its end was not recorded")] if any(act.to_ms is None for act in facts.acts) else []
    items += [("gap", "sent records waited, the group received nothing of the partition")] if facts.gaps else []
    unread = any(track.ends_ms is not None for track in facts.lag)
    items += [("unread", "not known: the group's events that were read end before")] if unread else []
    return _render_legend_items(items)


def _render_legend_items(items: Iterable[tuple[str, str]]) -> str:
    entry = '<li><svg aria-hidden="true"><rect class="{}" width="12" height="12"/></svg>{}</li>'
    return f'<ul class="legend">{"".join(entry.format(css, escape_html(text)) for css, text in items)}</ul>'


def _render_steps(facts: ReportFacts, axis: Axis) -> Iterator[str]:
    if facts.phases:
        name = f"Phases: {', '.join(_describe_phase(phase) for phase in facts.phases)}"
        yield render_row("Phases", name, "".join(_render_phase(axis, phase) for phase in facts.phases), _WITH_NAMES)
    if facts.acts:
        bars = (_render_act(axis, act, facts.window.to_ms) for act in facts.acts)
        yield render_row("Changes", f"{Count(len(facts.acts)):change} of the cluster, listed below", "".join(bars))
    if facts.alarms:
        marks = (axis.render_mark("alarm", alarm.at_ms, f"{alarm.step}: {alarm.text}") for alarm in facts.alarms)
        yield render_row("Alarms", "; ".join(alarm.text for alarm in facts.alarms), "".join(marks))


def _render_phase(axis: Axis, phase: PhaseSpan) -> str:
    """A bar, and its name below it if there is room."""
    left, right = axis.percent_at(phase.from_ms), axis.percent_at(phase.to_ms)
    fits = right - left >= _PERCENT_PER_LETTER * len(phase.name)
    name = f'<text class="name sparse" x="{left:.2f}%" y="27">{escape_html(phase.name)}</text>' if fits else ""
    return axis.render_bar("phase", phase.from_ms, phase.to_ms, _describe_phase(phase)) + name


def _describe_phase(phase: PhaseSpan) -> str:
    return f"{phase.name} {format_period(phase.from_ms, phase.to_ms)}"


def _render_act(axis: Axis, act: ActSpan, end_ms: int) -> str:
    title = f"{act.step}, {act.verb}"
    if act.to_ms is None:
        return axis.render_bar(
            "open", act.from_ms, act.settled_ms or min(end_ms, act.from_ms + 1_000), f"{title}: its end was not written"
        )
    settling = axis.render_bar("settling", act.to_ms, act.settled_ms, f"{title}: well again") if act.settled_ms else ""
    return settling + axis.render_bar("act", act.from_ms, act.to_ms, f"{title} {format_period(act.from_ms, act.to_ms)}")


def _render_phase_table(facts: ReportFacts) -> str:
    """The same in words: phases with their longest stall and gap, and every change."""
    if not facts.phases:
        return ""
    columns = {"Phase": "th", "When (UTC)": "keep"} | dict.fromkeys(
        ("Steps done", "Longest produce stall", "Longest delivery gap"), "right"
    )
    phases = render_table("Phases", columns, (_phase_cells(phase, facts) for phase in facts.phases))
    changes = [(escape_html(act.step), escape_html(act.verb), escape_html(_describe_act(act))) for act in facts.acts]
    all_changes = render_table("Changes", {"Step": "", "Change": "", "When (UTC)": "keep"}, changes)
    return (
        f"<h3>Phase by phase</h3>{phases}<details><summary>All {Count(len(facts.acts)):change}</summary>{all_changes}</details>"
    )


def _phase_cells(phase: PhaseSpan, facts: ReportFacts) -> tuple[str, ...]:
    stalls = [stall.ms for stall in facts.stalls if stall.from_ms < phase.to_ms and phase.from_ms < stall.to_ms]
    gaps = [gap.ms for gap in facts.gaps if gap.from_ms < phase.to_ms and phase.from_ms < gap.to_ms]
    stall, gap = (format_duration(max(durations)) if durations else "" for durations in (stalls, gaps))
    return escape_html(phase.name), escape_html(format_period(phase.from_ms, phase.to_ms)), str(phase.done), stall, gap


def _describe_act(act: ActSpan) -> str:
    if act.to_ms is None:
        return f"{format_period(act.from_ms, act.from_ms).partition(' ')[0]}, its end was not written"
    settled = f", well after {format_duration(act.settled_ms - act.from_ms)}" if act.settled_ms else ""
    return format_period(act.from_ms, act.to_ms) + settled


class _Column(NamedTuple):
    """A bar that is higher for a larger value."""

    from_ms: float
    to_ms: float
    value: float
    title: str


def _render_effects(facts: ReportFacts, axis: Axis) -> Iterator[str]:
    """What clients noticed: waits for acknowledgements, delivery gaps and lag."""
    if facts.stalls:
        stalls = [_Column(stall.from_ms, stall.to_ms, stall.ms, format_duration(stall.ms)) for stall in facts.stalls]
        yield _render_columns(axis, "stall", "Longest acknowledgement", stalls, format_duration)
    for group in sorted({gap.group for gap in facts.gaps}):
        gaps = [_Column(gap.from_ms, gap.to_ms, gap.ms, _describe_gap(gap)) for gap in facts.gaps if gap.group == group]
        yield _render_columns(axis, "gap", f"Delivery gaps, {group}", gaps[:MAX_GAPS], format_duration)
    for track in facts.lag:
        starts = [facts.window.from_ms, *(t_ms for t_ms, _ in track.points)]
        lag = [_Column(start, *point, _format_records(point[1])) for start, point in zip(starts, track.points, strict=False)]
        unread = _render_unread(axis, track, facts.window.to_ms)
        yield _render_columns(axis, "lag", f"Lag, {track.group}", lag, _format_records, unread)


def _render_unread(axis: Axis, track: LagTrack, to_ms: int) -> str:
    """The end of the picture of which nothing is known: the group's events that were read end before."""
    if track.ends_ms is None:
        return ""
    text = f"not known: the group's events were read until {format_time(track.ends_ms)}"
    return axis.render_bar("unread", track.ends_ms, to_ms, text, 0, _TALL)


def _render_columns(  # noqa: PLR0917  # a row has these parts
    axis: Axis,
    css: str,
    name: str,
    columns: Sequence[_Column],
    words: Callable[[float], str],
    more: str = "",
    guides: str = _GUIDES,
) -> str:
    """`more`: other shapes of the row, behind the bars."""
    highest = max((column.value for column in columns), default=0)
    tall = ((column, max(1.0, (_TALL - 2) * column.value / highest)) for column in columns if column.value)
    bars = (
        axis.render_bar(css, tall_column.from_ms, tall_column.to_ms, tall_column.title, _TALL - height, height)
        for tall_column, height in tall
    )
    most = f"at most {words(highest)}"
    label = f'{escape_html(name)}<br><span class="soft">{most}</span>'
    return render_row(label, f"{name}: {most}", more + "".join(bars), _TALL, guides)


def _format_records(count: float) -> str:
    return f"{Count(round(count)):record}"


def _describe_gap(gap: Gap) -> str:
    return f"{gap.topic}-{gap.partition} {format_period(gap.from_ms, gap.to_ms)}{', to the end' if gap.open else ''}"


MAX_COURSES = 12  # groups whose course is drawn
_RESTARTS = '<use href="#restarts"/>'


def render_course(course: Course) -> str:
    """Completeness and latency of each group over the whole migration, with every restart marked."""
    if not course.groups:
        return ""
    times = [part.from_ms for group in course.groups for part in group.parts]
    times += [part.to_ms for group in course.groups for part in group.parts] + [restart.began_ms for restart in course.restarts]
    axis = Axis(ReportWindow(min(times), max(times)))
    defined = axis.render_guides((restart.began_ms for restart in course.restarts), "restarts")
    hidden = (
        f'<svg width="0" height="0" aria-hidden="true" focusable="false" style="position:absolute"><defs>{defined}</defs></svg>'
    )
    rows = "".join(row for group in course.groups[:MAX_COURSES] for row in _render_group_course(group, axis))
    not_shown = len(course.groups) - MAX_COURSES
    more = f'<p class="soft">{Count(not_shown):more group is|more groups are} in the JSON file.</p>' if not_shown > 0 else ""
    legend = _render_legend_items(
        [
            ("phase", "at the end of each minute everything acknowledged had been delivered"),
            ("gap", "records waited; higher is more of them"),
            ("lag", "the longest time from sent to delivered"),
            ("alarm", "a restart began (upright line)"),
        ]
    )
    return (
        f'<section id="course"><h2>Completeness and latency over the whole migration</h2>{hidden}'
        f'<div class="rows">{rows}{axis.render_axis()}</div>{legend}{more}{_render_restarts(course)}</section>'
    )


def _render_group_course(group: GroupCourse, axis: Axis) -> Iterator[str]:
    complete = (
        axis.render_bar("phase", part.from_ms, part.to_ms, _describe_part(part), _TALL - 5, 4)
        for part in group.parts
        if not part.behind
    )
    behind = [_Column(part.from_ms, part.to_ms, part.behind, _describe_part(part)) for part in group.parts]
    title = f"Not delivered yet, {group.group} ({group.level})"
    yield _render_columns(axis, "gap", title, behind, _format_records, "".join(complete), _RESTARTS)
    latency = [
        _Column(part.from_ms, part.to_ms, part.longest_delivery_ms, _describe_part(part))
        for part in group.parts
        if part.longest_delivery_ms is not None
    ]
    if latency:
        yield _render_columns(axis, "lag", f"Latency, {group.group} ({group.level})", latency, format_duration, guides=_RESTARTS)


def _describe_part(part: CoursePart) -> str:
    latency = "" if part.longest_delivery_ms is None else f", longest {format_duration(part.longest_delivery_ms)}"
    counts = f"{format_number(part.acked)} acknowledged, {format_number(part.delivered)} delivered"
    return f"{format_time(part.from_ms, millis=False)}: {counts}, at most {format_number(part.behind)} behind{latency}"


def _render_restarts(course: Course) -> str:
    if not course.restarts:
        return '<p class="soft">No restart is recorded.</p>'
    columns = {"Restart": "th", "When (UTC)": "keep"} | dict.fromkeys(
        ("Longest acknowledgement", "Longest delivery", "Records 1 s late or more"), "right"
    )
    rows = (
        (
            escape_html(restart.step),
            escape_html(format_period(restart.began_ms, restart.until_ms) + ("" if restart.is_settled else ", not settled")),
            *("" if ms is None else format_duration(ms) for ms in (restart.longest_ack_ms, restart.longest_delivery_ms)),
            "" if restart.late is None else format_number(restart.late),
        )
        for restart in course.restarts
    )
    table = render_table("Restarts, and what clients noticed of them", columns, rows)
    return f"<details><summary>All {Count(len(course.restarts)):restart}</summary>{table}</details>"


def render_owners(facts: ReportFacts) -> str:
    """The owners of partitions: where there were two at once, or none."""
    title = '<section id="owners"><h2>Owners of partitions</h2>'
    if not facts.owners:
        return f'{title}<p class="soft">Not measured: no client recorded which partitions it acquired and released.</p></section>'
    wrong = sorted((track for track in facts.owners if track.double_ms or track.unowned_ms), key=_worst_first_key)
    columns = {"Group": "", "Partition": "th", "Two owners for": "right", "No owner for": "right", "Owners, in order": ""}
    table = (
        render_table("Partitions with two owners at once, or none", columns, map(_track_cells, wrong[:MAX_TRACKS]))
        if wrong
        else ""
    )
    more = (
        f'<p class="soft">{Count(len(wrong) - MAX_TRACKS):more partition is|more partitions are} in the JSON file.</p>'
        if len(wrong) > MAX_TRACKS
        else ""
    )
    return f"{title}<p>{_summarize_owners(facts.owners)}</p>{table}{more}</section>"


def _worst_first_key(track: OwnerTrack) -> tuple[int, int, str, str, int]:
    return -track.double_ms, -track.unowned_ms, track.group, track.topic, track.partition


def _track_cells(track: OwnerTrack) -> tuple[str, ...]:
    double, unowned = (format_duration(ms) if ms else "" for ms in (track.double_ms, track.unowned_ms))
    members = ", ".join(dict.fromkeys(member for span in track.held for member in span.owners))
    return escape_html(track.group), f"{escape_html(track.topic)}-{track.partition}", double, unowned, escape_html(members)


def _summarize_owners(tracks: Sequence[OwnerTrack]) -> str:
    double, unowned = (sum(getattr(track, name) for track in tracks) for name in ("double_ms", "unowned_ms"))
    longest = max((span.ms for track in tracks for span in track.held if not span.owners), default=0)
    two = f"<strong>Two owners at once for {format_duration(double)} in all.</strong>" if double else "Never two owners at once."
    return f"{Count(len(tracks)):partition}. {two} Without an owner: at most {format_duration(longest)} at a time, {format_duration(unowned)} summed over all partitions."


MAX_COPIES = 20  # rows of the picture of commits


def render_offsets(facts: OffsetsFacts | None) -> str:
    """Commits outside their partition of `__consumer_offsets`: each state, and the course of the worst ones."""
    if facts is None:
        return ""
    title = '<section id="offsets"><h2>Commits of consumer groups</h2>'
    if not facts.totals:
        return f"{title}<p>{_describe_read_commits(facts)} Each is in the partition of its group, and nowhere else.</p></section>"
    states = ((escape_html(state), format_number(count)) for state, count in facts.totals.items())
    table = render_table("States of commits", {"State": "th", "Commits": "right"}, states)
    rows = "".join(_render_course(shown) for shown in facts.shown[:MAX_COPIES])
    return f'{title}<p>{_describe_read_commits(facts)} {_describe_concerned(facts)}</p>{table}<h3>The worst of them</h3>{_COPIES_LEGEND}<div class="rows">{rows}</div>{_render_copies_table(facts)}</section>'


_COPIES_LEGEND = (
    '<ul class="legend"><li><svg aria-hidden="true"><rect class="home" width="12" height="12"/></svg>in the partition of the group</li>'
    '<li><svg aria-hidden="true"><rect class="stray" width="12" height="12"/></svg>in another one</li>'
    "<li>left to right in the order of commit times, higher is a larger offset</li></ul>"
)


def _describe_read_commits(facts: OffsetsFacts) -> str:
    what = f"{Count(facts.commits):commit} of {Count(facts.groups):group}"
    return f"{what} were read from the {Count(facts.count):partition} of <code>__consumer_offsets</code>."


def _describe_concerned(facts: OffsetsFacts) -> str:
    earlier_count = (
        f" The topic had {Count(facts.earlier[0]):partition} when they were written; since then"
        if len(facts.earlier) == 1
        else ""
    )
    moved = f"{earlier_count} {Count(facts.moved):group has|groups have} another partition." if earlier_count else ""
    return f"<strong>Not only where they belong: {Count(sum(facts.totals.values())):commit} of {Count(facts.concerned):group}.</strong>{moved}"


def _render_course(shown: ShownCopies) -> str:
    """One group's commits for one partition as dots."""
    judged, course = shown.judged, shown.course
    lowest, highest = (pick((commit.offset or 0 for commit in course), default=0) for pick in (min, max))
    name = f"{judged.key.group}, {judged.key.where.name}"
    dots = (
        f'<circle class="{"home" if commit.place == judged.home else "stray"}" r="4" cx="{2 + 96 * (at + 0.5) / len(course):.2f}%" '
        f'cy="{_TALL - 6 - (_TALL - 12) * ((commit.offset or 0) - lowest) / max(1, highest - lowest):.1f}">'
        f"<title>{escape_html(commit.text)}</title></circle>"
        for at, commit in enumerate(course)
    )
    words = f"{name}: {judged.state}; {Count(len(course)):commit}"
    return render_row(
        f'{escape_html(name)}<br><span class="soft">{escape_html(judged.state)}</span>', words, "".join(dots), _TALL, guides=""
    )


def _render_copies_table(facts: OffsetsFacts) -> str:
    columns = {"Group": "", "Partition": "th", "Belongs in": "right", "State": "", "Copies": "", "An operator must decide": ""}
    more = f'<p class="soft">The first {len(facts.shown)}; the audit counted {format_number(sum(facts.totals.values()))}.</p>'
    return render_table("Commits outside their partition", columns, map(_copies_cells, facts.shown)) + more


def _copies_cells(shown: ShownCopies) -> tuple[str, ...]:
    judged = shown.judged
    copies = "<br>".join(escape_html(copy.text) for copy in judged.values)
    return (
        escape_html(judged.key.group),
        escape_html(judged.key.where.name),
        str(judged.home),
        escape_html(judged.state),
        copies,
        escape_html("; ".join(judged.doubts)),
    )


def render_canary(verdict: CanaryVerdict | None) -> str:
    """The canary's comparison: its estimate, its bounds and what is still accepted."""
    if verdict is None:
        return ""
    state = f"{format_number(verdict.measured)} of {Count(verdict.window):interval}: {render_outcome(verdict.outcome)}"
    narrow_titles = ("Canary against baseline", "Interval", "Accepted", "Smallest detectable effect")
    columns = {"Metric": "th", "Says": ""} | dict.fromkeys(narrow_titles, "keep")
    table = render_table("Comparison of the canary", columns, [_comparison_cells(verdict)])
    return f'<section id="canary"><h2>Canary</h2><p>{state}</p>{table}</section>'


def _comparison_cells(verdict: CanaryVerdict) -> tuple[str, ...]:
    accepted = f"up to {verdict.margin:g}"
    detectable = "" if verdict.smallest is None else f"{_format_factor(verdict.smallest)} (with a probability of 80 %)"
    members = f"{_format_factor(verdict.estimate)} (against {Count(verdict.baseline):member})"
    return (
        escape_html(verdict.metric),
        render_outcome(verdict.outcome),
        *map(escape_html, (members, _format_bounds(verdict), accepted, detectable)),
    )


def _format_factor(value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:.3g}" if math.isfinite(value) else "no limit"


def _format_bounds(verdict: CanaryVerdict) -> str:
    if verdict.low is None or verdict.high is None:
        return ""
    return f"{_format_factor(verdict.low)} to {_format_factor(verdict.high)}"
