"""How much of a GPU's time is named right, on programs that the rules have not seen.

    python benchmarks/gpu/naming.py --rules COMMIT [--program NAME…] [--out FILE] [--keep FOLDER]

Runs programs of the scoring half of ``benchmarks/naming`` on one GPU at their large sizes, records
three steps of each, and scores every op by its source line (`benchmarks/naming.py` says how). The
rules are those of the commit that is named: a program counts once, before anybody looks into it.
The runs of a file stay; a new one is added.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "naming"))

from captures import Program, programs
from headline import RESULTS
from scoring import Score, largest_wrong, of_capture
from source_truth import of_script

from gpu.machine import gpu_machine

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "naming" / "record.py"
LIMIT_S = 120


def captured(program: Program, folder: Path, devices: int, *, graphs: bool) -> Path:
    """The profile of three steps on GPUs.

    Raises:
        subprocess.SubprocessError: the program failed, or ran past its limit.
    """
    script = folder / program.file_name
    script.write_text(program.text, "utf-8")
    out = folder / f"{program.name}.xplane.pb.gz"
    env = {**os.environ, "SIZES": json.dumps(dict(program.large)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    if not graphs:  # one event each hides the kernels of a program that the schedule does not match
        env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer="
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    record = [
        sys.executable,
        str(RECORD),
        "cpu",
        str(script),
        str(out),
        str(devices),
    ]
    subprocess.run(record, env=env, check=True, timeout=LIMIT_S, capture_output=True, text=True)
    return out


def row_of(
    program: Program, folder: Path, devices: int, keep: Path | None, *, graphs: bool
) -> dict[str, Any]:
    """Score of a program, or why it has none."""
    begun = time.monotonic()
    try:
        profile = captured(program, folder, devices, graphs=graphs)
    except subprocess.SubprocessError as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        return {"failed": said[-1][:200] if said else "no reason was said"}
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(profile, keep)
    score: Score = of_capture(profile, of_script(Path(program.file_name), program.text))
    return {
        **score.row(),
        "wrong": largest_wrong(score, {}, 5),
        "took_s": round(time.monotonic() - begun, 1),
    }


def main() -> int:
    """Run, print and write; how many programs are below 95 % or failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", required=True, metavar="COMMIT")
    parser.add_argument("--program", action="append")
    parser.add_argument("--devices", type=int, default=1, help="more: programs of several, by name")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_naming.json")
    parser.add_argument("--what", default="", help="what is said of this run")
    parser.add_argument("--no-graphs", action="store_true", help="without command buffers")
    parser.add_argument("--keep", type=Path, help="folder for the profiles")
    asked = parser.parse_args()
    chosen = [
        each
        for each in programs("scoring" if asked.devices == 1 else None)
        if (each.devices == 1) == (asked.devices == 1)
        and each.is_possible
        and (not asked.program or each.name in asked.program)
    ]
    run: dict[str, Any] = {"what": asked.what, "machine": gpu_machine(), "rules": asked.rules}
    run |= {"devices": asked.devices, "command_buffers": not asked.no_graphs, "programs": {}}
    earlier = json.loads(asked.out.read_text())["runs"] if asked.out.exists() else []
    low = 0
    with tempfile.TemporaryDirectory() as folder:
        for program in chosen:
            row = row_of(
                program, Path(folder), asked.devices, asked.keep, graphs=not asked.no_graphs
            )
            run["programs"][program.name] = row
            told = f"{row['right']:5.1f} %" if "right" in row else f"failed: {row['failed']}"
            print(f"{program.name:24} {told}", flush=True)
            low += row.get("right", 0.0) < 95
            asked.out.write_text(json.dumps({"runs": [*earlier, run]}, indent=1) + "\n")
    return low


if __name__ == "__main__":
    sys.exit(main())
