"""Programs of the index in environments of their own, which are made once: what tests need beside the project and its dependencies may not meet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from airflow_provider_kmigrate.audit.connector import cache_folder
from airflow_provider_kmigrate.clients.atomic import locked

_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "ansible": ("ansible-core==2.19.*",),
    "moto": ("moto[server]==5.2.5",),
    "supervisor": ("supervisor==4.3.0", "setuptools<81"),
}


def make_environment(name: str) -> Path:
    """The folder of an environment with these packages; in the cache. Raises `CalledProcessError` if pip cannot install them."""
    packages = _PACKAGES[name]
    folder = cache_folder() / f"{name}-{packages[0].rpartition('==')[2].rstrip('.*')}"
    with locked(cache_folder(), timeout=900.0):
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=300)
            alone = os.environ | {"PYTHONPATH": ""}
            argv = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *packages]
            subprocess.run(argv, check=True, timeout=600, env=alone)
            (folder / "complete").touch()
    return folder


def find_program(name: str, variable: str, environment: str) -> str:
    """A program that the variable names, else of this environment, which is made if it is not there."""
    return os.environ.get(variable) or str(make_environment(environment) / "bin" / name)


def find_supervisord() -> str:
    """A real supervisord."""
    return find_program("supervisord", "KMIGRATE_SUPERVISORD", "supervisor")


def find_ansible() -> str:
    """A real ansible-playbook."""
    return find_program("ansible-playbook", "KMIGRATE_ANSIBLE", "ansible")
