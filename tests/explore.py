"""Searches with new seeds, for as many minutes as asked, what the tests search with fixed ones: `make explore MINUTES=60`.

One process goes through the random histories of migrating members, the others through every random test. The first failure is printed
as it was found, then reduced by Hypothesis (300 s at most, its own limit), whose last lines are a ready test. Exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from tests.seeds import FIRST_SEED

WORLD: Final = ("tests/core/test_membership_world.py",)
ALL: Final = ("tests", "--ignore", "tests/audit", "--ignore", "tests/system")
_REDUCING_S: Final = 420.0
_ROUND_S: Final = 1_200.0


@dataclass
class Search:
    """What the processes share. `failed`: the seed and the tests of the first failure."""

    ends: float
    seeds: count[int]
    failed: tuple[int, tuple[str, ...]] | None = None
    done: Counter[tuple[str, ...]] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def over(self) -> bool:
        return self.failed is not None or time.monotonic() >= self.ends

    def run(self, tests: tuple[str, ...]) -> None:
        while not self.over:
            with self.lock:
                seed = next(self.seeds)
            done = pytest(seed, "explore", "-x", "-m", "hypothesis or seeded", *tests)
            with self.lock:
                self.done[tests] += 1
                if done.returncode and self.failed is None:
                    self.failed = seed, tests
                    print(done.stdout, flush=True)


def pytest(seed: int, profile: str, *arguments: str, limit: float = _ROUND_S) -> subprocess.CompletedProcess[str]:
    """One run in a process of its own, in which nothing but the seed is random."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", str(limit)]
    seeded = {"PYTHONHASHSEED": str(seed % 2**32), FIRST_SEED: str(seed)}
    return subprocess.run(
        [*command, "--hypothesis-seed", str(seed), "--hypothesis-profile", profile, *arguments],
        env=os.environ | seeded,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=limit + 60,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--first-seed", type=int, default=secrets.randbelow(10**9), help="repeat a search (default: any)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    search = Search(time.monotonic() + 60 * given.minutes, count(given.first_seed))
    print(f"first seed {given.first_seed}, {given.processes} processes, {given.minutes:g} minutes", flush=True)
    threads = [threading.Thread(target=search.run, args=(ALL if i else WORLD,)) for i in range(given.processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"searched {search.done[WORLD]} seeds of the members' histories, {search.done[ALL]} of every random test", flush=True)
    if search.failed is None:
        return 0
    seed, tests = search.failed
    print(f"seed {seed} fails; reducing it for at most {_REDUCING_S / 60:g} minutes:", flush=True)
    print(pytest(seed, "reduce", "-x", "-m", "hypothesis or seeded", *tests, limit=_REDUCING_S).stdout)
    return 1


if __name__ == "__main__":
    sys.exit(main())
