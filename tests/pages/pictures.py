"""`make pictures`: the pictures of pages in docs/images, each of the newest such page that a run of the product left below `build`.

`make demo` leaves all of them. A page that no run left keeps its picture.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from pathlib import Path
from typing import Final

from airflow_provider_kmigrate.core.migration.plan_document import TITLES, PlanOf
from tests.pages.browser import browser
from tests.trees import ROOT

HEIGHTS: Final = {"preflight": 1200, "plan": 1000, "report": 1000}
"""Name of a page -> pixels of its picture."""
_WIDTH: Final = 1100


def take_picture(page: Path, picture: Path, height: int) -> None:
    """Write the top of a page as PNG."""
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as tab:
        tab.load(page, _WIDTH)
        clip = {"x": 0, "y": 0, "width": _WIDTH, "height": height, "scale": 1}
        image = tab.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    picture.write_bytes(base64.b64decode(image["data"]))


def find_newest(name: str, build: Path) -> Path | None:
    """The newest page of this name, of a plan the migration's; None if no run left one."""
    title = f"{TITLES[PlanOf.MIGRATION]}</h1>" if name == "plan" else ""
    pages = (page for page in build.rglob(f"{name}.html") if title in page.read_text())
    return max(pages, key=lambda page: page.stat().st_mtime, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="the folder that is searched")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images", help="where the pictures go")
    given = parser.parse_args()
    for name, height in HEIGHTS.items():
        if page := find_newest(name, given.build):
            take_picture(page, given.images / f"{name}.png", height)
            sys.stdout.write(f"{name}.png: {page}\n")
        else:
            sys.stdout.write(f"{name}.png: no run left {name}.html below {given.build}\n")


if __name__ == "__main__":
    main()
