"""A cluster as one frozen value: the facts that were read, the cluster file's part that decisions need, the form of a decision.

Every other room decides over these types. Begin at `model` (`ClusterView`), then `decision` (`Act`, `Wait`, `Refuse`, `Done`).
"""
