"""`kmigrate groups scan|copy-offsets|reset-offsets|set-mode|zookeeper-mode|release`: consumer groups on ZooKeeper.

Scans groups, copies their offsets or records them for the next holders, sets the mode of all that are ready, sets modes back in an
emergency, and lets rolled-back groups migrate again. Exit code 0: nothing blocks (or all was done); 1: a blocker or a refusal; 2: a failed observation or act.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from airflow_provider_kmigrate.clients import group_writes
from airflow_provider_kmigrate.clients.admin import read_cluster_id
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
from airflow_provider_kmigrate.clients.group_reads import log_offsets, read_groups, read_retention, seen, topic_settings
from airflow_provider_kmigrate.clients.local_user import read_user_name
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.wire import EARLIEST
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.cluster_state.decision import Act, Decision, Done, Refuse, Wait
from airflow_provider_kmigrate.core.cluster_state.model import Reason
from airflow_provider_kmigrate.core.cluster_state.spec import GroupSpec
from airflow_provider_kmigrate.core.events.model import TopicPartition
from airflow_provider_kmigrate.core.groups.expiry import expiry_reasons
from airflow_provider_kmigrate.core.groups.members import GroupObservations, unknown_group_reasons, unread_reasons
from airflow_provider_kmigrate.core.groups.mode_switch import describe_mode_plan, group_of_members, plan_mode_switch
from airflow_provider_kmigrate.core.groups.move import decide_release, decide_set_mode, is_mode_written
from airflow_provider_kmigrate.core.groups.offsets import CopyPlan, describe_pending_resets, plan_copy, reset_refusal_reasons
from airflow_provider_kmigrate.core.groups.scan import (
    GroupScan,
    TwoObservations,
    scan_group,
    subscribed_topics,
    wanted_partitions,
)
from airflow_provider_kmigrate.core.member.group_seen import GroupSeen, MemberKind, MemberSeen, Store
from airflow_provider_kmigrate.core.member.registration import GroupHold, GroupPaths, Mode, is_number
from airflow_provider_kmigrate.core.preflight.findings import PreflightFinding
from airflow_provider_kmigrate.core.shared.text import count_of, indent_further_lines, printable
from airflow_provider_kmigrate.exceptions import Fenced, KMigrateError, Refused, Unavailable, WrongCluster
from airflow_provider_kmigrate.spec import load
from airflow_provider_kmigrate.spec.model import parse_seconds

_TAKEN = (
    "The cluster was owned by {}. Its running task is refused from now on, but its next task would take the cluster again. Mark that run "
    "as failed, or set the kill switch."
)
_WAIT = 5.0  # seconds between the two observations; below an auto commit's interval, so that an offset that did not move is a suspicion only


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    argument_parser = build_parser()
    options = argument_parser.parse_args(argv)
    if not (options.cluster and options.connections) and not (options.zookeeper and options.bootstrap):
        argument_parser.error("name CLUSTER.yaml and --connections, or --zookeeper and --bootstrap")
    refused = 2 if options.command == "scan" else 1
    try:
        settings, properties, expected = _read_settings(options)
        with ZooKeeper(settings) as zk:
            _check_same_cluster(zk, properties, expected, blind=options.command == "scan" or getattr(options, "force", False))
            return _COMMANDS[options.command](zk, properties, options)
    except KMigrateError as error:
        sys.stderr.write(f"{error}\n")
        return refused if isinstance(error, Refused) else 2


def _say(text: str) -> None:
    sys.stdout.write(f"{indent_further_lines(text)}\n")


def scan_groups(
    zk: ZooKeeper,
    properties: Mapping[str, Any],
    names: Collection[str] | None,
    wait: float,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[GroupScan], float | None, float]:
    """Every named group, or all, by name; seconds between the observations, and of the last one. Raises as `seen`.

    Without a second observation (`wait` 0) the gap is None.
    """
    first_observation, began = (seen(zk, properties, names) if wait else {}), time.monotonic()
    if wait:
        sleep(wait)
    second_began = time.monotonic()
    now = seen(zk, properties, names)
    took = time.monotonic() - second_began
    gap = time.monotonic() - began if wait else None
    settings = topic_settings(properties, {topic for observed in now.values() for topic in subscribed_topics(observed)})
    starts = _read_log_starts(properties, now)
    taken_at, retention = time.time(), read_retention(properties)
    scans = [
        scan_group(TwoObservations(observed, first_observation.get(name), gap or 0.0, settings, starts, taken_at, retention))
        for name, observed in sorted(now.items())
    ]
    return scans, gap, took


def _read_log_starts(properties: Mapping[str, Any], now: Mapping[str, GroupSeen]) -> dict[TopicPartition, int] | None:
    try:
        return log_offsets(
            properties,
            (topic_partition for observed in now.values() for topic_partition in wanted_partitions(observed)),
            EARLIEST,
        )
    except Unavailable:
        return None  # then the ends are not known either (K30)


def _run_scan(zk: ZooKeeper, properties: Mapping[str, Any], options: argparse.Namespace) -> int:
    scans, gap, took = scan_groups(zk, properties, options.group, options.wait)
    shown = scans if options.output == "json" or options.group is not None else ()
    clients = zk.find_clients(path for group_scan in shown for path in _paths_of_members(group_scan))
    if options.output == "json":
        sys.stdout.write(json.dumps(as_document(scans, gap, took, clients=clients), indent=1) + "\n")
    else:
        sys.stdout.write(render_table(scans, members=options.group is not None, clients=clients))
    return 1 if any(group_scan.blocked for group_scan in scans) else 0


def _paths_of_members(group_scan: GroupScan) -> Iterator[str]:
    """The registrations of a group in ZooKeeper."""
    zk = group_scan.seen.zk
    return (f"{GroupPaths(group_scan.seen.name).ids}/{name}" for name in (zk.registrations if zk else ()))


def _copy_offsets(zk: ZooKeeper, properties: Mapping[str, Any], options: argparse.Namespace) -> int:
    """Copy each group by itself; the first refusal ends it, with the earlier groups done."""
    if options.dry_run:
        for name in options.group:
            sys.stdout.write(format_copy(_plan_copy(zk, properties, name, options), done=False))
        return 0
    with _own_cluster(zk, options) as fence:
        for name in options.group:
            copy_plan = _plan_copy(zk, properties, name, options)
            if copy_plan.writes:
                group_writes.copy_offsets(zk, properties, copy_plan, fence)
            sys.stdout.write(format_copy(copy_plan, done=True))
    return 0


def _reset_offsets(zk: ZooKeeper, properties: Mapping[str, Any], options: argparse.Namespace) -> int:
    """Record a reset, remove it, or only report it."""
    name, new_offsets = options.group, dict(options.at or ())
    observed = seen(zk, properties, [name])[name]
    reasons = reset_refusal_reasons(observed, new_offsets) if new_offsets else ()
    if reasons:
        raise Refused.because(*reasons)
    if new_offsets or options.delete:
        with _own_cluster(zk, options) as fence:
            if new_offsets:
                group_writes.record_reset(zk, name, new_offsets, fence)
            else:
                group_writes.forget_reset(zk, name, observed.zk.resets if observed.zk else (), fence)
        observed = GroupSeen(name, read_groups(zk, [name])[name])
    _say(f"{name}: recorded resets that no member has applied: {describe_pending_resets(observed) or 'none'}")
    return 0


def _parse_partition_offset(text: str) -> tuple[TopicPartition, int]:
    """Parse a partition and its offset: `orders-0=100`."""
    partition_name, _, offset = text.partition("=")
    topic, _, partition = partition_name.rpartition("-")
    if not (topic and is_number(partition) and is_number(offset)):
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form orders-0=100")
    return TopicPartition(topic, int(partition)), int(offset)


def _release_groups(zk: ZooKeeper, properties: Mapping[str, Any], options: argparse.Namespace) -> int:
    del properties
    with _own_cluster(zk, options) as fence:
        for name in options.group:
            decision = decide_release(GroupSeen(name, read_groups(zk, [name])[name]), name)
            if isinstance(decision, Act):
                group_writes.forget_hold(zk, name, fence)
            _say(f"{getattr(decision, 'text', '') or _format_reasons(decision)}")
    return 0


def _owner_name(options: argparse.Namespace) -> str:
    return f"groups {options.command}/{read_user_name()}@{socket.gethostname()}:{os.getpid()}"


@contextmanager
def _own_cluster(zk: ZooKeeper, options: argparse.Namespace) -> Iterator[Fence]:
    """Own the cluster for this command, and release it afterwards."""
    if options.take_over:
        previous_owner = Fence(zk, zk.cluster_id(), f"groups {options.command}").break_lock()
        if previous_owner:
            _say(_TAKEN.format(previous_owner))
    with Fence(zk, zk.cluster_id(), _owner_name(options)) as fence:
        try:
            yield fence
        finally:
            fence.release()


def _set_zookeeper_mode(zk: ZooKeeper, properties: Mapping[str, Any], options: argparse.Namespace) -> int:
    return set_modes_back(zk, lambda name: seen(zk, properties, [name])[name], options)


class Clock(NamedTuple):
    """Seconds that only grow, and how to let some pass."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def set_modes_back(
    zk: ZooKeeper,
    observe: Callable[[str], GroupSeen],
    options: argparse.Namespace,
    clock: Clock = Clock(),  # noqa: B008 - it has no state
) -> int:
    """Emergency: set each group's mode back as soon as possible, then wait for its members. Returns the exit code."""
    deadline = clock.now() + options.wait
    groups = [_Emergency(zk, observe, name, clock) for name in options.group]
    with _own_cluster(zk, options) as fence:
        pending_groups = [group for group in groups if not group.try_once(fence, options)]
        for group in pending_groups:
            _say(f"{group.name}: nothing was written yet. {group.said}")
        while pending_groups and clock.now() < deadline:
            clock.sleep(0.5)
            pending_groups = [group for group in pending_groups if not group.try_once(fence, options)]
    for group in groups:
        if not group.is_set:
            _say(f"{group.name}: NOTHING WAS WRITTEN. {group.said}")
    outcomes = [group.wait_until_settled(deadline) for group in groups if group.is_set]
    if any(group.refused for group in groups):
        return 1
    return 0 if all(outcomes) and not pending_groups else 2


