"""`kmigrate groups scan|copy-offsets|reset-offsets|zookeeper-mode|release`: consumer groups on ZooKeeper.

Scans groups, copies their offsets or records them for the next holders, sets their mode back, and lets rolled-back groups migrate
again. Exit code 0: nothing blocks (or all was done); 1: a blocker or a refusal; 2: a failed observation or act.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from airflow_provider_kmigrate.clients import group_writes
from airflow_provider_kmigrate.clients.admin import cluster_id
from airflow_provider_kmigrate.clients.connections import (
    KAFKA,
    ZOOKEEPER,
    kafka_settings,
    lookup_in,
    read_connections,
    settings_for,
    zookeeper_settings,
)
from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.clients.group_reads import groups_in, log_offsets, seen, topic_settings
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.wire import EARLIEST
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster import GroupSpec
from airflow_provider_kmigrate.core.coordination.group_seen import GroupSeen, MemberKind, MemberSeen, Store
from airflow_provider_kmigrate.core.coordination.registration import GroupHold, Mode, is_number
from airflow_provider_kmigrate.core.decision import Act, Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.events import TopicPartition
from airflow_provider_kmigrate.core.groups.members import GroupObservations, unknown_group, unread
from airflow_provider_kmigrate.core.groups.move import release, set_mode, written
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan, pending, plan, unfit
from airflow_provider_kmigrate.core.groups.scan import GroupScan, TwoObservations, scan, topics, wanted
from airflow_provider_kmigrate.core.model import Reason
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding
from airflow_provider_kmigrate.core.text import indented, printable
from airflow_provider_kmigrate.exceptions import Fenced, KMigrateError, Refused, Unavailable, WrongCluster
from airflow_provider_kmigrate.spec import load

_TAKEN = (
    "The cluster was owned by {}. Its running task is refused from now on, but its next task would take the cluster again. Mark that run "
    "as failed, or set the kill switch."
)
_WAIT = 5.0  # seconds between the two observations; below an auto commit's interval, so that an offset that did not move is a suspicion only


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    asked = parser()
    chosen = asked.parse_args(argv)
    if not (chosen.cluster and chosen.connections) and not (chosen.zookeeper and chosen.bootstrap):
        asked.error("name CLUSTER.yaml and --connections, or --zookeeper and --bootstrap")
    refused = 2 if chosen.command == "scan" else 1
    try:
        settings, properties, expected = _reached(chosen)
        with ZooKeeper(settings) as zk:
            _identify(zk, properties, expected, blind=chosen.command == "scan" or getattr(chosen, "force", False))
            return _COMMANDS[chosen.command](zk, properties, chosen)
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return refused if isinstance(error, Refused) else 2


def _say(text: str) -> None:
    sys.stdout.write(f"{indented(text)}\n")


def scanned(
    zk: ZooKeeper,
    properties: Mapping[str, Any],
    names: Collection[str] | None,
    wait: float,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[GroupScan], float | None, float]:
    """Every named group, or all, by name; seconds between the observations, and of the last one. Raises as `seen`.

    Without a second observation (`wait` 0) the gap is None.
    """
    first, began = (seen(zk, properties, names) if wait else {}), time.monotonic()
    if wait:
        sleep(wait)
    asked = time.monotonic()
    now = seen(zk, properties, names)
    took = time.monotonic() - asked
    gap = time.monotonic() - began if wait else None
    settings = topic_settings(properties, {topic for observed in now.values() for topic in topics(observed)})
    starts = _starts(properties, now)
    scans = [
        scan(TwoObservations(observed, first.get(name), gap or 0.0, settings, starts)) for name, observed in sorted(now.items())
    ]
    return scans, gap, took


def _starts(properties: Mapping[str, Any], now: Mapping[str, GroupSeen]) -> dict[TopicPartition, int] | None:
    try:
        return log_offsets(properties, (where for observed in now.values() for where in wanted(observed)), EARLIEST)
    except Unavailable:
        return None  # then the ends are not known either (K30)


def _scan(zk: ZooKeeper, properties: Mapping[str, Any], chosen: argparse.Namespace) -> int:
    scans, gap, took = scanned(zk, properties, chosen.group, chosen.wait)
    if chosen.output == "json":
        sys.stdout.write(json.dumps(document(scans, gap, took), indent=1) + "\n")
    else:
        sys.stdout.write(table(scans, members=chosen.group is not None))
    return 1 if any(one.blocked for one in scans) else 0


def _copy(zk: ZooKeeper, properties: Mapping[str, Any], chosen: argparse.Namespace) -> int:
    """Copy each group by itself; the first refusal ends it, with the earlier groups done."""
    if chosen.dry_run:
        for name in chosen.group:
            sys.stdout.write(copied(_planned(zk, properties, name, chosen), done=False))
        return 0
    with _held(zk, chosen) as fence:
        for name in chosen.group:
            made = _planned(zk, properties, name, chosen)
            if made.writes:
                group_writes.copy(zk, properties, made, fence)
            sys.stdout.write(copied(made, done=True))
    return 0


def _reset(zk: ZooKeeper, properties: Mapping[str, Any], chosen: argparse.Namespace) -> int:
    """Record a reset, remove it, or only report it."""
    name, wanted = chosen.group, dict(chosen.at or ())
    observed = seen(zk, properties, [name])[name]
    refused = unfit(observed, wanted) if wanted else ()
    if refused:
        raise Refused.because(*refused)
    if wanted or chosen.delete:
        with _held(zk, chosen) as fence:
            if wanted:
                group_writes.record_reset(zk, name, wanted, fence)
            else:
                group_writes.forget_reset(zk, name, observed.zk.resets if observed.zk else (), fence)
        observed = GroupSeen(name, groups_in(zk, [name])[name])
    _say(f"{name}: recorded resets that no member has applied: {pending(observed) or 'none'}")
    return 0


def _placed(text: str) -> tuple[TopicPartition, int]:
    """Parse a partition and its offset: `orders-0=100`."""
    where, _, offset = text.partition("=")
    topic, _, partition = where.rpartition("-")
    if not (topic and is_number(partition) and is_number(offset)):
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form orders-0=100")
    return TopicPartition(topic, int(partition)), int(offset)


def _release(zk: ZooKeeper, properties: Mapping[str, Any], chosen: argparse.Namespace) -> int:
    del properties
    with _held(zk, chosen) as fence:
        for name in chosen.group:
            decision = release(GroupSeen(name, groups_in(zk, [name])[name]), name)
            if isinstance(decision, Act):
                group_writes.forget_hold(zk, name, fence)
            _say(f"{getattr(decision, 'text', '') or _reasons(decision)}")
    return 0


def _owner(chosen: argparse.Namespace) -> str:
    return f"groups {chosen.command}/{getpass.getuser()}@{socket.gethostname()}:{os.getpid()}"


@contextmanager
def _held(zk: ZooKeeper, chosen: argparse.Namespace) -> Iterator[Fence]:
    """Own the cluster for this command, and release it afterwards."""
    if chosen.take_over:
        taken = Fence(zk, zk.cluster_id(), f"groups {chosen.command}").break_lock()
        if taken:
            _say(_TAKEN.format(taken))
    with Fence(zk, zk.cluster_id(), _owner(chosen)) as fence:
        try:
            yield fence
        finally:
            fence.release()


def _zookeeper_mode(zk: ZooKeeper, properties: Mapping[str, Any], chosen: argparse.Namespace) -> int:
    return set_back(zk, lambda name: seen(zk, properties, [name])[name], chosen)


def set_back(
    zk: ZooKeeper, observe: Callable[[str], GroupSeen], chosen: argparse.Namespace, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Emergency: set each group's mode back as soon as possible, then wait for its members. Returns the exit code."""
    deadline = time.monotonic() + chosen.wait
    groups = [_Emergency(zk, observe, name, sleep) for name in chosen.group]
    with _held(zk, chosen) as fence:
        left = [group for group in groups if not group.tries(fence, chosen)]
        for group in left:
            _say(f"{group.name}: nothing was written yet. {group.said}")
        while left and time.monotonic() < deadline:
            sleep(0.5)
            left = [group for group in left if not group.tries(fence, chosen)]
    for group in groups:
        if not group.is_set:
            _say(f"{group.name}: NOTHING WAS WRITTEN. {group.said}")
    settled = [group.settles(deadline) for group in groups if group.is_set]
    if any(group.refused for group in groups):
        return 1
    return 0 if all(settled) and not left else 2


