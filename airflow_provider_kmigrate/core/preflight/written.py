"""Preflight's checks of brokers' files and settings: what is wrong, what must be the same everywhere, what a restart would change.

Every restart of the roll replaces what a broker runs with by what its file says. For a file that is wrong, the lines are named with
which it would be right, but only if the same rules find nothing new in it then: no remedy leads into the next block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from airflow_provider_kmigrate.core.files.config_matrix import (
    AUTHORIZER,
    FileStage,
    forbidden,
    inter_broker_listener,
    listener_prefix,
    node_id,
    owner,
    problems,
    references,
    setting,
    stage_of,
)
from airflow_provider_kmigrate.core.files.properties import edit
from airflow_provider_kmigrate.core.model import DEFAULT, Broker, ClusterView, NodeFiles, Reason, Taken
from airflow_provider_kmigrate.core.preflight.controllers import security_of
from airflow_provider_kmigrate.core.preflight.findings import (
    PROTOCOL,
    Check,
    PreflightFacts,
    PreflightFinding,
    answering,
    begun,
    blocks,
    of_file,
    protocol,
    unknown,
    warns,
    zookeeper_configs,
    zookeeper_files,
)
from airflow_provider_kmigrate.core.text import summarize

Keys = Mapping[str, str]
Change = Mapping[str, str | None]  # the keys to write; None: to remove
_GENERATION = "broker.id.generation.enable"


def _files(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    for node in facts.spec.brokers:
        seen = view.broker(node.id).files
        if seen.properties is None:
            continue
        found = node_id(seen.properties)
        if found not in {None, node.id}:
            yield blocks("M01", f"the properties file of broker {node.id} on {node.host} is that of broker {found}")
        changes = _changes(node.id, seen, facts.configs.get(node.id) or {})
        yield from of_file(f"broker {node.id}", with_lines(seen.properties, lambda keys: _problems(keys, view, facts), changes))


def _problems(properties: Keys, view: ClusterView, facts: PreflightFacts) -> tuple[Reason, ...]:
    """What is wrong with a file; it may be a stage ahead of its process, if a run was stopped between the two."""
    allowed = {FileStage.ZOOKEEPER, FileStage.MIGRATION, *([FileStage.KRAFT] if begun(view) else [])}
    stage = stage_of(properties)
    expected = stage if stage in allowed else FileStage.ZOOKEEPER
    return problems(properties, expected, chroot=facts.chroot, controller_listener=facts.spec.controller_listener)


def with_lines(properties: Keys, check: Callable[[Keys], tuple[Reason, ...]], changes: Iterable[Change]) -> Iterator[Reason]:
    """What `check` finds in a file, each with the first change that repairs it and causes nothing else that `check` finds."""
    found = check(properties)
    repairs: dict[Reason, Change] = {}
    for change in changes if found else ():
        left = set(check(_with_change(properties, change)))
        if left < set(found):
            repairs = dict.fromkeys(set(found) - left, change) | repairs
    return (replace(reason, text=reason.text + _lines(repairs.get(reason, {}))) for reason in found)


def _with_change(properties: Keys, change: Change) -> dict[str, str]:
    kept = {key: value for key, value in properties.items() if key not in change}
    return kept | {key: value for key, value in change.items() if value is not None}


def _lines(change: Change) -> str:
    written = edit("", {key: value for key, value in change.items() if value is not None}).splitlines()
    removed = [key for key, value in change.items() if value is None]
    acts = (("write", written), ("remove", removed))
    return "".join(f"; {act} {' and '.join(f'`{line}`' for line in lines)}" for act, lines in acts if lines)


def _changes(broker: int, files: NodeFiles, running: Keys) -> Iterator[Change]:
    """Changes to a broker's original that may repair it, the smaller first. They hold no secret, and need no restart.

    A rendered file has none: its original is corrected.
    """
    properties = files.properties or {}
    if stage_of(properties) is not FileStage.ZOOKEEPER:
        return
    if node_id(properties) in {None, broker}:
        ids = _own_id(broker, files)
        yield ids
        yield {**ids, _GENERATION: "false"}
    yield from ({key: None} for key in properties if forbidden(key, FileStage.ZOOKEEPER))
    if connect := setting(running, "zookeeper.connect"):
        yield {"zookeeper.connect": connect}


def _own_id(broker: int, files: NodeFiles) -> dict[str, str]:
    """The keys that must get the broker's id; none if its directories do not name it, since an id is never invented."""
    owners = {owner(meta)[1] for meta in (files.meta or {}).values()} - {None}
    properties, own = files.properties or {}, str(broker)
    keys = [key for key in ("broker.id", "node.id") if setting(properties, key)] or ["broker.id"]
    return {key: own for key in keys if setting(properties, key) != own} if owners == {own} else {}


