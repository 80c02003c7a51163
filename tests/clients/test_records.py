"""The records beside the fence: who may write them, which are believed, in memory and on a real ZooKeeper with its ACLs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_digest_acl
from memory_zookeeper import Ensemble, MemoryZooKeeper

from airflow_provider_kmigrate.approvals import verify
from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.clients.journal_heads import DamagedHead, JournalHead, read_heads
from airflow_provider_kmigrate.clients.records import Records
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper import _GUARDED, ZooKeeper
from airflow_provider_kmigrate.clients.zookeeper_session import name_strangers, own_identities
from airflow_provider_kmigrate.core.cluster_state.model import OthersRight
from airflow_provider_kmigrate.core.migration.approval import Approval, ApproverAnswer, Shown, hash_text
from airflow_provider_kmigrate.exceptions import Fenced, Refused
from tests.kit.hostile import altered
from tests.kit.localcluster.cluster import lent_zookeeper

RUN, ID, KEY = "kmigrate_zk_to_kraft__prod/manual__2026-11-29T10:00:00+00:00", "cluster-1", "0123456789abcdef" * 2
GIVEN = Approval(
    Shown(RUN, "cluster-1, /migration of 5.000", {"soak": hash_text("well")}),
    (ApproverAnswer("Roll back", "ann", "Ann", "2026-11-29T10:00:00+00:00", "it is slow"),),
    "approve",
    hash_text("the request"),
)
HEAD = JournalHead(RUN, hash_text("a journal"), 7)


class Tree:
    """A tree of memory, in which any client may write what is `opened`."""

    def __init__(self) -> None:
        self.ensemble = Ensemble(ID)
        self.zk = MemoryZooKeeper(self.ensemble)

    def records(self, key: str = "") -> Records:
        return Records(self.zk, ID, key)

    def write(self, given: Approval = GIVEN, key: str = "") -> None:
        fence = Fence(self.zk, ID, RUN)
        fence.use_current_token()
        self.records(key).write(given, HEAD, fence)

    @property
    def path(self) -> str:
        [found] = [path for path in self.ensemble.znodes if path.startswith(f"/_kmigrate/{ID}/approvals/")]
        return found

    def forge(self, change: Callable[[dict[str, object]], object]) -> None:
        """What somebody with a client of ZooKeeper writes over the record."""
        stored = json.loads(self.ensemble.znodes[self.path].data)
        change(stored)
        self.ensemble.put(self.path, json.dumps(stored).encode())


@pytest.fixture
def tree() -> Tree:
    return Tree()


def refused(call: Callable[[], object], code: str = "H13") -> str:
    with pytest.raises(Refused) as found:
        call()
    [reason] = found.value.reasons
    assert reason.code == code
    assert all((reason.text, reason.meaning, reason.next_step))
    return reason.text


@pytest.mark.parametrize("key", ["", KEY])
def test_what_was_written_is_read_and_nothing_of_another_task_or_run(tree: Tree, key: str) -> None:
    assert tree.records(key).approval(RUN, "approve") is None
    tree.write(key=key)
    assert tree.records(key).approval(RUN, "approve") == GIVEN
    assert tree.records(key).approval(RUN, "stop_after_soak") is None
    assert tree.records(key).approval(f"{RUN}_again", "approve") is None
    assert [kept.approval for kept in tree.records(key).approvals()] == [GIVEN]
    assert list(read_heads(tree.zk, ID)) == [HEAD]
    again = replace(GIVEN, answers=())
    tree.write(again, key)
    assert tree.records(key).approval(RUN, "approve") == again


def test_a_hash_that_was_altered_is_damage_or_another_hash_and_never_missing(tree: Tree) -> None:
    tree.write()
    [path] = [path for path in tree.ensemble.znodes if path.startswith(f"/_kmigrate/{ID}/journals/")]
    for where, value in [
        *altered(asdict(HEAD)),
        ("later field", {**asdict(HEAD), "later": 1}),
        ("negative", {**asdict(HEAD), "lines": -1}),
    ]:
        tree.ensemble.put(path, json.dumps(value).encode())
        [head] = read_heads(tree.zk, ID)
        if isinstance(head, JournalHead):
            assert head.run == RUN, where
            assert asdict(head) == value, where
        else:
            assert head == DamagedHead(path), where
        assert not verify([], [head], {}).is_sound, where


def test_a_run_that_has_lost_the_cluster_records_nothing(tree: Tree) -> None:
    fence = Fence(tree.zk, ID, RUN)
    fence.use_current_token()
    with Fence(tree.zk, ID, "another"), pytest.raises(Fenced):
        tree.records().write(GIVEN, HEAD, fence)
    assert (list(tree.records().approvals()), list(read_heads(tree.zk, ID))) == ([], [])


@pytest.mark.parametrize("place", ["/_kmigrate", f"/_kmigrate/{ID}", f"/_kmigrate/{ID}/approvals", "the record itself"])
@pytest.mark.parametrize("anonymous", [False, True])
def test_where_any_client_may_write_a_record_is_believed_only_if_nothing_better_is_to_be_had(
    tree: Tree, place: str, *, anonymous: bool
) -> None:
    tree.write()
    tree.ensemble.opened, tree.ensemble.anonymous = {tree.path if place == "the record itself" else place}, anonymous
    if anonymous:
        assert tree.records().approval(RUN, "approve") == GIVEN
    else:
        assert "any client of ZooKeeper may write" in refused(lambda: tree.records().approval(RUN, "approve"))
    [kept] = tree.records().approvals()
    assert (kept.protected, bool(kept.doubt)) == (False, not anonymous)


@pytest.mark.parametrize("anonymous", [False, True])
def test_where_another_identity_may_write_no_record_is_believed(tree: Tree, *, anonymous: bool) -> None:
    tree.write()
    tree.ensemble.shared, tree.ensemble.anonymous = {"/_kmigrate": "digest:eve"}, anonymous
    assert "digest:eve may write /_kmigrate" in refused(lambda: tree.records().approval(RUN, "approve"))


FORGED: list[Callable[[dict[str, object]], object]] = [
    lambda stored: stored["approval"]["answers"].append(stored["approval"]["answers"][0] | {"user": "bob"}),  # type: ignore[index]
    lambda stored: stored["approval"]["answers"][0].update(option="Finalize"),  # type: ignore[index]
    lambda stored: stored["approval"]["shown"].update(cluster="cluster-1, /migration of 6.000"),  # type: ignore[index]
    lambda stored: stored["approval"]["shown"]["evidence"].clear(),  # type: ignore[index]
    lambda stored: stored.update(signature=""),
    lambda stored: stored.update(signature=None),
    lambda stored: stored.update(signature="0" * 64),
    lambda stored: stored.pop("signature"),
    lambda stored: stored.update(approval={}),
    lambda stored: stored.clear(),
]


@pytest.mark.parametrize("change", FORGED)
def test_a_signed_record_that_somebody_changed_is_not_believed_in_an_open_tree(
    tree: Tree, change: Callable[[dict[str, object]], object]
) -> None:
    tree.ensemble.anonymous = True
    tree.write(key=KEY)
    assert tree.records(KEY).approval(RUN, "approve") == GIVEN
    tree.forge(change)
    refused(lambda: tree.records(KEY).approval(RUN, "approve"))


def test_a_signature_by_another_key_or_by_none_is_none(tree: Tree) -> None:
    for key in ("", KEY.upper()):
        tree.write(key=key)
        assert "signature" in refused(lambda: tree.records(KEY).approval(RUN, "approve"))


def test_a_signed_record_at_the_place_of_another_request_is_not_believed(tree: Tree) -> None:
    tree.write(key=KEY)
    data, other = tree.ensemble.znodes[tree.path].data, Tree()
    other.write(replace(GIVEN, task="stop_after_soak"), KEY)
    other.ensemble.put(other.path, data)
    assert "another request" in refused(lambda: other.records(KEY).approval(RUN, "stop_after_soak"))


BACK = "kmigrate_rollback__prod/approved__2026-11-29T10:00:00+00:00"


def hand_over(tree: Tree, key: str = "") -> None:
    with Fence(tree.zk, ID, RUN) as fence:
        fence.hand_over(BACK, tree.records(key).handover_operation(GIVEN, BACK))


def test_a_handover_brings_the_approval_to_the_run_that_gets_the_cluster(tree: Tree) -> None:
    hand_over(tree)
    found = tree.records().handover_approval(BACK)
    assert found is not None
    assert (found.shown, found.answers) == (GIVEN.shown, GIVEN.answers)
    assert (tree.records().handover_approval(RUN), tree.records().approval(BACK, "approve")) == (None, None)
    assert [kept.doubt for kept in tree.records().approvals()] == [""]


@pytest.mark.parametrize(("key", "counts"), [("", False), (KEY, True)])
def test_where_any_client_may_write_an_approval_that_came_with_a_handover_must_be_signed(
    tree: Tree, key: str, *, counts: bool
) -> None:
    """The run that gets the cluster has asked nobody: a client of ZooKeeper alone would approve."""
    tree.ensemble.anonymous = True
    hand_over(tree, key)
    if counts:
        assert tree.records(key).handover_approval(BACK) is not None
    else:
        assert "no signature" in refused(lambda: tree.records(key).handover_approval(BACK))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A ZooKeeper alone: nothing here needs a broker."""
    with lent_zookeeper(tmp_path_factory.mktemp("zookeeper")) as there:
        yield there


