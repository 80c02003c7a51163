"""Which releases of Kafka may be migrated: the defects of KIP-866's code and the releases that first have their fixes.

From the release tags of Kafka. Defects without any fix (KAFKA-20488, KAFKA-20960) are not here: gates keep them away (G02, G05).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:[-+.].*)?")


class Release(NamedTuple):
    """`3.9.2`; `patch` is None where only the line, `3.9`, is known."""

    major: int
    minor: int
    patch: int | None = None

    @property
    def line(self) -> tuple[int, int]:
        return self.major, self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + ("" if self.patch is None else f".{self.patch}")


class Fitness(StrEnum):
    """What the release is good for; the gravest first."""

    BLOCK = "block"
    WARN = "warn"
    FIT = "fit"


@dataclass(frozen=True, slots=True)
class Defect:
    """Issues of KAFKA, what they do in a migration, and the first fixed release of each line that got the fix."""

    issues: tuple[int, ...]
    effect: str
    fixed: tuple[Release, ...]

    def concerns(self, release: Release) -> bool:
        """Whether the release has it; a line later than all fixed ones has not."""
        if release.line > max(fix.line for fix in self.fixed):
            return False
        return not any(release.line == fix.line and (release.patch or 0) >= (fix.patch or 0) for fix in self.fixed)

    def __str__(self) -> str:
        return f"{self.effect} (KAFKA-{', KAFKA-'.join(map(str, self.issues))})"


def _defect(effect: str, fixed: str, *issues: int) -> Defect:
    return Defect(issues, effect, tuple(release for text in fixed.split() if (release := parse(text))))


def parse(text: str) -> Release | None:
    """`3.9.2`, `3.9` or `3.9-IV0`; None for anything else."""
    match = _RELEASE.fullmatch(text.strip())
    return Release(int(match[1]), int(match[2]), int(match[3]) if match[3] else None) if match else None


DEFECTS = (
    _defect("configs, ACLs and snapshots missing from the dual-write", "3.5.0", 15003, 15004, 15009, 15010, 14840),
    _defect("new partitions missing from the dual-write", "3.5.1", 15149),
    _defect("brokers with an authorizer refused", "3.5.1", 15098),
    _defect("driver events run in the wrong state", "3.5.2 3.6.0", 15263),
    _defect("producer ids given out twice after the takeover", "3.5.2 3.6.1", 15552),
    _defect("brokers fenced in a long copy, a copy without transaction, an empty image", "3.6.0", 15441, 14538, 15389, 15109),
    _defect("topic deletions lost, stray replicas", "3.6.1", 15605, 15799),
    _defect("lag of standbys, a leader that resigns", "3.7.0", 15532, 15489),
    _defect("a copy too slow, then batches too big", "3.6.2 3.7.0", 16007, 16216),
    _defect("reassignments leave strays, controllers race", "3.6.2 3.7.0", 16120, 16180, 16171),
    _defect("quota names corrupted, config changes not told", "3.6.2 3.7.1", 16222, 16411, 16428),
    _defect("metadata log not wiped, the driver hangs after a ZooKeeper error", "3.7.1 3.8.0", 16463, 16539, 16563, 16606),
    _defect("topic configs deleted by mistake, brokers confuse controllers", "3.8.0", 16206, 16515),
    _defect("the driver stuck INACTIVE, a migration without transactions", "3.7.2 3.8.1 3.9.0", 17506, 17457),
    _defect("a stale /migration blocks the sync after a failover", "3.9.0", 16667, 16468, 17543, 17788),
    _defect("a null /migration hangs, policies get other arguments", "3.9.2", 19480, 19026),
)

_WORKS = {(3, 6): (2, None), (3, 7): (1, 2), (3, 8): (0, 1), (3, 9): (0, 0)}
"""Line -> from which patch on it may be migrated, and from which on without a warning."""


def fitness(release: Release) -> Fitness | None:
    """What may be done with the release; None where that depends on a patch level that is not known."""
    if release.line not in _WORKS:
        return Fitness.BLOCK  # too old, or without any ZooKeeper code
    if release.patch is not None:
        return _of_patch(release.line, release.patch)
    possible = {_of_patch(release.line, patch) for patch in range(3)}
    return possible.pop() if len(possible) == 1 else None


def worst(release: Release) -> Fitness:
    """The gravest answer that an unknown patch level leaves open."""
    return fitness(release._replace(patch=release.patch or 0)) or Fitness.BLOCK


def defects(release: Release) -> tuple[Defect, ...]:
    """The known defects of a release, as of its first patch level where that is not known."""
    return tuple(defect for defect in DEFECTS if defect.concerns(release))


def _of_patch(line: tuple[int, int], patch: int) -> Fitness:
    works, quiet = _WORKS[line]
    if patch < works:
        return Fitness.BLOCK
    return Fitness.FIT if quiet is not None and patch >= quiet else Fitness.WARN
