"""The chain of hashes through a journal: each line has the hash of everything before it, so that no line can be changed or taken out.

The hash after a line is the SHA-256 of the hash before it and of the line. A line that a crash cut short, or that an older kmigrate
wrote, has no hash of its own, but the next line covers it. The end is covered only by a hash that is kept elsewhere (`clients.records`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from airflow_provider_kmigrate.core.shared.foreign_json import read_json
from airflow_provider_kmigrate.core.shared.text import count_of


class Link(NamedTuple):
    """A hash, and of how many lines it is."""

    chain: str = ""
    lines: int = 0

    def after(self, line: bytes) -> Link:
        """The hash after one more line, given without its end."""
        return Link(hashlib.sha256(self.chain.encode() + b"\n" + line).hexdigest(), self.lines + 1)


def link_before(line: bytes) -> Link | None:
    """The hash that a line itself says it follows; None if it says none, as a torn line does."""
    try:
        chain, lines = read_json(line)["chain"]
        return Link(str(chain), int(lines))
    except (ValueError, TypeError, KeyError):
        return None


def find_break(lines: Sequence[bytes], kept_link: Link) -> str:
    """Why a journal is not what was written; empty if it is. `kept_link`: the hash that was kept elsewhere, of its beginning."""
    link, passed = Link(), kept_link == Link()
    for number, line in enumerate(lines, 1):
        claimed_link = link_before(line)
        if claimed_link is not None and claimed_link != link:
            return f"line {number} does not follow the line before it: one was changed, added or taken out"
        link = link.after(line)
        passed = passed or link == kept_link
    if passed:
        return ""
    if kept_link.lines > len(lines):
        return f"it has {count_of(len(lines), 'line')}, and had {kept_link.lines}: its end is missing"
    return f"its beginning ({count_of(kept_link.lines, 'line')}) is not as it was kept: it was written again"
