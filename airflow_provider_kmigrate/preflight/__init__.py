"""The pages of a preflight and of a plan: each is one self-contained HTML file, and the same as JSON beside it."""