class _Emergency:
    """One group whose mode is set back to zookeeper."""

    def __init__(self, zk: ZooKeeper, observe: Callable[[str], GroupSeen], name: str, sleep: Callable[[float], None]) -> None:
        self.name = name
        self.is_set = self.refused = False
        self.said = ""  # why nothing was written
        self._zk, self._seen, self._sleep = zk, observe, sleep
        self._group, self._observations = GroupSpec(name, ()), GroupObservations()

    def tries(self, fence: Fence, chosen: argparse.Namespace) -> bool:
        """True if nothing is left to try: the mode is set, or refused. No other group waits for this one."""
        try:
            self.is_set = self._write(fence, chosen)
        except Fenced:
            raise
        except KMigrateError as error:
            self.refused, self.said = isinstance(error, Refused), str(error)
        return self.is_set or self.refused

    def _write(self, fence: Fence, chosen: argparse.Namespace) -> bool:
        """Write the mode; with `--force` also if the members in Kafka cannot be read."""
        observations = self._observe()
        unknown = unknown_group(observations.now) if observations.now else ()
        decision = Refuse(unknown) if unknown else set_mode(observations, self._group, Mode.ZOOKEEPER, blind=chosen.force)
        self.said = _reasons(decision)
        if isinstance(decision, Refuse):
            raise Refused.because(*decision.reasons)
        if isinstance(decision, Act):
            group_writes.write_mode(self._zk, self.name, Mode.ZOOKEEPER, fence)
            _say(f"{decision.text} Written.")
            group_writes.note_hold(self._zk, self.name, GroupHold(_owner(chosen), "its mode was reset in an emergency."), fence)
        return isinstance(decision, Act) or written(observations.now, Mode.ZOOKEEPER)

    def settles(self, deadline: float) -> bool:
        """True if the group becomes stable in ZooKeeper mode before the deadline; says what is missing."""
        while not isinstance(decision := self._settled(), Done):
            if time.monotonic() > deadline:
                _say(f"{self.name}: {_reasons(decision)}")
                return False
            self._sleep(0.5)
        _say(f"{decision.text}")
        return True

    def _settled(self) -> Decision:
        try:
            return set_mode(self._observe(), self._group, Mode.ZOOKEEPER)
        except Unavailable:
            return Wait(unread(None, self.name))

    def _observe(self) -> GroupObservations:
        self._observations = self._observations.observe(self._seen(self.name), time.monotonic(), self._group)
        return self._observations


