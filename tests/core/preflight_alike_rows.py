"""Nodes that are not alike, and what preflight finds of each."""

from __future__ import annotations

from tests.core.preflight_around import ACL_CLASS, PLAIN, Row, everywhere, running_1, secured, written_1
from tests.core.preflight_views import both, spec

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
