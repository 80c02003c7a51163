"""Preflight's checks of what controllers will have: their files are rendered from the first broker's, before any controller runs.

Also: by which name a node is known on a listener, as far as files show (`principal`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_kmigrate.core.cluster import NodeSpec, is_loopback, machine
from airflow_provider_kmigrate.core.files.config_matrix import (
    AUTHORIZER,
    AUTHORIZERS,
    FileStage,
    chroot_of,
    forbidden,
    inter_broker_listener,
    is_true,
    listener_prefix,
    listener_setting,
    problems,
    references,
    setting,
)
from airflow_provider_kmigrate.core.files.properties import RenderFacts, controller_keys, with_controllers
from airflow_provider_kmigrate.core.model import ClusterView
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    blocks,
    of_file,
    unknown,
    warns,
    zookeeper_files,
)
from airflow_provider_kmigrate.core.text import summarize

BUILDER = "principal.builder.class"
_CLASS = ("class", "class.name")
_OF_KAFKA = ("org.apache.kafka.", "kafka.")
#: With questions of their own (B8a).
_REPORTED_APART = frozenset({BUILDER, AUTHORIZER, "alter.config.policy.class.name", "create.topic.policy.class.name"})
_STORE = re.compile(r"(?:^|\.)ssl\.(?:keystore|truststore)\.location$")
_OF_ZOOKEEPER = re.compile(r"(?<![a-z])zk(?![a-z])|zookeeper", re.IGNORECASE)
#: With which Kafka's own keys begin (KafkaConfig, RemoteLogManagerConfig, the authorizers, metrics, config providers).
_OF_KAFKAS_KEYS = re.compile(
    r"""(?: advertised | allow | alter | authorizer | auto | background | broker | client | compression | config | connections? | control
    | controlled | controller | create | default | delegation | delete | early | eligible | fetch | group | initial | inter | kafka | leader
    | listeners? | log | max | message | metadata | metrics? | min | node | num | offsets? | password | port | principal | process
    | producer | queued | quota | remote | replica | replication | request | reserved | rlmm | rsm | sasl | security | server | socket
    | ssl | super | telemetry | transaction | transactional | unclean | unstable | zookeeper)(?:\.|$)""",
    re.VERBOSE,
)
_USERNAME = re.compile(r"""\busername\s*=\s*(?:"([^"]*)"|'([^']*)')""")


def principal(client: Mapping[str, str], server: Mapping[str, str], listener: str, mechanism: str) -> str | None:
    """The name, such as `User:broker`, of a client with the keys `client` on a `listener` of `server`; None if they do not show it.

    `mechanism` counts for SASL only.
    """
    if setting(server, BUILDER):
        return None
    security = security_of(server, listener)
    if security == "PLAINTEXT" or (security == "SSL" and _accepts_anonymous(server, listener)):
        return "User:ANONYMOUS"
    return _sasl_user(client, listener, mechanism) if security.startswith("SASL") else None


def name_between_brokers(keys: Mapping[str, str]) -> str | None:
    """The name by which the other brokers know the broker with this file; None if the file does not show it."""
    return principal(keys, keys, inter_broker_listener(keys), mechanism_between_brokers(keys))


def mechanism_between_brokers(keys: Mapping[str, str]) -> str:
    """The SASL mechanism of the inter-broker listener, if it has one."""
    return setting(keys, "sasl.mechanism.inter.broker.protocol") or "GSSAPI"


def security_of(keys: Mapping[str, str], listener: str) -> str:
    """The security protocol of a listener; without a map it is the listener's own name."""
    listed = (entry.partition(":") for entry in (setting(keys, "listener.security.protocol.map") or "").split(","))
    protocols = {name.strip().upper(): security.strip().upper() for name, _, security in listed}
    return protocols.get(listener.upper(), listener.upper())


def super_users(keys: Mapping[str, str]) -> set[str] | None:
    """The super users; None if the file only has a reference for them."""
    value = setting(keys, "super.users") or ""
    return None if references(value) else {user.strip() for user in value.split(";")} - {""}


def login_key(listener: str, mechanism: str) -> str:
    """The key that holds the login of a listener. On servers Kafka ignores one without this prefix."""
    return f"{listener_prefix(listener)}{mechanism.lower()}.sasl.jaas.config"


def _accepts_anonymous(keys: Mapping[str, str], listener: str) -> bool:
    """Whether a TLS listener accepts clients without a certificate, who then have no name."""
    return (listener_setting(keys, listener, "ssl.client.auth") or "none").lower() == "none"


def _sasl_user(keys: Mapping[str, str], listener: str, mechanism: str) -> str | None:
    match = _USERNAME.search(setting(keys, login_key(listener, mechanism)) or "")
    known = match is not None and mechanism.upper() != "GSSAPI" and not references(match[0])
    return f"User:{match[1] or match[2]}" if match and known else None


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


