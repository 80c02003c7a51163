"""The DAGs of one cluster file, each built by a module of its own; `folder` finds the files."""
