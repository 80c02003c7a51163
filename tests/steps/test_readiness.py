"""Before each restart towards KRaft a roll asks whether a rollback is assured; the watch says so in every phase, of every node too."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_kmigrate.core.cluster_state.decision import Done
from airflow_provider_kmigrate.core.cluster_state.model import (
    Broker,
    BrokerMode,
    ClusterView,
    Fields,
    Malformed,
    ProcessState,
    Reason,
    Stored,
    StoredKind,
    TopicMetadata,
    ZooKeeperServer,
)
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole, NodeSpec
from airflow_provider_kmigrate.core.migration.controllers import ApprovedState
from airflow_provider_kmigrate.core.migration.readiness import EVERY_PART, ReadinessLevel, RollbackPart
from airflow_provider_kmigrate.exceptions import KMigrateError, Refused, TimedOut, Unavailable
from airflow_provider_kmigrate.steps.brokers import RollBackBroker
from airflow_provider_kmigrate.steps.controllers import FinalizeController
from airflow_provider_kmigrate.steps.nodes import note_unflagged
from airflow_provider_kmigrate.steps.run import StepContext, run_step
from airflow_provider_kmigrate.steps.waits import assess_readiness, require_rollback_assured, run_watch
from tests.clients.fake_exporter import Exporter, answer, serving
from tests.core.readiness_parts import taken_out
from tests.core.views import HALF, computing
from tests.steps.broker_stops import next_broker, stops
from tests.steps.changing import Changing
from tests.steps.phases import all_kraft, controllers, finalization_begun, finalizing, some_in_migration, some_kraft, untouched
from tests.steps.sim_hands import SimJournal
from tests.steps.sim_nodes import Killed, Mortal, original_of

Change = Callable[[Changing, StepContext], None]
SERVING = ZooKeeperServer("z1:2181", "3.8.4", "leader")


def zookeeper_is_behind(cluster: Changing, _: StepContext) -> None:
    def far(view: ClusterView) -> ClusterView:
        if view.quorum is None:
            return view
        end = view.quorum.high_watermark + 999_949
        return replace(view, quorum=replace(view.quorum, high_watermark=end, voters=dict.fromkeys(view.quorum.voters, end)))

    cluster.since = far


def a_topic_is_missing(cluster: Changing, _: StepContext) -> None:
    missing = ({}, {"orders": TopicMetadata("orders", "id", {})})
    cluster.since = lambda view: view if view.topics is None else replace(view, topics=missing)


def a_quota_differs(cluster: Changing, _: StepContext) -> None:
    one = {StoredKind.QUOTAS: Stored({"user alice": {"producer_byte_rate": "1"}})}
    cluster.since = lambda view: view if view.stored is None else replace(view, stored={**view.stored, **one})


def a_subscription(cluster: Changing, _: StepContext) -> None:
    cluster.since = lambda view: view if view.client_metrics is None else replace(view, client_metrics=("lag",))


def an_autoscaler(cluster: Changing, _: StepContext) -> None:
    stranger = Broker(7, listed_by=frozenset({0, 1, 2}), in_zookeeper=False, named=False)
    cluster.since = lambda view: replace(view, brokers={**view.brokers, 7: stranger})


def a_file_is_set_back(cluster: Changing, _: StepContext) -> None:
    cluster.nodes[NodeRole.BROKER, 0].text = original_of(0)


def an_original_is_gone(_: Changing, context: StepContext) -> None:
    context.backup.original_path(context.spec.brokers[1]).unlink()


def the_backup_is_full(_: Changing, context: StepContext) -> None:
    def full() -> None:
        raise Refused.because(Reason("O05", "No space left on device."))

    context.backup.prove_writable = full  # type: ignore[method-assign]


def a_zookeeper_is_down(cluster: Changing, _: StepContext) -> None:
    cluster.ensemble = (SERVING, replace(SERVING, mode="follower"), ZooKeeperServer("z3:2181"))


def a_disk_is_full(cluster: Changing, _: StepContext) -> None:
    cluster.nodes[NodeRole.BROKER, 1].free = 4096


def a_host_does_not_answer(cluster: Changing, _: StepContext) -> None:
    cluster.nodes[NodeRole.BROKER, 0].cluster_id = None


def a_znode_is_malformed(cluster: Changing, _: StepContext) -> None:
    broken = Malformed("/migration", "x")
    cluster.since = lambda view: view if view.zk is None else replace(view, zk=replace(view.zk, migration=broken))


def of_broker_0(cluster: Changing, changed: Callable[[Broker], Broker]) -> None:
    cluster.since = lambda view: replace(view, brokers={**view.brokers, 0: changed(view.brokers[0])})


def a_broker_is_plain_again(cluster: Changing, context: StepContext) -> None:
    a_file_is_set_back(cluster, context)
    of_broker_0(cluster, lambda broker: replace(broker, mode=BrokerMode.ZOOKEEPER, in_zookeeper=True))


def a_controller_is_down(cluster: Changing, _: StepContext) -> None:
    cluster.stop(next(node for node in cluster.spec.controllers if node.id != cluster.leader))


def the_epochs_are_unreadable(cluster: Changing, _: StepContext) -> None:
    cluster.since = lambda view: replace(view, state_epoch=None)


def brokers_use_two_counts(cluster: Changing, _: StepContext) -> None:
    cluster.since = lambda view: view if view.coordinators is None else computing(view, HALF)


def a_directory_is_of_a_later_release(cluster: Changing, _: StepContext) -> None:
    def later(broker: Broker) -> Broker:
        newer = {"/data": {"version": "2"}}
        return replace(broker, files=replace(broker.files, meta=newer)) if broker.files.meta else broker

    of_broker_0(cluster, later)


P = RollbackPart
CHANGES: list[tuple[Change, str, RollbackPart]] = [
    (a_znode_is_malformed, "P04", P.OPEN),
    (a_broker_is_plain_again, "P07", P.ALARMS),
    (an_autoscaler, "G39", P.BROKERS),
    (a_controller_is_down, "G23", P.CONTROLLERS),
    (zookeeper_is_behind, "G07", P.DUAL_WRITE),
    (a_topic_is_missing, "E02", P.EQUALITY),
    (a_quota_differs, "E08", P.EQUALITY),
    (the_epochs_are_unreadable, "G00", P.EPOCHS),
    (a_subscription, "G09", P.CLIENT_METRICS),
    (brokers_use_two_counts, "K01", P.COORDINATORS),
    (a_zookeeper_is_down, "Z05", P.ENSEMBLE),
    (a_file_is_set_back, "O06", P.FILES),
    (a_directory_is_of_a_later_release, "O08", P.DIRECTORIES),
    (a_host_does_not_answer, "G00", P.DIRECTORIES),
    (the_backup_is_full, "O05", P.SPACE),
    (a_disk_is_full, "O09", P.SPACE),
    (an_original_is_gone, "O01", P.ORIGINALS),
]
each_change = pytest.mark.parametrize(("change", "code", "part"), CHANGES, ids=[change.__name__ for change, _, _ in CHANGES])


def hybrid(folder: Path) -> tuple[Changing, StepContext]:
    cluster = Changing()
    some_kraft(cluster, cluster.context(folder))
    return cluster, cluster.context(folder)


@each_change
def test_the_next_broker_stays_where_it_is(tmp_path: Path, change: Change, code: str, part: RollbackPart) -> None:
    cluster, context = hybrid(tmp_path)
    change(cluster, context)
    before = stops(cluster)
    with pytest.raises((Refused, TimedOut), match=code):
        run_step(next_broker(cluster, BrokerMode.KRAFT), context)
    assert stops(cluster) == before
    assert cluster.disasters == []


def test_every_part_of_readiness_has_a_change() -> None:
    assert {part for _, _, part in CHANGES} == EVERY_PART


@pytest.mark.parametrize(("change", "code", "part"), CHANGES[:-1])
def test_without_the_gate_of_that_part_it_would_restart(
    tmp_path: Path, change: Change, code: str, part: RollbackPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the last part, which also asks for the reading of the others: `tests/core/test_readiness.py` takes it out."""
    cluster, context = hybrid(tmp_path)
    change(cluster, context)
    taken_out(monkeypatch, part)
    before, step = stops(cluster), next_broker(cluster, BrokerMode.KRAFT)
    if part in {P.OPEN, P.ALARMS, P.BROKERS, P.CONTROLLERS}:  # also by the phase, by "who may stop", by the flags of a roll
        with pytest.raises((Refused, TimedOut), match=code):
            run_step(step, context)
        return
    with contextlib.suppress(TimedOut):  # it may not be back at once, in a cluster like that
        run_step(step, context)
    assert stops(cluster) != before


