"""What must hold before anything of a cluster is touched.

Begin at `checks`; there is one file for each kind of question.
"""
