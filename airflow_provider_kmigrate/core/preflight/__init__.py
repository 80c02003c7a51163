"""What must hold before anything of a cluster is touched: start at `checks`; one file for each kind of question."""
