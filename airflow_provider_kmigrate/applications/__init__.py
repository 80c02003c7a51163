"""What applications import; it needs no Airflow. `make wheel` builds it as a wheel of its own, `kmigrate-applications`, beside the provider's.

| import | for |
| --- | --- |
| `applications.migrating` | `consumer_of`: a consumer that moves from ZooKeeper to Kafka by one setting; `MigratingConsumer` |
| `applications.audited`, `applications.producer` | confluent-kafka's consumer and producer, wrapped so that they record what they did (L2, L3) |
| `applications.spark_hold` | `keep_running`: a streaming job that kmigrate can hold while Kafka is restarted |

The modules import one another only as far as they must: a Spark job needs no Kafka client, a wrapped producer no ZooKeeper.
"""

from importlib.metadata import PackageNotFoundError, version


def _check_one_version() -> None:
    """Raise ImportError if the library and the provider are both installed and differ: they hold the same files, the last one's."""
    versions = {}
    for name in ("airflow-provider-kmigrate", "kmigrate-applications"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    if len(set(versions.values())) > 1:
        installed = " and ".join(f"{name} {number}" for name, number in versions.items())
        raise ImportError(
            f"{installed} are both installed and hold the same files. Uninstall both, then install one: the provider holds the library."
        )


_check_one_version()