IDENTITY = "kmigrate:secret"


@contextmanager
def client_of(settings: ZooKeeperSettings, identity: str) -> Iterator[KazooClient]:
    client = KazooClient(f"{settings.hosts}{settings.chroot}", auth_data=[("digest", identity)])
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture
def mine(own_chroot: ZooKeeperSettings) -> Iterator[ZooKeeper]:
    with ZooKeeper(replace(own_chroot, digest=IDENTITY)) as zk:
        yield zk
    with client_of(own_chroot, IDENTITY) as owner:
        if owner.exists("/_kmigrate"):
            owner.delete("/_kmigrate", recursive=True)  # nobody else can


@pytest.fixture
def stranger(kazoo_client: KazooClient) -> KazooClient:
    """A client without a right in Airflow, and with no identity in ZooKeeper."""
    return kazoo_client


def kept_in(zk: ZooKeeper) -> str:
    fence = Fence(zk, ID, RUN)
    fence.use_current_token()
    Records(zk, ID).write(GIVEN, HEAD, fence)
    [name] = zk.children(f"/_kmigrate/{ID}/approvals")
    return f"/_kmigrate/{ID}/approvals/{name}"


@pytest.mark.cluster
def test_nobody_else_can_write_the_record_of_an_identity(mine: ZooKeeper, stranger: KazooClient) -> None:
    path = kept_in(mine)
    assert (mine.is_anonymous, mine.find_others_right(path)) == (False, None)
    assert Records(mine, ID).approval(RUN, "approve") == GIVEN
    for attack in (
        lambda: stranger.set(path, b"{}"),
        lambda: stranger.delete(path),
        lambda: stranger.set_acls(path, OPEN_ACL_UNSAFE),
        lambda: stranger.create(f"/_kmigrate/{ID}/approvals/more", b"{}"),
        lambda: stranger.delete("/_kmigrate", recursive=True),
    ):
        with pytest.raises(NoAuthError):
            attack()
    assert Records(mine, ID).approval(RUN, "approve") == GIVEN


