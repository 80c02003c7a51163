"""What applications import; it needs no Airflow.

| import | for |
| --- | --- |
| `applications.migrating` | `consumer_of`: a consumer that moves from ZooKeeper to Kafka by one setting; `MigratingConsumer` |
| `applications.audited`, `applications.producer` | confluent-kafka's consumer and producer, wrapped so that they record what they did (L2, L3) |
| `applications.spark_hold` | `keep_running`: a streaming job that kmigrate can hold while Kafka is restarted |

The modules import one another only as far as they must: a Spark job needs no Kafka client, a wrapped producer no ZooKeeper.
"""
