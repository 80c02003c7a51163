"""How lists, figures, times and places are written in texts, and how text becomes HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from typing import Final
from unicodedata import category


def join_ids(items: Iterable[object]) -> str:
    """All of them, for nodes: there are few."""
    return ", ".join(map(str, items))


def summarize(items: Iterable[object], shown: int = 8, apart: str = ", ") -> str:
    """The first of them by name, the others counted; `apart`: what separates two. Names of others forge no line and no link."""
    names = [str(item) for item in items]
    return apart.join(defuse_markup(printable(_shorten(name))) for name in names[:shown]) + (
        f" and {len(names) - shown} more" if len(names) > shown else ""
    )


_LONGEST_SPAN = 1e15  # ms: 30,000 years
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


_LONGEST_NAME: Final = 1_000  # characters; that of a znode may have a million


def _shorten(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}... ({count_of(len(name), 'character')})"


def printable(text: str, allowed: str = "") -> str:
    """A text of others for a terminal or a log: what moves its cursor, forges a line, or is not seen becomes visible.

    `allowed`: characters that stay as they are.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c in allowed else repr(c)[1:-1] for c in text)
    return text if text.isascii() else _show_unseen(text)


#: Printable, and without a place of their own: fillers, and selectors of a form.
_UNSEEN: Final = re.compile(r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_MOST_MARKS: Final = 3  # on one letter, as of pointed Hebrew; more of them grow over other lines


def _show_unseen(text: str) -> str:
    marks, shown = 0, list[str]()
    for sign in text:
        marks = marks + 1 if category(sign) in {"Mn", "Me"} else 0
        shown.append(f"\\u{ord(sign):04x}" if marks > _MOST_MARKS or _UNSEEN.match(sign) else sign)
    return "".join(shown)


def describe_hidden(length: int, digest: str) -> str:
    """What others wrote and is not shown, because it may be a secret: its length in bytes, and the beginning of its SHA-256 (hex)."""
    return f"{length} bytes, SHA-256 {digest[:16]}"


def indent_further_lines(text: str) -> str:
    """A text of several lines, of others too, for a terminal or a log: further lines are indented, so that none looks like one of ours."""
    return _FURTHER.sub("\n    ", printable(text, "\n\t"))


_FURTHER = re.compile(r"\n(?!    )")
#: Where Markdown, GitHub's autolinks, HTML, or the markup of a chat would begin; a backslash before a sign is one in Markdown only.
_MARKUP = re.compile(
    r"\](?=\\*[\[(:])"  # [text](address), [text][name], [name]: address
    r"|<(?=\\*[A-Za-z/!?@#:&])"  # an element, a comment, <address>, <!channel>, <@user>
    r"|@(?=\\*\w)"  # @channel, @everyone, a mail address
    r"|/(?=\\*/)|\bwww(?=\\*\.)"  # a bare address
    r"|&(?=#|\w+;)",  # &#58; is a colon where addresses are looked for
    re.IGNORECASE,
)


def defuse_markup(text: str) -> str:
    """A text, of others too, as Markdown or for a chat or a mail: where a link, an element or a mention would begin, it gets a space.

    A name alone (`evil.example`) stays: some chats make a link of it, too.
    """
    return _MARKUP.sub(r"\g<0> ", text)


def code_span(text: str) -> str:
    """Any text as code in Markdown: it can be no link, and end nothing."""
    return "`" + printable(text).replace("`", "'") + "`"


def table_cell(text: str) -> str:
    """A text of others as one cell of a Markdown table."""
    return defuse_markup(printable(" ".join(text.replace("|", "\\|").split())))


def escape_html(value: object) -> str:
    """Any text inside an element or a quoted attribute. Control characters, which HTML cannot hold, become visible."""
    return escape(printable(str(value), "\n\t"), quote=True)


def prose_to_html(text: object) -> str:
    """As `safe`, for sentences of the runbook inside an element: text between backticks becomes code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape_html(text))


def format_number(value: float) -> str:
    """Whole numbers with thousands separated; others with three significant digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def count_of(number: int, one: str, many: str = "") -> str:
    """A number with what it counts: `1 record`, `2 records`. `many`: if it is not `one` with an s, or a verb follows (`1 group moves`, `2 groups move`)."""
    return f"{number} {one if number == 1 else many or one + 's'}"


class Count(int):
    """A number in a template or report: `{:record was|records were} lost` of 1 is `1 record was lost`, of 1200 `1,200 records were lost`.

    As `count_of`, with thousands separated; without a noun the number alone.
    """

    def __format__(self, nouns: str) -> str:
        one, _, many = nouns.partition("|")
        noun = one if self == 1 else many or one + "s"
        return f"{format_number(int(self))} {noun}" if nouns else format_number(int(self))


def format_duration(ms: float) -> str:
    """The two largest units: `1.3 s`, `4 min 10 s`, `1 d 2 h`. What others wrote may be no span: it ends no page."""
    if not -_LONGEST_SPAN < ms < _LONGEST_SPAN:  # nor is NaN
        return "not known"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    whole = round(ms / 1000) * 1000
    unit_index = next(index for index, (size, _) in enumerate(_UNITS) if whole >= size)
    (size, unit), (smaller, small_unit) = _UNITS[unit_index], _UNITS[unit_index + 1]
    rest = whole % size // smaller
    return f"{whole // size} {unit} {rest} {small_unit}" if rest else f"{whole // size} {unit}"


def format_minutes(seconds: float) -> str:
    """Whole minutes; seconds below a minute and a half. A time that is over is `0 s`."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(0.0, seconds):.0f} s"


def format_time(ms: int | None, millis: bool = True) -> str:
    """The time of day in UTC; empty for an unknown one."""
    if ms is None:
        return ""
    at = _to_datetime(ms)
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03}" if millis else f"{at:%H:%M:%S}"


def format_date(ms: int) -> str:
    """Day and time in UTC."""
    return f"{_to_datetime(ms):%Y-%m-%d %H:%M:%S} UTC"


def _to_datetime(ms: int) -> datetime:
    """Times beyond what calendars hold come from a broken clock: shown as its nearest end."""
    return datetime.fromtimestamp(min(max(ms, 0), 253_402_300_799_000) / 1000, UTC)
