"""What confluent-kafka's consumer has and a migrating one does not, refused by name."""

from __future__ import annotations

from typing import Any, Final, NoReturn

_GROUPS: Final = "What it delivers is what the group gives it, in both modes."
_NOTED: Final = "An operator's reset moves a partition: /consumers/<group>/migration/reset/<topic>/<partition>."
_ABSENT: Final = {
    "assign": _GROUPS,
    "unassign": _GROUPS,
    "unsubscribe": f"{_GROUPS} Close it, and make another one.",
    "seek": f"Both stores, and whoever comes next, would know nothing of it. {_NOTED}",
    "store_offsets": "Offsets are committed to two stores, in the order of the mode: use commit.",
}


class Absent:
    """Raises `AttributeError`, as for any other name, and says what to do instead."""

    def __getattr__(self, name: str) -> Any:
        return _refuse(type(self).__name__, name)


def _refuse(kind: str, name: str) -> NoReturn:
    why = _ABSENT.get(name)
    raise AttributeError(f"{kind} has no {name}." + (f" {why}" if why else ""))
