"""Which releases of Kafka may be migrated, and preflight's checks of brokers, protocol, disks and the ensemble.

The defects of KIP-866's code and the first releases with their fixes are taken from Kafka's release tags. Defects without any fix
(KAFKA-20488, KAFKA-20960) are not here: gates prevent them (G02, G05).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, LogDir, same_version
from airflow_provider_kmigrate.core.node_files.config_matrix import is_true, read_setting
from airflow_provider_kmigrate.core.preflight import unread
from airflow_provider_kmigrate.core.preflight.findings import (
    PROTOCOL,
    Check,
    PreflightFacts,
    PreflightFinding,
    Severity,
    answering_brokers,
    blocks,
    configured_protocol,
    feature_level,
    format_broker_values,
    unknown,
    values_by_broker,
    warns,
    zookeeper_configs,
)
from airflow_provider_kmigrate.core.preflight.kafka_requests import find_missing_requests, served_requests
from airflow_provider_kmigrate.core.shared.text import count_of, summarize

_CONFLUENT = re.compile(r"(?:cp-)?([5-8])\.(\d+)(?:[-+.].*)?")  # Kafka itself has no release 5 to 8
_KAFKA_IN_CONFLUENT = {5: 2, 7: 3, 8: 4}  # major numbers
_COMMUNITY = re.compile(r"(?:cp-)?[5-8]\.\d+(?:\.\d+)?(?:-\d+)?(?:-ccs)?")  # Confluent Platform with Apache's broker
_SERVER = re.compile(r".*-ce\b.*")
_EARLY = re.compile(r".*[-.](?:SNAPSHOT|rc\d*|alpha|beta|x)\b.*", re.IGNORECASE)
_PLAIN = re.compile(r"\d+\.\d+(?:\.\d+|-IV\d+)?")
_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:[-+.].*)?")


class KafkaVersion(NamedTuple):
    """`3.9.2`; `patch` is None if only the line, `3.9`, is known."""

    major: int
    minor: int
    patch: int | None = None

    @property
    def line(self) -> tuple[int, int]:
        """Major and minor number, without the patch level."""
        return self.major, self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + ("" if self.patch is None else f".{self.patch}")


@dataclass(frozen=True, slots=True)
class Defect:
    """Issues of KAFKA (none: what KIP-919 brought), what they do in a migration, and the first fixed release of each fixed line."""

    issues: tuple[int, ...]
    effect: str
    fixed: tuple[KafkaVersion, ...]

    def concerns(self, release: KafkaVersion) -> bool:
        """Whether the release has it; a line later than all fixed ones has not."""
        if release.line > max(fix.line for fix in self.fixed):
            return False
        return not any(release.line == fix.line and (release.patch or 0) >= (fix.patch or 0) for fix in self.fixed)

    def __str__(self) -> str:
        source = f"KAFKA-{', KAFKA-'.join(map(str, self.issues))}" if self.issues else "KIP-919, measured"
        return f"{self.effect} ({source})"


def _defect(effect: str, fixed: str, *issues: int) -> Defect:
    return Defect(issues, effect, tuple(release for text in fixed.split() if (release := parse_version(text))))


def parse_version(text: str) -> KafkaVersion | None:
    """`3.9.2`, `3.9` or `3.9-IV0`; None for anything else."""
    match = _RELEASE.fullmatch(text.strip())
    return KafkaVersion(int(match[1]), int(match[2]), int(match[3]) if match[3] else None) if match else None


def parse_release(text: str) -> KafkaVersion | None:
    """A release of Kafka, or of Confluent Platform, whose numbers are its own: `7.9.2-ccs`, `cp-7.9.2` and `7.9.2-ce` have Kafka 3.9 in them.

    Confluent's third number is not Kafka's: the patch level stays unknown, whatever follows. None for anything else.
    """
    match = _CONFLUENT.fullmatch(text.strip())
    if match is None:
        return parse_version(text)
    line = int(match[1]), int(match[2])
    return (
        KafkaVersion(2, line[1] + 6) if line[0] == 6 else KafkaVersion(_KAFKA_IN_CONFLUENT[line[0]], line[1])
    )  # 6.0 had Kafka 2.6


DEFECTS = (
    _defect("configs, ACLs and snapshots missing from the dual-write", "3.5.0", 15003, 15004, 15009, 15010, 14840),
    _defect("new partitions missing from the dual-write", "3.5.1", 15149),
    _defect("brokers with an authorizer refused", "3.5.1", 15098),
    _defect("driver events run in the wrong state", "3.5.2 3.6.0", 15263),
    _defect("producer ids given out twice after the takeover", "3.5.2 3.6.1", 15552),
    _defect("brokers fenced in a long copy, a copy without transaction, an empty image", "3.6.0", 15441, 14538, 15389, 15109),
    _defect("topic deletions lost, stray replicas", "3.6.1", 15605, 15799),
    _defect("no copy begins if a controller starts after the election of the first", "3.7.0"),
    _defect("lag of standbys, a leader that resigns", "3.7.0", 15532, 15489),
    _defect("a copy too slow, then batches too big", "3.6.2 3.7.0", 16007, 16216),
    _defect("reassignments leave strays, controllers race", "3.6.2 3.7.0", 16120, 16180, 16171),
    _defect("quota names corrupted, config changes not sent", "3.6.2 3.7.1", 16222, 16411, 16428),
    _defect("metadata log not wiped, the driver hangs after a ZooKeeper error", "3.7.1 3.8.0", 16463, 16539, 16563, 16606),
    _defect("topic configs deleted by mistake, brokers confuse controllers", "3.8.0", 16206, 16515),
    _defect("the driver stuck INACTIVE, a migration without transactions", "3.7.2 3.8.1 3.9.0", 17506, 17457),
    _defect("a stale /migration blocks the sync after a failover", "3.9.0", 16667, 16468, 17543, 17788),
    _defect("a null /migration hangs, policies get other arguments", "3.9.2", 19480, 19026),
)

_TOKENS = _defect("delegation tokens that expire at once, or are renewed for another time", "3.9.0", 17315)

_WORKS: dict[tuple[int, int], tuple[int, int | None]] = {(3, 6): (2, None), (3, 7): (1, 2), (3, 8): (0, 1), (3, 9): (0, 0)}
"""Line -> by its defects: from which patch on it may be migrated, and from which on without a warning; None: none is without."""


def describe_build(text: str) -> str:
    """What is not known of a build with this name, beside its release's own defects; empty for a release of Kafka or Confluent Platform that was tested."""
    release = parse_release(text)
    if release is None:
        return f"{text}, which names no release of Kafka"
    if _SERVER.fullmatch(text):
        return f"Confluent Server {text}: its own metadata and classes were in no test"
    if _EARLY.fullmatch(text):
        return f"{text}, which is no release: whether it has all fixes of Kafka {release} is not known"
    if not _PLAIN.fullmatch(text) and not _COMMUNITY.fullmatch(text):
        return f"{text}, a vendor's build of Kafka {release}: its own changes were in no test"
    newest = max(
        (parse_version(name) or release for name in served_requests() if name.startswith(f"{release.major}.{release.minor}.")),
        default=release,
    )
    later = release.patch is not None and release > newest
    return f"Kafka {release}, which is later than {newest}, the last release of its line in tests" if later else ""


