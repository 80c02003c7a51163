"""A cluster file that is valid, and changes of its text."""

from __future__ import annotations

GOOD = """\
name: prod
cluster_id: q1Sh-9_ISia_zwGINzRvyQ        # pinned
zookeeper: {conn_id: prod_zk}
kafka: {conn_id: prod_kafka}
hosts:
  driver: agent
  properties: /etc/kafka/server.properties
  connect:
    - ssh
    - "{host}"
    - sudo -n kmigrate-node serve
brokers:
  - {id: 0, host: kafka0, rack: a}
  - {id: 1, host: kafka1, rack: 1, port: 19092}
  - {id: 2, host: kafka2, stop_timeout: 10m, properties: /opt/kafka/server.properties}
controllers:
  - {id: 3000, host: ctl0, log_dir: /var/lib/kraft}
policy: {min_soak: 24h, canary_bake: 1h30m, sample_interval: 500ms, max_hybrid: 60, fast_failover: true}
"""


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, f"{old!r} must stand in the good file once"
    return GOOD.replace(old, new)
