"""The one trigger: it survives Airflow's way through the database, looks, never acts, and says why it woke the task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.serde import deserialize, serialize

from airflow_provider_kmigrate.core.model import BrokerMode
from airflow_provider_kmigrate.exceptions import Refused, Unreachable
from airflow_provider_kmigrate.steps.brokers import RollBroker
from airflow_provider_kmigrate.steps.controllers import ProvisionController
from airflow_provider_kmigrate.steps.run import run_step
from airflow_provider_kmigrate.triggers.step import StepTrigger
from tests.provider.simulated import Rehearsal

Rehearse = Callable[..., Rehearsal]


def trigger(sim: Rehearsal, kind: str = "registered", watch_for: float = 60.0, **arguments: Any) -> StepTrigger:
    return StepTrigger(str(sim.path), kind, arguments, interval=2.0, watch_for=watch_for)


def event(watch: StepTrigger) -> dict[str, Any]:
    """What the trigger yields, once."""

    async def first() -> list[Any]:
        return [found.payload async for found in watch.run()]

    [payload] = asyncio.run(first())
    return dict(payload)


def up_to(sim: Rehearsal, target: BrokerMode | None, tmp_path: Any) -> None:
    """Controllers provisioned and, with a target, every broker rolled there on the way."""
    world = sim.cluster.world(tmp_path / "by-hand")
    for node in sim.cluster.spec.controllers:
        run_step(ProvisionController(node, sim.cluster.spec.cluster_id), world)
    for mode in [mode for mode in (BrokerMode.MIGRATION, BrokerMode.KRAFT) if target in {mode, BrokerMode.KRAFT}]:
        for broker in sim.cluster.spec.brokers:
            run_step(RollBroker(broker, mode, sim.cluster.spec.policy), world)


def test_it_comes_back_from_the_database_as_it_went(rehearse: Rehearse) -> None:
    watch = trigger(rehearse(), "soak", held=7.5)
    path, arguments = watch.serialize()
    again = import_string(path)(**deserialize(serialize(arguments)))
    assert type(again) is StepTrigger
    assert again.serialize() == watch.serialize()


def test_what_is_so_already_is_ready(rehearse: Rehearse) -> None:
    found = event(trigger(rehearse()))
    assert (found["outcome"], found["held"], found["waited"]) == ("ready", None, 0.0)


def test_what_comes_about_while_it_watches_is_ready(rehearse: Rehearse) -> None:
    sim = rehearse()
    sim.blind_looks = 10
    assert event(trigger(sim))["outcome"] == "ready"
    assert sim.looks > 10


def test_what_lasts_is_handed_back_with_the_time_it_took(rehearse: Rehearse) -> None:
    sim = rehearse()
    sim.blind_looks = 1000
    found = event(trigger(sim, waited=100.0))
    assert found["outcome"] == "waiting"
    assert 160.0 <= found["waited"] < 165.0


def test_a_wait_without_end_is_refused(rehearse: Rehearse) -> None:
    sim = rehearse()
    sim.blind_looks = 1000
    found = event(trigger(sim, waited=590.0))
    assert found["outcome"] == "refused"
    assert "[R03]" in found["text"]


def test_something_to_do_is_ready_and_left_to_the_task(rehearse: Rehearse, tmp_path: Any) -> None:
    sim = rehearse()
    up_to(sim, None, tmp_path)
    assert event(trigger(sim, "roll", node=1, target="migration"))["outcome"] == "ready"
    assert sim.restarts() == 0


def test_soaked_time_is_handed_back(rehearse: Rehearse, tmp_path: Any) -> None:
    sim = rehearse(min_soak=300.0)
    up_to(sim, BrokerMode.KRAFT, tmp_path)
    found = event(trigger(sim, "soak", held=20.0))
    assert found["outcome"] == "waiting"
    assert 70.0 < found["held"] < 85.0
    assert event(trigger(sim, "soak", held=280.0))["outcome"] == "ready"


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (Refused("[N01] no such connection"), "refused"),
        (Unreachable("nobody there"), "unavailable"),
        (OSError(28, "No space left on device"), "unavailable"),
    ],
)
def test_what_is_in_its_way_is_told(rehearse: Rehearse, failure: Exception, outcome: str) -> None:
    sim = rehearse()
    sim.failure = failure
    assert event(trigger(sim, waited=5.0)) == {
        "outcome": outcome,
        "text": str(failure),
        "held": None,
        "waited": 5.0,
        "worse": [],
        "renewed": 0,
        "watched": [],
    }


def test_a_triggerer_that_may_not_write_the_journal_is_refused_in_words(rehearse: Rehearse, tmp_path: Any) -> None:
    (tmp_path / "kmigrate").write_text("in its place\n")
    found = event(trigger(rehearse()))
    assert (found["outcome"], "[O05]" in found["text"], "triggerer" in found["text"]) == ("refused", True, True)


def test_a_broken_cluster_file_is_refused(rehearse: Rehearse) -> None:
    sim = rehearse()
    sim.path.write_text("name: sim\n")
    assert event(trigger(sim))["outcome"] == "refused"


def test_a_cancelled_trigger_stops_looking(rehearse: Rehearse) -> None:
    """A thread cannot be cancelled: without this a triggerer that ends would wait for it."""
    sim = rehearse()
    sim.blind_looks = 10**9

    async def cancelled() -> None:
        task = asyncio.create_task(anext(aiter(trigger(sim, watch_for=1e12, waited=-1e12).run())))
        assert await asyncio.to_thread(sim.looked.wait, 10.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())  # returns when the thread has ended
