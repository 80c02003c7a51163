"""Preflight's checks of what controllers will have: their files are rendered from the first broker's, before any controller runs.

Also: by which name a node is known on a listener, as far as files show (`principal`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_kmigrate.core.cluster_state.model import DEFAULT, ClusterView
from airflow_provider_kmigrate.core.cluster_state.spec import ClusterSpec, NodeSpec, is_loopback, normalize_host
from airflow_provider_kmigrate.core.node_files.config_matrix import (
    AUTHORIZER,
    AUTHORIZERS,
    FileStage,
    Rule,
    chroot_of,
    find_problems,
    find_references,
    find_rule,
    inter_broker_listener,
    is_forbidden,
    is_true,
    listener_key_prefix,
    read_listener_setting,
    read_setting,
)
from airflow_provider_kmigrate.core.node_files.kafka_keys import (
    HIDDEN,
    find_ending_classes,
    find_ending_keys,
    find_ending_topic_settings,
    find_unknown_keys,
    kafka_rules,
    list_foreign_classes,
)
from airflow_provider_kmigrate.core.node_files.properties import (
    RenderFacts,
    add_controller_keys,
    address_zookeeper,
    list_controller_keys,
    split_server,
)
from airflow_provider_kmigrate.core.preflight.actors import find_process
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    blocks,
    file_findings,
    topics_in_zookeeper,
    unknown,
    warns,
    zookeeper_broker_files,
)
from airflow_provider_kmigrate.core.preflight.jaas import describe_missing_login
from airflow_provider_kmigrate.core.preflight.tls_names import find_subject, map_subject
from airflow_provider_kmigrate.core.shared.text import join_ids, summarize

BUILDER = "principal.builder.class"
_NEARLY = 0.93  # of 1: one letter of ten
_KRAFT_SECTIONS = ("broker_kraft", "controller_migration", "controller_final")
_STORE = re.compile(r"(?:^|\.)ssl\.(?:keystore|truststore)\.location$")
_KEYTAB = re.compile(r"""\bkeyTab\s*=\s*(?:"([^"]+)"|([^\s;"']+))""")
_REFERENCE = re.compile(r"\$\{([^}:]*):(?:([^}:]*):)?([^}]*)\}")  # provider, perhaps a path, key
_OF_IDENTITY = re.compile(r"(?:^|\.)(?:ssl|sasl)\.")
_OF_ZOOKEEPER = re.compile(r"(?<![a-z])zk(?![a-z])|zookeeper", re.IGNORECASE)
_COMMENT = re.compile(
    r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|//[^\n]*|/\*.*?\*/""", re.DOTALL
)  # or a quoted text, which has none
#: As Kafka's JaasConfig reads it: quoted, here without escapes, or one word.
_USERNAME = re.compile(r"""\busername\s*=\s*(?:"([^"\\]*)"|'([^'\\]*)'|([A-Za-z][\w.$-]*)(?=[\s;]))""")


def principal(
    client: Mapping[str, str], server: Mapping[str, str], listener: str, mechanism: str, subject: str | None = None
) -> str | None:
    """The name, such as `User:broker`, of a client with the keys `client` on a `listener` of `server`; None if they do not show it.

    `mechanism` counts for SASL only, `subject`, that of the client's certificate, for TLS.
    """
    if read_setting(server, BUILDER):
        return None
    security = security_of(server, listener)
    if security == "PLAINTEXT" or (security == "SSL" and _accepts_anonymous(server, listener)):
        return "User:ANONYMOUS"
    if security == "SSL" and subject is not None:
        name = map_subject(subject, read_listener_setting(server, listener, "ssl.principal.mapping.rules"))
        return f"User:{name}" if name else None
    return _sasl_user(client, listener, mechanism) if security.startswith("SASL") else None


def name_between_brokers(facts: PreflightFacts, broker: int, keys: Mapping[str, str]) -> str | None:
    """The name by which the other brokers know this broker, with this file; None if neither that nor its certificate shows it."""
    listener, node = inter_broker_listener(keys), next((node for node in facts.spec.brokers if node.id == broker), None)
    subject = find_subject(facts, node, keys, keys, listener) if node else None
    return principal(keys, keys, listener, mechanism_between_brokers(keys), subject)