def _set_modes(zk: ZooKeeper, properties: Mapping[str, Any], options: argparse.Namespace) -> int:
    return switch_modes(zk, lambda names: seen(zk, properties, names), options)


def switch_modes(
    zk: ZooKeeper,
    observe: Callable[[Collection[str] | None], Mapping[str, GroupSeen]],
    options: argparse.Namespace,
    clock: Clock = Clock(),  # noqa: B008 - it has no state
) -> int:
    """Set the mode of every group that is ready, wave by wave; a wave that does not settle is set back, and ends it. Returns the exit code."""
    mode = Mode(options.mode)
    groups = observe(None if options.all else options.group)
    plan = plan_mode_switch(groups, mode, now=time.time(), stable_for=options.stable_for, wave_size=options.wave)
    for line in describe_mode_plan(plan, mode):
        _say(line)
    if not options.dry_run and plan.waves:
        with _own_cluster(zk, options) as fence:
            for number, wave in enumerate(plan.waves, 1):
                if late := _switch_wave(zk, observe, wave, mode, fence, clock, options.wait):
                    _say(f"Stopped at wave {number}: {', '.join(late)} did not settle in {mode} mode; the waves before it stay.")
                    return 1
                _say(f"wave {number}: settled in {mode} mode")
    return 1 if options.group and plan.left else 0


