"""Rows of SVG on one time axis. Positions are percentages, so that a picture fills any width and its text keeps its size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_kmigrate.core.audit.timeline import Window
from airflow_provider_kmigrate.core.page_text import duration, moment, safe

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800)
_TICKS = 7
BAR = 14  # height of a row's bars in px


@dataclass(frozen=True, slots=True)
class Axis:
    """Times as places from 0 to 100 %."""

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
        """The axis itself; every second time is left out where there is little room."""
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
        """`least`: the narrowest a bar may be, in %; a moment that matters must not vanish."""
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
    """One line of a picture: `label` is HTML, `name` is what a screen reader says. `timed`: it lies on the time axis."""
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
    """`12:00:01.000 to 12:00:02.500 (1.5 s)`."""
    return f"{moment(from_ms)} to {moment(to_ms)} ({duration(to_ms - from_ms)})"
