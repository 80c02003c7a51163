"""kmigrate's own stream of numbered records during a migration (level L1), and the processes that send and receive it.

The records of producers and consumers (`core.events.model`) show what was lost, repeated, reordered or stalled (`core.ledger`).
"""
