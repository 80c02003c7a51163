"""The run that owns the simulated cluster."""

from __future__ import annotations

import json

from tests.provider.simulated import Rehearsal


def owner(sim: Rehearsal) -> str:
    [found] = [znode.data for path, znode in sim.ensemble.znodes.items() if path.endswith("/owner")] or [b"{}"]
    return str(json.loads(found).get("owner", ""))
