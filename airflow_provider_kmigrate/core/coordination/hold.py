"""The note at a group that was rolled back, by a canary's verdict or by the operator: which run did it, and why."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Hold:
    """`run`: the run that rolled the group back, as the fence names it; it may continue if the operator clears its task."""

    run: str
    why: str


def read_hold(data: bytes) -> Hold:
    """Reads the note. An unreadable one holds, too: without a run, with its contents as the reason."""
    try:
        found = json.loads(data)
        return Hold(str(found["run"]), str(found["why"]))
    except (ValueError, KeyError, TypeError):
        return Hold("", data.decode(errors="replace")[:200])


def write_hold(hold: Hold) -> bytes:
    """The note's bytes."""
    return json.dumps(asdict(hold)).encode()
