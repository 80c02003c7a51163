"""Which hosts mean each machine itself, and which two names are one machine."""

from __future__ import annotations

import pytest

from airflow_provider_kmigrate.core.cluster_state.spec import is_loopback, normalize_host

OWN = [
    "localhost",
    "LOCALHOST",
    "localhost.",
    "localhost.localdomain",
    "localhost4",
    "localhost4.localdomain4",
    "localhost6",
    "localhost6.localdomain6",
    "ip6-localhost",
    "ip6-loopback",
    "kafka.localhost",
    "127.0.0.1",
    "127.1",
    "::1",
    "[::1]",
    "0:0:0:0:0:0:0:1",
    "::ffff:127.0.0.1",
    "0.0.0.0",
    "::",
    "[::]",
]


@pytest.mark.parametrize("host", OWN)
def test_a_name_or_address_of_each_machine_itself(host: str) -> None:
    assert is_loopback(host)
    assert normalize_host(host) == "localhost"


@pytest.mark.parametrize("host", ["127.0.1.1", "127.0.0.2", "::ffff:127.0.0.2", "127.2"])
def test_other_loopback_addresses_may_be_machines_of_their_own(host: str) -> None:
    assert is_loopback(host)
    assert normalize_host(host) != "localhost"


@pytest.mark.parametrize(
    "host",
    [
        "kafka1",
        "localhost.example.com",
        "mylocalhost",
        "127.example.com",
        "1270.0.0.1",
        "fe80::1",
        "fe80::1%lo",
        "10.0.0.1",
        "x:y",
    ],
)
def test_other_hosts_are_elsewhere(host: str) -> None:
    assert not is_loopback(host)
    assert normalize_host(host) == host


@pytest.mark.parametrize(
    ("one", "other"),
    [("Kafka1.", "kafka1"), ("[FD00:0::1]", "fd00::1"), ("::ffff:10.0.0.1", "10.0.0.1"), (" kafka1 ", "kafka1")],
)
def test_one_machine_in_two_spellings(one: str, other: str) -> None:
    assert normalize_host(one) == normalize_host(other)
