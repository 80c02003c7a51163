"""Other programs that run to their end on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from airflow_provider_kmigrate.exceptions import Failed, TimedOut

_SHOWN = 2000  # characters of what a failed program said last


def java() -> str | None:
    """The program that runs Java: JAVA_HOME's, else the PATH's; None where neither has one."""
    home = os.environ.get("JAVA_HOME")
    return (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")


def run(argv: Sequence[str], timeout: float, what: str, late: str = "") -> None:
    """Run it to its end. Raises `Failed` with the end of what it said, or `TimedOut` after `timeout` seconds with `late` as the advice."""
    try:
        subprocess.run(argv, check=True, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise TimedOut(f"{what} did not end within {timeout:.0f} s{late and f'; {late}'}") from error
    except subprocess.CalledProcessError as error:
        said = (error.stdout + error.stderr).strip()[-_SHOWN:]
        raise Failed(f"{what} ended with {error.returncode}: {said}") from error
