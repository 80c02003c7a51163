"""How quickly event lines are taken in, alone: `python -m benchmarks.audit_ingest EVENTS STORE`. Prints JSON. Runs in Spark's environment."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from pathlib import Path

from airflow_provider_kmigrate.audit.event_store import EventStore


def main(events: Path, store: Path) -> dict[str, float]:
    """The figures of one reading from nothing."""
    shutil.rmtree(store, ignore_errors=True)
    lines = sum(file.read_bytes().count(b"\n") for file in events.iterdir())
    began = time.monotonic()
    EventStore(store, lambda _: None).ingest([str(events)])
    seconds = time.monotonic() - began
    parts = list(store.glob("*.parquet"))
    return {
        "ingest_lines": lines,
        "ingest_lines_s": round(lines / seconds),
        "ingest_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024,
        "ledger_bytes_a_line": round(sum(part.stat().st_size for part in parts) / lines, 1),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