@pytest.mark.cluster
def test_a_tree_that_was_made_without_an_identity_is_believed_by_none_that_has_one(
    own_chroot: ZooKeeperSettings, mine: ZooKeeper
) -> None:
    with ZooKeeper(own_chroot) as nobody:
        assert Records(nobody, ID).approval(RUN, "approve") is None
        path = kept_in(nobody)
        assert (nobody.is_anonymous, nobody.find_others_right(path)) == (True, OthersRight("/_kmigrate"))
        assert Records(nobody, ID).approval(RUN, "approve") == GIVEN, "there is nothing better to be had"
        assert "/_kmigrate" in refused(lambda: Records(mine, ID).approval(RUN, "approve"))


EVE = "eve:secret"
SHARED = [make_digest_acl(*each.split(":"), all=True) for each in (EVE, IDENTITY)]


@pytest.mark.cluster
@pytest.mark.parametrize("readable", [True, False])
def test_a_tree_that_another_identity_made_first_for_itself_is_named(
    own_chroot: ZooKeeperSettings, mine: ZooKeeper, *, readable: bool
) -> None:
    """Whoever comes first chooses the ACL. ZooKeeper itself says only that we may not."""
    own = SHARED[:1] + (READ_ACL_UNSAFE if readable else [])
    with client_of(own_chroot, EVE) as eve:
        for path in _GUARDED:
            eve.ensure_path(path)
        for path in ("/_kmigrate", f"/_kmigrate/{ID}"):
            eve.create(path, b"", acl=own)
        who = "digest:eve" if readable else "an identity that ZooKeeper does not name to kmigrate"
        assert mine.find_others_right(f"/_kmigrate/{ID}") == OthersRight("/_kmigrate", who)
        assert mine.read_tree().others == OthersRight("/_kmigrate", who)
        fence = Fence(mine, ID, RUN)
        for act in (fence.take, fence.use_current_token):
            assert f"{who} may write /_kmigrate" in refused(act, "H14")
        eve.delete("/_kmigrate", recursive=True)
    assert fence.take() > 0, "the remedy"
    assert mine.find_others_right(fence.path) is None


