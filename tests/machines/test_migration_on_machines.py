"""A migration, its rollback and a second migration of a real cluster on machines of their own, by the DAGs over ssh, under load.

The tests are one journey, in this order. What happens on the way are rows that were seen on real machines.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import pytest

from airflow_provider_kmigrate.clients.hosts import host_for
from airflow_provider_kmigrate.clients.hosts.agent import Agents
from airflow_provider_kmigrate.core.cluster_state.spec import NodeRole
from airflow_provider_kmigrate.core.migration.phase import Phase
from airflow_provider_kmigrate.exceptions import Fenced
from airflow_provider_kmigrate.spec import load
from tests.kit.fleet import AHEAD_S
from tests.kit.localcluster import clocks
from tests.kit.machines import Machine
from tests.machines.airflow_machine import missing
from tests.machines.journey import Downs, FleetTrial, restarted, runs, under_way, waits_at
from tests.system.airflow_faults import Kill, Seen
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.machines,
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.flaky(reruns=0),  # a part cannot be repeated without those before it
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]

HANG_S = 60.0
AHEAD = "" if clocks.why_not() else "broker 1"  # the node on whose machine the clock is wrong
STOP_TIMEOUT_S = 12  # above `gates.slow_stop_limit`, so that a stop that ends by it is also judged by G12
FULL = (
    "cp -a /etc/kafka /tmp/kept; mount -t tmpfs -o size=2m,mode=750 tmpfs /etc/kafka; chown root:kafka /etc/kafka; "
    "cp -a /tmp/kept/. /etc/kafka; dd if=/dev/zero of=/etc/kafka/core bs=1k 2>/dev/null || true"
)


@dataclass
class Story:
    """What the tests of the journey share. `done`: those that passed; `tokens`: those of the first migration, by node."""

    trial: FleetTrial
    downs: Downs
    originals: Mapping[str, str]
    tokens: Mapping[str, int] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    began: float = 0.0

    @contextlib.contextmanager
    def part(self, name: str, after: str = "") -> Iterator[FleetTrial]:
        """A part of the journey; raises AssertionError if the one before it did not come to its end."""
        assert self.done[-1:] == ([after] if after else []), (
            f"an earlier part of the journey failed; parts that passed: {self.done}"
        )
        self.began = time.time()
        yield self.trial
        self.done.append(name)

    def goes(self, kind: str, conf: dict[str, str], kills: list[Kill], until: str = "") -> str:
        """The DAG run to its end, or until this task waits."""
        name = f"{kind}__{self.trial.fleet.plan.shape.name}"
        seen = self.trial.run(name, conf, kills, partial(waits_at, until))
        assert [(kill.fault, kill.wrong) for kill in kills if kill.wrong] == []
        return seen

    def went_down(self) -> list[int]:
        """The brokers that refused connections since this part began."""
        return [broker for broker, began, _ in self.downs.seen if began >= self.began]

    def down(self, at: float) -> float:
        """For how many seconds the broker was down that was restarted at this moment."""
        last = [line for line in self.trial.journal if line["kind"] == "act" and line["at"] <= at][-1]
        return self.downs.of(int(last["step"].split()[1]), last["at"])


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with under_way(tmp_path_factory.mktemp("fleet"), ahead=AHEAD) as trial:
        plan = trial.fleet.plan
        trial.fleet.through_connection()
        downs = Downs(plan.brokers)
        originals = {node.name: trial.properties(node).read_text() for node in plan.brokers}
        with downs.watched():
            yield Story(trial, downs, originals)


def test_migrates_while_ssh_hangs_airflow_dies_and_a_machine_loses_its_power(story: Story) -> None:
    with story.part("migrated") as trial:
        kills = [
            Kill(
                "first roll",
                "sshd answers nothing for 60 s in a stop",
                restarted("to migration", 2),
                trial.stopped(partial(trial.hang_ssh, HANG_S)),
            ),
            Kill(
                "first roll",
                "task and scheduler SIGKILLed, broker down",
                restarted("to migration", 3),
                trial.stopped(trial.everything),
            ),
            Kill("second roll", "task SIGKILLed, broker down", restarted("to kraft", 2), trial.stopped(trial.worker)),
            Kill("second roll", "power cut, broker down", restarted("to kraft", 3), trial.stopped(trial.cut_power)),
        ]
        assert story.goes("kmigrate_zk_to_kraft", {}, kills, until="soak").startswith("parked")
        disturbed = {
            kill.fault: story.down(kill.at) for kill in kills[:-1]
        }  # the last one waits for a person to boot its machine
        assert max(disturbed.values()) < HANG_S / 2, disturbed  # by itself, whatever became of Airflow or the connection
        story.tokens = tokens_of(trial)
        if AHEAD:
            said = re.search(
                r"\[W8\] clocks differed from ZooKeeper's when brokers registered: broker 1 ([+-]\S+) s",
                trial.log_of("preflight"),
            )
            assert said
            assert abs(float(said[1]) - AHEAD_S) < 60, said[0]


def tokens_of(trial: FleetTrial) -> dict[str, int]:
    """The newest token that each node's machine keeps."""
    plan, found = trial.fleet.plan, dict[str, int]()
    for node in (*plan.brokers, *plan.controllers):
        kept = trial.fleet.machine(node).path(f"/var/lib/kmigrate/{node.role}/tokens.json").read_text()
        found[node.name] = json.loads(kept)[plan.cluster_id]
    return found