def _switch_wave(  # noqa: PLR0917  # one wave with all that it needs
    zk: ZooKeeper,
    observe: Callable[[Collection[str] | None], Mapping[str, GroupSeen]],
    wave: Sequence[str],
    mode: Mode,
    fence: Fence,
    clock: Clock,
    wait: float,
) -> list[str]:
    """Set the mode of one wave and wait until its members follow; returns the groups that did not, with their mode set back."""
    written = list[str]()
    for name, observed in observe(wave).items():  # again: the waves before took time
        if isinstance(_decide_mode(observed, mode), Act):
            group_writes.write_mode(zk, name, mode, fence)
            written.append(name)
    deadline = clock.now() + wait
    late = [name for name in wave if name not in written]
    pending = written
    while pending := [name for name, observed in observe(pending).items() if not isinstance(_decide_mode(observed, mode), Done)]:
        if clock.now() > deadline:
            break
        clock.sleep(0.5)
    for name in pending if mode is Mode.KAFKA else ():
        group_writes.write_mode(zk, name, Mode.ZOOKEEPER, fence)
    return sorted([*late, *pending])


def _decide_mode(observed: GroupSeen, mode: Mode) -> Decision:
    group = group_of_members(observed)
    return decide_set_mode(GroupObservations().with_observation(observed, 0.0, group), group, mode)


