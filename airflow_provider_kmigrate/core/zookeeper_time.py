"""How long ago a znode was written, by ZooKeeper's own clock, so that one look tells what else two looks a moment apart do.

The answer to a write of ours says what time it was for ZooKeeper's leader. From then on its time is known as exactly as that request was
quick, and with it the age of every znode that the same leader wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

_TERM = 32  # the high half of a zxid counts the leaders of an ensemble (zxid: ZooKeeper's internals, "Guarantees, Properties, and Definitions")


class Age(NamedTuple):
    """The seconds since a znode was written lie between these two."""

    least: float
    most: float


class Written(NamedTuple):
    """When a znode was written last, as its stat tells: seconds since the epoch by the clock of the leader that wrote it, and the zxid."""

    at: float
    zxid: int


class Span(NamedTuple):
    """A request and its answer, in seconds on our monotonic clock; whatever it tells was so at some moment in between."""

    asked: float
    answered: float


@dataclass(frozen=True, slots=True)
class LeaderTime:
    """A write of ours and when we made it."""

    ours: Written
    made: Span

    def age(self, znode: Written, seen: Span) -> Age | None:
        """How old a znode was that was `seen` later. None where another leader wrote it, whose clock may be another one, or where its time lies ahead.

        Wrong where a clock was set since our write, or ours stood still (a machine that slept): an age alone proves nothing.
        """
        if znode.zxid >> _TERM != self.ours.zxid >> _TERM:
            return None
        written_after = znode.at - self.ours.at
        least, most = seen.asked - self.made.answered - written_after, seen.answered - self.made.asked - written_after
        return Age(max(0.0, least), most) if most >= 0.0 else None
