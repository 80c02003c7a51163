"""What must hold before anything of a cluster is touched: `checks` is the door, a file for each kind of question."""