class _Emergency:
    """One group whose mode is set back to zookeeper."""

    def __init__(self, zk: ZooKeeper, observe: Callable[[str], GroupSeen], name: str, clock: Clock) -> None:
        self.name = name
        self.is_set = self.refused = False
        self.said = ""  # why nothing was written
        self._zk, self._seen, self._clock = zk, observe, clock
        self._group, self._observations = GroupSpec(name, ()), GroupObservations()

    def try_once(self, fence: Fence, options: argparse.Namespace) -> bool:
        """True if nothing is left to try: the mode is set, or refused. No other group waits for this one."""
        try:
            self.is_set = self._write_mode(fence, options)
        except Fenced:
            raise
        except KMigrateError as error:
            self.refused, self.said = isinstance(error, Refused), str(error)
        return self.is_set or self.refused

    def _write_mode(self, fence: Fence, options: argparse.Namespace) -> bool:
        """Write the mode; with `--force` also if the members in Kafka cannot be read."""
        observations = self._observe()
        unknown = unknown_group_reasons(observations.now) if observations.now else ()
        decision = Refuse(unknown) if unknown else decide_set_mode(observations, self._group, Mode.ZOOKEEPER, blind=options.force)
        self.said = _format_reasons(decision)
        if isinstance(decision, Refuse):
            raise Refused.because(*decision.reasons)
        if isinstance(decision, Act):
            group_writes.write_mode(self._zk, self.name, Mode.ZOOKEEPER, fence)
            _say(f"{decision.text} Written.")
            group_writes.note_hold(
                self._zk, self.name, GroupHold(_owner_name(options), "its mode was reset in an emergency."), fence
            )
        return isinstance(decision, Act) or is_mode_written(observations.now, Mode.ZOOKEEPER)

    def wait_until_settled(self, deadline: float) -> bool:
        """True if the group becomes stable in ZooKeeper mode before the deadline; says what is missing."""
        while not isinstance(decision := self._judge_settled(), Done):
            if self._clock.now() > deadline:
                _say(f"{self.name}: {_format_reasons(decision)}")
                return False
            self._clock.sleep(0.5)
        _say(f"{decision.text}")
        return True

    def _judge_settled(self) -> Decision:
        try:
            return decide_set_mode(self._observe(), self._group, Mode.ZOOKEEPER)
        except Unavailable:
            return Wait(unread_reasons(None, self.name))

    def _observe(self) -> GroupObservations:
        self._observations = self._observations.with_observation(self._seen(self.name), self._clock.now(), self._group)
        return self._observations


def _format_reasons(decision: Decision) -> str:
    return " | ".join(map(str, getattr(decision, "reasons", ())))


_COMMANDS: Final[Mapping[str, Callable[[ZooKeeper, Mapping[str, Any], argparse.Namespace], int]]] = {
    "scan": _run_scan,
    "copy-offsets": _copy_offsets,
    "set-mode": _set_modes,
    "zookeeper-mode": _set_zookeeper_mode,
    "release": _release_groups,
    "reset-offsets": _reset_offsets,
}


def _plan_copy(zk: ZooKeeper, properties: Mapping[str, Any], name: str, options: argparse.Namespace) -> CopyPlan:
    observed = seen(zk, properties, [name])[name]
    copy_plan = plan_copy(observed, Store(options.to), reset=options.reset)
    if isinstance(copy_plan, Refuse):
        raise Refused.because(*copy_plan.reasons)
    if copy_plan.to is Store.KAFKA and not options.expiring:
        _require_no_expiry(observed, read_retention(properties))
    return copy_plan


def _require_no_expiry(observed: GroupSeen, retention: float | None) -> None:
    """Refuse a copy that Kafka may remove before the group's application runs again (K96)."""
    if reasons := expiry_reasons(observed, time.time(), retention):
        raise Refused.because(*reasons)


def _check_same_cluster(zk: ZooKeeper, properties: Mapping[str, Any], expected: str | None, *, blind: bool) -> None:
    """Check that both sides are of one cluster, the one in the file. `blind`: unresponsive brokers are a finding later."""
    ids = {"ZooKeeper": zk.cluster_id(), "the cluster file": expected}
    try:
        ids["the brokers"] = read_cluster_id(properties)
    except Unavailable:
        if not blind:
            raise
    known_ids = {side: identity for side, identity in ids.items() if identity}
    if len(set(known_ids.values())) > 1:
        conflicting_ids = ", ".join(f"{side} has {identity}" for side, identity in known_ids.items())
        raise WrongCluster.because(Reason("I01", f"These are different clusters: {conflicting_ids}."))


