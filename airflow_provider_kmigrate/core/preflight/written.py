"""Preflight's checks of brokers' files and settings: what is wrong, what must be the same everywhere, what a restart would change.

Every restart of the roll replaces what a broker runs with by what its file says. For a file that is wrong, the lines are named with
which it would be right, but only if the same rules find nothing new in it then: no remedy leads into the next block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from airflow_provider_kmigrate.core.cluster_state.model import DEFAULT, Broker, ClusterView, NodeFiles, Reason, Taken
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.node_files.config_matrix import (
    AUTHORIZER,
    FileStage,
    find_problems,
    find_references,
    inter_broker_listener,
    is_forbidden,
    listener_key_prefix,
    read_node_id,
    read_owner,
    read_setting,
    stage_of,
)
from airflow_provider_kmigrate.core.node_files.kafka_keys import find_key, find_strongest_name, kafka_rules
from airflow_provider_kmigrate.core.node_files.properties import edit_properties, find_layout
from airflow_provider_kmigrate.core.preflight.actors import find_process
from airflow_provider_kmigrate.core.preflight.controllers import security_of
from airflow_provider_kmigrate.core.preflight.findings import (
    PROTOCOL,
    Check,
    PreflightFacts,
    PreflightFinding,
    answering_brokers,
    blocks,
    configured_protocol,
    file_findings,
    has_migration_begun,
    unknown,
    warns,
    zookeeper_broker_files,
    zookeeper_configs,
)
from airflow_provider_kmigrate.core.preflight.units import list_hidden_keys
from airflow_provider_kmigrate.core.shared.text import summarize

Keys = Mapping[str, str]
Change = Mapping[str, str | None]  # the keys to write; None: to remove
_GENERATION = "broker.id.generation.enable"


def _check_files(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    for node in facts.spec.brokers:
        files = view.broker(node.id).files
        if files.properties is None:
            continue
        file_id = read_node_id(files.properties)
        if file_id not in {None, node.id}:
            yield blocks("M01", f"the properties file of broker {node.id} on {node.host} is that of broker {file_id}")
        changes = _propose_changes(node.id, files, facts.configs.get(node.id) or {})
        yield from file_findings(
            f"broker {node.id}", attach_remedies(files.properties, lambda keys: _find_file_problems(keys, view, facts), changes)
        )


def _find_file_problems(properties: Keys, view: ClusterView, facts: PreflightFacts) -> tuple[Reason, ...]:
    """What is wrong with a file; it may be a stage ahead of its process, if a run was stopped between the two."""
    allowed = {FileStage.ZOOKEEPER, FileStage.MIGRATION, *([FileStage.KRAFT] if has_migration_begun(view) else [])}
    stage = stage_of(properties)
    expected = stage if stage in allowed else FileStage.ZOOKEEPER
    return find_problems(properties, expected, chroot=facts.chroot, controller_listener=facts.spec.controller_listener)


def attach_remedies(properties: Keys, check: Callable[[Keys], tuple[Reason, ...]], changes: Iterable[Change]) -> Iterator[Reason]:
    """What `check` finds in a file, each with the first change that repairs it and causes nothing else that `check` finds."""
    file_problems = check(properties)
    repairs: dict[Reason, Change] = {}
    for change in changes if file_problems else ():
        remaining = set(check(_apply_change(properties, change)))
        if remaining < set(file_problems):
            repairs = dict.fromkeys(set(file_problems) - remaining, change) | repairs
    return (replace(reason, text=reason.text + _describe_change(repairs.get(reason, {}))) for reason in file_problems)


def _apply_change(properties: Keys, change: Change) -> dict[str, str]:
    unchanged = {key: value for key, value in properties.items() if key not in change}
    return unchanged | {key: value for key, value in change.items() if value is not None}


def _describe_change(change: Change) -> str:
    written = edit_properties("", {key: value for key, value in change.items() if value is not None}).splitlines()
    removed = [key for key, value in change.items() if value is None]
    acts = (("write", written), ("remove", removed))
    return "".join(f"; {act} {' and '.join(f'`{line}`' for line in lines)}" for act, lines in acts if lines)


def _propose_changes(broker: int, files: NodeFiles, running: Keys) -> Iterator[Change]:
    """Changes to a broker's original that may repair it, the smaller first. They hold no secret, and need no restart.

    A rendered file has none: its original is corrected.
    """
    properties = files.properties or {}
    if stage_of(properties) is not FileStage.ZOOKEEPER:
        return
    if read_node_id(properties) in {None, broker}:
        ids = _id_keys_to_write(broker, files)
        yield ids
        yield {**ids, _GENERATION: "false"}
    yield from ({key: None} for key in properties if is_forbidden(key, FileStage.ZOOKEEPER))
    if connect := read_setting(running, "zookeeper.connect"):
        yield {"zookeeper.connect": connect}


def _id_keys_to_write(broker: int, files: NodeFiles) -> dict[str, str]:
    """The keys that must get the broker's id; none if its directories do not name it, since an id is never invented."""
    owners = {read_owner(meta)[1] for meta in (files.meta or {}).values()} - {None}
    properties, own = files.properties or {}, str(broker)
    keys = [key for key in ("broker.id", "node.id") if read_setting(properties, key)] or ["broker.id"]
    return {key: own for key in keys if read_setting(properties, key) != own} if owners == {own} else {}