def rendered(view: ClusterView, facts: PreflightFacts) -> Rendered | None:
    """The future keys; None if the file that controllers inherit from is not a ZooKeeper-mode broker's, or was not read."""
    files, spec = zookeeper_files(view), facts.spec
    source = files.get(spec.brokers[0].id)
    if source is None or not spec.controllers:
        return None
    how = RenderFacts.of(spec, "")
    keys = controller_keys(source, spec.controllers[0], FileStage.CONTROLLER_MIGRATION, how)
    brokers = ((f"broker {broker}", with_controllers(file, FileStage.MIGRATION, how), file) for broker, file in files.items())
    return Rendered(how.listener, keys, (("the controllers", keys, source), *brokers))


def _known(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Whether the controllers accept each other's requests.

    Until the log is loaded they accept super users only, whatever `allow.everyone.if.no.acl.found` says. Without their votes it
    is never loaded: measured, a quorum of three found no leader.
    """
    there = rendered(view, facts)
    if there is None or setting(there.controllers, AUTHORIZER) not in AUTHORIZERS.values():
        return
    open_to_all = is_true(there.controllers, "allow.everyone.if.no.acl.found")
    if open_to_all and len(facts.spec.controllers) == 1:
        return
    listed = super_users(there.controllers)
    names = {who: name for who, name, said in _names(there) if not (said and not open_to_all)}
    refused = [f"{who} as {name}" for who, name in names.items() if name and listed is not None and name not in listed]
    if refused:
        security = security_of(there.controllers, there.listener)
        yield blocks(
            "B13b",
            f"the controllers' listener is {security}; super.users does not contain the name under which it would know {summarize(refused)}",
        )
    if unseen := [who for who, name in names.items() if name is None or listed is None]:
        yield unknown(
            "B13b", f"the names under which the controllers will know {summarize(unseen)}, or whether super.users has them"
        )


def _names(there: Rendered) -> Iterator[tuple[str, str | None, bool]]:
    """Each node with its name at the controllers, and whether B13b reports it already."""
    for who, keys, file in there.nodes:
        name = principal(keys, there.controllers, there.listener, setting(keys, MECHANISM) or "GSSAPI")
        own, listed = name_between_brokers(file), super_users(file)
        yield who, name, name == own and (name is None or listed is None or name not in listed)


def _logins(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    there = rendered(view, facts)
    if there is None or not facts.spec.controller_security.startswith("SASL"):
        return
    nodes = [(who, setting(keys, MECHANISM) or "GSSAPI", keys, file) for who, keys, file in there.nodes]
    if scram := sorted({mechanism for _, mechanism, _, _ in nodes if mechanism.upper().startswith("SCRAM")}):
        yield blocks("B9d", f"the controllers' listener would use {summarize(scram)}")
        return
    without = [(who, file) for who, mechanism, keys, file in nodes if not setting(keys, login_key(there.listener, mechanism))]
    by_file = [who for who, file in without if not _has_own_login(file)]
    by_property = [who for who, _ in without if who not in by_file]
    named = login_key(there.listener, nodes[0][1])
    if by_property:
        yield blocks("B9d", f"no login for the controllers' listener ({named}): {summarize(by_property)}")
    if by_file:
        yield unknown(
            "B9d", f"which login these have for the controllers' listener, not in the file ({named}): {summarize(by_file)}"
        )


def _has_own_login(file: Keys) -> bool:
    """Whether the file itself holds the broker's login; if not, a JAAS file does, which may have the controllers' login too."""
    return setting(file, login_key(inter_broker_listener(file), mechanism_between_brokers(file))) is not None


def _file(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Refusals that rendering the controllers' file would cause later, reported before any controller exists."""
    there = rendered(view, facts)
    found = problems(there.controllers, FileStage.CONTROLLER_MIGRATION, controller_listener=there.listener) if there else ()
    yield from of_file("the controllers", found)


def _classes(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Classes that a controller loads when it starts: its machine is new, and may have Kafka's own jars only."""
    there = rendered(view, facts)
    named = {key: value for key, value in (there.controllers if there else {}).items() if key.endswith(_CLASS) and value.strip()}
    strange = {key: value for key, value in named.items() if not value.strip().startswith(_OF_KAFKA) and not references(value)}
    if others := [f"{key} {value.strip()}" for key, value in sorted(strange.items()) if key not in _REPORTED_APART]:
        yield unknown("B8a", f"whether the controllers' machines have the jars of {summarize(others)}")
    if there and strange and (without := _keys_of_others(there)):
        yield unknown("B8a", f"whether controllers need keys that they do not get, and brokers' files have: {summarize(without)}")


def _keys_of_others(there: Rendered) -> list[str]:
    """The keys that Kafka does not have, such as `confluent.metadata.server.listeners`: a class reads them, and controllers do not have them."""
    _, _, source = there.nodes[0]
    return sorted(key for key in source if not _OF_KAFKAS_KEYS.match(key) and key not in there.controllers)


def _authorizer_of_zookeeper(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Settings of an authorizer that is not Kafka's with which a KRaft node would read its rules from ZooKeeper."""
    there = rendered(view, facts)
    if there is None or not setting(facts.spec.controller_properties, AUTHORIZER):
        return
    how = RenderFacts.of(facts.spec, "")
    brokers = {who: with_controllers(file, FileStage.KRAFT, how) for who, _, file in there.nodes[1:]}
    custom = {who: keys for who, keys in brokers.items() if setting(keys, AUTHORIZER) not in {None, *AUTHORIZERS.values()}}
    named = {who: _naming_zookeeper(keys) for who, keys in {"the controllers": there.controllers, **custom}.items()}
    if left := [f"{', '.join(keys)} of {who}" for who, keys in named.items() if keys]:
        yield blocks("B8a", f"settings of the authorizer would name ZooKeeper in KRaft mode: {summarize(left)}")


def _naming_zookeeper(keys: Keys) -> list[str]:
    """The authorizer's keys that name ZooKeeper, by themselves or by their value, such as `ZK_ACL`."""
    own = {key: value for key, value in keys.items() if "authorizer" in key and not forbidden(key, FileStage.KRAFT)}
    return sorted(key for key, value in own.items() if _OF_ZOOKEEPER.search(f"{key}={value}"))


def _stores(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Key and trust stores at the places that files name: a KRaft node opens them before it knows dynamic settings."""
    seen = {f"broker {broker.id}": broker.files for broker in view.brokers.values()}
    seen |= {f"controller {controller.id}": controller.files for controller in view.controllers.values()}
    if gone := [f"{path} of {who}" for who, files in seen.items() for path in files.unreadable]:
        yield blocks("C11", f"key or trust stores that Kafka's user cannot read: {summarize(gone)}")
    there = rendered(view, facts)
    named = sorted(
        {value for key, value in (there.controllers if there else {}).items() if _STORE.search(key) and not references(value)}
    )
    known = {machine(node.host) for node in facts.spec.brokers}
    away = [node for node in facts.spec.controllers if machine(node.host) not in known]
    if named and (new := [node.name for node in away if view.controller(node.id).files.properties is None]):
        yield unknown("C11", f"whether Kafka's user can read {summarize(named)} on the machines of {summarize(new)}")


def _ensemble(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Controllers inherit the first broker's ZooKeeper address as written; of several servers the client tries the next."""
    first = facts.spec.brokers[0]
    connects = {broker: setting(keys, "zookeeper.connect") or "" for broker, keys in zookeeper_files(view).items()}
    servers = _here(connects.get(first.id, ""))
    if not any(servers):
        return
    here = {machine(node.host) for node in facts.spec.brokers if any(_here(connects.get(node.id, "")))}
    away = [node.name for node in facts.spec.controllers if not _shares(node, here)]
    if away:
        grave, named = (blocks, "names") if all(servers) else (warns, "names beside others")
        text = (
            f"zookeeper.connect of {first.name} {named} its own machine ({connects[first.id]}); elsewhere are {summarize(away)}"
        )
        yield grave("B17", text)


def _chroots(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    """A chroot after every server: ZooKeeper's client takes all behind the first slash for the path."""
    connects = {broker: setting(keys, "zookeeper.connect") or "" for broker, keys in zookeeper_files(view).items()}
    if odd := [
        f"broker {broker} {connect}"
        for broker, connect in connects.items()
        if not references(connect) and "," in chroot_of(connect)
    ]:
        yield warns("W21", f"zookeeper.connect has a chroot before its last server: {summarize(odd)}")


def _shares(controller: NodeSpec, here: set[str]) -> bool:
    """Whether a ZooKeeper server is on the controller's machine, too."""
    return machine(controller.host) in here or (is_loopback(controller.host) and any(map(is_loopback, here)))


def _here(connect: str) -> list[bool]:
    """For each server whether it is on the machine that connects; empty if only a reference names them."""
    servers = [] if references(connect) else connect.partition("/")[0].split(",")
    return [is_loopback(server.strip().rpartition(":")[0] or server.strip()) for server in servers if server.strip()]


CHECKS: tuple[Check, ...] = (_known, _logins, _ensemble, _chroots, _classes, _authorizer_of_zookeeper, _stores, _file)