def _read_settings(options: argparse.Namespace) -> tuple[ZooKeeperSettings, Mapping[str, Any], str | None]:
    """Settings from the cluster file and its connections, with the cluster's id; or from two addresses, without security and id."""
    if options.cluster is not None:
        spec = load(options.cluster)
        settings = settings_for(spec, lookup_in(read_connections(options.connections), spec))
        return settings.zookeeper, settings.kafka.properties, spec.cluster_id
    kafka = {"conn_type": KAFKA, "extra": {"bootstrap.servers": options.bootstrap}}
    zookeeper = zookeeper_settings("--zookeeper", {"conn_type": ZOOKEEPER, "host": options.zookeeper})
    return zookeeper, kafka_settings("--bootstrap", kafka).properties, None


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    lines = (__doc__ or "").split("\n")
    root_parser = argparse.ArgumentParser(prog="kmigrate groups", description=lines[0])
    commands = root_parser.add_subparsers(dest="command", required=True)
    scanning = commands.add_parser("scan", help="list each group's state and what blocks its move; read-only")
    scanning.add_argument("-o", "--output", choices=("text", "json"), default="text", help="a table, or one JSON object")
    scanning.add_argument(
        "--wait",
        type=_parse_seconds,
        default=_WAIT,
        metavar="SECONDS",
        help="between two observations (5); 90 proves that nothing is committed, 0: observe once",
    )
    copying = commands.add_parser("copy-offsets", help="copy committed offsets from one store to the other and verify them")
    copying.add_argument("--to", required=True, choices=[str(store) for store in Store])
    copying.add_argument("--dry-run", action="store_true", help="only print what would be written")
    copying.add_argument("--reset", action="store_true", help="also lower offsets that are ahead in the target store")
    copying.add_argument(
        "--expiring", action="store_true", help="also for a group that was idle for longer than Kafka keeps offsets (K96)"
    )
    setting = commands.add_parser("zookeeper-mode", help="emergency: set groups' migration/mode back to zookeeper at once")
    setting.add_argument(
        "--force",
        action="store_true",
        help="skip the check for live Kafka members; risk: records may be consumed twice",
    )
    switching = _add_set_mode_command(commands)
    releasing = commands.add_parser("release", help="allow groups that were rolled back to migrate again")
    resetting = _add_reset_command(commands)
    resetting.add_argument("--group", type=_parse_group, required=True)
    for command in (copying, resetting, setting, switching, releasing):
        command.add_argument("--take-over", action="store_true", help="take the cluster from the kmigrate run that owns it")
    setting.add_argument(
        "--wait", type=_parse_seconds, default=60.0, metavar="SECONDS", help="for the group to become stable (60)"
    )
    for command in (scanning, copying, resetting, setting, switching, releasing):
        _add_cluster_options(command)
        if command not in {resetting, switching}:
            is_required = command is not scanning
            command.add_argument(
                "--group", action="append", type=_parse_group, required=is_required, help="may be given several times"
            )
    return root_parser


def _add_cluster_options(command: argparse.ArgumentParser) -> None:
    """How the cluster is reached: by its cluster file with exported connections, or by two addresses."""
    command.add_argument("cluster", nargs="?", type=Path, metavar="CLUSTER.yaml", help="the cluster file; requires --connections")
    command.add_argument("--connections", type=Path, help="JSON file written by `airflow connections export`")
    command.add_argument("--zookeeper", metavar="HOSTS[/CHROOT]", help="instead of a cluster file; requires --bootstrap")
    command.add_argument("--bootstrap", metavar="HOST:PORT,...", help="brokers, without TLS or SASL")


