"""Decisions as pure functions over frozen values: no clock, socket, file, thread or log in here."""