def _reasons(decision: Decision) -> str:
    return " | ".join(map(str, getattr(decision, "reasons", ())))


_COMMANDS: Final[Mapping[str, Callable[[ZooKeeper, Mapping[str, Any], argparse.Namespace], int]]] = {
    "scan": _scan,
    "copy-offsets": _copy,
    "zookeeper-mode": _zookeeper_mode,
    "release": _release,
    "reset-offsets": _reset,
}


def _planned(zk: ZooKeeper, properties: Mapping[str, Any], name: str, chosen: argparse.Namespace) -> CopyPlan:
    made = plan(seen(zk, properties, [name])[name], Store(chosen.to), reset=chosen.reset)
    if isinstance(made, Refuse):
        raise Refused.because(*made.reasons)
    return made


def _identify(zk: ZooKeeper, properties: Mapping[str, Any], expected: str | None, *, blind: bool) -> None:
    """Check that both sides are of one cluster, the one in the file. `blind`: unresponsive brokers are a finding later."""
    ids = {"ZooKeeper": zk.cluster_id(), "the cluster file": expected}
    try:
        ids["the brokers"] = cluster_id(properties)
    except Unavailable:
        if not blind:
            raise
    known = {side: identity for side, identity in ids.items() if identity}
    if len(set(known.values())) > 1:
        named = ", ".join(f"{side} has {identity}" for side, identity in known.items())
        raise WrongCluster.because(Reason("I01", f"These are different clusters: {named}."))


def _reached(chosen: argparse.Namespace) -> tuple[ZooKeeperSettings, Mapping[str, Any], str | None]:
    """Settings from the cluster file and its connections, with the cluster's id; or from two addresses, without security and id."""
    if chosen.cluster is not None:
        spec = load(chosen.cluster)
        settings = settings_for(spec, lookup_in(read_connections(chosen.connections), spec))
        return settings.zookeeper, settings.kafka.properties, spec.cluster_id
    kafka = {"conn_type": KAFKA, "extra": {"bootstrap.servers": chosen.bootstrap}}
    zookeeper = zookeeper_settings("--zookeeper", {"conn_type": ZOOKEEPER, "host": chosen.zookeeper})
    return zookeeper, kafka_settings("--bootstrap", kafka).properties, None