def _add_set_mode_command(commands: Any) -> argparse.ArgumentParser:
    switching: argparse.ArgumentParser = commands.add_parser(
        "set-mode", help="set the mode of all groups whose members all migrate, in waves; the other mode undoes it"
    )
    switching.add_argument("mode", choices=[str(mode) for mode in Mode])
    chosen = switching.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--all", action="store_true", help="every group with migrating consumers that is ready")
    chosen.add_argument("--group", action="append", type=_parse_group, help="may be given several times")
    switching.add_argument(
        "--stable-for",
        type=_parse_duration,
        default=0.0,
        metavar="DURATION",
        help="only groups whose members have all been there for so long, such as 24h (mode kafka)",
    )
    switching.add_argument("--wave", type=_parse_count, default=10, metavar="GROUPS", help="groups that switch at once (10)")
    switching.add_argument("--wait", type=_parse_seconds, default=60.0, metavar="SECONDS", help="for a wave to settle (60)")
    switching.add_argument("--dry-run", action="store_true", help="only print the plan")
    return switching


def _parse_duration(text: str) -> float:
    value = parse_seconds(text)
    if isinstance(value, str) and text.isdecimal():
        value = float(text)
    if not isinstance(value, int | float):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 24h")
    return float(value)


def _parse_group(text: str) -> str:
    """The id of a group, which is a znode's name."""
    if text in {"", ".", ".."} or "/" in text or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is no id of a group that ZooKeeper can have")
    return text


