"""Question: what do the pages look like, on real runs?

Captures the example scripts and the bundled model, writes the pages, takes their pictures and
docs/gallery.md:

    python docs/take_pictures.py            # all of it, some minutes
    python docs/take_pictures.py heap flame # these pictures, of the runs that are there

Runs and pages are kept in runs/pictures. Needs the `test` extra and a Chromium (`make browser`
installs Debian's).
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from palette_png import palette_png
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
GALLERY = ROOT / "docs" / "gallery.md"
RUNS = ROOT / "runs" / "pictures"
MOST_BYTES = 200_000
_MARGIN = 16
_SCREEN = 900

_DECODE = """async (png) => {
  const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0);
  const data = context.getImageData(0, 0, bitmap.width, bitmap.height).data;
  let text = "";
  for (let i = 0; i < data.length; i += 32768) {
    text += String.fromCharCode(...data.subarray(i, i + 32768));
  }
  return [bitmap.width, bitmap.height, btoa(text)];
}"""

PLANTED = "--steps 6 examples/planted_faults.py --steps 14"  # two intervals tell no noise
TRAIN = "examples/train_moe.py --steps 12"
CAPTURES = {
    "planted": PLANTED,
    "fixed": f"{PLANTED} --late-rank -1 --product grouped_gemm --capacity 1.5",
    "dense-cf1.25": f"{TRAIN} --strategy dense-cf1.25",
    "sparse-ragged-dot": f"{TRAIN} --strategy sparse-ragged-dot --expert 4 --fsdp 2",
    "sparse-gmm": f"{TRAIN} --strategy sparse-gmm",
    "sparse-gmm-deepep": f"{TRAIN} --strategy sparse-gmm-deepep --expert 4 --fsdp 2",
}
"""Run -> script and arguments that it is captured from."""

PAGES = {
    "planted": "report runs/pictures/planted -o {page}",
    "model": "report runs/pictures/sparse-gmm-deepep -o {page}",
    "gpu": "report tests/data/gpu/sparse-ragged-dot -o {page}",
    "strategies": "report runs/pictures/dense-cf1.25 runs/pictures/sparse-ragged-dot "
    "runs/pictures/sparse-gmm runs/pictures/sparse-gmm-deepep -o {page}",
    "changes": "compare runs/pictures/planted runs/pictures/fixed --html {page}",
    "memory": "memory --model deepseek_v3 --hardware mi355x --ep 8 --fsdp 8 --html {page}",
    "pipeline": "pipeline --stages 8 --microbatches 16 --html {page}",
}
"""Page -> the command that writes it."""


@dataclass(frozen=True)
class Picture:
    """What is seen of a page: all that lies between the first and the last of ``parts``.

    Without parts it is the first screen. ``alt`` says what is seen to those who do not see it.
    """

    name: str
    page: str
    title: str
    alt: str
    text: str
    parts: tuple[str, ...] = ()
    scheme: str = "light"
    width: int = 1280


PICTURES = (
    Picture(
        "first-screen",
        "planted",
        "What to change first",
        "The first screen of a report: the step time, a bar of its parts, and the first findings.",
        "What was run, whether it can be trusted, where the step goes and the changes that may "
        "save most, each with its evidence. The run is that of "
        "[three planted problems](../examples/planted_faults.py); the third one is further down.",
    ),
    Picture(
        "first-screen-dark",
        "planted",
        "The same in the dark",
        "The same first screen, light text on a dark ground.",
        "Pages follow the system's setting, and a button changes it.",
        scheme="dark",
    ),
    Picture(
        "phone",
        "planted",
        "On a narrow screen",
        "The same first screen, 420 pixels wide.",
        "The list of sections becomes a menu.",
        width=420,
    ),
    Picture(
        "timeline",
        "planted",
        "One step on all devices",
        "A row of coloured pieces per device; rank 5 works while the others wait.",
        "One typical step: colours are the parts of the model, pale pieces wait for their peers. "
        "Zoom, search and hover for op, scope and source line. "
        "Rank 5 works alone at the beginning.",
        ("#timeline .timeline-title", "#timeline .timeline-frame"),
    ),
    Picture(
        "wait-map",
        "planted",
        "Who waits in which step",
        "A heat map of ranks by steps; one row is pale.",
        "Rank 5 hardly waits: it is the one that the others wait for.",
        ("#stragglers h2", "#stragglers-1-figure"),
    ),
    Picture(
        "load-map",
        "model",
        "Tokens by expert and rank",
        "Two heat maps: layers by experts and layers by ranks, against an even share.",
        "Which experts are busy, and whether their ranks are.",
        ("#expert_load h2", "#expert_load-1-figure"),
    ),
    Picture(
        "flame",
        "model",
        "Time by scope and by source line",
        "Two flame graphs, root at the top.",
        "The same device time by the scopes of the model and by the lines of the program; a click "
        "zooms in.",
        ("#ops h2", "#ops-1-figure"),
    ),
    Picture(
        "heap",
        "model",
        "Memory over the program",
        "Stacked areas over the program's points, with the peak marked.",
        "What lives at each point of the step's program, and what fills it at its peak.",
        ("#memory h2", "#memory-1-figure"),
    ),
    Picture(
        "receive-buffers",
        "planted",
        "Receive buffers",
        "Bars of the size of receive buffers, of which an eighth is used.",
        "Room for the worst case, what was used of it, and what balance would need.",
        ("#receive_buffers h2", "#receive_buffers-figure"),
    ),
    Picture(
        "roofline",
        "gpu",
        "Roofline",
        "Operations as points below the roofs of an H200, on logarithmic axes.",
        "Two H200: how close each op comes to what the device can do, and what bounds it.",
        ("#roofline h2", "#roofline-figure"),
    ),
    Picture(
        "breakdown",
        "gpu",
        "Where the step goes",
        "Bars of components, divided into forward, recompute and backward.",
        "Two H200: the parts of the model by phase.",
        ("#breakdown h2", "#breakdown-figure"),
    ),
    Picture(
        "report",
        "strategies",
        "Four strategies on one page",
        "Four bars on one scale, divided into the same components.",
        "The bundled model trained with each strategy on virtual CPU devices.",
    ),
    Picture(
        "changes",
        "changes",
        "What changed",
        "The first screen of a comparison: step and memory before and after, and where the "
        "change is.",
        "The run with three problems beside the same script without them.",
    ),
    Picture(
        "memory",
        "memory",
        "What fits",
        "A table of strategies by batch: what fits, what does not, by how much; then what helps.",
        "DeepSeek-V3 on 64 MI355X, before anyone books them: what fits, what breaks first, and "
        "what would help.",
    ),
    Picture(
        "pipeline",
        "pipeline",
        "A pipeline's schedule",
        "A grid of stages by time, with the microbatches' numbers.",
        "Which stage works on which microbatch when, and why stages idle.",
    ),
)


def main(names: Sequence[str]) -> None:
    """Pictures of these names of the runs that are there; without names all anew."""
    chosen = [picture for picture in PICTURES if not names or picture.name in names]
    if not names:
        shutil.rmtree(RUNS, ignore_errors=True)
    for run in CAPTURES:
        if not (RUNS / run / "meta.json").exists():
            _moeprof(f"capture --no-report --out runs/pictures/{run} {CAPTURES[run]}")
    for page in {picture.page for picture in chosen}:
        _moeprof(PAGES[page].format(page=f"runs/pictures/{page}.html"))
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        for picture in chosen:
            take(browser, picture)
        browser.close()
    GALLERY.write_text(gallery(), encoding="utf-8")


PERFETTO = """\
## In Perfetto

