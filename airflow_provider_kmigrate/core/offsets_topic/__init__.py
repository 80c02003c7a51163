"""`__consumer_offsets`: its records, its expansion (KIP-895), the repair of copies in wrong partitions.

Begin at `expansion`; `offsets_records` decodes what brokers write.
"""
