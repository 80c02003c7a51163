"""Who answers the audit's questions, Spark or DuckDB, and the questions."""
