"""The one trigger: it survives Airflow's database, observes, never acts, delays no other, and reports why the task resumes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.serde import deserialize, serialize
from asgiref.sync import async_to_sync

from airflow_provider_kmigrate.core.cluster_state.model import BrokerMode, ClusterView, Reason
from airflow_provider_kmigrate.core.migration.progress import FRESH, StepProgress, from_json
from airflow_provider_kmigrate.exceptions import Refused, Unreachable
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.controllers import ProvisionController
from airflow_provider_kmigrate.steps.run import run_step
from airflow_provider_kmigrate.triggers import step
from airflow_provider_kmigrate.triggers.step import StepTrigger
from tests.provider.simulated import Rehearsal

Rehearse = Callable[..., Rehearsal]


def trigger(sim: Rehearsal, kind: str = "registered", progress: StepProgress = FRESH, **changes: Any) -> StepTrigger:
    return StepTrigger(str(sim.path), kind, changes, progress.to_json())


@pytest.fixture(autouse=True)
def a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a trigger watches here."""
    monkeypatch.setattr(step, "_WATCH_FOR", 60.0)


def event(watch: StepTrigger) -> dict[str, Any]:
    """What the trigger yields, once; no thread of the loop's default executor is used."""

    async def only() -> dict[str, Any]:
        asyncio.get_running_loop().set_default_executor(NoExecutor())
        return await first(watch)

    return asyncio.run(only())


async def first(watch: StepTrigger) -> dict[str, Any]:
    [payload] = [found.payload async for found in watch.run()]
    return dict(payload)


class NoExecutor(ThreadPoolExecutor):
    def submit(self, *call: Any, **arguments: Any) -> Any:
        raise AssertionError(f"the default executor was given {call} {arguments}")


def kept(found: dict[str, Any]) -> StepProgress:
    """The progress that the task is handed."""
    progress = from_json(found["progress"])
    assert isinstance(progress, StepProgress)
    return progress


def up_to(sim: Rehearsal, target: BrokerMode | None, tmp_path: Any) -> None:
    """Controllers provisioned and, with a target, every broker rolled there on the way."""
    context = sim.cluster.context(tmp_path / "by-hand")
    for node in sim.cluster.spec.controllers:
        run_step(ProvisionController(node, sim.cluster.spec.cluster_id), context)
    for mode in [mode for mode in (BrokerMode.MIGRATION, BrokerMode.KRAFT) if target in {mode, BrokerMode.KRAFT}]:
        for broker in sim.cluster.spec.brokers:
            run_step(RollBroker(broker, mode, sim.cluster.spec.policy), context)


def test_the_trigger_comes_back_from_the_database_as_it_went(rehearse: Rehearse) -> None:
    watch = trigger(rehearse(), "soak", StepProgress(healthy_seconds=7.5, verdict=(Reason("V30", "It starves."),)))
    path, arguments = watch.serialize()
    again = import_string(path)(**deserialize(serialize(arguments)))
    assert type(again) is StepTrigger
    assert again.serialize() == watch.serialize()


def test_what_is_so_already_is_ready(rehearse: Rehearse) -> None:
    sim = rehearse()
    found = event(trigger(sim))
    assert (found["outcome"], kept(found)) == ("ready", FRESH)
    assert sim.closed.wait(10.0)


