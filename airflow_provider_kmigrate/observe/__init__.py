"""Observe a cluster: from its clients to one frozen `ClusterView`.

`observer` decides what to ask, `reads` and `stored` ask it with bounded waits, on threads that all observers of the process share.
A source that fails or is late leaves `None` and a `Reason` in `ClusterView.unknowns`, and the observation continues without it:

====  ================================================  ====  ================================================
U01   ZooKeeper                                         G20   the leader of the metadata quorum
R01   a broker                                          U05   min.insync.replicas
G23   a controller                                      U05   a broker's coordinators and groups
U04   a node's host: its process or its files           U05   client-metrics subscriptions
U05   the partitions                                    U05   the topics of ZooKeeper and of the brokers
====  ================================================  ====  ================================================

Only two errors end an observation: another cluster answers (`WrongCluster`), or the node refuses our identity
(`AuthenticationFailed`).
"""

from airflow_provider_kmigrate.observe.observer import Observer, ObserverTimeouts

__all__ = ["Observer", "ObserverTimeouts"]
