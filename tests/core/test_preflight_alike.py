"""What all brokers must have alike; each difference gives exactly its code."""

from __future__ import annotations

import pytest

from tests.core.preflight_around import (
    ACL_CLASS,
    PLAIN,
    Row,
    codes,
    everywhere,
    running_1,
    secured,
    written_1,
)
from tests.core.test_preflight import (
    Change,
    both,
    healthy,
    spec,
)

ROWS: list[Row] = [
    ("super users of one broker", both(secured(super_users="User:ANONYMOUS"), written_1(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS;User:x")), ["B18"]),
    ("super users in another order", both(secured(super_users="User:x;User:ANONYMOUS"), written_1(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS; User:x")), []),
    ("one broker in the middle of a change of its listener", running_1(security_inter_broker_protocol="SSL"), ["B18"]),
    ("one listener by two names", both(everywhere(inter_broker_listener_name="PLAINTEXT"), running_1(security_inter_broker_protocol="PLAINTEXT")), []),
    ("unclean elections of one broker", both(everywhere(unclean_leader_election_enable="false"), running_1(unclean_leader_election_enable="true")), ["B18"]),
    ("unclean elections, the default written out", running_1(unclean_leader_election_enable="false"), []),
    ("everybody, the default written out", both(secured(super_users="User:ANONYMOUS"), written_1(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", allow_everyone_if_no_acl_found="False")), []),
    ("everybody, on one broker", both(secured(super_users="User:ANONYMOUS"), written_1(authorizer_class_name=ACL_CLASS, super_users="User:ANONYMOUS", allow_everyone_if_no_acl_found="true")), ["B18"]),
    ("copies of new topics", both(everywhere(default_replication_factor="3"), running_1(default_replication_factor="2")), ["B18"]),
    ("copies of new topics, decided for controllers", both(spec(controller_properties={"min.insync.replicas": "2"}), both(everywhere(min_insync_replicas="2"), running_1(min_insync_replicas="1"))), []),
    ("controllers that write nothing while idle", spec(controller_properties={"metadata.max.idle.interval.ms": "0"}), ["C04"]),
    ("controllers with a file that Kafka would refuse", spec(controller_properties={"ssl.key.password": "${vault:kafka:key}"}), ["C10"]),
    ("super users that no authorizer asks", written_1(super_users="User:x"), []),
    ("a mechanism that no listener uses", both(everywhere(sasl_mechanism_inter_broker_protocol="GSSAPI"), running_1(sasl_mechanism_inter_broker_protocol="PLAIN")), []),
    ("two mechanisms between brokers", both(everywhere(**PLAIN), running_1(**{**PLAIN, "sasl_mechanism_inter_broker_protocol": "GSSAPI"})), ["B18"]),
    ("reported by some only", running_1(num_partitions="3"), []),
]  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_one_defect_gives_its_code(change: Change, expected: list[str]) -> None:
    assert codes(change(*healthy())) == expected
