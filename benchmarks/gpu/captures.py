"""Question: what do profiles of every strategy on two GPUs look like? Captures and their answers.

    python benchmarks/gpu/captures.py run OUT [--only NAME …]    # on a machine with two GPUs
    python benchmarks/gpu/captures.py pack OUT tests/data/gpu    # anywhere

Each capture is a run of `captured_step.py` under `moeprof capture`, two steps long, in a
process of its own. All compile at once and then run one after the other, so that none disturbs
another's profile. A capture that fails or takes too long is named, and the next one begins.
Packing keeps the profile (gzip), what the capture wrote down, the routing and the answers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEP = Path(__file__).parent / "captured_step.py"
ROOT = Path(__file__).parents[2]
NO_GRAPHS = "--xla_gpu_enable_command_buffer="
CAPTURES = {
    "dense-cf1.25": ("dense-cf1.25", NO_GRAPHS),
    "sparse-ragged-dot": ("sparse-ragged-dot", NO_GRAPHS),
    "sparse-gmm": ("sparse-gmm", NO_GRAPHS),
    "sparse-gmm-deepep": ("sparse-gmm-deepep", NO_GRAPHS),
    "sparse-gmm-deepep-graphs": ("sparse-gmm-deepep", ""),
}
"""Name -> strategy, XLA flags. Without command buffers every kernel names its op."""
SKIPPED, RECORDED = 1, 2
LIMIT_BYTES = 3 * 10**6
_POLL_S = 0.1
_MEMORY_FRACTION = "0.15"


@dataclass
class Capture:
    """One capture under way. ``failed`` says why it has no result."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    failed: str = field(default="")

    @property
    def ready(self) -> Path:
        """Made by the step's process once it has compiled."""
        return self.folder / "ready"

    @property
    def go(self) -> Path:
        """What the step's process waits for."""
        return self.folder / "go"


def run(out: Path, names: list[str], compile_s: float, run_s: float) -> int:
    """Capture all of `names` below `out`; how many failed."""
    out.mkdir(parents=True, exist_ok=True)
    captures = [_start(out, name) for name in names]
    try:
        end = time.monotonic() + compile_s
        for capture in captures:
            _wait(capture, capture.ready, end, "did not compile")
        for capture in captures:
            if not capture.failed:
                capture.go.touch()
                _wait(capture, None, time.monotonic() + run_s, "did not end")
            _end(capture)
            print(_line(capture), flush=True)
    finally:
        for capture in captures:
            _end(capture)
    return sum(bool(capture.failed) for capture in captures)


def _start(out: Path, name: str) -> Capture:
    """`moeprof capture` of one strategy, called as the command calls it: click is not needed."""
    strategy, flags = CAPTURES[name]
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    steps = f"--strategy {strategy} --answers {folder}/answers.json".split()
    waits = f"--ready {folder}/ready --go {folder}/go".split()
    code = (
        "import sys; from pathlib import Path; from moeprof.recording.launch import run_script\n"
        "from moeprof.recording.options import CaptureOptions\n"
        f"options = CaptureOptions(Path({str(folder / 'run')!r}), skip_steps={SKIPPED}, "
        f"record_steps={RECORDED})\n"
        "options.run_dir.mkdir()\n"
        "sys.exit(run_script(sys.argv[1:], options, print).exit_code)"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
        "XLA_PYTHON_CLIENT_MEM_FRACTION": _MEMORY_FRACTION,
    }
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(STEP), *steps, *waits],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Capture(name, folder, process)


def _wait(capture: Capture, file: Path | None, end: float, what: str) -> None:
    """Until the file is there, or without one the process has ended; else `failed` says why not."""
    while capture.process.poll() is None and not (file and file.exists()):
        if time.monotonic() > end:
            capture.failed = f"{what} in time"
            return
        time.sleep(_POLL_S)
    code = capture.process.poll()
    if (code is not None and file and not file.exists()) or code:
        capture.failed = f"exit code {code}: {_last_line(capture.folder / 'log.txt')}"


def _end(capture: Capture) -> None:
    if capture.process.poll() is None:
        os.killpg(capture.process.pid, signal.SIGKILL)
    capture.process.wait()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "expected" in line]
    return (telling or lines or ["no output"])[-1][:300]


def _line(capture: Capture) -> str:
    if not capture.failed:
        profiles = list(capture.folder.rglob("*.xplane.pb"))
        if profiles and (capture.folder / "answers.json").exists():
            return f"{capture.name:<26} {profiles[0].stat().st_size / 1e6:7.2f} MB"
        capture.failed = f"no profile or no answers: {_last_line(capture.folder / 'log.txt')}"
    return f"{capture.name:<26} failed: {capture.failed}"


def pack(out: Path, kept: Path) -> None:
    """Copy every capture of `out` that succeeded to `kept`, profiles compressed.

    Raises:
        SystemExit: a profile is larger than may be kept.
    """
    for answers in sorted(out.glob("*/answers.json")):
        folder, target = answers.parent / "run", kept / answers.parent.name
        shutil.rmtree(target, ignore_errors=True)
        for profile in folder.rglob("*.xplane.pb"):
            packed = target / profile.relative_to(folder).with_name(profile.name + ".gz")
            packed.parent.mkdir(parents=True, exist_ok=True)
            packed.write_bytes(gzip.compress(profile.read_bytes(), 9, mtime=0))
            if packed.stat().st_size > LIMIT_BYTES:
                raise SystemExit(f"{packed}: expected at most {LIMIT_BYTES} bytes")
        shutil.copy(folder / "meta.json", target)
        shutil.copy(answers, target)
        for part in ("host", "memory", "routing"):
            if (folder / part).is_dir():
                shutil.copytree(folder / part, target / part)
        if not (folder / "routing").is_dir():
            _write_routing(json.loads(answers.read_text()), target)
        print(f"{target}: {sum(f.stat().st_size for f in target.rglob('*.*')) / 1e6:.2f} MB")


def _write_routing(answers: dict[str, Any], run_dir: Path) -> None:
    """The tables that `moeprof.routing.record` would have written in the captured process."""
    code = (
        "import json, sys, numpy as np, moeprof.routing as routing\n"
        "answers = json.loads(sys.stdin.read())\n"
        "for step in answers['steps']:\n"
        "    tokens, rows = (np.array(step[k], np.int32) for k in "
        "('tokens_per_expert', 'received_rows'))\n"
        "    routing.record(step['step'], tokens, received_rows=rows, "
        "first_layer=answers['model']['dense_layers'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MOEPROF_RUN_DIR": str(run_dir)}
    subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(answers),
        text=True,
        check=True,
        env=environment,
    )


def main() -> int:
    """Capture, or pack what was captured."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    capturing = commands.add_parser("run")
    capturing.add_argument("out", type=Path)
    capturing.add_argument("--only", nargs="+", choices=CAPTURES, default=list(CAPTURES))
    capturing.add_argument("--compile-s", type=float, default=180)
    capturing.add_argument("--run-s", type=float, default=60)
    packing = commands.add_parser("pack")
    packing.add_argument("out", type=Path)
    packing.add_argument("kept", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "pack":
        pack(arguments.out, arguments.kept)
        return 0
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from gpu.gate import begin  # on a machine with GPUs alone

    begin(f"{parser.prog} run", 2)
    out = arguments.out.absolute()
    return run(out, arguments.only, arguments.compile_s, arguments.run_s)


if __name__ == "__main__":
    sys.exit(main())