def parser() -> argparse.ArgumentParser:
    """The command line."""
    lines = (__doc__ or "").split("\n")
    made = argparse.ArgumentParser(prog="kmigrate groups", description=lines[0])
    commands = made.add_subparsers(dest="command", required=True)
    scanning = commands.add_parser("scan", help="list each group's state and what blocks its move; read-only")
    scanning.add_argument("-o", "--output", choices=("text", "json"), default="text", help="a table, or one JSON object")
    scanning.add_argument(
        "--wait",
        type=_seconds,
        default=_WAIT,
        metavar="SECONDS",
        help="between two observations (5); 90 proves that nothing is committed, 0: observe once",
    )
    copying = commands.add_parser("copy-offsets", help="copy committed offsets from one store to the other and verify them")
    copying.add_argument("--to", required=True, choices=[str(store) for store in Store])
    copying.add_argument("--dry-run", action="store_true", help="only print what would be written")
    copying.add_argument("--reset", action="store_true", help="also lower offsets that are ahead in the target store")
    setting = commands.add_parser("zookeeper-mode", help="emergency: set groups' migration/mode back to zookeeper at once")
    setting.add_argument(
        "--force",
        action="store_true",
        help="skip the check for live Kafka members; risk: records may be consumed twice",
    )
    releasing = commands.add_parser("release", help="allow groups that were rolled back to migrate again")
    resetting = _resetting(commands)
    resetting.add_argument("--group", required=True)
    for command in (copying, resetting, setting, releasing):
        command.add_argument("--take-over", action="store_true", help="take the cluster from the kmigrate run that owns it")
    setting.add_argument("--wait", type=_seconds, default=60.0, metavar="SECONDS", help="for the group to become stable (60)")
    for command in (scanning, copying, resetting, setting, releasing):
        command.add_argument(
            "cluster", nargs="?", type=Path, metavar="CLUSTER.yaml", help="the cluster file; requires --connections"
        )
        command.add_argument("--connections", type=Path, help="JSON file written by `airflow connections export`")
        command.add_argument("--zookeeper", metavar="HOSTS[/CHROOT]", help="instead of a cluster file; requires --bootstrap")
        command.add_argument("--bootstrap", metavar="HOST:PORT,...", help="brokers, without TLS or SASL")
        if command is not resetting:
            command.add_argument("--group", action="append", required=command is not scanning, help="may be given several times")
    return made


def _resetting(commands: Any) -> argparse.ArgumentParser:
    resetting: argparse.ArgumentParser = commands.add_parser(
        "reset-offsets", help="set the offsets at which the next owners of partitions start (migrating consumers only)"
    )
    one = resetting.add_mutually_exclusive_group()
    one.add_argument("--at", type=_placed, action="append", metavar="TOPIC-PARTITION=OFFSET", help="may be given several times")
    one.add_argument(
        "--delete",
        action="store_true",
        help="delete resets that no member has applied; without --at and --delete: only print them",
    )
    return resetting


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError("0 to 3600 seconds")
    return value


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
        lines += ["", *map(printable, part)] if part else []
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
    return "\n".join(
        [*map(printable, (*lines, *left, *gone)), f"{printable(plan.group)}: {len(lines)} offsets {verb} to {plan.to}", ""]
    )


def _row(one: GroupScan) -> tuple[str, ...]:
    zk = one.seen.zk
    counts = Counter(member.kind for member in one.seen.members or ())
    kinds = ["?" if one.seen.members is None else str(counts[kind]) for kind in MemberKind]
    owned = "?" if zk is None else f"{len(zk.partitions - zk.unowned)}/{len(zk.partitions)}"
    moved = f"{one.advanced['zookeeper']}/{one.advanced['kafka']}" if one.advanced else "-"
    severities = Counter(str(finding.severity) for finding in one.findings)
    findings = ", ".join(f"{count} {severity}" for severity, count in severities.items()) or "none"
    mode = "?" if zk is None else str(zk.mode)
    return (
        printable(one.seen.name),
        str(one.situation),
        *kinds,
        mode,
        owned,
        "?" if one.lag is None else str(one.lag),
        moved,
        findings,
    )


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
