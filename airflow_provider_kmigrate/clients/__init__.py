"""The clients of outside systems, one system a file: thin, without decisions, raising only this package's exceptions."""