def _parse_count(text: str) -> int:
    if not (is_number(text) and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def _add_reset_command(commands: Any) -> argparse.ArgumentParser:
    resetting: argparse.ArgumentParser = commands.add_parser(
        "reset-offsets", help="set the offsets at which the next owners of partitions start (migrating consumers only)"
    )
    offset_options = resetting.add_mutually_exclusive_group()
    offset_options.add_argument(
        "--at", type=_parse_partition_offset, action="append", metavar="TOPIC-PARTITION=OFFSET", help="may be given several times"
    )
    offset_options.add_argument(
        "--delete",
        action="store_true",
        help="delete resets that no member has applied; without --at and --delete: only print them",
    )
    return resetting


def _parse_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:  # not a number is not, either
        raise argparse.ArgumentTypeError("0 to 3600 seconds")
    return value


SCHEMA: Final = 3
_HEAD: Final = (
    *("GROUP", "STATE", "ZOOKEEPER", "MIGRATING", "KAFKA", "MODE", "OWNED", "LAG", "MOVED ZK/KAFKA"),
    *("LAST COMMIT IN ZK", "BREAKS AT", "FINDINGS"),
)


def render_table(scans: Sequence[GroupScan], *, members: bool = False, clients: Mapping[str, str] = MappingProxyType({})) -> str:
    """A line a group; then, if wanted, a line a member; then the findings, the most severe first.

    `clients`: registration's path -> address, as `ZooKeeper.find_clients` has them.
    """
    rows = [_HEAD, *(_table_row(group_scan) for group_scan in scans)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    findings = [f"{group_scan.seen.name}: {finding}" for group_scan in scans for finding in group_scan.findings]
    member_lines = [
        f"{group_scan.seen.name}: {_format_member(member, _address_of(group_scan.seen.name, member, clients))}"
        for group_scan in scans
        for member in (group_scan.seen.members or ())
        if members
    ]
    for part in (member_lines, findings):
        lines += ["", *map(printable, part)] if part else []
    return "\n".join(
        [*lines, f"{count_of(len(scans), 'group')}, {sum(group_scan.blocked for group_scan in scans)} of them blocked", ""]
    )


def as_document(
    scans: Iterable[GroupScan],
    gap: float | None,
    took: float,
    clock: Callable[[], float] = time.time,
    clients: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """JSON values only. `gap`: seconds between the two observations, None for one; `took`: seconds of the last one; `clients` as of the table."""
    return {
        "schema": SCHEMA,
        "made_ms": int(clock() * 1000),
        "gap_s": None if gap is None else round(gap, 3),
        "took_s": round(took, 3),
        "groups": [_group_as_json(group_scan, clients) for group_scan in scans],
    }


def format_copy(plan: CopyPlan, *, done: bool) -> str:
    """The partitions and offsets that a copy writes, or has written."""
    verb = "written and read back" if done else "to write"
    lines = [
        f"{offset_write.where.name}: {'nothing' if offset_write.over is None else offset_write.over} -> {offset_write.offset}"
        for offset_write in plan.writes
    ]
    kept_lines = [f"{topic_partition.name}: not written, {plan.to} is ahead" for topic_partition in plan.lower]
    skipped_lines = [f"{topic_partition.name}: skipped, its log end is unknown" for topic_partition in plan.gone]
    return "\n".join(
        [
            *map(printable, (*lines, *kept_lines, *skipped_lines)),
            f"{printable(plan.group)}: {count_of(len(lines), 'offset')} {verb} to {plan.to}",
            "",
        ]
    )


def _table_row(group_scan: GroupScan) -> tuple[str, ...]:
    zk = group_scan.seen.zk
    counts = Counter(member.kind for member in group_scan.seen.members or ())
    kinds = ["?" if group_scan.seen.members is None else str(counts[kind]) for kind in MemberKind]
    owned = "?" if zk is None else f"{len(zk.partitions - zk.unowned)}/{len(zk.partitions)}"
    moved = f"{group_scan.advanced['zookeeper']}/{group_scan.advanced['kafka']}" if group_scan.advanced else "-"
    severities = Counter(str(finding.severity) for finding in group_scan.findings)
    findings = ", ".join(f"{count} {severity}" for severity, count in severities.items()) or "none"
    mode = "?" if zk is None else str(zk.mode)
    return (
        printable(group_scan.seen.name),
        str(group_scan.situation),
        *kinds,
        mode,
        owned,
        "?" if group_scan.lag is None else str(group_scan.lag),
        moved,
        "-" if group_scan.last_commit is None else _format_time(group_scan.last_commit),
        group_scan.breaks or "-",
        findings,
    )


def _format_time(seconds: float) -> str:
    """Seconds since the epoch, to the second, in UTC; whatever ZooKeeper's clock was."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "?"


def _address_of(group: str, member: MemberSeen, clients: Mapping[str, str]) -> str:
    """The address from which a member is connected to ZooKeeper; empty if it is not, or that is not known."""
    return "" if member.kind is MemberKind.KAFKA else clients.get(f"{GroupPaths(group).ids}/{member.name}", "")


def _format_member(member: MemberSeen, address: str) -> str:
    held_partitions = ", ".join(topic_partition.name for topic_partition in sorted(member.holds)) or "nothing"
    follows = member.progress
    how = f", {'settled' if follows.settled else 'not settled'} in {follows.mode} mode" if follows else ""
    where = f"{f' on {member.host}' if member.host else ''}{f' from {address}' if address else ''}"
    return f"{member.kind} {member.name}{where} holds {held_partitions}{how}"


def _group_as_json(group_scan: GroupScan, clients: Mapping[str, str]) -> dict[str, Any]:
    zk, observed_group = group_scan.seen.zk, group_scan.seen
    at, ends = observed_group.positions, observed_group.ends or {}
    return {
        "group": observed_group.name,
        "state": str(group_scan.situation),
        "blocked": group_scan.blocked,
        "mode": None if zk is None else str(zk.mode),
        "configured_mode": None if zk is None else str(zk.requested_mode),
        "kafka_state": None if observed_group.kafka is None else observed_group.kafka.state,
        "lag": group_scan.lag,
        "advanced": dict(group_scan.advanced),
        "members": None
        if observed_group.members is None
        else [
            {
                "name": member.name,
                "kind": str(member.kind),
                "host": member.host,
                "address": _address_of(observed_group.name, member, clients),
                "holds": sorted(topic_partition.name for topic_partition in member.holds),
                "flaw": None if member.flaw is None else str(member.flaw),
                "progress": None if member.progress is None else asdict(member.progress),
            }
            for member in observed_group.members
        ],
        "partitions": [
            {
                "topic": topic_partition.topic,
                "partition": topic_partition.partition,
                "offset": at[topic_partition],
                "end": ends.get(topic_partition),
            }
            for topic_partition in sorted(at)
        ],
        "last_commit_ms": None if group_scan.last_commit is None else round(1000 * group_scan.last_commit),
        "breaks_at": group_scan.breaks,
        "owners": {} if zk is None else {partition.name: zk.owners[partition] for partition in sorted(zk.owners)},
        "unowned": [] if zk is None else sorted(topic_partition.name for topic_partition in zk.unowned),
        "findings": [_finding_as_json(finding) for finding in group_scan.findings],
    }


def _finding_as_json(finding: PreflightFinding) -> dict[str, str]:
    reason = finding.reason
    texts = {"seen": reason.text, "why": reason.meaning, "remedy": reason.next_step, "source": finding.source}
    return {"code": reason.code, "severity": str(finding.severity), **texts}