def test_where_other_threads_may_not_ask_airflow_its_observations_ask_through_the_loop(
    rehearse: Rehearse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Airflow 3.1 asks its supervisor: with a lock of the triggerer's loop."""
    monkeypatch.setattr(step, "may_threads_ask_airflow", lambda: False)
    sim, loops = rehearse(), list[Any]()

    async def ask() -> None:
        loops.append(asyncio.get_running_loop())

    environment = sim.observe

    def observe(*asked: Any) -> ClusterView:
        async_to_sync(ask)()
        return environment(*asked)

    sim.observe = observe  # type: ignore[method-assign]

    async def watched() -> dict[str, Any]:
        loops.append(asyncio.get_running_loop())
        asyncio.get_running_loop().set_default_executor(NoExecutor())
        return await first(trigger(sim))

    assert asyncio.run(watched())["outcome"] == "ready"
    assert len(loops) >= 2
    assert len(set(map(id, loops))) == 1
    assert sim.closed.wait(10.0)


def test_what_comes_about_while_it_watches_is_ready(rehearse: Rehearse) -> None:
    sim = rehearse()
    sim.blind_observations = 10
    assert event(trigger(sim))["outcome"] == "ready"
    assert sim.observations > 10
    assert sim.opened == 1, "its clients stay open"


def test_what_lasts_is_handed_back_with_the_time_it_took(rehearse: Rehearse) -> None:
    sim = rehearse()
    sim.blind_observations = 1000
    found = event(trigger(sim, progress=StepProgress(waited_seconds=100.0)))
    assert found["outcome"] == "waiting"
    assert 160.0 <= kept(found).waited_seconds < 165.0


def test_a_wait_without_end_is_refused(rehearse: Rehearse) -> None:
    sim = rehearse()
    sim.blind_observations = 1000
    found = event(trigger(sim, progress=StepProgress(waited_seconds=590.0)))
    assert found["outcome"] == "refused"
    assert "[R03]" in found["text"]


def test_something_to_do_is_ready_and_left_to_the_task(rehearse: Rehearse, tmp_path: Any) -> None:
    sim = rehearse()
    up_to(sim, None, tmp_path)
    assert event(trigger(sim, "roll", node=1, target="migration"))["outcome"] == "ready"
    assert sim.restarts() == 0


class TestSoak:
    @pytest.fixture
    def sim(self, rehearse: Rehearse, tmp_path: Any) -> Rehearsal:
        sim = rehearse(min_soak=300.0)
        up_to(sim, BrokerMode.KRAFT, tmp_path)
        return sim

    def test_soaked_time_is_handed_back(self, sim: Rehearsal) -> None:
        found = event(trigger(sim, "soak", StepProgress(healthy_seconds=20.0)))
        assert found["outcome"] == "waiting"
        assert 70.0 < kept(found).healthy_seconds < 85.0
        assert event(trigger(sim, "soak", StepProgress(healthy_seconds=280.0)))["outcome"] == "ready"

    @pytest.mark.parametrize(("before", "at_once"), [(200.0, True), (0.0, False)])
    def test_lost_health_is_handed_back_at_once_where_more_is_stored(self, sim: Rehearsal, before: float, at_once: bool) -> None:
        """Or a triggerer that dies before its watch is over would leave the task with time that is void."""
        began, alarm = sim.cluster.clock.time, sim.observations + 12

        def observe(*asked: Any) -> ClusterView:
            if sim.observations == alarm:
                for node in sim.cluster.spec.controllers[:2]:
                    sim.cluster.stop(node)
            return seen(*asked)

        seen, sim.cluster.observe = sim.cluster.observe, observe  # type: ignore[method-assign]
        found = event(trigger(sim, "soak", StepProgress(healthy_seconds=before)))
        assert (found["outcome"], kept(found).healthy_seconds) == ("waiting", 0.0)
        assert "[G23]" in found["text"], "it says what is not healthy"
        assert (sim.cluster.clock.time - began < 30.0) is at_once


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (Refused("[N03] no such connection"), "refused"),
        (Unreachable("no server there"), "unavailable"),
        (OSError(28, "No space left on device"), "unavailable"),
    ],
)
def test_what_stops_it_is_reported(rehearse: Rehearse, failure: Exception, outcome: str) -> None:
    sim, progress = rehearse(), StepProgress(waited_seconds=5.0, restart_begun=True)
    sim.failure = failure
    watch = trigger(sim, progress=progress)
    expected = {"outcome": outcome, "text": str(failure), "progress": progress.to_json(), "arguments": watch.arguments}
    assert event(watch) == expected


def test_an_answer_that_nobody_thought_of_ends_no_trigger(rehearse: Rehearse) -> None:
    sim = rehearse()
    sim.failure = KeyError("ended")
    found = event(trigger(sim))
    assert (found["outcome"], "unexpectedly (KeyError)" in found["text"]) == ("unavailable", True)


def test_a_triggerer_that_may_not_write_the_journal_is_refused_in_words(rehearse: Rehearse, tmp_path: Any) -> None:
    (tmp_path / "kmigrate").write_text("in its place\n")
    found = event(trigger(rehearse()))
    assert (found["outcome"], "[O05]" in found["text"], "triggerer" in found["text"]) == ("refused", True, True)


def test_a_broken_cluster_file_is_refused(rehearse: Rehearse) -> None:
    sim = rehearse()
    sim.path.write_text("name: sim\n")
    assert event(trigger(sim))["outcome"] == "refused"


def test_progress_of_a_newer_version_is_refused_and_handed_back_as_it_is(rehearse: Rehearse) -> None:
    sim, newer = rehearse(), {"version": 99, "anything": 1}
    found = event(StepTrigger(str(sim.path), "registered", {}, newer))
    assert (found["outcome"], found["progress"], "[H09]" in found["text"]) == ("refused", newer, True)
    assert sim.opened == 0


def test_an_observation_that_hangs_is_given_up_and_its_clients_are_closed_when_it_ends(
    rehearse: Rehearse, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim, progress = rehearse(), StepProgress(healthy_seconds=7.0)
    sim.hanging = 1
    monkeypatch.setattr(step, "_LONGEST", 0.05)
    found = event(trigger(sim, progress=progress))
    assert (found["outcome"], kept(found)) == ("unavailable", progress)
    assert not sim.closed.is_set()
    sim.released.set()
    assert sim.closed.wait(10.0)


def test_clusters_that_hang_hold_no_other_up(rehearse: Rehearse) -> None:
    """More of them than observations may run at the same time."""
    sim = rehearse()
    sim.hanging = 40

    async def found() -> tuple[str, int]:
        hang = [asyncio.create_task(first(trigger(sim))) for _ in range(sim.hanging)]
        assert await asyncio.to_thread(sim.observed.wait, 30.0)
        answer = await first(trigger(sim))
        left = sum(not task.done() for task in hang)
        sim.released.set()
        await asyncio.gather(*hang)
        return answer["outcome"], left

    assert asyncio.run(found()) == ("ready", 40)


def test_a_cancelled_trigger_stops_observing_and_closes_its_clients(rehearse: Rehearse) -> None:
    sim = rehearse()
    sim.hanging = 1

    async def cancelled() -> None:
        task = asyncio.create_task(anext(aiter(trigger(sim).run())))
        assert await asyncio.to_thread(sim.observed.wait, 30.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not sim.closed.is_set(), "what it observes with is in use"
    sim.released.set()
    assert sim.closed.wait(10.0)
    assert sim.observations == 1
