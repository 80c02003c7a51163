"""Who runs this process, for a note that others read."""

from __future__ import annotations

import getpass
import os


def read_user_name() -> str:
    """The user's name; a user without one, such as a pod's with a number of its own, by that number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
