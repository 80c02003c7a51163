"""DAGs to begin with: copy one into the folder of your DAGs and change it."""
