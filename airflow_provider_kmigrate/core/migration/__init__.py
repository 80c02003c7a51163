"""What each step of a migration and of a rollback decides: may it act, what is next, what does it wait for.

Begin at `phase` (which phase a cluster is in, and what may be done in it) and `plan` (the order of the steps), then `broker_restart` (a broker's
restart), `rollback` and `handover`. `gates` are the conditions that steps share.
"""
