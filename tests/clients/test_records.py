"""The records beside the fence: who may write them, which are believed, in memory and on a real ZooKeeper with its ACLs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE
from memory_zookeeper import Ensemble, MemoryZooKeeper

from airflow_provider_kmigrate.clients.fence import Fence
from airflow_provider_kmigrate.clients.journal_heads import JournalHead, heads
from airflow_provider_kmigrate.clients.records import Records
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.core.approval import Approval, ApproverAnswer, Shown, digest
from airflow_provider_kmigrate.exceptions import Fenced, Refused

RUN, ID, KEY = "kmigrate_zk_to_kraft__prod/manual__2026-11-29T10:00:00+00:00", "cluster-1", "0123456789abcdef" * 2
GIVEN = Approval(
    Shown(RUN, "cluster-1, /migration of 5.000", {"soak": digest("well")}),
    (ApproverAnswer("Roll back", "ann", "Ann", "2026-11-29T10:00:00+00:00", "it is slow"),),
    "approve",
    digest("the request"),
)
HEAD = JournalHead(RUN, digest("a journal"), 7)


class Tree:
    """A tree of memory, in which any client may write what is `opened`."""

    def __init__(self) -> None:
        self.ensemble = Ensemble(ID)
        self.zk = MemoryZooKeeper(self.ensemble)

    def records(self, key: str = "") -> Records:
        return Records(self.zk, ID, key)

    def write(self, given: Approval = GIVEN, key: str = "") -> None:
        fence = Fence(self.zk, ID, RUN)
        fence.join()
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


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(Refused) as found:
        call()
    [reason] = found.value.reasons
    assert reason.code == "H13"
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
    assert list(heads(tree.zk, ID)) == [HEAD]
    again = replace(GIVEN, answers=())
    tree.write(again, key)
    assert tree.records(key).approval(RUN, "approve") == again


def test_a_run_that_has_lost_the_cluster_records_nothing(tree: Tree) -> None:
    fence = Fence(tree.zk, ID, RUN)
    fence.join()
    with Fence(tree.zk, ID, "another"), pytest.raises(Fenced):
        tree.records().write(GIVEN, HEAD, fence)
    assert (list(tree.records().approvals()), list(heads(tree.zk, ID))) == ([], [])


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
        fence.hand_over(BACK, tree.records(key).to_hand_over(GIVEN, BACK))


def test_a_handover_brings_the_approval_to_the_run_that_gets_the_cluster(tree: Tree) -> None:
    hand_over(tree)
    found = tree.records().handed_over(BACK)
    assert found is not None
    assert (found.shown, found.answers) == (GIVEN.shown, GIVEN.answers)
    assert (tree.records().handed_over(RUN), tree.records().approval(BACK, "approve")) == (None, None)
    assert [kept.doubt for kept in tree.records().approvals()] == [""]


@pytest.mark.parametrize(("key", "counts"), [("", False), (KEY, True)])
def test_where_any_client_may_write_an_approval_that_came_with_a_handover_must_be_signed(
    tree: Tree, key: str, *, counts: bool
) -> None:
    """The run that gets the cluster has asked nobody: a client of ZooKeeper alone would approve."""
    tree.ensemble.anonymous = True
    hand_over(tree, key)
    if counts:
        assert tree.records(key).handed_over(BACK) is not None
    else:
        assert "no signature" in refused(lambda: tree.records(key).handed_over(BACK))


IDENTITY = "kmigrate:secret"


@pytest.fixture
def mine(own_chroot: ZooKeeperSettings) -> Iterator[ZooKeeper]:
    with ZooKeeper(replace(own_chroot, digest=IDENTITY)) as zk:
        yield zk
    owner = KazooClient(f"{own_chroot.hosts}{own_chroot.chroot}", auth_data=[("digest", IDENTITY)])
    owner.start()
    owner.delete("/_kmigrate", recursive=True)  # nobody else can
    owner.stop()
    owner.close()


@pytest.fixture
def stranger(kazoo_client: KazooClient) -> KazooClient:
    """A client without a right in Airflow, and with no identity in ZooKeeper."""
    return kazoo_client


def kept_in(zk: ZooKeeper) -> str:
    fence = Fence(zk, ID, RUN)
    fence.join()
    Records(zk, ID).write(GIVEN, HEAD, fence)
    [name] = zk.children(f"/_kmigrate/{ID}/approvals")
    return f"/_kmigrate/{ID}/approvals/{name}"


@pytest.mark.cluster
def test_nobody_else_can_write_the_record_of_an_identity(mine: ZooKeeper, stranger: KazooClient) -> None:
    path = kept_in(mine)
    assert (mine.anonymous, mine.open_to_all(path)) == (False, "")
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
        assert (nobody.anonymous, nobody.open_to_all(path)) == (True, "/_kmigrate")
        assert Records(nobody, ID).approval(RUN, "approve") == GIVEN, "there is nothing better to be had"
        assert "/_kmigrate" in refused(lambda: Records(mine, ID).approval(RUN, "approve"))