@each_change
def test_no_approval_is_asked_for_on_it(tmp_path: Path, change: Change, code: str, part: RollbackPart) -> None:
    cluster = Changing()
    all_kraft(cluster, cluster.context(tmp_path))
    context = cluster.context(tmp_path)
    assert require_rollback_assured(context).level is ReadinessLevel.READY
    change(cluster, context)
    with pytest.raises((Refused, Unavailable), match=code):
        require_rollback_assured(context)


@each_change
def test_the_watch_says_it_in_hybrid_mode(tmp_path: Path, change: Change, code: str, part: RollbackPart) -> None:
    cluster, context = hybrid(tmp_path)
    assert "A rollback is possible now" in run_watch(context).text
    change(cluster, context)
    at_once = part in {P.OPEN, P.ALARMS, P.COORDINATORS, P.ORIGINALS, P.CLIENT_METRICS, P.FILES, P.DIRECTORIES} and code != "G00"
    with pytest.raises(Refused if at_once else Unavailable, match=code):
        run_watch(context)


@each_change
def test_no_controller_loses_its_flag_after_the_approval(tmp_path: Path, change: Change, code: str, part: RollbackPart) -> None:
    cluster, context, approved = approval(tmp_path)
    change(cluster, context)
    before = {node.spec.id: node.text for node in cluster.nodes.values()}
    with pytest.raises((Refused, TimedOut), match=code):
        run_step(finalizing(cluster.spec.controllers[1], approved), context)
    assert {node.spec.id: node.text for node in cluster.nodes.values()} == before


