"""The note at a group that was taken back, by a canary's verdict or by a person: who took it back, and why."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Hold:
    """`run`: which run took the group back, as the fence names it; it may go on itself, since a person cleared its task for that."""

    run: str
    why: str


def read_hold(data: bytes) -> Hold:
    """What cannot be read holds, too: nobody's run, with what stands there as the reason."""
    try:
        found = json.loads(data)
        return Hold(str(found["run"]), str(found["why"]))
    except (ValueError, KeyError, TypeError):
        return Hold("", data.decode(errors="replace")[:200])


def write_hold(hold: Hold) -> bytes:
    """Its bytes."""
    return json.dumps(asdict(hold)).encode()
