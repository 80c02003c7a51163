"""Preflight's checks of identities and rights: what controllers inherit, what is copied, and what they would miss."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from airflow_provider_kmigrate.core.cluster_state.model import ClusterView, Malformed, ZkAcl
from airflow_provider_kmigrate.core.node_files.config_matrix import (
    AUTHORIZER,
    AUTHORIZERS,
    chroot_of,
    find_references,
    is_true,
    read_setting,
)
from airflow_provider_kmigrate.core.node_files.kafka_keys import find_key
from airflow_provider_kmigrate.core.preflight.controllers import BUILDER, has_kraft_authorizer, name_between_brokers, super_users
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    blocks,
    configured_protocol,
    feature_level,
    unknown,
    values_by_broker,
    warns,
    zookeeper_broker_files,
    zookeeper_configs,
)
from airflow_provider_kmigrate.core.shared.text import count_of, join_ids, summarize

_ENCODER = "password.encoder.secret"
_RULES = "authorizer.zookeeper.url"
_KRAFT_AUTHORIZERS = frozenset(AUTHORIZERS.values())
_SCRAM, _TOKENS = "3.5-IV2", "3.6-IV2"  # the first metadata versions with the records of SCRAM users and delegation tokens
_TOWARDS_ZOOKEEPER = re.compile(r"zookeeper\.(?:ssl\..*|set\.acl|clientCnxnSocket)")

_RESOURCES = frozenset({"topic", "group", "cluster", "transactionalid", "delegationtoken", "user"})
_WORDS = {"all", "read", "write", "create", "delete", "alter", "describe", "clusteraction", "describeconfigs", "alterconfigs"}
_OPERATIONS = frozenset(_WORDS | {"idempotentwrite", "createtokens", "describetokens"})
_PERMISSIONS = frozenset({"allow", "deny"})


def _check_authorizers(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    configs = zookeeper_configs(facts)
    authorizers = values_by_broker(configs, AUTHORIZER)
    different = {authorizers.get(broker, "none") for broker in configs}
    if len(different) > 1:
        yield blocks("B18", f"brokers have different authorizers: {summarize(sorted(different))}")
    custom = sorted({name for name in authorizers.values() if name not in AUTHORIZERS and name not in _KRAFT_AUTHORIZERS})
    if custom and not has_kraft_authorizer(facts.spec):
        yield blocks("B8a", f"brokers have an authorizer that is not Kafka's: {summarize(custom)}")


def _check_acls(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    tree = facts.environment.tree
    if tree is None:
        return
    unreadable_rules = [*map(_describe_malformed, tree.malformed), *map(str, filter(_is_unreadable, tree.acls))]
    if unreadable_rules:
        yield blocks(
            "B8c",
            f"{count_of(len(unreadable_rules), 'znode or rule', 'znodes or rules')} that the copy cannot read: {summarize(unreadable_rules)}",
        )
    builder = bool(values_by_broker(zookeeper_configs(facts), BUILDER))
    suspect_rules = [str(acl) for acl in tree.acls if not _is_unreadable(acl) and _is_uncertain(acl, builder)]
    if suspect_rules:
        yield warns(
            "W14",
            f"{count_of(len(suspect_rules), 'rule')} that may have another effect than was meant: {summarize(suspect_rules)}",
        )
    if tree.acls and not values_by_broker(zookeeper_configs(facts), AUTHORIZER) and zookeeper_configs(facts):
        yield warns(
            "W14",
            f"{count_of(len(tree.acls), 'rule is', 'rules are')} in ZooKeeper, but no broker has an authorizer: they are not enforced",
        )


def _check_rules_elsewhere(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    """AclAuthorizer may keep its rules in a separate ZooKeeper; a common server and chroot make it the cluster's.

    A server may have several names and addresses, so different ones under the same chroot prove nothing.
    """
    for broker, keys in zookeeper_broker_files(view).items():
        rules, own = read_setting(keys, _RULES), read_setting(keys, "zookeeper.connect") or ""
        if rules is None or read_setting(keys, AUTHORIZER) not in AUTHORIZERS or rules == own:
            continue
        if find_references(rules) or find_references(own):
            yield unknown("B8d", f"whether {_RULES} of broker {broker}, a reference, is the cluster's own ZooKeeper")
        elif chroot_of(rules) != chroot_of(own):
            yield blocks("B8d", f"broker {broker} keeps its rules in another chroot ({_RULES})")
        elif not _server_addresses(rules) & _server_addresses(own):
            yield unknown(
                "B8d", f"whether {_RULES} of broker {broker} is the cluster's own ZooKeeper, by other names of its servers"
            )


def _server_addresses(connect: str) -> set[str]:
    listed = (server.strip().lower() for server in connect.partition("/")[0].split(","))
    return {server if ":" in server else f"{server}:2181" for server in listed}


def _describe_malformed(znode: Malformed) -> str:
    """What of a malformed znode may be shown: /config holds salted passwords, which it may still hold."""
    if znode.unknown_version:
        return f"{znode.path} has {znode.content}"
    secret = znode.path.startswith("/config/") or not znode.content
    return f"{znode.path} (what it holds may be secret)" if secret else f"{znode.path} holds {znode.content!r}"


def _is_unreadable(acl: ZkAcl) -> bool:
    known_words = ((acl.resource, _RESOURCES), (acl.operation, _OPERATIONS), (acl.permission, _PERMISSIONS))
    return ":" not in acl.principal or any(word.lower() not in words for word, words in known_words)


def _is_uncertain(acl: ZkAcl, builder: bool) -> bool:
    kind, _, name = acl.principal.partition(":")
    wildcard = "*" in name and name != "*"  # only `User:*` is one
    return (kind != "User" and not builder) or wildcard or (acl.pattern == "PREFIXED" and acl.name == "*")


def _check_users(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    tree, configs = facts.environment.tree, zookeeper_configs(facts)
    if tree is None or not configs:
        return
    lowest = min(feature_level(configured_protocol(config)) for config in configs.values())
    if tree.scram_users and lowest < feature_level(_SCRAM):
        yield blocks(
            "B9a", f"{count_of(len(tree.scram_users), 'SCRAM user')} with a version below {_SCRAM}: {summarize(tree.scram_users)}"
        )
    if tree.tokens and lowest < feature_level(_TOKENS):
        yield blocks("B9a", f"{count_of(tree.tokens, 'delegation token')} with a version below {_TOKENS}")
    keyless = [broker for broker, keys in zookeeper_broker_files(view).items() if not _token_key(keys)]
    if tree.tokens and keyless:
        yield blocks(
            "B9a",
            f"{count_of(tree.tokens, 'delegation token')}, but no delegation.token.secret.key in the files of brokers {summarize(keyless)}",
        )


def _token_key(keys: Mapping[str, str]) -> str | None:
    return read_setting(keys, "delegation.token.secret.key") or read_setting(keys, "delegation.token.master.key")


def _check_zookeeper_access(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    files = zookeeper_broker_files(view)
    keys = sorted({key for properties in files.values() for key in properties if _TOWARDS_ZOOKEEPER.fullmatch(key)})
    differ = [key for key in keys if len({properties.get(key) for properties in files.values()}) > 1]
    if differ:
        yield blocks("B10a", f"brokers' files differ in how they reach ZooKeeper: {summarize(differ)}")
    yield from _check_controller_files(view, {key: next(iter(files.values())).get(key) for key in keys if key not in differ})
    tree = facts.environment.tree
    in_files = ["TLS"] if any(key.startswith("zookeeper.ssl.") for key in keys) else []
    guarded = sorted({*(tree.guarded if tree else ()), *in_files, *facts.connections.zookeeper})
    by_options = (
        "" if in_files or "TLS" not in guarded else ", which they have from KAFKA_OPTS, for their files have no zookeeper.ssl.*"
    )
    if guarded or any(is_true(properties, "zookeeper.set.acl") for properties in files.values()):
        yield unknown(
            "B10a",
            f"ZooKeeper authenticates brokers ({summarize(guarded) or 'zookeeper.set.acl'}{by_options}); the controllers' credentials are unknown",
        )


def _check_controller_files(view: ClusterView, expected_values: Mapping[str, str | None]) -> Iterator[PreflightFinding]:
    for controller in view.controllers.values():
        properties = controller.files.properties
        missing = [key for key, value in expected_values.items() if properties and properties.get(key) != value]
        if properties and read_setting(properties, "zookeeper.connect") and missing:
            yield blocks("B10a", f"the file of controller {controller.id} has no value, or another one, for {summarize(missing)}")


def _check_passwords(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    dynamic_passwords = [
        f"{entity} {key}" for entity, keys in facts.broker_settings.items() for key in keys if _is_encrypted(key)
    ]
    if not dynamic_passwords:
        return
    files = zookeeper_broker_files(view)
    encoder_secrets = {broker: read_setting(keys, _ENCODER) for broker, keys in files.items()}
    missing = [broker for broker, value in encoder_secrets.items() if value is None]
    stated = read_setting(facts.spec.controller_properties, _ENCODER) is not None
    if missing and not stated:
        yield blocks(
            "B11",
            f"passwords set dynamically ({summarize(dynamic_passwords)}), but no {_ENCODER} in the files of brokers {summarize(missing)}",
        )
    elif len(set(encoder_secrets.values())) > 1 and not stated:
        yield blocks("B11", f"passwords set dynamically ({summarize(dynamic_passwords)}), and brokers have different {_ENCODER}")


def _is_encrypted(key: str) -> bool:
    """Whether Kafka encrypts the value in ZooKeeper: a password that a broker may have dynamically, with or without a listener's prefix."""
    definition = find_key(key)
    return definition is not None and definition.is_secret and definition.mode != "read-only"