@pytest.mark.cluster
def test_a_tree_in_which_another_identity_may_write_too_is_named_and_no_record_there_is_believed(
    own_chroot: ZooKeeperSettings, mine: ZooKeeper
) -> None:
    with client_of(own_chroot, EVE) as eve:
        eve.create("/_kmigrate", b"", acl=SHARED)
        kept_in(mine)
        assert mine.find_others_right("/_kmigrate") == OthersRight("/_kmigrate", "digest:eve")
        assert "digest:eve may write /_kmigrate" in refused(lambda: Records(mine, ID).approval(RUN, "approve"))
        eve.set_acls("/_kmigrate", SHARED[1:])  # the remedy
    assert Records(mine, ID).approval(RUN, "approve") == GIVEN
    assert mine.find_others_right("/_kmigrate") is None


@pytest.mark.cluster
def test_a_client_without_an_identity_is_told_who_may_write_the_tree(own_chroot: ZooKeeperSettings, mine: ZooKeeper) -> None:
    with ZooKeeper(own_chroot) as nobody:
        kept_in(mine)
        fence = Fence(nobody, ID, "another")
        assert "may write /_kmigrate" in refused(fence.take, "H14")


@pytest.mark.parametrize(
    ("settings", "writers", "others"),
    [
        ({"digest": IDENTITY}, [acl.id for acl in SHARED[1:]], ""),
        ({"digest": IDENTITY}, [acl.id for acl in SHARED], "digest:eve"),
        ({"digest": "kmigrate:another"}, [acl.id for acl in SHARED[1:]], "digest:kmigrate"),
        ({"sasl_mechanism": "DIGEST-MD5", "sasl_user": "kafka"}, [("sasl", "kafka")], ""),
        ({"sasl_mechanism": "DIGEST-MD5", "sasl_user": "kafka"}, [("sasl", "kafka "), ("ip", "::1")], "ip:::1, sasl:kafka "),
        ({"sasl_mechanism": "GSSAPI"}, [("sasl", "kafka")], ""),
        ({"sasl_mechanism": "GSSAPI"}, [("sasl", "kafka"), ("sasl", "eve")], "sasl:eve, sasl:kafka"),
        ({"sasl_mechanism": "GSSAPI"}, [("x509", "CN=eve")], "x509:CN=eve"),
        ({"use_tls": True, "cert_file": "/c"}, [("x509", "CN=kmigrate,O=a")], ""),
        ({"use_tls": True}, [("x509", "CN=eve")], "x509:CN=eve"),
        ({"use_tls": True, "cert_file": "/c", "digest": IDENTITY}, [("x509", "CN=a"), *(acl.id for acl in SHARED[1:])], ""),
        ({}, [], ""),
    ],
)
def test_identities_of_an_acl_that_are_not_ours_are_named(
    settings: dict[str, Any], writers: list[tuple[str, str]], others: str
) -> None:
    ours = own_identities(ZooKeeperSettings("h:1", **settings))
    assert name_strangers({(scheme, name) for scheme, name in writers}, ours) == others
