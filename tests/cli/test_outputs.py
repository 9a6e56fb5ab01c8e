"""What is read is never replaced by what is written, and what is written is whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from moeprof.cli.main import group
from moeprof.errors import MoeprofError
from moeprof.reports.parts.templating import whole_file, write


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "{input}", "-o", "{out}"],
        ["compare", "{input}", "{input}", "--html", "{out}"],
        ["pipeline", "--run", "{input}", "--html", "{out}"],
        ["memory", "--model", "{input}", "--html", "{out}"],
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize("is_link", [False, True], ids=["itself", "a link to it"])
def test_an_input_is_not_replaced_by_a_page(tmp_path: Path, arguments: list[str], is_link: bool):
    read = tmp_path / ("profile.xplane.pb" if is_link else "profile.html")
    read.write_bytes(b"kept")
    out = read
    if is_link:
        out = tmp_path / "page.html"
        out.symlink_to(read)
    done = CliRunner().invoke(group, [word.format(input=read, out=out) for word in arguments])
    assert done.exit_code == 2
    assert f"found {out}, which is the input {read}." in done.output.replace("\n", " ")
    assert read.read_bytes() == b"kept"


def test_an_input_is_not_replaced_by_a_trace(tmp_path: Path):
    read = tmp_path / "profile.pftrace"
    read.write_bytes(b"kept")
    done = CliRunner().invoke(group, ["export", str(read), "--perfetto", str(read)])
    assert done.exit_code == 2
    assert read.read_bytes() == b"kept"


def test_a_page_that_fails_leaves_the_one_before_it(tmp_path: Path):
    page = tmp_path / "page.html"
    page.write_text("before")

    def fill() -> None:
        with whole_file(page) as file:
            file.write(b"half")
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        fill()
    assert page.read_text() == "before"
    assert list(tmp_path.iterdir()) == [page]


def test_a_page_replaces_a_link_and_not_what_it_leads_to(tmp_path: Path):
    target = tmp_path / "target"
    target.write_text("kept")
    page = tmp_path / "page.html"
    page.symlink_to(target)
    write("new", page, "-o")
    assert (target.read_text(), page.read_text(), page.is_symlink()) == ("kept", "new", False)


def test_a_new_page_can_be_read_by_whom_the_umask_lets(tmp_path: Path):
    before = os.umask(0o027)
    try:
        write("new", tmp_path / "page.html", "-o")
    finally:
        os.umask(before)
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o640


def test_a_missing_folder_is_told_in_one_line(tmp_path: Path):
    with pytest.raises(MoeprofError, match="expected a place that can be written, found: No such"):
        write("new", tmp_path / "nowhere" / "page.html", "-o")