def _check_principal_builders(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    builders = sorted(set(values_by_broker(zookeeper_configs(facts), BUILDER).values()))
    if custom := [name for name in builders if not name.startswith("org.apache.kafka.")]:
        yield unknown("B8a", f"brokers build principals with {summarize(custom)}")


def _check_super_users(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    """Only if one of Kafka's authorizers will run on the controllers, and asks."""
    joined: dict[int, str] = {}
    for broker, keys in zookeeper_broker_files(view).items():
        open_to_all = is_true(keys, "allow.everyone.if.no.acl.found")
        if read_setting(keys, AUTHORIZER) not in {*AUTHORIZERS, *_KRAFT_AUTHORIZERS} or open_to_all:
            continue
        listed, broker_name = super_users(keys), name_between_brokers(facts, broker, keys)
        if listed == set():
            yield blocks("B13b", f"broker {broker} has an authorizer, and no super.users")
        elif broker_name is None or listed is None:
            count = "a reference" if listed is None else len(listed)
            yield unknown("B13b", f"the name by which the others know broker {broker}; super.users has {count}")
        elif names := [] if broker_name in listed else [name for name in listed if broker_name in _JOINED.split(name)]:
            joined[broker] = names[0]
        elif broker_name not in listed:
            yield blocks("B13b", f"broker {broker} is known as {broker_name}, which is not among super.users")
    if joined:
        text = f"{summarize(dict.fromkeys(joined.values()))} in super.users of {'broker' if len(joined) == 1 else 'brokers'} {join_ids(joined)}"
        yield blocks("B13b", f"names are parted by `;`, and a comma joins them to one name, which no client has: {text}")


_JOINED = re.compile(r",\s*(?=User:)")  # names of certificates have commas themselves


CHECKS: tuple[Check, ...] = (
    _check_authorizers,
    _check_acls,
    _check_rules_elsewhere,
    _check_users,
    _check_zookeeper_access,
    _check_passwords,
    _check_principal_builders,
    _check_super_users,
)
