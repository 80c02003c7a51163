"""One outside system a file: thin, without decisions, raising only this package's exceptions."""
