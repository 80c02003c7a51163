"""What the log of `__consumer_offsets` takes in memory, for the repair: a process of its own, its records made as brokers write them.

`python -m benchmarks.repair_memory OFFSETS COMMITS`: OFFSETS committed partitions of groups, each with COMMITS records in each of two
partitions of the topic, as an expansion leaves them. Prints one line of JSON: `records`, `mb` (the process's largest resident memory, in MB).
"""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_kmigrate.clients.offsets_log import collect_group_logs
from airflow_provider_kmigrate.core.offsets_topic.offsets_records import RawRecord
from airflow_provider_kmigrate.core.offsets_topic.offsets_repair import plan_repair

_PARTITIONS = 50  # that a group commits
_ROOT = Path(__file__).resolve().parent.parent


def megabytes_of(records: int, offsets: int) -> float:
    """The memory of `records` records of `offsets` committed partitions, from two runs with few commits of each.

    What a further commit of each partition takes is measured, and counted for all others.
    """
    few, more = _run(offsets, 4), _run(offsets, 8)
    of_a_commit = max(0.0, more - few) / 4
    return round(more + of_a_commit * (records / offsets / 2 - 8))


def _run(offsets: int, commits: int) -> float:
    argv = [sys.executable, "-m", "benchmarks.repair_memory", str(offsets), str(commits)]
    ended = subprocess.run(argv, cwd=_ROOT, capture_output=True, text=True, timeout=1_800, check=True)
    return float(json.loads(ended.stdout)["mb"])


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _made(offsets: int, commits: int) -> Iterator[RawRecord]:
    for place in (3, 17):
        for commit in range(commits):
            for number in range(offsets):
                group, partition = divmod(number, _PARTITIONS)
                key = struct.pack(">h", 1) + _text(f"team-{group % 37:02}.application-{group:05}") + _text("orders")
                value = (
                    struct.pack(">hqi", 3, commit * 100 + number, 7) + _text("") + struct.pack(">q", 1_790_000_000_000 + commit)
                )
                yield RawRecord(
                    place, commit * offsets + number, 1_790_000_000_000 + commit, key + struct.pack(">i", partition), value
                )


def main() -> int:
    offsets, commits = map(int, sys.argv[1:])
    plan = plan_repair(collect_group_logs(_made(offsets, commits), None), 20)
    assert plan.stop, "half of the copies are strays"
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"records": 2 * offsets * commits, "mb": round(megabytes, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
