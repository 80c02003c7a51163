"""Arguments that commands share. It imports nothing else, so that the help of a command comes at once."""

from __future__ import annotations

import argparse
import re
from pathlib import Path


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """`--connections` and `--folder`, which are Airflow's own if they are not given."""
    parser.add_argument(
        "--connections",
        type=Path,
        metavar="FILE",
        help="JSON file written by `airflow connections export`; default: Airflow's own connections",
    )
    add_folder_argument(parser, "default: Airflow's `[kmigrate] folder`, none with --connections")


def add_folder_argument(parser: argparse.ArgumentParser, default: str) -> None:
    """`--folder`; `default`: what it says of that."""
    parser.add_argument("--folder", type=Path, help=f"kmigrate's folder of a worker, with originals and journals; {default}")


def add_format_argument(parser: argparse.ArgumentParser) -> None:
    """`-o text|json`."""
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="sentences, or one JSON object")


def add_airflow_argument(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """`--airflow-url`."""
    default = "" if required else "; default: the Airflow of this machine"
    text = f"Airflow's address: its REST API is asked, with the token in AIRFLOW_CLI_TOKEN{default}"
    parser.add_argument("--airflow-url", metavar="URL", required=required, help=text)


def parse_cluster_name(text: str) -> str:
    """The name of a cluster, which becomes a part of names in Airflow. Raises `argparse.ArgumentTypeError` for what no cluster file has."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a cluster, such as prod")
    return text
