"""Preflight says everything at once and changes nothing; the backup keeps originals, and only originals."""

import json
from dataclasses import replace

import pytest

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, Cause, ConnectionFacts, Fields, Reason
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.monitoring import journal_lines
from airflow_provider_kmigrate.exceptions import Refused, Unavailable
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.catalog import run_rollback
from airflow_provider_kmigrate.steps.journal import FileJournal, read_journal_lines
from airflow_provider_kmigrate.steps.prepare import run_backup, run_preflight
from airflow_provider_kmigrate.steps.run import run_step
from tests.steps.phases import controllers, some_kraft
from tests.steps.sim import SimCluster


def begin(cluster, context):
    controllers(cluster, context)
    run_step(RollBroker(cluster.spec.brokers[0], BrokerMode.MIGRATION, cluster.spec.policy), context)


def test_the_backup_holds_what_a_rollback_needs(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    run_backup(context)
    assert context.backup.version() == "3.9-IV0"
    assert context.backup.read_original(cluster.spec.brokers[2]) == cluster.nodes[NodeRole.BROKER, 2].text
    assert "zookeeper.jsonl" in context.backup.verify()


def test_before_anything_moved_a_changed_file_is_the_new_original(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    node = cluster.nodes[NodeRole.BROKER, 1]
    node.text += "log.retention.hours=1\n"
    run_backup(context)
    assert context.backup.read_original(node.spec) == node.text


def test_after_the_first_broker_moved_a_changed_file_is_refused(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    begin(cluster, context)
    cluster.nodes[NodeRole.BROKER, 1].text += "log.retention.hours=1\n"
    with pytest.raises(Refused) as refused:
        run_backup(context)
    assert refused.value.reasons[0].code == "O03"


def test_a_rendered_file_never_becomes_an_original(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    before = cluster.nodes[NodeRole.BROKER, 0].text
    begin(cluster, context)
    run_backup(context)
    assert cluster.nodes[NodeRole.BROKER, 0].text != before
    assert context.backup.read_original(cluster.spec.brokers[0]) == before


def test_the_saved_zookeeper_tree_stays_as_it_is_once_a_broker_has_moved(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    tree = context.backup.folder / "zookeeper.jsonl"
    run_backup(context)
    run_backup(context)
    before = tree.read_text()
    begin(cluster, context)
    cluster.kafka_tree.append(("/brokers/topics/new", b""))
    assert run_backup(context).text.startswith("2 znodes")
    assert tree.read_text() == before


def test_brokers_of_different_versions_are_refused(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    node = cluster.nodes[NodeRole.BROKER, 1]
    node.running = node.text.replace("protocol.version=3.9", "protocol.version=3.8")
    with pytest.raises(Refused) as refused:
        run_backup(context)
    assert refused.value.reasons[0].code == "B1a"


def test_a_broker_that_does_not_answer_for_a_moment_is_asked_again(tmp_path):
    cluster = SimCluster()
    context = cluster.context(tmp_path)
    node = cluster.spec.brokers[1]
    cluster.stop(node)
    with pytest.raises(Unavailable, match=r"inter\.broker\.protocol\.version of broker 1 was not read"):
        run_backup(context)
    context.clock.sleep = lambda _seconds: cluster.start(node)
    assert run_backup(context).text


class Late(SimCluster):
    """Broker 1 does not say in its first looks with which count it computes coordinators, as a JVM that has just started (measured)."""

    looks, late, certain = 0, 0, False

    def observe(self, what, nodes=(), groups=()):
        asked = bool(what & Fields.COORDINATORS)
        self.looks += asked
        is_late = asked and self.looks <= self.late
        self.unread_coordinators = {1} if is_late else set()
        view = super().observe(what, nodes, groups)
        late = Reason("U05", "Broker 1 is late", cause=Cause.UNREAD_COORDINATORS, certain=self.certain)
        return replace(view, unknowns=(*view.unknowns, late)) if is_late else view


def late_cluster(looks, **changes):
    cluster = Late(offsets_partitions=10)
    cluster.late = looks
    for name, value in changes.items():
        setattr(cluster, name, value)
    return cluster


def test_preflight_and_backup_look_again_at_a_broker_that_is_late(tmp_path):
    said: list[str] = []
    cluster = late_cluster(2)
    context = replace(cluster.context(tmp_path), say=said.append)
    run_preflight(context)
    assert cluster.looks == 3
    assert said.count("Not read yet, so kmigrate looks again: Broker 1 is late") == 2
    cluster.looks = 0
    run_backup(context)
    assert cluster.looks == 3


@pytest.mark.parametrize(("certain", "looks"), [(False, 10), (True, 1)], ids=["it may answer later", "no later look reads it"])
@pytest.mark.parametrize(("task", "error"), [(run_preflight, Refused), (run_backup, Unavailable)])
def test_what_stays_unread_blocks(tmp_path, task, error, certain, looks):
    cluster = late_cluster(1000, certain=certain)
    with pytest.raises(error, match="K02"):
        task(cluster.context(tmp_path))
    assert cluster.looks == looks


class WithoutControllers(SimCluster):
    """No controller answers, as before every migration."""

    looks = 0

    def observe(self, what, nodes=(), groups=()):
        self.looks += bool(what & Fields.PARTITIONS)
        view = super().observe(what, nodes, groups)
        silent = (
            Reason("G23", f"{node.name} did not answer", cause=Cause.UNREAD_CONTROLLER, node=node.name)
            for node in self.spec.controllers
        )
        return replace(view, unknowns=(*view.unknowns, *silent))


def test_a_blocked_preflight_waits_for_no_controller(tmp_path):
    """It looked ten times, for a minute, at controllers that nobody had started yet (seen with a real cluster of Kafka 3.6.2)."""
    said: list[str] = []
    cluster = WithoutControllers(connections=ConnectionFacts(unverified=frozenset({"kafka"})))
    with pytest.raises(Refused, match="B9f"):
        run_preflight(replace(cluster.context(tmp_path), say=said.append))
    assert cluster.looks == 1
    assert not [text for text in said if "looks again" in text]


def test_preflight_ends_within_a_minute_where_each_look_is_long(tmp_path):
    cluster = late_cluster(1000)
    context = cluster.context(tmp_path)
    looked = cluster.observe
    cluster.observe = lambda *asked: (context.clock.sleep(25.0), looked(*asked))[1]
    with pytest.raises(Refused, match="K02"):
        run_preflight(context)
    assert cluster.looks == 3


def test_preflight_judges_its_own_connections(tmp_path):
    cluster = SimCluster(connections=ConnectionFacts(unverified=frozenset({"kafka"})))
    with pytest.raises(Refused) as refused:
        run_preflight(cluster.context(tmp_path))
    assert [reason.code for reason in refused.value.reasons] == ["B9f"]


def test_preflight_reports_all_that_blocks_and_touches_nothing(tmp_path):
    cluster = SimCluster(offset=97)
    cluster.nodes[NodeRole.CONTROLLER, 3000].log = True
    cluster.stop(cluster.spec.brokers[2])
    before = {key: (node.starts, node.stops, node.text) for key, node in cluster.nodes.items()}
    with pytest.raises(Refused) as refused:
        run_preflight(cluster.context(tmp_path))
    codes = {reason.code for reason in refused.value.reasons}
    assert {"R01", "S02", "P06"} <= codes
    assert before == {key: (node.starts, node.stops, node.text) for key, node in cluster.nodes.items()}


@pytest.mark.parametrize(("later", "named"), [(1.0, False), (300.0, True)], ids=["our own failover", "another tool"])
def test_what_a_rollbacks_own_failover_wrote_is_no_other_tools_act(tmp_path, later, named):
    """M13: a user's quota was changed; then the rollback's new controller wrote all settings again, and preflight blamed a tool."""
    cluster = SimCluster()
    some_kraft(cluster, cluster.context(tmp_path))
    journals = tmp_path / "journals"
    journal = FileJournal(journals / "back.jsonl", "rollback/1", cluster.clock.now)
    run_rollback(replace(cluster.context(tmp_path), journal=journal, journals=journals), {})
    lines = map(json.loads, (journals / "back.jsonl").read_text().splitlines())
    [began] = [line["at"] for line in lines if line["kind"] == "act" and line["step"] == "controller failover"]
    observe = cluster.environment
    cluster.clock.time = began + 400.0

    def changed(view):
        seen = observe(view)
        rows = (("settings of users/alice", began + later),)
        return replace(seen, now=cluster.clock.time, tree=replace(seen.tree, changed=rows))

    cluster.environment = changed
    found = run_preflight(replace(cluster.context(tmp_path), journals=journals))
    said = [finding.reason.text for finding in found if finding.reason.code == "W9"]
    assert bool(said) is named
    assert all("settings of users/alice" in text for text in said)


def test_a_line_of_the_journal_that_was_cut_short_costs_no_other_line(tmp_path):
    """The disk was full, or the machine crashed: the next line says what the next process did."""
    journal = FileJournal(path := tmp_path / "run.jsonl", "prod/1", lambda: 1.5)
    journal.write("began", "run", "group é\u2028x")
    path.write_bytes(path.read_bytes() + b'{"at": 2, "ru')
    journal.write("act", "broker 0", "restart: \x85")
    journal.write("acted", "broker 0", "restart")
    found = journal_lines.parse_lines(read_journal_lines(tmp_path))
    assert ([line.kind for line in found.lines], found.unreadable) == (["began", "act", "acted"], 1)