def test_an_original_that_was_replaced_with_its_hash_is_not_what_was_approved(tmp_path: Path) -> None:
    cluster, context, approved = approval(tmp_path)
    node = cluster.spec.brokers[1]
    text = original_of(1) + "num.io.threads=16\n"
    context.backup.replace_original(node, text)
    assert require_rollback_assured(context).level is ReadinessLevel.READY, "no part of readiness shows it"
    with pytest.raises(Refused, match=r"H06.*original 1 \("):
        run_step(FinalizeController(cluster.spec.controllers[1], approved), context)
    again = ApprovedState(rests_on=assess_readiness(context).readiness.evidence)
    assert isinstance(run_step(FinalizeController(cluster.spec.controllers[1], again), context), Done)


def approval(folder: Path) -> tuple[Changing, StepContext, ApprovedState]:
    """A cluster in dual-write, and what an approver was shown of its readiness."""
    cluster = Changing()
    all_kraft(cluster, cluster.context(folder))
    context = cluster.context(folder)
    return cluster, context, ApprovedState(rests_on=require_rollback_assured(context).evidence)


def test_the_roll_goes_on_once_the_rollback_is_assured_again(tmp_path: Path) -> None:
    cluster, context = hybrid(tmp_path)
    a_zookeeper_is_down(cluster, context)
    begun, observe = cluster.clock.time, cluster.observe

    def repaired(what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        if cluster.clock.time > begun + 40:
            cluster.ensemble = (SERVING,)
        return observe(what, nodes, groups)

    cluster.observe = repaired  # type: ignore[method-assign]
    assert isinstance(run_step(next_broker(cluster, BrokerMode.KRAFT), context), Done)
    assert cluster.clock.time > begun + 40


def test_what_costs_megabytes_is_read_at_a_bounded_rate(tmp_path: Path) -> None:
    cluster, context = hybrid(tmp_path)
    a_zookeeper_is_down(cluster, context)
    asked: list[Fields] = []
    observe, begun = cluster.observe, cluster.clock.time

    def counted(what: Fields, nodes: Sequence[NodeSpec] = (), groups: Sequence[str] = ()) -> ClusterView:
        asked.append(what)
        return observe(what, nodes, groups)

    cluster.observe = counted  # type: ignore[method-assign]
    with pytest.raises(TimedOut, match="Z05"):
        run_step(next_broker(cluster, BrokerMode.KRAFT), context)
    took, whole = cluster.clock.time - begun, sum(bool(what & Fields.TOPICS) for what in asked)
    assert 2 < whole <= took / 15 + 1
    assert len(asked) > 10 * whole, "the rest is watched as often as before"


def test_a_healthy_restart_reads_them_once(tmp_path: Path) -> None:
    cluster, context = hybrid(tmp_path)
    asked: list[Fields] = []
    observe = cluster.observe
    cluster.observe = lambda what, *given: (asked.append(what), observe(what, *given))[1]  # type: ignore[method-assign]
    run_step(next_broker(cluster, BrokerMode.KRAFT), context)
    assert sum(bool(what & Fields.TOPICS) for what in asked) == 1


def test_no_other_machine_is_asked_by_a_rollback(tmp_path: Path) -> None:
    cluster = Changing(offsets_partitions=10)
    some_kraft(cluster, cluster.context(tmp_path))
    asked: list[tuple[Fields, Sequence[NodeSpec]]] = []
    observe = cluster.observe
    cluster.observe = lambda what, nodes=(), *given: (asked.append((what, nodes)), observe(what, nodes, *given))[1]  # type: ignore[method-assign]
    node = cluster.spec.brokers[0]
    step = RollBackBroker(node, BrokerMode.MIGRATION, cluster.spec.policy)
    assert isinstance(run_step(step, cluster.context(tmp_path)), Done)
    assert {tuple(nodes) for what, nodes in asked if what & Fields.COORDINATORS} == {(node,)}


def test_a_roll_says_who_can_fix_what(tmp_path: Path) -> None:
    cluster, context = hybrid(tmp_path)
    a_subscription(cluster, context)
    with pytest.raises(Refused, match="client-metrics subscriptions: the owner of the subscriptions"):
        run_step(next_broker(cluster, BrokerMode.KRAFT), context)


def test_a_waiting_log_has_each_next_step_on_a_line_of_its_own(tmp_path: Path) -> None:
    """M14: long lines ran off the page, with the next step at their end."""
    cluster, context = hybrid(tmp_path)
    a_zookeeper_is_down(cluster, context)
    said: list[str] = []
    with pytest.raises(TimedOut, match="Z05"):
        run_step(next_broker(cluster, BrokerMode.KRAFT), replace(context, say=said.append))
    waiting = next(text for text in said if "[Z05]" in text)
    lines = waiting.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("[Z05]"))
    assert lines[at + 1].startswith("    Next: ")
    assert "Next: " not in lines[at]


