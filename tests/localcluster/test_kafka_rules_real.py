"""Kafka's releases themselves: the package's data is what they say, and their KafkaConfig takes what kmigrate renders."""

from __future__ import annotations

import datetime as dt
import json
import zipfile

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from airflow_provider_kmigrate.clients import tls
from airflow_provider_kmigrate.core.cluster_state.model import level_of, version_of
from airflow_provider_kmigrate.core.node_files import config_matrix, kafka_keys
from airflow_provider_kmigrate.core.node_files.config_matrix import AUTHORIZER, STAGE_SECTIONS, FileStage
from airflow_provider_kmigrate.core.node_files.properties import edit_properties, parse_properties
from tests.core import tls_name_rows
from tests.core.door_files import FILES
from tests.kit.releases import (
    DATA,
    LATER,
    REQUESTS,
    WITH_ZOOKEEPER,
    ZNODES,
    describe,
    generate,
    generate_requests,
    generate_znodes,
    jars_of,
    principal_names,
)
from tests.kit.releases.renderings import BASE, judge, one_key_by_stage, one_key_each

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

pytestmark = [pytest.mark.cluster, pytest.mark.long]  # the data change with a release of Kafka only


def test_the_data_of_the_package_is_what_the_releases_say() -> None:
    """A key that is new to a release, or taken out of the data, fails here: `python -m tests.kit.releases` writes it again."""
    written, said = DATA.read_text(encoding="utf-8"), generate()
    missing = json.loads(said)["keys"].keys() ^ json.loads(written)["keys"].keys()
    assert not missing
    assert written == said


def test_the_requests_of_the_package_are_those_that_the_releases_serve() -> None:
    assert REQUESTS.read_text(encoding="utf-8") == generate_requests()


def test_the_versions_of_znodes_are_those_that_the_releases_write_and_take() -> None:
    assert ZNODES.read_text(encoding="utf-8") == generate_znodes()


@pytest.mark.parametrize("release", WITH_ZOOKEEPER)
def test_metadata_versions_have_the_levels_that_the_release_gives_them(release: str) -> None:
    """What gates compare: `inter.broker.protocol.version`, and the level that controllers report."""
    known = {version: level for version, level in describe(release)["metadata_versions"].items() if level_of(version) is not None}
    assert {version: level_of(version) for version in known} == known
    own = max(known, key=known.__getitem__)
    assert version_of(known[own]) == own
    line = release.rpartition(".")[0]
    assert all(version_of(level_of(f"{line}-IV{number}") or 0) in known for number in range(9) if level_of(f"{line}-IV{number}"))


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


@pytest.mark.parametrize("release", WITH_ZOOKEEPER)
@pytest.mark.parametrize(
    "plugin", ["kafka.security.authorizer.AclAuthorizer", "org.apache.ranger.Authorizer", "io.confluent.Authorizer"]
)
def test_an_authorizer_of_each_mode_is_in_its_stages_and_taken(release: str, plugin: str) -> None:
    """A plug-in that reads ZooKeeper until a node leaves it, and Kafka's own afterwards, with keys of its own; over files of strangers."""
    original = {path.name: path.read_text(encoding="iso-8859-1") for path in sorted(FILES.glob("*.properties"))}
    originals = {name: edit_properties(text, {AUTHORIZER: plugin, "super.users": "User:a"}) for name, text in original.items()}
    in_zookeeper, in_kraft = {AUTHORIZER: plugin, "ranger.url": "http://r"}, {AUTHORIZER: STANDARD, "ranger.url": ""}
    sections = {stage: in_zookeeper if stage is FileStage.MIGRATION else in_kraft for stage in STAGE_SECTIONS.values()}
    judgement = judge(release, originals, sections=sections)
    assert judgement.refused == {}
    assert len(judgement.rendered) > 100
    for rendering in judgement.rendered:
        keys = parse_properties(rendering.text)
        expected = plugin if rendering.stage in {FileStage.ZOOKEEPER, FileStage.MIGRATION} else STANDARD
        assert (keys[AUTHORIZER], rendering.stage) == (expected, rendering.stage)
        assert bool(keys.get("ranger.url")) is (rendering.stage is FileStage.MIGRATION)


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


def test_the_settings_of_topics_that_end_with_kafka_4_are_those_that_it_does_not_define() -> None:
    before, after = (set(describe(release)["topics"]) for release in (WITH_ZOOKEEPER[-1], LATER[-1]))
    assert "message.format.version" in before - after
    assert kafka_keys.find_ending_topic_settings(before | after) == sorted(before - after)


@pytest.mark.parametrize("release", [WITH_ZOOKEEPER[0], WITH_ZOOKEEPER[-1]])
def test_names_of_certificates_are_those_that_kafka_makes(release: str) -> None:
    clients = [{"subject": subject, "rules": rules or "DEFAULT"} for subject, rules, _ in tls_name_rows.ROWS]
    assert principal_names(release, clients) == [name for _, _, name in tls_name_rows.ROWS]


def test_subjects_are_read_as_java_writes_them_or_not_at_all() -> None:
    subjects = [x509.Name([x509.NameAttribute(*part) for part in parts]) for parts in SUBJECTS]
    pems = [certificate_of(subject).public_bytes(serialization.Encoding.PEM).decode() for subject in subjects]
    by_kafka = principal_names(WITH_ZOOKEEPER[-1], [{"pem": pem, "rules": "DEFAULT"} for pem in pems])
    read = [tls.name_subject(subject) for subject in subjects]
    assert read[:3] == by_kafka[:3]
    assert all(name in {None, expected} for name, expected in zip(read, by_kafka, strict=True))


ID = x509.NameOID
#: The first three are written in one way only.
SUBJECTS = (
    [
        (ID.COUNTRY_NAME, "GB"),
        (ID.LOCALITY_NAME, "London"),
        (ID.ORGANIZATION_NAME, "Acme Inc."),
        (ID.COMMON_NAME, "*.example.com"),
    ],
    [(ID.DOMAIN_COMPONENT, "com"), (ID.DOMAIN_COMPONENT, "example"), (ID.USER_ID, "kafka-1"), (ID.COMMON_NAME, "a/b")],
    [(ID.COMMON_NAME, "only"), (ID.STREET_ADDRESS, "1 Road"), (ID.STATE_OR_PROVINCE_NAME, "ST")],
    [(ID.EMAIL_ADDRESS, "a@example.com"), (ID.COMMON_NAME, "a")],
    [(ID.ORGANIZATION_NAME, "Acme, Inc."), (ID.COMMON_NAME, "a")],
    [(ID.COMMON_NAME, " a")],
    [(ID.COMMON_NAME, "#a+b=c")],
    [(ID.COMMON_NAME, "M\u00fcller")],
    [(ID.SERIAL_NUMBER, "7"), (ID.COMMON_NAME, "a")],
)


def certificate_of(subject: x509.Name) -> x509.Certificate:
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    ends = now + dt.timedelta(days=1)
    return x509.CertificateBuilder(subject, subject, key.public_key(), 1, now, ends).sign(key, hashes.SHA256())


def handlers_of(release: str) -> set[str]:
    (jar,) = jars_of(release).glob("kafka-clients-*.jar")
    with zipfile.ZipFile(jar) as archive:
        names = [
            name.removesuffix(".class").replace("/", ".") for name in archive.namelist() if name.endswith("CallbackHandler.class")
        ]
    return {name for name in names if ".internals." not in name}
