"""The gallery shows all pictures that the script takes, and no picture is heavy."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)  # as Python does for a script
        return runpy.run_path(str(DOCS / "take_pictures.py"))


def test_the_gallery_is_what_the_script_writes(script):
    assert (DOCS / "gallery.md").read_text(encoding="utf-8") == script["gallery"]()


def test_every_picture_is_there_and_light(script):
    names = {f"{picture.name}.png" for picture in script["PICTURES"]}
    sizes = {path.name: path.stat().st_size for path in (DOCS / "images").glob("*.png")}
    assert set(sizes) == {*names, "perfetto.png"}
    assert max(sizes.values()) <= script["MOST_BYTES"]


def test_every_picture_says_what_it_shows():
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert len(re.findall(r"!\[[A-Z][^\]]{20,}\.\]\(images/", text)) == text.count("](images/")


def test_every_page_is_shown(script):
    assert {picture.page for picture in script["PICTURES"]} == set(script["PAGES"])
