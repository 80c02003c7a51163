"""Who may change the cluster: every rule of the fence, in memory and on a real ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from memory_zookeeper import Ensemble, MemoryZooKeeper

from airflow_provider_kmigrate.clients.fence import Fence, ReadOnlyFence
from airflow_provider_kmigrate.clients.settings import ZooKeeperSettings
from airflow_provider_kmigrate.clients.znodes import Create, Delete, Set
from airflow_provider_kmigrate.clients.zookeeper import ZooKeeper
from airflow_provider_kmigrate.exceptions import Fenced, Forbidden, SpecError, WrongCluster

RUN, OTHER = "zk_to_kraft/manual_1", "zk_to_kraft/manual_2"

Client = ZooKeeper | MemoryZooKeeper


class Place:
    """Somewhere to fence: opens sessions, and knows the cluster's id."""

    def __init__(self, cluster_id: str, connect: Callable[[], Client]) -> None:
        self.cluster_id = cluster_id
        self._connect = connect
        self.opened: list[Client] = []

    def session(self) -> Client:
        self.opened.append(self._connect())
        return self.opened[-1]

    def fence(self, owner: str, session: Client | None = None, **options: Callable[[str], bool]) -> Fence:
        return Fence(session or self.session(), self.cluster_id, owner, **options)


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.cluster)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "memory":
        ensemble = Ensemble("cluster-1")
        there = Place("cluster-1", lambda: MemoryZooKeeper(ensemble))
    else:
        settings: ZooKeeperSettings = request.getfixturevalue("own_chroot")
        there = Place("cluster-1", lambda: ZooKeeper(settings))
    yield there
    for session in there.opened:
        session.close()


def codes(refused: pytest.ExceptionInfo[Fenced]) -> list[str]:
    return [reason.code for reason in refused.value.reasons]


@pytest.mark.parametrize("use", [lambda f: f.path, lambda f: f.token, lambda f: f.check()])
def test_a_process_that_only_observes_can_do_nothing(use: Callable[[ReadOnlyFence], object]) -> None:
    with pytest.raises(Fenced) as refused:
        use(ReadOnlyFence())
    assert codes(refused) == ["H03"]


class TestOneRun:
    def test_every_task_of_a_run_gets_a_higher_token(self, place: Place) -> None:
        tokens = []
        for _ in range(3):
            with place.fence(RUN) as fence:
                tokens.append(fence.token)
                fence.check()
        assert tokens == sorted(set(tokens))

    def test_a_retry_fences_the_process_that_it_replaces(self, place: Place) -> None:
        with place.fence(RUN) as zombie:
            with place.fence(RUN) as retry:
                retry.check()
                with pytest.raises(Fenced, match="H03"):
                    zombie.check()
            with pytest.raises(Fenced):
                zombie.check()

    def test_a_task_whose_process_was_killed_is_continued_at_once(self, place: Place) -> None:
        place.fence(RUN, killed := place.session()).take()
        killed.close()
        retry = place.fence(RUN)
        retry.take()
        assert retry.alive()

    def test_the_run_keeps_the_cluster_between_its_tasks(self, place: Place) -> None:
        with place.fence(RUN) as first:
            since = first.holder()
        assert not first.alive()
        with place.fence(RUN) as second:
            assert second.holder() == since, "the run owns the cluster since its first task"
            assert second.alive()

    def test_the_token_is_unknown_before_the_fence_is_taken(self, place: Place) -> None:
        with pytest.raises(Fenced, match="H03"):
            _ = place.fence(RUN).token