def test_a_machine_reboots_in_the_soak(story: Story) -> None:
    with story.part("rebooted", after="migrated") as trial:
        broker, controller = trial.fleet.node("broker 1"), trial.fleet.node("controller 3001")
        assert broker.host == controller.host
        trial.fleet.machine(broker).reboot()
        trial.fleet.wait_serving(time.monotonic() + 60)
        assert runs(trial.fleet.machine(broker), NodeRole.CONTROLLER)


def test_a_file_that_is_set_back_in_the_soak_is_seen_by_soak_and_watch(story: Story) -> None:
    with story.part("approval", after="rebooted") as trial:
        broker = trial.fleet.node("broker 2")
        right = trial.properties(broker).read_text()
        trial.properties(broker).write_text(story.originals[broker.name])
        seen = "O06"
        wait_until(lambda: seen in trial.log_of("soak"), "the soak names the file", 60)
        assert "Broker 2 runs in kraft mode" in trial.watch_says(seen)
        trial.properties(broker).write_text(right)
        trial.follow(story.trial.rehearsal.dag_id, [], partial(waits_at, "approve"))
        assert story.went_down() == []


def test_a_rollback_refuses_a_full_disk_before_it_stops_anything_and_then_goes_to_its_end(story: Story) -> None:
    with story.part("rolled back", after="approval") as trial:
        trial.park(trial.rehearsal.dag_id)
        trial.fleet.through(connect=trial.fleet.ssh_command())
        full = trial.fleet.machine(trial.fleet.node("broker 0"))
        full.run("sh", "-ec", FULL)

        def freed() -> str:
            down = story.went_down()
            full.run("rm", "/etc/kafka/core")
            return f"stopped: {down}" if 0 in down else ""

        kills = [Kill("rollback", "/etc/kafka of broker 0 full", _failed, freed)]
        plan = trial.fleet.plan
        assert story.goes("kmigrate_rollback", {"approve_rollback": plan.cluster_id}, kills).startswith("success")
        said = [line["text"] for line in trial.journal if "No space left" in line["text"]]
        assert said, "the journal names the cause"
        assert trial.phase() is Phase.ZOOKEEPER
        assert {node.name: trial.properties(node).read_text() for node in plan.brokers} == story.originals
        assert not any(runs(trial.fleet.machine(node), NodeRole.CONTROLLER) for node in plan.controllers)


def _failed(seen: Seen) -> bool:
    return bool({"failed", "up_for_retry"} & set(seen.tasks.values()))


def test_a_worker_of_an_earlier_run_is_refused_by_every_machine(story: Story) -> None:
    with story.part("fenced", after="rolled back") as trial, contextlib.closing(Agents()) as agents:
        newest = tokens_of(trial)
        assert all(story.tokens[name] < token for name, token in newest.items()), (story.tokens, newest)
        for node in load(trial.fleet.spec_path).nodes():
            host = host_for(node, None, agents, trial.fleet.plan.cluster_id)
            refused = f"token {story.tokens[node.name]} is older than"
            before = host.observe(node).process().pid, host.files(node)
            acts: list[Callable[..., object]] = [host.stop, host.start, partial(host.put_properties, text="a=b")]
            for act in acts:
                with pytest.raises(Fenced, match=refused):
                    act(node, token=story.tokens[node.name])
            assert (host.observe(node).process().pid, host.files(node)) == before
        assert story.went_down() == []


def test_migrates_again_while_a_controllers_machine_reboots_and_systemd_kills_a_broker(story: Story) -> None:
    with story.part("finalized", after="fenced") as trial:
        alone = trial.fleet.node("controller 3002")
        trial.fleet.rewrite(policy={"min_soak": "5s", "canary_bake": "0s"})  # the first migration has soaked
        for node in trial.fleet.plan.brokers:
            trial.fleet.machine(node).sets_stop_timeout(f"{STOP_TIMEOUT_S}")

        def reboot() -> str:
            trial.fleet.machine(alone).reboot()
            return ""

        kills = [
            Kill("first roll", "a controller's machine reboots", restarted("to migration", 1), reboot),
            Kill(
                "first roll",
                "systemd kills a broker that hangs in its stop",
                restarted("to migration", 2),
                trial.hang_in_its_stop,
            ),
        ]
        conf = {"approve_finalization": trial.fleet.plan.cluster_id}
        assert story.goes("kmigrate_zk_to_kraft", conf, kills).startswith("success")
        assert trial.phase() is Phase.FINALIZED
        assert trial.hung is not None
        said = trial.log_of(f"first_roll.broker_{trial.hung.id}")
        assert f"{trial.hung.name} did not stop by itself: it was killed after {STOP_TIMEOUT_S} s" in said
        assert "systemd's result: timeout" in said
        assert "[W7]" in trial.log_of("preflight"), "preflight warns of it before"


def test_lost_nothing(story: Story) -> None:
    with story.part("audited", after="finalized") as trial:
        assert trial.rehearsal.account().failures == ()


def test_a_finalized_cluster_comes_back_by_itself_after_a_power_cut_of_everything(story: Story) -> None:
    with story.part("booted", after="audited") as trial:
        fleet = trial.fleet
        nodes = sorted({node.host for node in (*fleet.plan.brokers, *fleet.plan.controllers)})
        with ThreadPoolExecutor(len(fleet.machines)) as pool:
            list(pool.map(Machine.cut_power, fleet.machines.values()))  # ZooKeeper's, too, which stay off
            list(pool.map(Machine.boot, [fleet.machines[host] for host in nodes]))
        fleet.wait_brokers(time.monotonic() + 120)
        every = (*fleet.plan.brokers, *fleet.plan.controllers)
        wait_until(lambda: all(runs(fleet.machine(node), node.role) for node in every), "every unit runs", 60)
        assert [node.name for node in every if not runs(fleet.machine(node), node.role)] == []