class TestWatch:
    @pytest.mark.parametrize("phase", [untouched, controllers, some_in_migration, some_kraft, all_kraft])
    def test_every_phase_has_an_answer(self, tmp_path: Path, phase: Callable[[Changing, StepContext], None]) -> None:
        cluster = Changing()
        context = cluster.context(tmp_path)
        phase(cluster, context)
        assert "A rollback is possible now." in run_watch(context).text

    @pytest.mark.parametrize("phase", [untouched, controllers, some_kraft, all_kraft])
    def test_a_broker_that_is_down_is_named_with_all_that_is_known(
        self, tmp_path: Path, phase: Callable[[Changing, StepContext], None]
    ) -> None:
        """M4: in the first phases two watches of a broker that was down succeeded."""
        cluster = Changing()
        context = cluster.context(tmp_path)
        phase(cluster, context)
        cluster.stop(cluster.spec.brokers[0])
        with pytest.raises(Unavailable) as red:
            run_watch(context)
        stage = "kraft" if phase in {some_kraft, all_kraft} else "zookeeper"
        assert "[R01] Broker 0 does not answer. Its unit is stopped." in str(red.value)
        assert f"Its file is of stage '{stage}'." in str(red.value)
        assert "no broker lists it. No run of kmigrate has acted on it." in str(red.value)

    @pytest.mark.parametrize("phase", [controllers, some_kraft, all_kraft])
    def test_a_controller_that_is_down_is_named_with_the_state_of_its_unit(
        self, tmp_path: Path, phase: Callable[[Changing, StepContext], None]
    ) -> None:
        cluster = Changing()
        context = cluster.context(tmp_path)
        phase(cluster, context)
        cluster.stop(cluster.spec.controllers[1])
        with pytest.raises(Unavailable, match=r"\[G23\] Controller 3001 does not answer. Its unit is stopped"):
            run_watch(context)

    def test_a_broker_out_of_its_isrs_is_named(self, tmp_path: Path) -> None:
        cluster, context = hybrid(tmp_path)
        cluster.stuck, cluster.kept_out = 0, {2}
        with pytest.raises(Unavailable, match=r"\[R05\] Broker 2 is out of the ISR of 2 partitions.*Its unit is running"):
            run_watch(context)

    def test_the_last_act_on_a_broker_is_named_and_a_restart_by_kmigrate_is_no_alarm(self, tmp_path: Path) -> None:
        cluster, context = hybrid(tmp_path)
        cluster.stop(cluster.spec.brokers[2])
        journals = tmp_path / "journals"
        journals.mkdir()

        def act(at: float) -> None:
            line = {"at": at, "run": "zk_to_kraft/7", "kind": "act", "step": "broker 2 to kraft", "text": "restart: all is well"}
            (journals / "run.jsonl").write_text(json.dumps(line) + "\n")

        act(cluster.clock.time - 30)
        assert "A rollback" in run_watch(replace(context, journals=journals)).text
        act(cluster.clock.time - context.spec.policy.start_timeout - 1)
        with pytest.raises(
            Unavailable, match=r"The last act on it was 'restart' in step 'broker 2 to kraft' of run zk_to_kraft/7, at "
        ):
            run_watch(replace(context, journals=journals))

    def test_a_plain_broker_beside_kraft_is_named_as_such_though_it_does_not_answer(self, tmp_path: Path) -> None:
        """M8: a reboot with a file that was set back; the phase and the network were blamed."""
        cluster, context = hybrid(tmp_path)

        def plain(view: ClusterView) -> ClusterView:
            one = view.brokers[0]
            return replace(view, brokers={**view.brokers, 0: replace(one, mode=None, in_zookeeper=True, listed_by=frozenset())})

        a_file_is_set_back(cluster, context)
        cluster.since = plain
        with pytest.raises(Unavailable, match=r"\[P07\] Broker 0 was started in ZooKeeper mode, while KRaft owns the cluster"):
            run_watch(context)

    def test_a_dark_cluster_that_was_finalized_is_known_as_such(self, tmp_path: Path) -> None:
        """M6: it advised to start the controllers with the flag."""
        cluster = Changing()
        context = cluster.context(tmp_path)
        all_kraft(cluster, context)
        for node in sorted(cluster.spec.controllers, key=lambda node: node.id == cluster.leader):
            run_step(FinalizeController(node), context)
        for node in cluster.spec.nodes():
            cluster.nodes[node.role, node.id].running = None
        cluster.led = False
        cluster.since = lambda view: replace(view, zk=None)
        with pytest.raises(Unavailable) as red:
            run_watch(context)
        assert "[G40] Controller 3000 does not answer" in str(red.value)
        assert "Start it with the file that it has" in str(red.value)
        assert "G23" not in str(red.value)
        assert "the flag in its file" not in str(red.value)

    def test_since_when_a_rollback_is_not_assured_is_taken_from_the_journals(self, tmp_path: Path) -> None:
        cluster, context = hybrid(tmp_path)
        journals = tmp_path / "journals"
        journals.mkdir()
        journal = SimJournal()
        context = replace(context, journal=journal)
        a_zookeeper_is_down(cluster, context)
        begun = cluster.clock.time
        for watch in range(2):
            with pytest.raises(Unavailable, match="Z05"):
                run_watch(replace(context, journals=journals))
            if watch == 0:
                (text,) = [text for kind, text in journal.lines if kind == "readiness: degraded"]
                line = {"at": begun, "run": "watch/1", "kind": "readiness: degraded", "step": "watch", "text": text}
                (journals / "watch.jsonl").write_text(json.dumps(line) + "\n")
                cluster.clock.time += 600
        assert [kind for kind, _ in journal.lines if kind.startswith("readiness")] == ["readiness: degraded"], "once"
        found = assess_readiness(replace(context, journals=journals)).readiness
        assert found.since == pytest.approx(begun)

    def test_a_finalization_of_our_own_that_has_begun_is_shown_and_not_refused(self, tmp_path: Path) -> None:
        cluster = Changing()
        context = cluster.context(tmp_path)
        finalization_begun(cluster, context)
        with pytest.raises(Refused, match="G05"):
            require_rollback_assured(context)
        bare = [each.id for each in cluster.observe(Fields(0)).controllers.values() if each.migration_flag is False]
        for controller in bare:
            note_unflagged(context, controller)
        assert require_rollback_assured(context).level == "degraded"


