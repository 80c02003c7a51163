"""What tests of the words of 3 a.m. share: a status to explain, and how many words come before the next move."""

from __future__ import annotations

import re
from typing import Any

WORDS = 130
"""That are read in a minute, in a second language."""
NEXT = re.compile(r"^ *(?:Next|If it does not pass): (\S.*)$", re.MULTILINE)
OWNER = {"run": "dag/run", "is_alive": True}


def status(**changes: Any) -> dict[str, Any]:
    plain = {
        "cluster": "prod",
        "cluster_id": "id",
        "at_ms": 0,
        "phase": "hybrid",
        "alarms": [],
        "unread": [],
        "under_way": [],
        "owner": OWNER,
    }
    return plain | changes


def count_words_to_next_move(text: str) -> int:
    """The words up to the end of the first next move; all of them if there is none."""
    step = NEXT.search(text)
    return len((text[: step.end()] if step else text).split())
