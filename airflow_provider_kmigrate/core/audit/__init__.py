"""What an audit concludes: fingerprints of offsets, commits, canaries, kept events, the verdict and its report.

`core.ledger` turns events into facts; this room compares the facts of two times. Begin at `verdict`.
"""
