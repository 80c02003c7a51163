"""Files of nodes: what the properties of each stage must hold, and how they are read and changed.

Begin at `config_matrix` (one table, and the checks that read it).
"""