def judge_release(release: KafkaVersion) -> Severity | None:
    """How severe it is to migrate this release; None if nothing is known against it, UNKNOWN if the patch level decides."""
    if release.line not in _WORKS or find_missing_requests(release.line):
        return Severity.BLOCK  # too old, without any ZooKeeper code, or without a request that a gate needs
    possible = {_judge_patch(release.line, patch) for patch in (range(3) if release.patch is None else (release.patch,))}
    return possible.pop() if len(possible) == 1 else Severity.UNKNOWN


def known_defects(release: KafkaVersion) -> tuple[Defect, ...]:
    """The known defects of a release; an unknown patch level counts as the first."""
    return tuple(defect for defect in DEFECTS if defect.concerns(release))


def _judge_patch(line: tuple[int, int], patch: int) -> Severity | None:
    works, quiet = _WORKS[line]
    if patch < works:
        return Severity.BLOCK
    return None if quiet is not None and patch >= quiet else Severity.WARN


_LOWEST = "3.6-IV1"  # the first metadata version with transactions for the copy (KIP-868)
_JBOD = "3.7-IV2"  # the first with directory ids (KIP-858)
_TIERED = "3.9-IV0"
_OLDEST_ENSEMBLE = (3, 5)


def _check_protocol_versions(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    configs = zookeeper_configs(facts)
    running_versions = values_by_broker(configs, PROTOCOL)
    for broker in configs.keys() - running_versions.keys():
        yield blocks("U05", f"could not read the inter.broker.protocol.version of broker {broker}")
    first_version = next(iter(running_versions.values()), "")
    if any(not same_version(version, first_version) for version in running_versions.values()):
        yield blocks("B1a", f"brokers have different inter.broker.protocol.version: {format_broker_values(running_versions)}")
    elif running_versions and facts.metadata_version and not same_version(first_version, facts.metadata_version):
        yield blocks(
            "B1a",
            f"the controllers' metadata.version is {facts.metadata_version}, inter.broker.protocol.version is {first_version}",
        )
    files = values_by_broker({broker.id: broker.files.properties or {} for broker in view.brokers.values()}, PROTOCOL)
    if pending := {broker: text for broker, text in files.items() if not same_version(text, running_versions.get(broker, text))}:
        yield blocks(
            "B1a", f"files have another inter.broker.protocol.version than the running brokers: {format_broker_values(pending)}"
        )
    if old := {
        broker: version for broker, version in running_versions.items() if feature_level(version) < feature_level(_LOWEST)
    }:
        yield blocks("B1b", f"inter.broker.protocol.version is below {_LOWEST}: {format_broker_values(old)}")


def _check_releases(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """The bug matrix. No broker reports its patch level: the cluster file may name it, and the names of its jars, which an agent reports, do."""
    releases = {broker: parse_release(text) if text else None for broker, text in sorted(facts.environment.releases.items())}
    unresponsive = [broker for broker in answering_brokers(view, facts) if releases.get(broker) is None]
    if unresponsive:
        yield unknown("B1b", f"brokers that do not report their release: {summarize(unresponsive)}")
    known_releases = {broker: release for broker, release in releases.items() if release}
    lines = {release.line for release in known_releases.values()}
    if len(lines) > 1:
        yield blocks("B1a", f"brokers run different releases: {format_broker_values(known_releases)}")
    jars = {
        broker.id: software.release
        for broker in view.brokers.values()
        if (software := broker.process.software) and software.release
    }
    stated = parse_release(facts.spec.kafka_release)
    different = (
        known_releases
        if stated and lines - {stated.line}
        else {broker: jar for broker, jar in jars.items() if _differs(stated, jar)}
    )
    if stated and different:
        text = f"the cluster file says kafka_release {_describe_stated(facts.spec.kafka_release, stated)}"
        yield blocks("B1a", f"{text}, but there is {format_broker_values(different)}")
    judged = {
        _find_full_release(release, facts.spec.kafka_release, jars.get(broker, "")) for broker, release in known_releases.items()
    }
    for release in sorted(judged, key=str):
        yield from _check_release(release)
    builds = {text: parse_release(text) for text in sorted({facts.spec.kafka_release, *jars.values()} - {""})}
    for text, build in builds.items():
        if (unproven := describe_build(text)) and not (
            build and judge_release(build) is Severity.BLOCK and not _SERVER.fullmatch(text)
        ):
            yield unknown("B1b", f"brokers run {unproven}")


def _differs(stated: KafkaVersion | None, jar: str) -> bool:
    """Whether a broker's jars are surely of another release than the cluster file says."""
    installed = parse_release(jar)
    return bool(stated and installed and None not in {stated.patch, installed.patch} and installed != stated)


def _find_full_release(line: KafkaVersion, *texts: str) -> KafkaVersion:
    """The first of these names that is a release of the line that a broker reports; else the line."""
    found = (release for text in texts if (release := parse_release(text)) is not None and release.line == line.line)
    return next(found, line)


def _describe_stated(text: str, stated: KafkaVersion) -> str:
    return text if text == str(stated) else f"{text}, which has Kafka {stated} in it"


def _check_release(release: KafkaVersion) -> Iterator[PreflightFinding]:
    known = (*find_missing_requests(release.line), *known_defects(release))
    text = f"brokers run Kafka {release}: {summarize(known) or 'it has no ZooKeeper mode'}"
    match judge_release(release):
        case Severity.BLOCK:
            yield blocks("B1b", text)
        case Severity.WARN:
            yield warns("B1b", text)
        case Severity.UNKNOWN:
            yield unknown("B1b", f"brokers run Kafka {release} of an unknown patch level; {release}.0 has: {text}")


def _check_token_defect(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """A defect that only clusters with delegation tokens have: their clients lose access after the takeover."""
    tree = facts.environment.tree
    releases = {broker: parse_version(text or "") for broker, text in sorted(facts.environment.releases.items())}
    old = {broker: release for broker, release in releases.items() if release and _TOKENS.concerns(release)}
    if tree and tree.tokens and old:
        yield warns("B1b", f"{count_of(tree.tokens, 'delegation token')}, and {_TOKENS} in {format_broker_values(old)}")


def _check_protocol_behind(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Only if all brokers have one version that may be migrated: otherwise that is the finding."""
    own = values_by_broker(zookeeper_configs(facts), PROTOCOL)
    levels = {broker: feature_level(version) for broker, version in own.items()}
    if len(set(levels.values())) != 1 or min(levels.values()) < feature_level(_LOWEST):
        return
    newer = {broker: release for broker, release in facts.environment.releases.items() if release and broker in own}
    behind = {
        broker: f"{own[broker]} on release {release}"
        for broker, release in sorted(newer.items())
        if levels[broker] < feature_level(release)
    }
    if behind:
        yield warns("B1b", f"inter.broker.protocol.version is older than the release: {format_broker_values(behind)}")


def _check_log_dirs(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    reported = {broker: facts.environment.log_dirs.get(broker) for broker in answering_brokers(view, facts)}
    if unresponsive := [broker for broker, dirs in reported.items() if dirs is None]:
        yield unknown("B7b", f"brokers that do not report the state of their log directories: {summarize(unresponsive)}")
    failed = [
        f"broker {broker} {log_dir.path} ({log_dir.error})"
        for broker, dirs in reported.items()
        for log_dir in dirs or ()
        if log_dir.error
    ]
    if failed:
        yield blocks("B7b", f"log directories that have failed: {summarize(failed)}")
    several = {broker: count for broker, dirs in reported.items() if (count := _count_log_dirs(view, broker, dirs)) > 1}
    yield from _check_jbod({broker: count for broker, count in several.items() if broker in zookeeper_configs(facts)}, facts)


def _count_log_dirs(view: ClusterView, broker: int, dirs: tuple[LogDir, ...] | None) -> int:
    """How many log directories a broker has, as it reports or as its file says."""
    observed = view.brokers.get(broker)
    file = (observed.files.properties or {}) if observed else {}
    text = read_setting(file, "log.dirs") or read_setting(file, "log.dir") or ""
    return max(len(dirs or ()), len([part for part in text.split(",") if part.strip()]))


def _check_jbod(several: dict[int, int], facts: PreflightFacts) -> Iterator[PreflightFinding]:
    versions = values_by_broker(zookeeper_configs(facts), PROTOCOL)
    levels = {broker: feature_level(versions.get(broker)) for broker in several}
    descriptions = {broker: f"with {count}, on {versions.get(broker, 'an unknown version')}" for broker, count in several.items()}
    if old := {
        broker: descriptions[broker] for broker, protocol_level in levels.items() if protocol_level < feature_level(_JBOD)
    }:
        yield blocks("B1b", f"brokers with several log directories and a version below {_JBOD}: {format_broker_values(old)}")
    if early := {
        broker: descriptions[broker]
        for broker, protocol_level in levels.items()
        if feature_level(_JBOD) <= protocol_level < feature_level("3.8")
    }:
        yield warns("B1b", f"brokers with several log directories: {format_broker_values(early)}")


def _check_tiered_storage(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    on = {broker: keys for broker, keys in zookeeper_configs(facts).items() if is_true(keys, "remote.log.storage.system.enable")}
    if old := [broker for broker, keys in on.items() if feature_level(configured_protocol(keys)) < feature_level(_TIERED)]:
        yield warns("B1b", f"tiered storage with a version below {_TIERED}: brokers {summarize(old)}")


def _check_ensemble_versions(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    servers = facts.environment.servers
    old = [
        f"{server.address} {server.version}"
        for server in servers
        if server.version and _parse_line(server.version) < _OLDEST_ENSEMBLE
    ]
    if old:
        yield blocks("B12b", f"ZooKeeper servers before {'.'.join(map(str, _OLDEST_ENSEMBLE))}: {summarize(old)}")
    if unread.is_zookeeper_reported_unread(view):
        return
    if not servers:
        yield unknown("B12b", "no server of the ensemble was asked for its version")
    elif unresponsive := [server.address for server in servers if server.version is None]:
        yield unknown("B12b", f"ZooKeeper servers that do not report their version: {summarize(unresponsive)}")


def _parse_line(version: str) -> tuple[int, int]:
    release = parse_version(version)
    return release.line if release else (0, 0)


CHECKS: tuple[Check, ...] = (
    _check_protocol_versions,
    _check_releases,
    _check_token_defect,
    _check_protocol_behind,
    _check_log_dirs,
    _check_tiered_storage,
    _check_ensemble_versions,
)