#: How nodes reach each other, and whether records may be given up.
_MECHANISM = "sasl.mechanism.inter.broker.protocol"
_SAME = ("principal.builder.class", "unclean.leader.election.enable")
#: Who may do what: no broker reports it, since Kafka leaves these keys to its authorizer.
_SAME_IN_FILES = {"super.users": "", "allow.everyone.if.no.acl.found": "false"}  # with the authorizer's defaults
#: What a controller decides with.
_SAME_AT_BEST = (
    "num.partitions",
    "default.replication.factor",
    "min.insync.replicas",
    "auto.leader.rebalance.enable",
    "leader.imbalance.check.interval.seconds",
    "leader.imbalance.per.broker.percentage",
    "delete.topic.enable",
    "remote.log.storage.system.enable",
    "controller.quota.window.num",
    "controller.quota.window.size.seconds",
)
#: Settings that listeners need at a process's start: in KRaft mode dynamic ones come from the log, after the sockets exist.
_MAP = "listener.security.protocol.map"
_LISTENERS = ("listeners", "advertised.listeners", _MAP)
_LISTENER = re.compile(r"(?:listener\.name\.[^.]+\.)?(?:.+\.)?(?:ssl\.(?:keystore|truststore)\..*|ssl\.key\.password|sasl\..*)")

_REPORTED = (".location", ".type")  # of a key store; its passwords are not
_UNSEEN = re.compile(
    r"(?:^|\.)(?:ssl\.(?:keystore|truststore|key)\..*|ssl\.key\.password|sasl\.jaas\.config)(?<!\.location)(?<!\.type)$"
)
_OF_ONE_LISTENER = re.compile(r"^listener\.name\.[^.]+\.(?=ssl\.)")


def must_be_static(key: str) -> bool:
    """Whether a listener must have this setting when its node starts."""
    return key in _LISTENERS or _LISTENER.fullmatch(key) is not None