def mechanism_between_brokers(keys: Mapping[str, str]) -> str:
    """The SASL mechanism of the inter-broker listener, if it has one."""
    return read_setting(keys, "sasl.mechanism.inter.broker.protocol") or "GSSAPI"


def security_of(keys: Mapping[str, str], listener: str) -> str:
    """The security protocol of a listener; without a map it is the listener's own name."""
    listed = (entry.partition(":") for entry in (read_setting(keys, "listener.security.protocol.map") or "").split(","))
    protocols = {name.strip().upper(): security.strip().upper() for name, _, security in listed}
    return protocols.get(listener.upper(), listener.upper())


def super_users(keys: Mapping[str, str]) -> set[str] | None:
    """The super users; None if the file only has a reference for them."""
    value = read_setting(keys, "super.users") or ""
    return None if find_references(value) else {user.strip() for user in value.split(";")} - {""}


def login_key(listener: str, mechanism: str) -> str:
    """The key that holds the login of a listener. On servers Kafka ignores one without this prefix."""
    return f"{listener_key_prefix(listener)}{mechanism.lower()}.sasl.jaas.config"


def _accepts_anonymous(keys: Mapping[str, str], listener: str) -> bool:
    """Whether a TLS listener accepts clients without a certificate, who then have no name."""
    return (read_listener_setting(keys, listener, "ssl.client.auth") or "none").lower() == "none"


def _sasl_user(keys: Mapping[str, str], listener: str, mechanism: str) -> str | None:
    login = _COMMENT.sub(lambda part: part[1] or " ", read_setting(keys, login_key(listener, mechanism)) or "")
    match = next(reversed([*_USERNAME.finditer(login)]), None)  # the last one wins
    is_readable = match is not None and mechanism.upper() != "GSSAPI" and not find_references(match[0])
    return f"User:{match[1] or match[2] or match[3] or ''}" if match and is_readable else None


MECHANISM = "sasl.mechanism.controller.protocol"
Keys = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rendered:
    """The controllers' future keys; and of each node that connects to their listener the name, the future keys, the present file.

    The controllers' file is the one that they inherit from.
    """

    listener: str
    controllers: Keys
    nodes: tuple[tuple[str, Keys, Keys], ...]


def render_future_keys(view: ClusterView, facts: PreflightFacts) -> Rendered | None:
    """The future keys; None if the file that controllers inherit from is not a ZooKeeper-mode broker's, or was not read."""
    files, spec = zookeeper_broker_files(view), facts.spec
    source = files.get(spec.brokers[0].id)
    if source is None or not spec.controllers:
        return None
    render_facts = RenderFacts.of(spec, "")
    keys = list_controller_keys(source, spec.controllers[0], FileStage.CONTROLLER_MIGRATION, render_facts)
    brokers = (
        (f"broker {broker}", add_controller_keys(file, FileStage.MIGRATION, render_facts), file) for broker, file in files.items()
    )
    return Rendered(render_facts.listener, keys, (("the controllers", keys, source), *brokers))