def test_a_roll_killed_anywhere_and_begun_again_is_not_stopped_by_its_own_traces(tmp_path: Path) -> None:
    """A file that it wrote before it died is no file that was set back."""
    cluster, context = hybrid(tmp_path)
    count = cluster.mortal.count
    run_step(next_broker(cluster, BrokerMode.KRAFT), context)
    for at in range(1, cluster.mortal.count - count + 1):
        again, first = hybrid(tmp_path)
        again.mortal = Mortal(at)
        with pytest.raises(Killed):
            run_step(next_broker(again, BrokerMode.KRAFT), first)
        again.mortal = Mortal()
        assert isinstance(run_step(next_broker(again, BrokerMode.KRAFT), again.context(tmp_path)), Done)
        assert again.observe(Fields(0)).brokers[2].process.state is ProcessState.RUNNING


def test_an_error_of_the_ensemble_is_never_taken_for_health(tmp_path: Path) -> None:
    cluster, context = hybrid(tmp_path)
    cluster.ensemble = ()
    with pytest.raises(KMigrateError, match="Could not read the servers of the ZooKeeper ensemble"):
        run_step(next_broker(cluster, BrokerMode.KRAFT), context)


class TestSecondWitness:
    @pytest.fixture
    def exporter(self) -> Iterator[Exporter]:
        with serving() as server:
            yield server

    def test_gauges_that_contradict_are_an_alarm_of_the_watch_and_nothing_else(self, tmp_path: Path, exporter: Exporter) -> None:
        cluster = Changing()
        context = witnessed(cluster, tmp_path, exporter)
        some_kraft(cluster, context)
        assert run_watch(context).text.endswith("Kafka's own gauges agree on 3 of 3 controllers.")
        exporter.answers["/3001"] = answer(b"zkmigrationstate 2\n")
        with pytest.raises(Unavailable) as raised:
            run_watch(context)
        assert [(reason.code, reason.node) for reason in raised.value.reasons] == [("G41", "controller 3001")]
        assert require_rollback_assured(context).level is ReadinessLevel.READY
        run_step(next_broker(cluster, BrokerMode.KRAFT), context)

    def test_gauges_that_are_not_read_are_named_and_no_alarm(self, tmp_path: Path, exporter: Exporter) -> None:
        cluster = Changing()
        context = witnessed(cluster, tmp_path, exporter)
        some_kraft(cluster, context)
        exporter.answers |= {f"/{number}": answer(b"", 500) for number in (3000, 3001)}
        said = run_watch(context).text
        assert "agree on 1 of 3 controllers. Not read: controller 3000 (ValueError: it answered 500); controller 3001" in said

    def test_before_there_are_controllers_none_is_asked(self, tmp_path: Path, exporter: Exporter) -> None:
        cluster = Changing()
        exporter.answers = dict.fromkeys(("/3000", "/3001", "/3002"), answer(b"zkmigrationstate 0\n"))
        assert "gauges" not in run_watch(witnessed(cluster, tmp_path, exporter)).text


def witnessed(cluster: Changing, folder: Path, exporter: Exporter) -> StepContext:
    """A context whose cluster file names where the controllers' gauges are."""
    context = cluster.context(folder)
    return replace(context, spec=replace(context.spec, controller_metrics=exporter.address))