class TestTwoRuns:
    def test_a_run_at_work_keeps_others_out(self, place: Place) -> None:
        with place.fence(RUN) as fence:
            with pytest.raises(Fenced) as refused:
                place.fence(OTHER).take()
            fence.check()
        assert codes(refused) == ["H01"]
        assert RUN in str(refused.value)

    def test_a_run_between_two_tasks_keeps_others_out(self, place: Place) -> None:
        with place.fence(RUN):
            pass
        with pytest.raises(Fenced) as refused:
            place.fence(OTHER).take()
        assert codes(refused) == ["H01"]

    def test_a_released_cluster_is_free(self, place: Place) -> None:
        with place.fence(RUN) as fence:
            fence.release()
            assert fence.holder() is None
        with place.fence(OTHER) as other:
            holder = other.holder()
            assert holder is not None
            assert holder.owner == OTHER

    def test_a_finished_run_is_replaced(self, place: Place) -> None:
        place.fence(RUN).take()
        asked = []
        with place.fence(OTHER, finished=lambda owner: asked.append(owner) or True) as other:
            other.check()
        assert asked == [RUN]

    def test_a_run_that_begins_to_work_while_another_finds_it_waiting_keeps_the_cluster(self, place: Place) -> None:
        """The request is answered *Finalize* at the moment in which a rollback takes the lock of the run that only waits."""
        place.fence(RUN).take()
        works: list[Fence] = []

        def only_waits(_owner: str) -> bool:
            waited = not works
            if waited:
                works.append(place.fence(RUN))
                works[0].take()
            return waited

        with pytest.raises(Fenced) as refused:
            place.fence(OTHER, finished=only_waits).take()
        assert codes(refused) == ["H01"]
        works[0].check()

    def test_a_run_that_another_replaced_begins_no_work(self, place: Place) -> None:
        place.fence(RUN).take()
        with place.fence(OTHER, finished=lambda _: True) as other:
            with pytest.raises(Fenced) as refused:
                place.fence(RUN).take()
            other.check()
        assert codes(refused) == ["H01"]

    def test_breaking_the_lock_fences_its_owner_and_frees_the_cluster(self, place: Place) -> None:
        with place.fence(RUN) as broken:
            former = place.fence("a human").break_lock()
            assert former is not None
            assert former.owner == RUN
            with pytest.raises(Fenced):
                broken.check()
            with place.fence(OTHER) as other:
                assert other.token > broken.token
                with pytest.raises(Fenced):
                    broken.release()

    def test_a_free_cluster_needs_no_breaking(self, place: Place) -> None:
        assert place.fence("a human").break_lock() is None

    def test_an_outdated_process_cannot_release_what_another_run_holds(self, place: Place) -> None:
        with place.fence(RUN) as outdated:
            with place.fence(RUN):
                pass
            with pytest.raises(Fenced):
                outdated.release()


class TestJoined:
    """A process that acts on nothing writes what must be so while no process takes the fence."""

    def test_a_joined_process_raises_no_token_and_may_write_until_the_fence_is_taken(self, place: Place) -> None:
        with place.fence(RUN) as fence:
            joined = place.fence(RUN)
            assert joined.use_current_token() == fence.token
            fence.check()
        beside, session = "/_kmigrate/cluster-1/beside", place.session()
        session.commit([Create(beside, b"1")], joined)
        with place.fence(RUN), pytest.raises(Fenced):
            session.commit([Set(beside, b"2", 0)], joined)
        assert session.read(beside) == (b"1", 0)

    def test_a_joined_process_needs_no_owner_and_is_refused_beside_another_one(self, place: Place) -> None:
        joined = place.fence(RUN)
        joined.use_current_token()
        assert joined.holder() is None
        with place.fence(OTHER), pytest.raises(Fenced, match="H01"):
            place.fence(RUN).use_current_token()


class TestHandedOver:
    def test_the_other_run_owns_the_cluster_and_what_was_written_with_it(self, place: Place) -> None:
        with place.fence(RUN) as fence:
            fence.hand_over(OTHER, Create("/_kmigrate/cluster-1/beside", b"approved"))
        assert place.session().read("/_kmigrate/cluster-1/beside") == (b"approved", 0)
        with pytest.raises(Fenced):
            place.fence(RUN).take()
        with place.fence(OTHER) as other:
            holder = other.holder()
            assert holder is not None
            assert holder.owner == OTHER
            with pytest.raises(Fenced):
                fence.check()
            other.release()
        assert place.fence(OTHER).holder() is None

    def test_a_run_hands_the_cluster_over_only_once_although_the_token_is_still_its_own(self, place: Place) -> None:
        """The other run's first task raises the token; until then nothing but the owner's name says that the cluster is given away."""
        with place.fence(RUN) as fence:
            fence.hand_over(OTHER)
            fence.check()
            with pytest.raises(Fenced, match="does not own the cluster any more"):
                fence.hand_over("third")
            holder = fence.holder()
            assert holder is not None
            assert holder.owner == OTHER

    def test_only_the_run_that_owns_the_cluster_can_hand_it_over(self, place: Place) -> None:
        with place.fence(RUN) as outdated:
            place.fence("an administrator").break_lock()
            with place.fence(OTHER) as other:
                with pytest.raises(Fenced):
                    outdated.hand_over("third", Create("/_kmigrate/cluster-1/beside", b"approved"))
                other.check()
                holder = other.holder()
                assert holder is not None
                assert holder.owner == OTHER
        assert place.session().read("/_kmigrate/cluster-1/beside") is None