def _check_known_names(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Whether the controllers accept each other's requests.

    Until the log is loaded they accept super users only, whatever `allow.everyone.if.no.acl.found` says. Without their votes it
    is never loaded: measured, a quorum of three found no leader.
    """
    future = render_future_keys(view, facts)
    if future is None or read_setting(future.controllers, AUTHORIZER) not in AUTHORIZERS.values():
        return
    open_to_all = is_true(future.controllers, "allow.everyone.if.no.acl.found")
    if open_to_all and len(facts.spec.controllers) == 1:
        return
    allowed_names = super_users(future.controllers)
    names = {
        node_name: name
        for node_name, name, is_reported in _names_at_controllers(future, view, facts)
        if not (is_reported and not open_to_all)
    }
    refused = [
        f"{node_name} as {name}"
        for node_name, name in names.items()
        if name and allowed_names is not None and name not in allowed_names
    ]
    if refused:
        security = security_of(future.controllers, future.listener)
        yield blocks(
            "B13b",
            f"the controllers' listener is {security}; super.users does not contain the name under which it would know {summarize(refused)}",
        )
    if unknown_names := [node_name for node_name, name in names.items() if name is None or allowed_names is None]:
        yield unknown(
            "B13b", f"the names under which the controllers will know {summarize(unknown_names)}, or whether super.users has them"
        )


def _names_at_controllers(future: Rendered, view: ClusterView, facts: PreflightFacts) -> Iterator[tuple[str, str | None, bool]]:
    """Each node with its name at the controllers, and whether B13b reports it already. The controllers' certificates cannot be read yet."""
    nodes = {node.id: node for node in facts.spec.brokers}
    brokers = [facts.spec.brokers[0].id, *zookeeper_broker_files(view)]
    for place, (broker, (node_name, keys, file)) in enumerate(zip(brokers, future.nodes, strict=True)):
        node = nodes.get(broker) if place else None
        subject = find_subject(facts, node, file, keys, future.listener) if node else None
        name = principal(keys, future.controllers, future.listener, read_setting(keys, MECHANISM) or "GSSAPI", subject)
        own, listed = name_between_brokers(facts, broker, file), super_users(file)
        yield node_name, name, name == own and (name is None or listed is None or name not in listed)


def _check_logins(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    future = render_future_keys(view, facts)
    if future is None or not facts.spec.controller_security.startswith("SASL"):
        return
    nodes = [(node_name, read_setting(keys, MECHANISM) or "GSSAPI", keys, file) for node_name, keys, file in future.nodes]
    if scram := sorted({mechanism for _, mechanism, _, _ in nodes if mechanism.upper().startswith("SCRAM")}):
        yield blocks("B9d", f"the controllers' listener would use {summarize(scram)}")
        return
    if refusal := _refusal_of_own_login(future, facts.connections.quorum_mechanism):
        yield blocks("B9d", refusal)
    without = [
        (node_name, file)
        for node_name, mechanism, keys, file in nodes
        if not read_setting(keys, login_key(future.listener, mechanism))
    ]
    in_jaas = {name: describe_missing_login(view, facts.spec, name, mechanism) for name, mechanism, _, _ in nodes}
    by_property = [node_name for node_name, file in without if _has_own_login(file) and in_jaas[node_name] != ""]
    by_file = [node_name for node_name, file in without if not _has_own_login(file) and in_jaas[node_name] is None]
    missing = [text for node_name, file in without if not _has_own_login(file) and (text := in_jaas[node_name])]
    expected_key = login_key(future.listener, nodes[0][1])
    if by_property:
        yield blocks("B9d", f"no login for the controllers' listener ({expected_key}): {summarize(by_property)}")
    if missing:
        yield blocks("B9d", f"no login for the controllers' listener: {summarize(missing)}")
    if by_file:
        yield unknown(
            "B9d", f"which login these have for the controllers' listener, not in the file ({expected_key}): {summarize(by_file)}"
        )


def _refusal_of_own_login(future: Rendered, mechanism: str | None) -> str:
    """Why controllers would refuse kmigrate's own login, which cannot be corrected once they are formatted; empty if they take it."""
    enabled = read_listener_setting(future.controllers, future.listener, "sasl.enabled.mechanisms") or "GSSAPI"
    text = f"kmigrate's own login at the controllers' listener is {mechanism}"
    if mechanism is None or find_references(enabled):
        return ""
    if mechanism.startswith("SCRAM"):
        return f"{text}: controllers have no SCRAM user before the copy"
    accepted = {name.strip().upper() for name in enabled.split(",")}
    return "" if mechanism in accepted else f"{text}, and they would accept only {summarize(sorted(accepted))}"


def _has_own_login(file: Keys) -> bool:
    """Whether the file itself holds the broker's login; if not, a JAAS file does, which may have the controllers' login too."""
    return read_setting(file, login_key(inter_broker_listener(file), mechanism_between_brokers(file))) is not None


def _check_rendered_file(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Refusals that rendering the controllers' file would cause later, reported before any controller exists."""
    future = render_future_keys(view, facts)
    file_problems = (
        find_problems(future.controllers, FileStage.CONTROLLER_MIGRATION, controller_listener=future.listener) if future else ()
    )
    yield from file_findings("the controllers", file_problems)


def has_kraft_authorizer(spec: ClusterSpec) -> bool:
    """Whether the cluster file names an authorizer for every node in KRaft mode."""
    by_stage = (spec.stage_properties.get(section, {}) for section in _KRAFT_SECTIONS)
    return bool(read_setting(spec.controller_properties, AUTHORIZER)) or all(read_setting(keys, AUTHORIZER) for keys in by_stage)


def _check_classes(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Every class that a node will load and may not have: a controller's machine is new, a broker gets classes by the cluster file."""
    future = render_future_keys(view, facts)
    if future is None:
        return
    nodes_by_class: dict[str, list[str]] = {}
    for nodes, classes in _list_new_classes(future, facts):
        for key, names in classes.items():
            for name in names:
                nodes_by_class.setdefault(f"{key} {name}", []).append(nodes)
    if nodes_by_class:
        listed = [f"{name} (on {join_ids(dict.fromkeys(nodes))})" for name, nodes in sorted(nodes_by_class.items())]
        yield unknown("B8a", f"whether these machines have the jars of {summarize(listed, len(listed), '; ')}")
    if list_foreign_classes(future.controllers) and (without := _list_keys_left_behind(future)):
        yield unknown("B8a", f"whether controllers need keys that they do not get, and brokers' files have: {summarize(without)}")


def _list_new_classes(future: Rendered, facts: PreflightFacts) -> list[tuple[str, dict[str, tuple[str, ...]]]]:
    """Nodes, and by key the classes that are not Kafka's and that they do not load yet."""
    render_facts, (_, _, source) = RenderFacts.of(facts.spec, ""), future.nodes[0]
    final = list_controller_keys(source, facts.spec.controllers[0], FileStage.CONTROLLER_FINAL, render_facts)
    controllers = f"controllers {join_ids(node.id for node in facts.spec.controllers)}"
    new = [(controllers, list_foreign_classes(keys)) for keys in (future.controllers, final)]
    for node_name, _, file in future.nodes[1:]:
        loaded = list_foreign_classes(file)
        for stage in (FileStage.MIGRATION, FileStage.KRAFT):
            classes = list_foreign_classes(add_controller_keys(file, stage, render_facts))
            new.append((node_name, {key: names for key, names in classes.items() if names != loaded.get(key)}))
    return new


def _list_keys_left_behind(future: Rendered) -> list[str]:
    """Keys that Kafka does not have, such as `confluent.metadata.server.listeners`: a class reads them, and controllers do not have them."""
    _, _, source = future.nodes[0]
    return [key for key in find_unknown_keys(source) if key not in future.controllers]


def _check_unknown_keys(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Keys that no release of Kafka reads, but those that `quorum.properties` names, or a class may read that controllers load too (B8a)."""
    future = render_future_keys(view, facts)
    reported = {*facts.spec.controller_properties, *(key for keys in facts.spec.stage_properties.values() for key in keys)}
    if future and list_foreign_classes(future.controllers):
        reported |= set(_list_keys_left_behind(future))
    unknown_keys: dict[str, list[int]] = {}
    for broker, file in zookeeper_broker_files(view).items():
        for key in find_unknown_keys(file):
            unknown_keys.setdefault(key, []).append(broker)
    listed = [
        f"{key}={HIDDEN}{_suggest_key(key)} of {'broker' if len(brokers) == 1 else 'brokers'} {join_ids(brokers)}"
        for key, brokers in sorted(unknown_keys.items())
        if key not in reported
    ]
    if listed:
        yield warns("W24", f"keys that no release of Kafka reads: {summarize(listed)}")


def _suggest_key(key: str) -> str:
    """Kafka's key that is spelled nearly so, if there is one."""
    similar_keys = difflib.get_close_matches(key, kafka_rules().keys, 1, _NEARLY)
    return f" ({similar_keys[0]}?)" if similar_keys else ""


def _check_ending_keys(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Keys and classes that nodes still have after the migration, and Kafka 4 has not: it ignores such a key without a word.

    Keys of a node's identity and of ZooKeeper, which KRaft nodes do not read either, are none.
    """
    future = render_future_keys(view, facts)
    if future is None:
        return
    ending: dict[str, list[str]] = {}
    classes: dict[str, list[str]] = {}
    for node_name, keys, _ in future.nodes:
        for name in dict.fromkeys(find_ending_classes(keys).values()):
            classes.setdefault(name, []).append(node_name)
    for node_name, keys, _ in future.nodes:
        for key in find_ending_keys(keys):
            if {find_rule(key, FileStage.KRAFT), find_rule(key, FileStage.CONTROLLER_FINAL)} == {Rule.SAME}:
                ending.setdefault(key, []).append(node_name)
    newest = kafka_rules().later[-1]
    if classes:
        listed = [f"{name} ({summarize(names)})" for name, names in sorted(classes.items())]
        yield warns("W25", f"classes that Kafka {newest} has no more: {summarize(listed)}")
    if ending:
        yield warns(
            "W25",
            f"keys that Kafka {newest} has no more: {summarize(f'{key} ({summarize(names)})' for key, names in sorted(ending.items()))}",
        )


def _check_ending_settings(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Settings in ZooKeeper, which are copied and stay: a controller of Kafka 4 refuses every change of a topic that has such a one (measured)."""
    newest, topics = kafka_rules().later[-1], dict[str, list[str]]()
    for name, topic in sorted(topics_in_zookeeper(view).items()):
        for setting in find_ending_topic_settings(topic.configs):
            topics.setdefault(setting, []).append(name)
    if topics:
        listed = [f"{setting} ({summarize(names)})" for setting, names in sorted(topics.items())]
        yield warns("W25", f"settings of topics that Kafka {newest} has no more: {summarize(listed)}")
    dynamic = {entity: find_ending_keys(dict.fromkeys(names, "")) for entity, names in sorted(facts.broker_settings.items())}
    if listed := [
        f"{', '.join(keys)} of {'all brokers' if entity == DEFAULT else f'broker {entity}'}"
        for entity, keys in dynamic.items()
        if keys
    ]:
        yield warns("W25", f"dynamic settings that Kafka {newest} has no more: {summarize(listed)}")


def _check_authorizer_settings(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Settings of an authorizer that is not Kafka's with which a KRaft node would read its rules from ZooKeeper."""
    future = render_future_keys(view, facts)
    if future is None or not has_kraft_authorizer(facts.spec):
        return
    render_facts = RenderFacts.of(facts.spec, "")
    brokers = {node_name: add_controller_keys(file, FileStage.KRAFT, render_facts) for node_name, _, file in future.nodes[1:]}
    custom = {
        node_name: keys
        for node_name, keys in brokers.items()
        if read_setting(keys, AUTHORIZER) not in {None, *AUTHORIZERS.values()}
    }
    keys_by_node = {
        node_name: _keys_naming_zookeeper(keys) for node_name, keys in {"the controllers": future.controllers, **custom}.items()
    }
    if leftover_settings := [f"{', '.join(keys)} of {node_name}" for node_name, keys in keys_by_node.items() if keys]:
        yield blocks("B8a", f"settings of the authorizer would name ZooKeeper in KRaft mode: {summarize(leftover_settings)}")


def _keys_naming_zookeeper(keys: Keys) -> list[str]:
    """The authorizer's keys that name ZooKeeper, by themselves or by their value, such as `ZK_ACL`."""
    own = {key: value for key, value in keys.items() if "authorizer" in key and not is_forbidden(key, FileStage.KRAFT)}
    return sorted(key for key, value in own.items() if _OF_ZOOKEEPER.search(f"{key}={value}"))


def _check_key_stores(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """What files name and nodes open: key stores, which a KRaft node opens before it knows dynamic settings, and what references are looked up in."""
    files_by_node = {f"broker {broker.id}": broker.files for broker in view.brokers.values()}
    files_by_node |= {f"controller {controller.id}": controller.files for controller in view.controllers.values()}
    if unreadable_stores := [f"{path} of {node_name}" for node_name, files in files_by_node.items() for path in files.unreadable]:
        yield blocks("C11", f"key stores, trust stores or keytabs that Kafka's user cannot read: {summarize(unreadable_stores)}")
    future = render_future_keys(view, facts)
    paths, variables = (
        _list_named_files(future.controllers if future else {}),
        _list_variables(future.controllers if future else {}),
    )
    broker_machines = {normalize_host(node.host) for node in facts.spec.brokers}
    without_file = [node for node in facts.spec.controllers if view.controller(node.id).files.properties is None]
    if paths and (new := [node.name for node in without_file if normalize_host(node.host) not in broker_machines]):
        yield unknown("C11", f"whether Kafka's user can read {summarize(paths)} on the machines of {summarize(new)}")
    unset = {node.name: [name for name in variables if not _has_variable(view, node, name)] for node in without_file}
    if missing := [f"{', '.join(names)} for {node_name}" for node_name, names in unset.items() if names]:
        yield unknown("C10", f"whether services have the environment variables that references name: {summarize(missing)}")


def _list_named_files(keys: Keys) -> list[str]:
    """Files that a node opens by its own file: key stores, keytabs, and those in which references are looked up."""
    stores = {value.strip() for key, value in keys.items() if _STORE.search(key) and not find_references(value)}
    logins = (value for key, value in keys.items() if key.endswith("sasl.jaas.config"))
    keytabs = {quoted or plain for value in logins for quoted, plain in _KEYTAB.findall(value)}
    looked_up = {
        path if provider == "FileConfigProvider" else f"{path}/{name}"
        for provider, path, name in _list_references(keys)
        if provider in {"FileConfigProvider", "DirectoryConfigProvider"}
    }
    return sorted((stores | {path for path in keytabs if not find_references(path)} | looked_up) - {""})


def _list_variables(keys: Keys) -> list[str]:
    """Environment variables in which references are looked up."""
    return sorted({name for provider, _, name in _list_references(keys) if provider == "EnvVarConfigProvider"})


def _list_references(keys: Keys) -> Iterator[tuple[str, str, str]]:
    """Of each reference the last word of its provider's class, the path and the key in it."""
    for value in keys.values():
        for provider, path, name in _REFERENCE.findall(value):
            yield keys.get(f"config.providers.{provider}.class", "").strip().rpartition(".")[2], path, name


def _has_variable(view: ClusterView, controller: NodeSpec, name: str) -> bool:
    """Whether systemd shows that a node's service sets an environment variable; a start script may, too."""
    unit = find_process(view, controller).unit
    return unit is not None and name in {word.partition("=")[0] for word in unit.shown.get("Environment", "").split()}


def _check_own_values(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Logins and certificates that each broker has its own of: controllers would inherit those of the first broker.

    Such are a Kerberos principal with the broker's host, or a key and a certificate in the file itself. Values may be secrets.
    """
    files, future = zookeeper_broker_files(view), render_future_keys(view, facts)
    if future is None:
        return
    _, _, source = future.nodes[0]
    stated = {*facts.spec.controller_properties, *(key for keys in facts.spec.stage_properties.values() for key in keys)}
    own = [
        key
        for key in sorted(source)
        if _OF_IDENTITY.search(key)
        and not _STORE.search(key)  # C11 names them
        and key in future.controllers
        and key not in stated
        and len({(file.get(key) or "").strip() for file in files.values()}) > 1
    ]
    if own:
        first = facts.spec.brokers[0].name
        text = f"whether the controllers may have {first}'s values of these keys, which brokers' files have of their own each"
        yield unknown("B18", f"{text}: {summarize(own, len(own))}")


def _check_zookeeper_address(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Controllers inherit the first broker's ZooKeeper address; servers on its own machine get that machine's name (`address_zookeeper`).

    Nothing shows that a server listens there too, unless the ZooKeeper connection has that address. Of several servers the client
    tries the next. A reference is copied as it is: each node resolves it, and only the running broker's value shows to what.
    """
    first_broker = facts.spec.brokers[0]
    written = {broker: read_setting(keys, "zookeeper.connect") or "" for broker, keys in zookeeper_broker_files(view).items()}
    connects = {
        broker: (read_setting(facts.configs.get(broker) or {}, "zookeeper.connect") or connect)
        if find_references(connect)
        else connect
        for broker, connect in written.items()
    }
    connect = connects.get(first_broker.id, "")
    if find_references(connect):
        yield unknown("B17", f"which ZooKeeper controllers would reach: zookeeper.connect of {first_broker.name} is a reference")
    servers = list_servers(connect)
    if not any(map(is_local_server, servers)):
        return
    local_machines = {
        normalize_host(node.host)
        for node in facts.spec.brokers
        if any(map(is_local_server, list_servers(connects.get(node.id, ""))))
    }
    proven = {_normalize_server(server.address) for server in facts.environment.servers}
    unproven_servers: dict[str, list[str]] = {}
    for node in facts.spec.controllers:
        hosts = tuple(broker.host for broker in facts.spec.brokers)
        is_copied = find_references(written[first_broker.id])
        rendered = servers if is_copied else list_servers(address_zookeeper(connect, node.host, hosts))
        unproven = [new for old, new in zip(servers, rendered, strict=True) if is_local_server(old)]
        if not _is_beside_server(node, local_machines) and not proven.issuperset(map(_normalize_server, unproven)):
            unproven_servers[node.name] = unproven
    if unproven_servers:
        severity, names_text = (blocks, "names") if all(map(is_local_server, servers)) else (warns, "names beside others")
        tried = summarize(dict.fromkeys(server for unproven in unproven_servers.values() for server in unproven))
        text = (
            f"zookeeper.connect of {first_broker.name} {names_text} its own machine ({connect}); elsewhere are {summarize(unproven_servers)}, "
            f"which would use {tried}, an address that the ZooKeeper connection does not have"
        )
        yield severity("B17", text)


def _check_chroots(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    """A chroot after every server: ZooKeeper's client takes all behind the first slash for the path."""
    connects = {broker: read_setting(keys, "zookeeper.connect") or "" for broker, keys in zookeeper_broker_files(view).items()}
    if misplaced_chroots := [
        f"broker {broker} {connect}"
        for broker, connect in connects.items()
        if not find_references(connect) and "," in chroot_of(connect)
    ]:
        yield warns("W21", f"zookeeper.connect has a chroot before its last server: {summarize(misplaced_chroots)}")


def _is_beside_server(controller: NodeSpec, server_machines: set[str]) -> bool:
    """Whether a ZooKeeper server is on the controller's machine, too."""
    return normalize_host(controller.host) in server_machines or (
        is_loopback(controller.host) and any(map(is_loopback, server_machines))
    )


def list_servers(connect: str) -> list[str]:
    """The servers of a zookeeper.connect; none if only a reference names them."""
    servers = [] if find_references(connect) else connect.partition("/")[0].split(",")
    return [server.strip() for server in servers if server.strip()]


def is_local_server(server: str) -> bool:
    """Whether it is on the machine that connects."""
    return is_loopback(split_server(server)[0])


def _normalize_server(address: str) -> tuple[str, str]:
    host, port = split_server(address)
    return normalize_host(host), port


CHECKS: tuple[Check, ...] = (
    _check_known_names,
    _check_logins,
    _check_zookeeper_address,
    _check_chroots,
    _check_classes,
    _check_unknown_keys,
    _check_ending_keys,
    _check_ending_settings,
    _check_authorizer_settings,
    _check_key_stores,
    _check_own_values,
    _check_rendered_file,
)
