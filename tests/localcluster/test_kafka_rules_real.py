"""Kafka's releases themselves: the package's data is what they say, and their KafkaConfig takes what kmigrate renders."""

from __future__ import annotations

import json
import zipfile

import pytest

from airflow_provider_kmigrate.core.node_files import config_matrix, kafka_keys
from tests.kit.releases import DATA, LATER, WITH_ZOOKEEPER, generate, jars_of
from tests.kit.releases.renderings import BASE, judge, one_key_by_stage, one_key_each

pytestmark = [pytest.mark.cluster, pytest.mark.long]  # the data change with a release of Kafka only


def test_the_data_of_the_package_is_what_the_releases_say() -> None:
    """A key that is new to a release, or taken out of the data, fails here: `python -m tests.kit.releases` writes it again."""
    written, said = DATA.read_text(encoding="utf-8"), generate()
    missing = json.loads(said)["keys"].keys() ^ json.loads(written)["keys"].keys()
    assert not missing
    assert written == said


@pytest.mark.parametrize("release", WITH_ZOOKEEPER)
def test_every_stage_of_a_file_with_any_key_is_taken(release: str) -> None:
    originals = one_key_each()
    judgement = judge(release, originals)
    assert judgement.refused == {}
    assert len(judgement.taken) > 0.9 * len(originals)
    assert {name.partition(" ")[0] for name in judgement.unrendered} <= {
        "broker.id",  # generated
        "controller.quorum.bootstrap.servers",
        "zookeeper.connect",  # empty
    }


@pytest.mark.parametrize("release", WITH_ZOOKEEPER)
def test_any_key_that_a_cluster_file_sets_by_stage_is_taken(release: str) -> None:
    """What no such node may have is left out; `check` names it (F04)."""
    originals, keys = one_key_by_stage()
    judgement = judge(release, originals, keys)
    assert judgement.refused == {}
    assert len(judgement.taken) > 0.9 * len(originals)
    assert set(judgement.unrendered) <= {"authorizer.class.name"}, "a KRaft node with ZooKeeper's authorizer is refused by name"
    added = {key for rendering in judgement.rendered for key in keys[rendering.source] if f"\n{key}=" in rendering.text}
    assert len(added) > 0.7 * len(originals), "they are in the files"


def test_what_kafka_would_refuse_on_controllers_is_left_out_for_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("advertised.listeners", "early.start.listeners", "security.inter.broker.protocol")
    originals = {name: text for name, text in one_key_each().items() if name.startswith(keys) and not name.endswith(" ")}
    rows = {key: reason for key, reason in config_matrix.NOT_INHERITED.items() if key not in keys}
    monkeypatch.setattr(config_matrix, "NOT_INHERITED", rows)
    refused = {rendering.source.partition(" ")[0] for rendering in judge("3.6.2", originals).refused}
    assert refused == set(keys)


def test_a_file_that_a_release_refuses_counts_for_nothing() -> None:
    judgement = judge("3.9.2", {"good": BASE, "bad": BASE + "num.partitions=none\n"})
    assert judgement.taken == ("good",)
    assert {rendering.source for rendering in judgement.rendered} == {"good"}


def test_the_classes_that_end_with_kafka_4_are_those_that_its_jar_lacks() -> None:
    """Of what a file names as a handler of logins: the public ones of the packages that 3.9 and 4 share, by their jars."""
    before, after = (handlers_of(release) for release in (WITH_ZOOKEEPER[-1], LATER[-1]))
    ended = sorted(before - after)
    assert ended
    assert {name: kafka_keys.find_ending_classes({"sasl.login.callback.handler.class": name}) != {} for name in before} == {
        name: name in ended for name in before
    }


def handlers_of(release: str) -> set[str]:
    (jar,) = jars_of(release).glob("kafka-clients-*.jar")
    with zipfile.ZipFile(jar) as archive:
        names = [
            name.removesuffix(".class").replace("/", ".") for name in archive.namelist() if name.endswith("CallbackHandler.class")
        ]
    return {name for name in names if ".internals." not in name}
