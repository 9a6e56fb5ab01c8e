"""One server for the tests of a module, on copies of captures and on damaged files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.assistant import Served, serving
from builders.xspace import Plane, event, host, line, metadata, xspace

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Copies of captures, and damaged ones."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(DATA / "gpu", folder / "gpu")
    shutil.copytree(DATA / "maxtext", folder / "maxtext")
    program = metadata()
    work = [event("add", 1000 * i + 10, 100, hlo_op="add", program_id=7) for i in range(4)]
    noise = host(*(line(f"t{k}", *(event("x", 10, 1) for _ in range(99))) for k in range(9)))
    whole = xspace(program, Plane("/device:GPU:0", (line("Stream #1", *work),)), noise)
    (folder / "cut.xplane.pb").write_bytes(whole[: int(0.7 * len(whole))])
    (folder / "html.xplane.pb").write_bytes(b"<!DOCTYPE html><html>404 Not Found</html>")
    (folder / "idle.xplane.pb").write_bytes(
        xspace(program, host(line("python", event("train", 1, 9))))
    )
    return folder


@pytest.fixture(scope="module")
def server(root, tmp_path_factory) -> Iterator[Served]:
    with serving(root, tmp_path_factory.mktemp("log") / "stderr") as served:
        yield served
