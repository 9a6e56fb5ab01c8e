"""Question: how large is the page of a long profile, and how soon does a reader see it?

    python benchmarks/report_page.py [--case one_long_step …] [--rounds 5]

``one_long_step`` has 8 devices and 4 steps, 200,000 kernels in each, with their launches: 1.6 M
events, of which the timeline draws one step. ``many_at_once`` has 1.6 M events of XLA:CPU, of
which dozens of a device lie at the same time: each is on a row of its own.

Making the page is one process, started cold; its memory is the peak resident set that the system
reports. Times in the browser are medians over rounds, each with a headless Chromium started for it
and the page opened from disk: first paint is the browser's own ``first-contentful-paint``, since
the navigation began; the timeline is timed from the jump to it until its picture stands, with all
that this needs (parsing the embedded document); a frame of a zoom is the time of the script that
paints it. Limits: 20 MB, and 2 s until the first paint.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import synthetic_xspace  # noqa: E402
from builders import big_xspace  # noqa: E402
from machine import machine  # noqa: E402
from playwright.sync_api import Page, sync_playwright  # noqa: E402

RESULTS = Path(__file__).parent / "results"
MOST_BYTES = 20_000_000
MOST_PAINT_MS = 2_000
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)
_PAINTED = """
async () => {
  for (;;) {
    const [entry] = performance.getEntriesByName("first-contentful-paint");
    if (entry) return entry.startTime;
    await new Promise(requestAnimationFrame);
  }
}
"""
_DRAWN = """
async () => {
  const box = document.querySelector(".timeline");
  const before = performance.now();
  const drawn = new Promise((resolve) => {
    new MutationObserver(() => box.dataset.drawn && resolve()).observe(box, { attributes: true });
  });
  box.scrollIntoView({ behavior: "instant" });
  await drawn;
  await new Promise(requestAnimationFrame);
  return performance.now() - before;
}
"""
_FRAMES = """
() => {
  const [timeline] = timelines;
  const { start, end } = timeline.state();
  const spent = [];
  for (let step = 0; step < 24; step += 1) {
    const middle = start + (end - start) * (0.2 + 0.025 * step);
    const wide = (end - start) / 1.4 ** step;
    timeline.show(middle - wide / 2, middle + wide / 2, false);
    const before = performance.now();
    timeline.paint();
    spent.push(performance.now() - before);
  }
  timeline.show(start, end, false);
  return spent;
}
"""


def _one_long_step(file: Path) -> None:
    file.write_bytes(big_xspace.gpu_profile(devices=8, steps=4, kernels=25_000))


def _many_at_once(file: Path) -> None:
    synthetic_xspace.write(file, 64_000_000, "cpu")


CASES: dict[str, Callable[[Path], None]] = {
    "one_long_step": _one_long_step,
    "many_at_once": _many_at_once,
}


def measure(name: str, rounds: int, folder: Path) -> dict[str, object]:
    """The page of one case: how it is made, how large it is, how soon it is seen."""
    profile, page = folder / f"{name}.xplane.pb", folder / f"{name}.html"
    with ProcessPoolExecutor(1) as pool:  # a child's peak memory is at least that of its parent
        pool.submit(CASES[name], profile).result()
    load = os.getloadavg()[0]
    command = [sys.executable, "-m", "moeprof", "report", str(profile), "-o", str(page)]
    wall_ns, cpu_ns, peak_bytes = _run(command)
    document = _document(page)
    drawn = {m["metric"]: m["value"] for m in document["drawings"]["one_step"]["headline"]}
    seen = [_seen(page) for _ in range(rounds)]
    return {
        "case": name,
        "events": document["run"]["events"],
        "pieces_of_work": drawn["pieces_of_work"],
        "pieces_drawn": drawn["pieces_drawn"],
        "resolution_ns": drawn["resolution"],
        "profile_bytes": profile.stat().st_size,
        "page_bytes": page.stat().st_size,
        "largest_parts_bytes": _largest(document),
        "report_wall_ns": wall_ns,
        "report_cpu_ns": cpu_ns,
        "report_peak_rss_bytes": peak_bytes,
        "load_before": round(load, 2),
        "rounds": rounds,
        **{f"{key}_ms": round(statistics.median(s[key] for s in seen), 1) for key in seen[0]},
        "first_paint_each_ms": [round(s["first_paint"], 1) for s in seen],
    }


def _run(command: list[str]) -> tuple[int, int, int]:
    """Wall and processor time in ns and peak resident bytes of a report.

    Raises:
        RuntimeError: it failed; that its input is partial (exit code 3) is no failure.
    """
    start = time.perf_counter_ns()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter_ns() - start
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 3):
        raise RuntimeError(f"{' '.join(command)} failed with exit code {code}")
    return wall, int((used.ru_utime + used.ru_stime) * 1e9), used.ru_maxrss * 1024


def _document(page: Path) -> dict[str, object]:
    text = page.read_text(encoding="utf-8")
    begin = text.index('<script type="application/json" class="document">')
    begin = text.index(">", begin) + 1
    document: dict[str, object] = json.loads(text[begin : text.index("</script>", begin)])
    return document


def _largest(document: dict[str, object]) -> dict[str, int]:
    """What takes most room in the embedded document."""
    parts = {
        f"{group}.{name}": len(json.dumps(value))
        for group in ("analyses", "drawings")
        for name, value in document[group].items()  # type: ignore[attr-defined]
    }
    return dict(sorted(parts.items(), key=lambda part: -part[1])[:6])


@contextmanager
def _opened(page: Path) -> Iterator[Page]:
    """The page in a browser that was started for it alone."""
    path = (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS.split())
        context = browser.new_context(offline=True, viewport={"width": 1400, "height": 900})
        opened = context.new_page()
        opened.goto(page.as_uri(), wait_until="commit")
        yield opened
        browser.close()


def _seen(page: Path) -> dict[str, float]:
    """Milliseconds of one cold visit."""
    with _opened(page) as opened:
        opened.wait_for_load_state("load")
        paint = float(opened.evaluate(_PAINTED))
        loaded = float(
            opened.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
        )
        drawn = float(opened.evaluate(_DRAWN))
        frames = opened.evaluate(_FRAMES)
        return {
            "first_paint": paint,
            "loaded": loaded,
            "timeline_drawn": drawn,
            "zoom_frame": statistics.median(frames),
            "slowest_zoom_frame": max(frames),
        }


def main() -> None:
    """Measure every case, print what was found, write JSON; fail where a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "report_page.json")
    options = parser.parse_args()
    about = machine("playwright", "plotly", "pandas", "numpy")
    with tempfile.TemporaryDirectory() as folder:
        pages = [measure(name, options.rounds, Path(folder)) for name in options.case or CASES]
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS.split())
        about["chromium"] = browser.version
        browser.close()
    limits = {"page_bytes": MOST_BYTES, "first_paint_ms": MOST_PAINT_MS}
    document = {"schema": "moeprof.bench/1", "machine": about, "limits": limits, "pages": pages}
    print(json.dumps(document, indent=1))
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    over = [
        f"{page['case']}: {key} is {page[key]:,}, the limit is {most:,}"
        for page in pages
        for key, most in limits.items()
        if float(str(page[key])) > most
    ]
    if over:
        sys.exit("\n".join(over))


if __name__ == "__main__":
    main()