def _agree(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    configs, ours = zookeeper_configs(facts), facts.spec.controller_properties
    listeners = {inter_broker_listener(config).upper() for config in configs.values()}
    differ = ["inter.broker.listener.name"] if len(listeners) > 1 else []
    secured = any(security_of(config, inter_broker_listener(config)).startswith("SASL") for config in configs.values())
    differ += [key for key in (*_SAME, *([_MECHANISM] if secured else [])) if len(_values_of(configs, key)) > 1]
    files = [file for file in zookeeper_files(view).values() if setting(file, AUTHORIZER)]
    differ += [
        key for key, default in _SAME_IN_FILES.items() if len({_normalized(setting(file, key) or default) for file in files}) > 1
    ]
    if differ:
        yield blocks("B18", f"brokers differ in {summarize(differ)}")
    lesser = {key: _values_of(configs, key) for key in _SAME_AT_BEST if key not in ours}
    if differing := [f"{key} ({' and '.join(sorted(found))})" for key, found in lesser.items() if len(found) > 1]:
        yield warns("B18", f"brokers differ in {summarize(differing)}")


def _values_of(configs: Mapping[int, Mapping[str, str]], key: str) -> set[str]:
    """The brokers' values for a key, in one spelling; those that do not report it do not count."""
    return {_normalized(config[key]) for config in configs.values() if key in config}


def _normalized(value: str) -> str:
    """One spelling; in a list such as super.users the order does not count."""
    return _normalized_value(";".join(sorted(part.strip() for part in value.split(";") if part.strip())))


def _dynamic(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Listener settings that are only dynamic.

    If the file has a key too, the node starts with that, and the dynamic value follows later.
    """
    only, unseen = list[str](), list[str]()
    for entity, keys in sorted(facts.broker_settings.items()):
        concerned = {broker: file for broker, file in zookeeper_files(view).items() if entity in {DEFAULT, str(broker)}}
        for broker, file in concerned.items():
            missing = [
                key for key in keys if must_be_static(key) and not _starts_with(file, key, facts.configs.get(broker) or {})
            ]
            only += [f"broker {broker} {key}" for key in missing]
            unseen += [f"broker {broker} {key}" for key in keys if _is_unseen(file, key) and key not in missing]
    if only:
        yield blocks("B16", f"settings of listeners that brokers have only dynamically, or with another value: {summarize(only)}")
    if unseen:
        yield unknown("B16", f"whether what the files have still fits, since no broker reports these values: {summarize(unseen)}")


def _is_unseen(file: Mapping[str, str], key: str) -> bool:
    """Whether a file has a listener's secret that was also set dynamically: an older password, key or certificate may be left in it."""
    return _UNSEEN.search(key) is not None and _written(file, key) is not None


def _written(file: Mapping[str, str], key: str) -> str | None:
    return setting(file, key) or setting(file, _OF_ONE_LISTENER.sub("", key))


def _starts_with(file: Mapping[str, str], key: str, in_force: Mapping[str, str]) -> bool:
    """Whether a listener exists as it is now with this file alone; a dynamic protocol map hides the controllers' listener from it.

    Without a key for this listener Kafka takes the one without its name: that is enough for keystores, but not for logins and
    mechanisms. A keystore that was exchanged since may be expired or gone at its old place.
    """
    if key in _LISTENERS:
        return key != _MAP and setting(file, key) == setting(in_force, key)
    written = _written(file, key)
    if written is None or references(written) or not key.endswith(_REPORTED):
        return written is not None
    return written == (setting(in_force, key) or written)


SAME_VALUE_CHECKS: tuple[Check, ...] = (_agree, _dynamic)


_STARTS, _PREPARES = 30.0, 5.0  # seconds that an entry point takes after its process began, and a unit's preparation before it
_EXACT = 0.2  # seconds; the start of a process is known to some hundredths
_HOUR, _MINUTE = 3_600_000, 60_000
#: What Kafka accepts under several names: the others, the stronger first, with the winning name and the factor to its unit.
_SYNONYMS: Mapping[str, tuple[str, int]] = {
    "log.retention.minutes": ("log.retention.ms", _MINUTE),
    "log.retention.hours": ("log.retention.ms", _HOUR),
    "log.roll.hours": ("log.roll.ms", _HOUR),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", _HOUR),
    "log.dir": ("log.dirs", 1),
    "node.id": ("broker.id", 1),
    "delegation.token.master.key": ("delegation.token.secret.key", 1),
}
#: Identity of a node, place of its data, listeners, rights, and how much is kept of what is written.
_CRITICAL = re.compile(
    r"""(?:broker\.id | reserved\.broker\.max\.id
    | log\.dirs | metadata\.log\.dir | log\.retention\.(?:ms|bytes) | log\.cleanup\.policy
    | listeners | advertised\.listeners | listener\..* | control\.plane\.listener\.name
    | inter\.broker\..* | security\.inter\.broker\.protocol | zookeeper\..* | ssl\..* | sasl\..*
    | authorizer\..* | super\.users | allow\.everyone\.if\.no\.acl\.found | principal\.builder\.class
    | config\.providers(?:\..*)? | password\.encoder\..* | delegation\.token\..*
    | default\.replication\.factor | min\.insync\.replicas | unclean\.leader\.election\.enable
    | offsets\.topic\..* | transaction\.state\.log\..*)""",
    re.VERBOSE,
)
_TOWARDS_CONTROLLERS = re.compile(r"controller\.quorum\..* | sasl\.mechanism\.controller\.protocol", re.VERBOSE)
_ENCODER = ("password.encoder.secret", "password.encoder.old.secret")
_OF_ID = ("broker.id", "broker.id.generation.enable")


def differences(
    file: Mapping[str, str], taken: Taken, effective: Mapping[str, str], dynamic: Collection[str] = ()
) -> tuple[str, ...]:
    """The keys that a restart would change: a broker's file against what it read when it started, and what is in force now.

    References and secrets are compared by presence only. `dynamic` keys stay as they are.
    """
    written, running = _canonical(file), _canonical(taken.values)
    defaults, force = _canonical(taken.defaults), _canonical(effective)
    same = {key for key in written.keys() & running.keys() if _same(written[key], running[key])}
    same |= {key for key in written if key in force and _same(written[key], force[key]) and not _hidden(written[key])}
    same |= written.keys() & _canonical(dict.fromkeys(dynamic)).keys()
    same |= {key for key in running.keys() - written.keys() if key in defaults and running[key] == defaults[key]}
    return tuple(sorted((written.keys() | running.keys()) - same))


def _canonical(keys: Mapping[str, str | None]) -> dict[str, str | None]:
    """One name and unit for what Kafka accepts under several, and one spelling of each value."""
    found = {key: None if value is None else _normalized_value(value) for key, value in keys.items()}
    for name, (winner, factor) in _SYNONYMS.items():
        if name in found:
            found.setdefault(winner, _scaled(found[name], factor))
            del found[name]
    return found


def _normalized_value(value: str) -> str:
    text = re.sub(r"\s*,\s*", ",", value.strip())
    return str(int(text)) if re.fullmatch(r"[+-]?\d+", text) else text.lower() if text.lower() in {"true", "false"} else text


def _scaled(value: str | None, factor: int) -> str | None:
    return str(int(value) * factor) if factor > 1 and value and value.isdecimal() else value


def _same(written: str | None, running: str | None) -> bool:
    return _hidden(written) or running is None or written == running


def _hidden(value: str | None) -> bool:
    return value is None or bool(references(value))


def _differ(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Compare brokers whose file is of the stage that they run in; a file that is ahead comes from a stopped run."""
    comparable = _comparable(view, facts)
    taken_by = {broker: facts.environment.taken.get(broker) for broker in answering(view, facts) if broker in comparable}
    if unresponsive := [broker for broker, taken in taken_by.items() if taken is None]:
        yield unknown("B15", f"whether brokers {summarize(unresponsive)} run with what their files say: they do not report it")
    for broker, taken in taken_by.items():
        file, changed = comparable[broker], _changed(comparable[broker], facts, broker)
        keys = [
            key
            for key in changed
            if taken and not _ignored_until_restart(key, file, taken, broker, facts.spec.controller_listener)
        ]
        reported = {PROTOCOL} if protocol(file) else set()  # by B1a
        if critical := [key for key in keys if _CRITICAL.fullmatch(key) and key not in reported]:
            yield blocks("B15", f"broker {broker} does not run with what its file says of {summarize(critical)}")
        if others := [key for key in keys if not _CRITICAL.fullmatch(key)]:
            yield warns("B15", f"broker {broker} does not run with what its file says of {summarize(others)}")


def _changed(file: Mapping[str, str], facts: PreflightFacts, broker: int) -> tuple[str, ...]:
    """The keys that a restart of this broker would change, as far as it reports what it has read."""
    taken = facts.environment.taken.get(broker)
    return differences(file, taken, facts.configs.get(broker) or {}, _written_dynamic(facts, broker)) if taken else ()


def _made_at_start(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Files that something may write when a broker starts: what kmigrate installs would be gone before Kafka reads it (R13).

    Such a file is as young as its process, and Kafka has read it as it is now.
    """
    files = _comparable(view, facts)
    young = [broker for broker in files if _is_of_start(view.brokers[broker])]
    if made := [f"broker {broker}" for broker in young if not _changed(files[broker], facts, broker)]:
        yield unknown(
            "R13", f"whether their start makes these properties files, which are as young as the process: {summarize(made)}"
        )


def _is_of_start(broker: Broker) -> bool:
    """Whether a file was written while its process started: after it by an entry point, before it by the unit's own preparation."""
    started, written = broker.process.started_at, broker.files.written_at
    if started is None or written is None:
        return False
    earliest = -_PREPARES if broker.process.prepared else _EXACT
    return earliest < written - started < _STARTS


def _ignored_until_restart(key: str, file: Mapping[str, str], taken: Taken, broker: int, listener: str) -> bool:
    """Whether a ZooKeeper-mode broker ignores this edit until its restart; remedies of other findings ask for such edits.

    It ignores keys towards controllers, and writing out its id gives it no other (a missing id is C04). An encoder secret is idle
    while nothing is encrypted with it.
    """
    if stage_of(file) is not FileStage.ZOOKEEPER:
        return False
    own_id = key in _OF_ID and node_id(file) in {broker, None}
    first_secret = key in _ENCODER and key not in taken.values
    towards_controllers = _TOWARDS_CONTROLLERS.fullmatch(key) or key.startswith(listener_prefix(listener))
    return own_id or first_secret or bool(towards_controllers)


def _written_dynamic(facts: PreflightFacts, broker: int) -> set[str]:
    return {key for entity in (DEFAULT, str(broker)) for key in facts.broker_settings.get(entity, ())}


def _comparable(view: ClusterView, facts: PreflightFacts) -> dict[int, Mapping[str, str]]:
    files = zookeeper_files(view)
    return {broker: keys for broker, keys in files.items() if stage_of(keys) is stage_of(facts.configs.get(broker) or {})}


def _kept_by_others(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    kept = [f"broker {broker.id} {broker.files.kept_by}" for broker in view.brokers.values() if broker.files.kept_by]
    if kept:
        yield warns("W9", f"files that name the tool that writes them: {summarize(kept)}")


CHECKS: tuple[Check, ...] = (_files, _differ, _made_at_start, _kept_by_others)
