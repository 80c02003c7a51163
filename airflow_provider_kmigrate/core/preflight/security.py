"""Preflight's checks of identities and rights: what controllers inherit, what is copied, and what they would miss."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from airflow_provider_kmigrate.core.files.config_matrix import (
    AUTHORIZER,
    AUTHORIZERS,
    chroot_of,
    is_true,
    references,
    setting,
)
from airflow_provider_kmigrate.core.model import ClusterView, Malformed, ZkAcl
from airflow_provider_kmigrate.core.preflight.controllers import BUILDER, name_between_brokers, super_users
from airflow_provider_kmigrate.core.preflight.findings import (
    Check,
    PreflightFacts,
    PreflightFinding,
    blocks,
    level,
    protocol,
    topics_in_zookeeper,
    unknown,
    values,
    warns,
    zookeeper_configs,
    zookeeper_files,
)
from airflow_provider_kmigrate.core.text import summarize

_ENCODER = "password.encoder.secret"
_RULES = "authorizer.zookeeper.url"
_KRAFT_AUTHORIZERS = frozenset(AUTHORIZERS.values())
_SCRAM, _TOKENS = "3.5-IV2", "3.6-IV2"  # the first metadata versions with the records of SCRAM users and delegation tokens
#: What Kafka encrypts in ZooKeeper: its settings of type PASSWORD (DynamicBrokerConfig), with or without a listener's prefix.
_ENCRYPTED = (
    "ssl.keystore.password",
    "ssl.key.password",
    "ssl.truststore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.certificates",
    "sasl.jaas.config",
)
_JUTE = 1_000_000  # bytes of a ZooKeeper answer, without jute.maxbuffer a little above
_TOWARDS_ZOOKEEPER = re.compile(r"zookeeper\.(?:ssl\..*|set\.acl|clientCnxnSocket)")

_RESOURCES = frozenset({"topic", "group", "cluster", "transactionalid", "delegationtoken", "user"})
_WORDS = {"all", "read", "write", "create", "delete", "alter", "describe", "clusteraction", "describeconfigs", "alterconfigs"}
_OPERATIONS = frozenset(_WORDS | {"idempotentwrite", "createtokens", "describetokens"})
_PERMISSIONS = frozenset({"allow", "deny"})


def _authorizers(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    configs = zookeeper_configs(facts)
    named = values(configs, AUTHORIZER)
    different = {named.get(broker, "none") for broker in configs}
    if len(different) > 1:
        yield blocks("B18", f"brokers have different authorizers: {summarize(sorted(different))}")
    ours = setting(facts.spec.controller_properties, AUTHORIZER)
    custom = sorted({name for name in named.values() if name not in AUTHORIZERS and name not in _KRAFT_AUTHORIZERS})
    if custom and not ours:
        yield blocks("B8a", f"brokers have an authorizer that is not Kafka's: {summarize(custom)}")


def _acls(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    tree = facts.environment.tree
    if tree is None:
        return
    wrong = [*map(_malformed, tree.malformed), *map(str, filter(_unreadable, tree.acls))]
    if wrong:
        yield blocks("B8c", f"{len(wrong)} znodes or rules that the copy cannot read: {summarize(wrong)}")
    builder = bool(values(zookeeper_configs(facts), BUILDER))
    odd = [str(acl) for acl in tree.acls if not _unreadable(acl) and _uncertain(acl, builder)]
    if odd:
        yield warns("W14", f"{len(odd)} rules that may not do what was meant: {summarize(odd)}")
    if tree.acls and not values(zookeeper_configs(facts), AUTHORIZER) and zookeeper_configs(facts):
        yield warns("W14", f"{len(tree.acls)} rules are in ZooKeeper, but no broker has an authorizer: they are not enforced")


def _rules_elsewhere(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    """AclAuthorizer may keep its rules in a separate ZooKeeper; a common server and chroot make it the cluster's.

    A server may have several names and addresses, so different ones under the same chroot prove nothing.
    """
    for broker, keys in zookeeper_files(view).items():
        rules, own = setting(keys, _RULES), setting(keys, "zookeeper.connect") or ""
        if rules is None or setting(keys, AUTHORIZER) not in AUTHORIZERS or rules == own:
            continue
        if references(rules) or references(own):
            yield unknown("B8d", f"whether {_RULES} of broker {broker}, a reference, is the cluster's own ZooKeeper")
        elif chroot_of(rules) != chroot_of(own):
            yield blocks("B8d", f"broker {broker} keeps its rules in another chroot ({_RULES})")
        elif not _servers(rules) & _servers(own):
            yield unknown(
                "B8d", f"whether {_RULES} of broker {broker} is the cluster's own ZooKeeper, by other names of its servers"
            )


def _servers(connect: str) -> set[str]:
    listed = (server.strip().lower() for server in connect.partition("/")[0].split(","))
    return {server if ":" in server else f"{server}:2181" for server in listed}


def _malformed(znode: Malformed) -> str:
    """What of a malformed znode may be shown: /config holds salted passwords, which it may still hold."""
    secret = znode.path.startswith("/config/") or not znode.content
    return f"{znode.path} (what it holds may be secret)" if secret else f"{znode.path} holds {znode.content!r}"


def _unreadable(acl: ZkAcl) -> bool:
    known = ((acl.resource, _RESOURCES), (acl.operation, _OPERATIONS), (acl.permission, _PERMISSIONS))
    return ":" not in acl.principal or any(word.lower() not in words for word, words in known)


def _uncertain(acl: ZkAcl, builder: bool) -> bool:
    kind, _, name = acl.principal.partition(":")
    wildcard = "*" in name and name != "*"  # only `User:*` is one
    return (kind != "User" and not builder) or wildcard or (acl.pattern == "PREFIXED" and acl.name == "*")


def _users(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    tree, configs = facts.environment.tree, zookeeper_configs(facts)
    if tree is None or not configs:
        return
    lowest = min(level(protocol(config)) for config in configs.values())
    if tree.scram_users and lowest < level(_SCRAM):
        yield blocks("B9a", f"{len(tree.scram_users)} SCRAM users with a version below {_SCRAM}: {summarize(tree.scram_users)}")
    if tree.tokens and lowest < level(_TOKENS):
        yield blocks("B9a", f"{tree.tokens} delegation tokens with a version below {_TOKENS}")
    keyless = [broker for broker, keys in zookeeper_files(view).items() if not _token_key(keys)]
    if tree.tokens and keyless:
        yield blocks(
            "B9a",
            f"{tree.tokens} delegation tokens, but no delegation.token.secret.key in the files of brokers {summarize(keyless)}",
        )


def _token_key(keys: Mapping[str, str]) -> str | None:
    return setting(keys, "delegation.token.secret.key") or setting(keys, "delegation.token.master.key")


def _towards_zookeeper(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    files = zookeeper_files(view)
    keys = sorted({key for properties in files.values() for key in properties if _TOWARDS_ZOOKEEPER.fullmatch(key)})
    differ = [key for key in keys if len({properties.get(key) for properties in files.values()}) > 1]
    if differ:
        yield blocks("B10a", f"brokers' files differ in how they reach ZooKeeper: {summarize(differ)}")
    yield from _of_controllers(view, {key: next(iter(files.values())).get(key) for key in keys if key not in differ})
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


def _of_controllers(view: ClusterView, wanted: Mapping[str, str | None]) -> Iterator[PreflightFinding]:
    for controller in view.controllers.values():
        properties = controller.files.properties
        missing = [key for key, value in wanted.items() if properties and properties.get(key) != value]
        if properties and setting(properties, "zookeeper.connect") and missing:
            yield blocks("B10a", f"the file of controller {controller.id} has no value, or another one, for {summarize(missing)}")


def _large_answers(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    """What Kafka reads from ZooKeeper in one answer: the list of topics, and the partitions of one."""
    topics = topics_in_zookeeper(view)
    names = sum(len(name.encode()) + 4 for name in topics)
    largest = max((sum(14 + 6 * len(p.replicas) for p in topic.partitions.values()) for topic in topics.values()), default=0)
    if max(names, largest) > _JUTE:
        yield unknown(
            "B10b", f"an answer of ZooKeeper takes about {max(names, largest):,} bytes; the controllers' limit is unknown"
        )


def _passwords(view: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    secret = [f"{entity} {key}" for entity, keys in facts.broker_settings.items() for key in keys if key.endswith(_ENCRYPTED)]
    if not secret:
        return
    files = zookeeper_files(view)
    known = {broker: setting(keys, _ENCODER) for broker, keys in files.items()}
    missing = [broker for broker, value in known.items() if value is None]
    stated = setting(facts.spec.controller_properties, _ENCODER) is not None
    if missing and not stated:
        yield blocks(
            "B11",
            f"passwords set dynamically ({summarize(secret)}), but no {_ENCODER} in the files of brokers {summarize(missing)}",
        )
    elif len(set(known.values())) > 1 and not stated:
        yield blocks("B11", f"passwords set dynamically ({summarize(secret)}), and brokers have different {_ENCODER}")


def _builders(_: ClusterView, facts: PreflightFacts) -> Iterator[PreflightFinding]:
    named = sorted(set(values(zookeeper_configs(facts), BUILDER).values()))
    if custom := [name for name in named if not name.startswith("org.apache.kafka.")]:
        yield unknown("B8a", f"brokers build principals with {summarize(custom)}")


def _super_users(view: ClusterView, _: PreflightFacts) -> Iterator[PreflightFinding]:
    """Only if one of Kafka's authorizers will run on the controllers, and asks."""
    for broker, keys in zookeeper_files(view).items():
        open_to_all = is_true(keys, "allow.everyone.if.no.acl.found")
        if setting(keys, AUTHORIZER) not in {*AUTHORIZERS, *_KRAFT_AUTHORIZERS} or open_to_all:
            continue
        listed, who = super_users(keys), name_between_brokers(keys)
        if listed == set():
            yield blocks("B13b", f"broker {broker} has an authorizer, and no super.users")
        elif who is None or listed is None:
            count = "a reference" if listed is None else len(listed)
            yield unknown("B13b", f"the name by which the others know broker {broker}; super.users has {count}")
        elif who not in listed:
            yield blocks("B13b", f"broker {broker} is known as {who}, which is not among super.users")


CHECKS: tuple[Check, ...] = (
    _authorizers,
    _acls,
    _rules_elsewhere,
    _users,
    _towards_zookeeper,
    _large_answers,
    _passwords,
    _builders,
    _super_users,
)