#: How nodes reach each other, and whether records may be given up.
_MECHANISM = "sasl.mechanism.inter.broker.protocol"
_SAME = ("principal.builder.class", "unclean.leader.election.enable")
#: Who may do what: no broker reports it, since Kafka leaves these keys to its authorizer.
_SAME_IN_FILES = {"super.users": "", "allow.everyone.if.no.acl.found": "false"}  # with the authorizer's defaults
#: What a controller decides with, beside the defaults of topics' settings.
_DECIDES_WITH = (
    "num.partitions",
    "default.replication.factor",
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
_OF_STORES = r"ssl\.(?:keystore|truststore)\..*|ssl\.key\.password"
_STORE = re.compile(rf"(?:listener\.name\.[^.]+\.)?(?:{_OF_STORES})")
#: Of a listener that exists, Kafka changes nothing else dynamically (DynamicListenerConfig); a broker starts without these, too.
_CHANGEABLE = re.compile(r"listener\.name\.[^.]+\.(?:max\.connections|max\.connection\.creation\.rate|num\.network\.threads)")
_LISTENER = re.compile(r"listener\.name\..*|ssl\..*|sasl\..*|principal\.builder\.class")

_REPORTED = (".location", ".type")  # of a key store; its passwords are not
_UNSEEN = re.compile(
    r"(?:^|\.)(?:ssl\.(?:keystore|truststore|key)\..*|ssl\.key\.password|sasl\.jaas\.config)(?<!\.location)(?<!\.type)$"
)
_OF_ONE_LISTENER = re.compile(rf"^listener\.name\.[^.]+\.(?={_OF_STORES})")


def must_be_static(key: str) -> bool:
    """Whether a listener must have this setting when its node starts."""
    return key in _LISTENERS or (_LISTENER.fullmatch(key) is not None and not _CHANGEABLE.fullmatch(key))


def _check_agreement(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    configs, controller_properties = zookeeper_configs(facts), facts.spec.controller_properties
    listeners = {inter_broker_listener(config).upper() for config in configs.values()}
    differing_keys = ["inter.broker.listener.name"] if len(listeners) > 1 else []
    secured = any(security_of(config, inter_broker_listener(config)).startswith("SASL") for config in configs.values())
    differing_keys += [key for key in (*_SAME, *([_MECHANISM] if secured else [])) if len(_distinct_values(configs, key)) > 1]
    files = [file for file in zookeeper_broker_files(view).values() if read_setting(file, AUTHORIZER)]
    differing_keys += [
        key
        for key, default in _SAME_IN_FILES.items()
        if len({_normalize_list(read_setting(file, key) or default) for file in files}) > 1
    ]
    if differing_keys:
        yield blocks("B18", f"brokers differ in {summarize(differing_keys)}")
    defaults_of_topics = [key for keys in kafka_rules().topics.values() for key, _ in keys if key not in _SAME]
    minor_keys = [key for key in (*_DECIDES_WITH, *defaults_of_topics) if key not in controller_properties]
    minor_values = {key: _distinct_values(configs, key) for key in minor_keys}
    if differing := [f"{key} ({' and '.join(sorted(distinct))})" for key, distinct in minor_values.items() if len(distinct) > 1]:
        yield warns("B18", f"brokers differ in {summarize(differing)}")


def _distinct_values(configs: Mapping[int, Mapping[str, str]], key: str) -> set[str]:
    """The brokers' values for a key, in one spelling; those that do not report it do not count."""
    return {_normalize_list(config[key]) for config in configs.values() if key in config}


def _normalize_list(value: str) -> str:
    """One spelling; in a list such as super.users the order does not count."""
    return _normalize_value(";".join(sorted(part.strip() for part in value.split(";") if part.strip())))


def _check_dynamic_listeners(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Listener settings that are only dynamic.

    If the file has a key too, the node starts with that, and the dynamic value follows later.
    """
    dynamic_only, unreported = list[str](), list[str]()
    for entity, keys in sorted(facts.broker_settings.items()):
        concerned = {broker: file for broker, file in zookeeper_broker_files(view).items() if entity in {DEFAULT, str(broker)}}
        for broker, file in concerned.items():
            missing = [
                key for key in keys if must_be_static(key) and not _file_suffices(file, key, facts.configs.get(broker) or {})
            ]
            dynamic_only += [f"broker {broker} {key}" for key in missing]
            unreported += [f"broker {broker} {key}" for key in keys if _is_unreported_secret(file, key) and key not in missing]
    if dynamic_only:
        yield blocks(
            "B16", f"settings of listeners that brokers have only dynamically, or with another value: {summarize(dynamic_only)}"
        )
    if unreported:
        yield unknown(
            "B16", f"whether what the files have still fits, since no broker reports these values: {summarize(unreported)}"
        )


#: Of which a running broker changes the number no further than to half or double of what it has (DynamicThreadPool, LogCleaner, SocketServer).
_THREAD_POOLS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)


def _check_dynamic_thread_pools(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Numbers of threads that a KRaft broker refuses, since it starts with those of its file: then it takes none of the dynamic settings.

    A ZooKeeper-mode broker reads dynamic settings before its pools exist, and takes any number.
    """
    refused = list[str]()
    for broker, file in zookeeper_broker_files(view).items():
        for key in sorted(_dynamic_keys(facts, broker)):
            dynamic_count = _read_count((facts.configs.get(broker) or {}).get(key))
            static_count = _read_static_count(file, key)
            if dynamic_count and static_count and _is_refused(static_count, dynamic_count):
                refused.append(f"broker {broker} {key}={dynamic_count}, at its start {static_count}")
    if refused:
        yield blocks("B20", f"dynamic numbers of threads that a broker in KRaft mode refuses: {summarize(refused)}")


def _is_refused(static_count: int, dynamic_count: int) -> bool:
    return not static_count // 2 <= dynamic_count <= static_count * 2


def _read_static_count(file: Keys, key: str) -> int | None:
    """The number of threads with which a broker starts; a listener without its own has that of all. None for any other setting."""
    definition = find_key(key)
    if definition is None or definition.name not in _THREAD_POOLS:
        return None
    return _read_count(read_setting(file, key) or read_setting(file, definition.name) or definition.default)


def _read_count(value: str | None) -> int | None:
    """A number of threads; None for a reference, or for what is no number."""
    return int(value) if value and value.strip().isdecimal() else None


def _is_unreported_secret(file: Mapping[str, str], key: str) -> bool:
    """Whether a file has a listener's secret that was also set dynamically: an older password, key or certificate may be left in it."""
    return _UNSEEN.search(key) is not None and _read_own_or_general_setting(file, key) is not None


def _read_own_or_general_setting(file: Mapping[str, str], key: str) -> str | None:
    return read_setting(file, key) or read_setting(file, _OF_ONE_LISTENER.sub("", key))


def _file_suffices(file: Mapping[str, str], key: str, in_force: Mapping[str, str]) -> bool:
    """Whether a listener exists as it is now with this file alone; a dynamic protocol map hides the controllers' listener from it.

    Without a key for this listener Kafka takes the one without its name: that is enough for keystores, but not for logins and
    mechanisms. A keystore that was exchanged since may be expired or gone at its old place; of anything else a running broker
    changes nothing, and with it takes none of its dynamic settings.
    """
    if key in _LISTENERS:
        return key != _MAP and read_setting(file, key) == read_setting(in_force, key)
    written = _read_own_or_general_setting(file, key)
    if written is None or find_references(written) or (_STORE.fullmatch(key) and not key.endswith(_REPORTED)):
        return written is not None
    return written == (read_setting(in_force, key) or written)


SAME_VALUE_CHECKS: tuple[Check, ...] = (_check_agreement, _check_dynamic_listeners, _check_dynamic_thread_pools)


_STARTS, _PREPARES = 30.0, 5.0  # seconds that an entry point takes after its process began, and a unit's preparation before it
_EXACT = 0.2  # seconds; the start of a process is known to some hundredths
#: Second names that KafkaConfig reads by itself if the first is missing; its ConfigDef does not say so.
_SECOND_NAMES: Mapping[str, str] = {
    "log.dir": "log.dirs",
    "node.id": "broker.id",
    "delegation.token.master.key": "delegation.token.secret.key",
}
#: Identity of a node, place of its data, listeners, rights, and how much is kept of what is written.
_CRITICAL = re.compile(
    r"""(?:broker\.id | reserved\.broker\.max\.id
    | log\.dirs | metadata\.log\.dir | log\.retention\.(?:ms|bytes) | log\.cleanup\.policy
    | listeners | advertised\.listeners | listener\..* | control\.plane\.listener\.name
    | inter\.broker\..* | security\.inter\.broker\.protocol | zookeeper\..* | ssl\..* | sasl\..*
    | authorizer\..* | super\.users | allow\.everyone\.if\.no\.acl\.found | principal\.builder\.class
    | config\.providers(?:\..*)? | password\.encoder\..* | delegation\.token\..*
    | offsets\.retention\.minutes | remote\.log\.storage\.system\.enable
    | default\.replication\.factor | min\.insync\.replicas | unclean\.leader\.election\.enable
    | offsets\.topic\..* | transaction\.state\.log\..*)""",
    re.VERBOSE,
)
_TOWARDS_CONTROLLERS = re.compile(r"controller\.quorum\..* | sasl\.mechanism\.controller\.protocol", re.VERBOSE)
_ENCODER = ("password.encoder.secret", "password.encoder.old.secret")
_OF_ID = ("broker.id", "broker.id.generation.enable")


def keys_changed_by_restart(
    file: Mapping[str, str], taken: Taken, effective: Mapping[str, str], dynamic: Collection[str] = ()
) -> tuple[str, ...]:
    """The keys that a restart would change: a broker's file against what it read when it started, and what is in force now.

    References and secrets are compared by presence only. `dynamic` keys stay as they are.
    """
    written, running = _canonicalize(file), _canonicalize(taken.values)
    defaults, force = _canonicalize(taken.defaults), _canonicalize(effective)
    same = {key for key in written.keys() & running.keys() if _is_same_value(written[key], running[key])}
    same |= {key for key in written if key in force and _is_same_value(written[key], force[key]) and not _is_hidden(written[key])}
    same |= written.keys() & _canonicalize(dict.fromkeys(dynamic)).keys()
    same |= {key for key in running.keys() - written.keys() if key in defaults and running[key] == defaults[key]}
    return tuple(sorted((written.keys() | running.keys()) - same))


def _canonicalize(keys: Mapping[str, str | None]) -> dict[str, str | None]:
    """One name and unit for what Kafka accepts under several, and one spelling of each value."""
    canonical = {key: None if value is None else _normalize_value(value) for key, value in keys.items()}
    for name in sorted(canonical, key=lambda name: find_strongest_name(name)[1]):  # minutes win over hours
        winner, factor = (_SECOND_NAMES[name], 1) if name in _SECOND_NAMES else find_strongest_name(name)
        if name != winner:
            canonical.setdefault(winner, _scale_value(canonical.pop(name), factor))
    return canonical


def _normalize_value(value: str) -> str:
    text = re.sub(r"\s*,\s*", ",", value.strip())
    return str(int(text)) if re.fullmatch(r"[+-]?\d+", text) else text.lower() if text.lower() in {"true", "false"} else text


def _scale_value(value: str | None, factor: int) -> str | None:
    return str(int(value) * factor) if factor > 1 and value and value.isdecimal() else value


def _is_same_value(written: str | None, running: str | None) -> bool:
    return _is_hidden(written) or running is None or written == running


def _is_hidden(value: str | None) -> bool:
    return value is None or bool(find_references(value))


def _check_running_configs(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Compare brokers whose file is of the stage that they run in; a file that is ahead comes from a stopped run."""
    comparable = _comparable_files(view, facts)
    taken_by = {broker: facts.environment.taken.get(broker) for broker in answering_brokers(view, facts) if broker in comparable}
    if unresponsive := [broker for broker, taken in taken_by.items() if taken is None]:
        yield unknown("B15", f"whether brokers {summarize(unresponsive)} run with what their files say: they do not report it")
    for broker, taken in taken_by.items():
        file, changed = comparable[broker], _keys_changed_for_broker(comparable[broker], facts, broker)
        hidden = list_hidden_keys(NodeRole.BROKER, view.brokers[broker].process.unit)  # R13 reports them
        keys = [
            key
            for key in changed
            if taken
            and key not in hidden
            and not _is_ignored_until_restart(key, file, taken, broker, facts.spec.controller_listener)
        ]
        already_reported = {PROTOCOL} if configured_protocol(file) else set()  # by B1a
        if critical := [key for key in keys if _CRITICAL.fullmatch(key) and key not in already_reported]:
            yield blocks("B15", f"broker {broker} does not run with what its file says of {summarize(critical)}")
        if other_keys := [key for key in keys if not _CRITICAL.fullmatch(key)]:
            yield warns("B15", f"broker {broker} does not run with what its file says of {summarize(other_keys)}")


def _keys_changed_for_broker(file: Mapping[str, str], facts: PreflightFacts, broker: int) -> tuple[str, ...]:
    """The keys that a restart of this broker would change, as far as it reports what it has read."""
    taken = facts.environment.taken.get(broker)
    return keys_changed_by_restart(file, taken, facts.configs.get(broker) or {}, _dynamic_keys(facts, broker)) if taken else ()


def _check_made_at_start(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Files that something may write when a broker starts: what kmigrate installs would be gone before Kafka reads it (R13).

    Such a file is as young as its process, and Kafka has read it as it is now.
    """
    files = _comparable_files(view, facts)
    young = [broker for broker in files if _is_written_at_start(view.brokers[broker])]
    if made_at_start := [f"broker {broker}" for broker in young if not _keys_changed_for_broker(files[broker], facts, broker)]:
        yield unknown(
            "R13",
            f"whether their start makes these properties files, which are as young as the process: {summarize(made_at_start)}",
        )


def _is_written_at_start(broker: Broker) -> bool:
    """Whether a file was written while its process started: after it by an entry point, before it by the unit's own preparation."""
    started, written = broker.process.started_at, broker.files.written_at
    if started is None or written is None:
        return False
    earliest = -_PREPARES if broker.process.prepared else _EXACT
    return earliest < written - started < _STARTS


def _is_ignored_until_restart(key: str, file: Mapping[str, str], taken: Taken, broker: int, listener: str) -> bool:
    """Whether a ZooKeeper-mode broker ignores this edit until its restart; remedies of other findings ask for such edits.

    It ignores keys towards controllers, and writing out its id gives it no other (a missing id is C04). An encoder secret is idle
    while nothing is encrypted with it.
    """
    if stage_of(file) is not FileStage.ZOOKEEPER:
        return False
    own_id = key in _OF_ID and read_node_id(file) in {broker, None}
    first_secret = key in _ENCODER and key not in taken.values
    towards_controllers = _TOWARDS_CONTROLLERS.fullmatch(key) or key.startswith(listener_key_prefix(listener))
    return own_id or first_secret or bool(towards_controllers)


def _dynamic_keys(facts: PreflightFacts, broker: int) -> set[str]:
    return {key for entity in (DEFAULT, str(broker)) for key in facts.broker_settings.get(entity, ())}


def _comparable_files(view: ClusterView, facts: PreflightFacts) -> dict[int, Mapping[str, str]]:
    files = zookeeper_broker_files(view)
    return {broker: keys for broker, keys in files.items() if stage_of(keys) is stage_of(facts.configs.get(broker) or {})}


def _check_managed_files(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    managed_files = [f"broker {broker.id} {broker.files.kept_by}" for broker in view.brokers.values() if broker.files.kept_by]
    if managed_files:
        yield warns("W9", f"files that name the tool that writes them: {summarize(managed_files)}")
    layouts = {
        node.name: found
        for node in facts.spec.brokers
        if (found := find_layout([node.hosts.properties, *find_process(view, node).named]))
    }
    if in_layouts := [f"{path} of {name} ({manager})" for name, (manager, path) in layouts.items()]:
        text = f"files that a vendor's manager writes again at each start by it: {summarize(in_layouts)}"
        yield blocks("R13", f"{text}; brokers need a unit and a file of their own while they migrate")


CHECKS: tuple[Check, ...] = (_check_files, _check_running_configs, _check_made_at_start, _check_managed_files)
