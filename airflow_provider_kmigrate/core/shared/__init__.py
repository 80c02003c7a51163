"""What every room may use: texts, JSON that others wrote, a journal's chain of hashes.

No decision about a cluster is made here.
"""
