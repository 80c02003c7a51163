"""A scan as a table with its findings, and as JSON by `groups.schema.json`, whose version is `SCHEMA`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from airflow_provider_kmigrate.core.coordination.group_seen import MemberKind, MemberSeen
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan
from airflow_provider_kmigrate.core.groups.scan import GroupScan
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding

SCHEMA: Final = 2
_HEAD: Final = ("GROUP", "STATE", "ZOOKEEPER", "MIGRATING", "KAFKA", "MODE", "OWNED", "LAG", "MOVED ZK/KAFKA", "FINDINGS")


def table(scans: Sequence[GroupScan], *, members: bool = False) -> str:
    """A line a group; then, if wanted, a line a member; then the findings, the most severe first."""
    rows = [_HEAD, *(_row(one) for one in scans)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    findings = [f"{one.seen.name}: {finding}" for one in scans for finding in one.findings]
    who = [f"{one.seen.name}: {_member(each)}" for one in scans for each in (one.seen.members or ()) if members]
    for part in (who, findings):
        lines += ["", *part] if part else []
    return "\n".join([*lines, f"{len(scans)} groups, {sum(one.blocked for one in scans)} of them blocked", ""])


def document(
    scans: Iterable[GroupScan], gap: float | None, took: float, clock: Callable[[], float] = time.time
) -> dict[str, Any]:
    """JSON values only. `gap`: seconds between the two observations, None for one; `took`: seconds of the last one."""
    return {
        "schema": SCHEMA,
        "made_ms": int(clock() * 1000),
        "gap_s": None if gap is None else round(gap, 3),
        "took_s": round(took, 3),
        "groups": [_group(one) for one in scans],
    }


def copied(plan: CopyPlan, *, done: bool) -> str:
    """The partitions and offsets that a copy writes, or has written."""
    verb = "written and read back" if done else "to write"
    lines = [f"{one.where.name}: {'nothing' if one.over is None else one.over} -> {one.offset}" for one in plan.writes]
    left = [f"{where.name}: not written, {plan.to} is ahead" for where in plan.lower]
    gone = [f"{where.name}: skipped, its log end is unknown" for where in plan.gone]
    return "\n".join([*lines, *left, *gone, f"{plan.group}: {len(lines)} offsets {verb} to {plan.to}", ""])


def _row(one: GroupScan) -> tuple[str, ...]:
    zk = one.seen.zk
    counts = Counter(member.kind for member in one.seen.members or ())
    kinds = ["?" if one.seen.members is None else str(counts[kind]) for kind in MemberKind]
    owned = "?" if zk is None else f"{len(zk.partitions - zk.unowned)}/{len(zk.partitions)}"
    moved = f"{one.advanced['zookeeper']}/{one.advanced['kafka']}" if one.advanced else "-"
    severities = Counter(str(finding.severity) for finding in one.findings)
    findings = ", ".join(f"{count} {severity}" for severity, count in severities.items()) or "none"
    mode = "?" if zk is None else str(zk.mode)
    return (one.seen.name, str(one.situation), *kinds, mode, owned, "?" if one.lag is None else str(one.lag), moved, findings)


def _member(member: MemberSeen) -> str:
    held = ", ".join(where.name for where in sorted(member.holds)) or "nothing"
    follows = member.progress
    how = f", {'settled' if follows.settled else 'not settled'} in {follows.mode} mode" if follows else ""
    return f"{member.kind} {member.name}{f' on {member.host}' if member.host else ''} holds {held}{how}"


def _group(one: GroupScan) -> dict[str, Any]:
    zk, seen = one.seen.zk, one.seen
    at, ends = seen.positions, seen.ends or {}
    return {
        "group": seen.name,
        "state": str(one.situation),
        "blocked": one.blocked,
        "mode": None if zk is None else str(zk.mode),
        "configured_mode": None if zk is None else str(zk.requested_mode),
        "kafka_state": None if seen.kafka is None else seen.kafka.state,
        "lag": one.lag,
        "advanced": dict(one.advanced),
        "members": None
        if seen.members is None
        else [
            {
                "name": member.name,
                "kind": str(member.kind),
                "host": member.host,
                "holds": sorted(where.name for where in member.holds),
                "flaw": None if member.flaw is None else str(member.flaw),
                "progress": None if member.progress is None else asdict(member.progress),
            }
            for member in seen.members
        ],
        "partitions": [
            {"topic": where.topic, "partition": where.partition, "offset": at[where], "end": ends.get(where)}
            for where in sorted(at)
        ],
        "unowned": [] if zk is None else sorted(where.name for where in zk.unowned),
        "findings": [_finding(finding) for finding in one.findings],
    }


def _finding(finding: PreflightFinding) -> dict[str, str]:
    reason = finding.reason
    texts = {"seen": reason.text, "why": reason.meaning, "remedy": reason.next_step, "source": finding.source}
    return {"code": reason.code, "severity": str(finding.severity), **texts}