def test_a_token_that_zookeeper_does_not_name_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    session = MemoryZooKeeper(Ensemble("cluster-1"))
    commit = session.commit
    monkeypatch.setattr(session, "commit", lambda *given, **held: [None for _ in commit(*given, **held)])
    with pytest.raises(AssertionError, match="without a version"):
        Fence(session, "cluster-1", RUN).take()


class TestWhatIsRefused:
    def test_another_cluster(self, place: Place) -> None:
        with pytest.raises(WrongCluster):
            Fence(place.session(), "cluster-2", RUN).take()

    @pytest.mark.parametrize("cluster_id", ["", "a/b", "..", "x" * 65])
    def test_what_is_no_cluster_id(self, place: Place, cluster_id: str) -> None:
        with pytest.raises(SpecError):
            Fence(place.session(), cluster_id, RUN)


@pytest.mark.cluster
class TestTransactions:
    """What only a real ZooKeeper can refuse."""

    def test_an_outdated_holder_changes_nothing(self, own_chroot: ZooKeeperSettings) -> None:
        with ZooKeeper(own_chroot) as first, ZooKeeper(own_chroot) as second:
            place = Place("cluster-1", lambda: first)
            outdated, newest = place.fence(RUN), place.fence(RUN, second)
            outdated.take()
            newest.take()
            epoch = first.read("/controller_epoch")
            assert epoch is not None
            with pytest.raises(Fenced):
                first.commit([Set("/controller_epoch", b"99", epoch[1])], holding=outdated)
            assert first.read("/controller_epoch") == epoch
            second.commit([Set("/controller_epoch", b"99", epoch[1])], holding=newest)
            assert first.read("/controller_epoch") == (b"99", epoch[1] + 1)

    def test_all_of_a_transaction_or_nothing(self, own_chroot: ZooKeeperSettings) -> None:
        with ZooKeeper(own_chroot) as client, Fence(client, "cluster-1", RUN) as fence:
            epoch, controller = client.read("/controller_epoch"), client.read("/controller")
            assert epoch is not None
            assert controller is not None
            with pytest.raises(Exception, match="nothing was changed"):
                client.commit([Set("/controller_epoch", b"9", epoch[1]), Delete("/controller", controller[1] + 1)], holding=fence)
            assert (client.read("/controller_epoch"), client.read("/controller")) == (epoch, controller)

    def test_kafkas_znodes_need_the_fence(self, own_chroot: ZooKeeperSettings) -> None:
        with ZooKeeper(own_chroot) as client, pytest.raises(Forbidden):
            client.commit([Delete("/controller", 0)])


@pytest.mark.parametrize(
    "owner", ["x\n[H05] stop", "\x1b[2J", "\u202exe", "x" * 900_000], ids=["a line", "a cursor", "a direction", "a mebibyte"]
)
def test_what_anybody_wrote_as_the_owner_is_shown_in_one_short_harmless_line(owner: str) -> None:
    """In an open tree; it is in the error of each task, and in what breaking the lock says."""
    ensemble = Ensemble("cluster-1")
    fence = Fence(MemoryZooKeeper(ensemble), "cluster-1", RUN)
    fence.take()
    ensemble.put("/_kmigrate/cluster-1/owner", json.dumps({"owner": owner, "since": owner, "host": owner}).encode())
    with pytest.raises(Fenced) as refused:
        fence.take()
    assert len(str(refused.value)) < 4_000
    assert str(fence.break_lock()).isprintable()
