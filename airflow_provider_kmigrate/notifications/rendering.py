"""A request's Markdown as plain text and as HTML, for mails and chats that show Markdown as it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


def _make_parser() -> MarkdownIt:
    """Paragraphs, lists, tables, code and emphasis: no HTML of the text itself, no link and no picture."""
    from markdown_it import MarkdownIt  # noqa: PLC0415  # only a message needs it

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    return parser.disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])


def render_html(markdown: str) -> str:
    """The text as elements; every sign of the text itself is escaped."""
    return str(_make_parser().render(markdown))


def render_plain(markdown: str) -> str:
    """The text without marks: items begin with `-` or their number, a table's row is `first: others`."""
    collected = _Lines()
    for token in _make_parser().parse(markdown):
        collected.add(token)
    return "\n".join(collected.lines).strip("\n")


class _Lines:
    """Collects the lines of a text: one for each paragraph, item and row, and an empty one behind each block of the outermost level."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._cells: list[str] | None = None  # of the row that is open
        self._numbers: list[int | None] = []  # of each open list: the next item's number, None if it has bullets
        self._mark, self._is_head = "", False

    def add(self, token: Token) -> None:
        """Add what one token opens, closes or says."""
        kind, _, edge = token.type.rpartition("_")
        if token.type == "inline":
            self._add_text(_read_text(token))
        elif kind in {"bullet_list", "ordered_list"}:
            self._open_or_close_list(token, is_open=edge == "open")
        elif token.type == "list_item_open":
            number = self._numbers[-1]
            self._mark, self._numbers[-1] = ("- ", None) if number is None else (f"{number}. ", number + 1)
        elif kind in {"thead", "tr"}:
            self._open_or_close_row(kind, is_open=edge == "open")
        elif token.type in {"fence", "code_block"}:
            self.lines += [*token.content.rstrip("\n").splitlines(), ""]
        elif edge == "close" and kind in {"paragraph", "heading", "table"} and not self._numbers:
            self.lines.append("")

    def _add_text(self, text: str) -> None:
        if self._cells is not None:
            self._cells.append(text)
            return
        self.lines.append(f"{'  ' * max(0, len(self._numbers) - 1)}{self._mark or '  ' * bool(self._numbers)}{text}")
        self._mark = ""

    def _open_or_close_list(self, token: Token, *, is_open: bool) -> None:
        if is_open:
            self._numbers.append(int(token.attrs.get("start", 1)) if token.type.startswith("ordered") else None)
        else:
            self._numbers.pop()
            self.lines += [""] * (not self._numbers)

    def _open_or_close_row(self, kind: str, *, is_open: bool) -> None:
        if kind == "thead":
            self._is_head = is_open
        elif is_open:
            self._cells = []
        else:
            first, *others = self._cells or [""]
            self.lines += [f"{first}: {', '.join(filter(None, others))}"] * (not self._is_head)
            self._cells = None


def _read_text(token: Token) -> str:
    """The words of a line; a line break within a paragraph is a space."""
    return "".join(
        " " if child.type in {"softbreak", "hardbreak"} else child.content for child in token.children or () if child.nesting == 0
    )
