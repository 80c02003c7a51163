"""What the agent says of a host's addresses on its machine: as the system resolves it, bounded, and no option of a program."""

from __future__ import annotations

import socket

import pytest

from tests.node.agent_parts import agent_module
from tests.node.machine import Node


def test_addresses_are_those_of_the_machines_resolver_in_its_order(node: Node) -> None:
    expected = dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo("localhost", None))
    assert node.ok("addresses", host="localhost")["addresses"] == list(expected)
    assert node.ok("addresses", host="127.0.1.1") == {"addresses": ["127.0.1.1"]}
    assert node.ok("addresses", host="no-such-host.invalid") == {"addresses": []}


@pytest.mark.parametrize("host", [None, 7, "", "x" * 1001, ["localhost"]])
def test_what_is_no_host_is_refused(node: Node, host: object) -> None:
    assert node.refused("addresses", host=host) == "malformed"


@pytest.mark.parametrize("host", ["--help", "-s", "--service=files", "a b", "\x1b[2J"])
def test_a_host_is_never_an_option(node: Node, host: str) -> None:
    assert node.ok("addresses", host=host) == {"addresses": []}


def test_a_resolver_that_does_not_answer_costs_its_limit_only(node: Node) -> None:
    module = agent_module()
    module.DETAIL_TIMEOUT = 0.2
    module.ENVIRONMENT = {"PATH": str(node.config.parent)}
    program = node.config.parent / "getent"
    program.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    program.chmod(0o755)
    with pytest.raises(module.Refusal) as refusal:
        module.load_roles(str(node.config))["broker"].addresses({"host": "slow"})
    assert refusal.value.error["code"] == "timed_out"