Two steps on two H200. `moeprof view` serves report and trace on this machine and opens Perfetto's
page on them ([the tracks](perfetto.md)); `docs/take_perfetto_picture.py` takes this picture.

![Perfetto's page with a track per stream and per component of each device.](images/perfetto.png)

`moeprof export RUN --perfetto run.pftrace`"""


def gallery() -> str:
    """docs/gallery.md."""
    parts = [
        "# Gallery",
        "Written by `python docs/take_pictures.py`, which captures the example scripts on virtual "
        "CPU devices,\nwrites the pages and takes these pictures; those of GPUs are of captures "
        "in `tests/data/gpu`.",
    ]
    for picture in PICTURES:
        command = PAGES[picture.page].replace("runs/pictures/", "").format(page="page.html")
        image = f"![{picture.alt}](images/{picture.name}.png)"
        parts += [f"## {picture.title}", picture.text, image, f"`moeprof {command}`"]
    return "\n\n".join([*parts, PERFETTO]) + "\n"


def take(browser: Browser, picture: Picture) -> None:
    """One picture, as a PNG of at most `MOST_BYTES`."""
    context = browser.new_context(
        viewport={"width": picture.width, "height": _SCREEN},
        color_scheme="dark" if picture.scheme == "dark" else "light",
        offline=True,
    )
    page = context.new_page()
    page.goto((RUNS / f"{picture.page}.html").as_uri(), wait_until="load")
    page.evaluate("async () => { await figures.drawAll(); }")
    if page.locator(".timeline").count():
        page.evaluate("() => timelines.drawAll()")
    page.wait_for_timeout(500)
    if picture.parts:
        shot = page.screenshot(full_page=True, clip=_clip(page, picture))
    else:
        shot = page.screenshot()
    out = IMAGES / f"{picture.name}.png"
    out.write_bytes(palette_png(_pixels(page, shot)))
    context.close()
    size = out.stat().st_size
    print(f"{out.name}  {size / 1000:.0f} kB", file=sys.stderr)
    if size > MOST_BYTES:
        raise SystemExit(f"{out}: {size} bytes, more than {MOST_BYTES}")


def _clip(page: Page, picture: Picture) -> dict[str, float]:
    """What lies between the first and the last part, with a margin."""
    boxes = []
    for part in picture.parts:
        box = page.locator(part).first.bounding_box(timeout=5000)
        if box is None:
            raise SystemExit(f"{picture.name}: nothing on the page is {part}")
        boxes.append(box)
    left, top = (min(box[side] for box in boxes) - _MARGIN for side in ("x", "y"))
    right = max(box["x"] + box["width"] for box in boxes) + _MARGIN
    bottom = max(box["y"] + box["height"] for box in boxes) + _MARGIN
    above = page.evaluate("() => window.scrollY")
    return {"x": left, "y": top + above, "width": right - left, "height": bottom - top}


def _pixels(page: Page, png: bytes) -> np.ndarray:
    """What a PNG shows, as the browser decodes it: uint8 [height, width, 4]."""
    width, height, data = page.evaluate(_DECODE, base64.b64encode(png).decode())
    raw = np.frombuffer(base64.b64decode(data), np.uint8)
    return raw.reshape(height, width, 4)


def _moeprof(command: str) -> None:
    print(f"moeprof {command}", file=sys.stderr, flush=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "moeprof", *command.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    if done.returncode:
        raise SystemExit(f"moeprof {command}: exit code {done.returncode}\n{done.stderr}")


if __name__ == "__main__":
    main(sys.argv[1:])
