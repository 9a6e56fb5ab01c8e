"""Does every capture on GPUs end with all of its steps, whatever the script, cache and flags?

    python benchmarks/gpu/steps.py [--devices 2] [--only NAME…] [--limit-s 560] [--out FILE] [--add]

Each case is a `moeprof capture` of three steps in a process of its own, read again as the run
folder and as the bare profile in it: both must have the same steps. Cases: the bundled model with
every strategy; a script without annotations, the same from a cold and a warm compilation cache;
MaxText, where the folder ``MAXTEXT_SITE`` holds its packages. With ``--devices 2`` the experts are
over two GPUs: every strategy, the script without annotations, and MaxText by its capacity buffers,
dropless with XLA's ragged all-to-all decomposed, and dropless on moeprof's kernels. The table and
the file say for each how many steps were used, how long a step and the interval between two starts
are, and which laws of the trust record do not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.machine import gpu_machine

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parents[1] / "results"
STEPS = 3
FIGURES = ("step_time_median", "interval_mean", "interval_median", "op_time", "unattributed_share")
_BUNDLED = [
    *("examples/train_moe.py", "--fsdp", "1", "--steps", "16", "--seq", "512"),
    *("--hidden", "512", "--pdbs", "4", "--dtype", "bfloat16", "--print-every", "50"),
]
_PLAIN = [
    *("examples/third_party_moe.py", "--data", "1", "--width", "512"),
    *("--steps", "30", "--length", "256"),
]
_MAXTEXT = [
    *("model_name=deepseek3-tiny", "override_model_config=true", "base_emb_dim=2048"),
    *("base_num_query_heads=16", "base_num_kv_heads=16", "base_mlp_dim=8192"),
    *("base_moe_mlp_dim=1024", "base_num_decoder_layers=5", "first_num_dense_layers=1"),
    *("num_experts=16", "num_experts_per_tok=4", "q_lora_rank=768", "kv_lora_rank=512"),
    *("vocab_size=32768", "max_target_length=2048", "per_device_batch_size=2"),
    *("scan_layers=true", "remat_policy=full", "weight_dtype=bfloat16", "dtype=bfloat16"),
    *("ici_fsdp_parallelism=1", "run_name=a", "hardware=gpu"),
    *("base_output_directory=out", "dataset_type=synthetic", "enable_checkpointing=false"),
    *("attention=dot_product", "steps=16", "enable_goodput_recording=false", "log_config=false"),
    "megablox=False",
]


@dataclass(frozen=True)
class Case:
    """A capture: the words behind `moeprof capture`, and what it adds to the environment."""

    name: str
    words: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


NO_GRAPHS = {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}
STRATEGIES = ("dense-cf1.25", "sparse-ragged-dot", "sparse-gmm", "sparse-gmm-deepep")


def cases(work: Path, devices: int) -> list[Case]:
    """Every case that this machine can run, experts over so many GPUs."""
    bundled, plain = ([*words, "--expert", str(devices)] for words in (_BUNDLED, _PLAIN))
    found = [Case(name, [*bundled, "--strategy", name]) for name in STRATEGIES]
    without = STRATEGIES[-1] if devices > 1 else "sparse-gmm"
    found += [
        Case(f"{without}, no command buffers", [*bundled, "--strategy", without], NO_GRAPHS),
        Case("plain script", plain),
        Case("plain script, no command buffers", plain, NO_GRAPHS),
    ]
    if devices == 1:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(work / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        found += [
            Case("plain script, cold cache", plain, cache),
            Case("plain script, warm cache", plain, cache),
            Case("annotated, cold cache", [*bundled, "--strategy", STRATEGIES[0]], cache),
            Case("annotated, warm cache", [*bundled, "--strategy", STRATEGIES[0]], cache),
        ]
    return found + _maxtext(devices)


def _maxtext(devices: int) -> list[Case]:
    """MaxText's paths; none where it is not here."""
    site = os.environ.get("MAXTEXT_SITE", "")
    base = Path(site) / "maxtext" / "configs" / "base.yml"
    if not (site and base.is_file()):
        return []
    words = [str(base), *_MAXTEXT, f"ici_expert_parallelism={devices}"]
    train = ["-m", "maxtext.trainers.pre_train.train", *words]
    more = {
        "DECOUPLE_GCLOUD": "TRUE",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), site])),
    }
    capacity = [*train, "sparse_matmul=False", "capacity_factor=1.25"]
    found = [Case("MaxText, capacity 1.25", capacity, more)]
    if devices == 1:
        return [*found, Case("MaxText, ragged_dot", [*train, "sparse_matmul=True"], more)]
    decomposed = {"XLA_FLAGS": "--xla_gpu_unsupported_enable_ragged_all_to_all_decomposer=true"}
    kernels = ["examples/maxtext_kernels.py", *words, "sparse_matmul=True"]
    return [
        *found,
        Case("MaxText, kernels", kernels, more),
        Case("MaxText, ragged decomposed", [*train, "sparse_matmul=True"], more | decomposed),
    ]


def run(case: Case, folder: Path, limit_s: float) -> dict[str, Any]:
    """Capture, and what the folder and the bare profile in it say; `failed` says why not."""
    command = [sys.executable, "-m", "moeprof", "capture", "--no-report"]
    command += ["--steps", str(STEPS), "--out", str(folder), *case.words]
    began = time.monotonic()
    log = folder.with_suffix(".log")
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | dict(case.environment),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the script is a child of the command's: both must end
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return {"failed": f"did not end in {limit_s:.0f} s"}
    seconds = time.monotonic() - began
    if code:
        lines = log.read_text(errors="replace").strip().splitlines()
        return {"failed": f"exit code {code}: {' | '.join(lines[-4:])[-500:]}"}
    profiles = sorted(folder.glob("plugins/profile/*/*.xplane.pb"))
    if not profiles:
        return {"failed": "no profile in the run folder"}
    return {
        "capture_s": round(seconds, 1),
        "profile_bytes": profiles[-1].stat().st_size,
        "folder": read(folder),
        "file": read(profiles[-1]),
    }


def read(path: Path) -> dict[str, Any]:
    """Steps, headline figures and troubled laws of `moeprof analyze --json`."""
    command = [sys.executable, "-m", "moeprof", "analyze", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode not in (0, 3):
        return {"failed": done.stderr.strip()[-400:]}
    document = json.loads(done.stdout)
    figures = {
        metric["metric"]: metric["value"]
        for name in ("step_time", "breakdown")
        for metric in document["analyses"][name]["headline"]
    }
    return {
        "exit_code": done.returncode,
        "steps_found": len(document["steps"]),
        "steps_used": sum(step["used"] for step in document["steps"]),
        "reasons": sorted({s["reason"] for s in document["steps"] if s["reason"]}),
        "devices": document["run"]["devices"],
        "events": document["run"]["events"],
        **{name: figures.get(name) for name in FIGURES},
        "troubles": {
            law["check"]: f"{law['verdict']}: {law['detail']}"
            for law in document["trust"]
            if law["verdict"] in ("warn", "fail")
        },
        "unchecked": [law["check"] for law in document["trust"] if law["verdict"] == "unchecked"],
        "notes": document["run"]["notes"],
    }


def is_whole(row: Mapping[str, Any]) -> bool:
    """Whether folder and file have all steps that were asked for."""
    if "failed" in row or "failed" in row["folder"] or "failed" in row["file"]:
        return False
    return bool(row["folder"]["steps_used"] == row["file"]["steps_used"] == STEPS)


def line(name: str, row: Mapping[str, Any]) -> str:
    """A row of the table, 80 columns."""
    if "failed" in row:
        return f"{name:<34} FAILED {row['failed'][:120]}"
    folder, file = row["folder"], row["file"]
    if "failed" in folder or "failed" in file:
        return f"{name:<34} FAILED {folder.get('failed') or file.get('failed')}"
    step, interval = folder["step_time_median"], folder["interval_mean"]
    told = [f"{value / 1e6:.2f}" if value else "-" for value in (step, interval)]
    used = f"{folder['steps_used']} / {file['steps_used']}"
    return f"{name:<34} steps {used}  step {told[0]:>8} ms  interval {told[1]:>8} ms"


def main() -> int:
    """Run the cases one after the other; how many have not all their steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1, choices=(1, 2))
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--limit-s", type=float, default=560)
    parser.add_argument("--case-limit-s", type=float, default=150)
    parser.add_argument("--out", type=Path, help="default: gpu_steps.json, gpu_steps_two.json")
    parser.add_argument("--add", action="store_true", help="keep the other cases of the file")
    parser.add_argument("--keep", type=Path, help="folder for the profiles, gzipped")
    given = parser.parse_args()
    if given.out is None:
        given.out = RESULTS / ("gpu_steps.json" if given.devices == 1 else "gpu_steps_two.json")
    ends = time.monotonic() + given.limit_s
    document: dict[str, Any] = {"machine": gpu_machine(), "devices": given.devices}
    document |= {"steps_asked": STEPS, "cases": {}}
    if given.add:
        document["cases"] = json.loads(given.out.read_text())["cases"]
    short = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        chosen = [
            case for case in cases(work, given.devices) if not given.only or case.name in given.only
        ]
        for place, case in enumerate(chosen):
            left = min(ends - time.monotonic(), given.case_limit_s)
            out = work / f"run{place}"
            row = run(case, out, left) if left > 15 else {"failed": "no time left"}
            document["cases"][case.name] = row
            print(line(case.name, row), flush=True)
            short += not is_whole(row)
            given.out.write_text(json.dumps(document, indent=1) + "\n")
            if given.keep and out.is_dir():
                given.keep.mkdir(parents=True, exist_ok=True)
                name = case.name.replace(",", "").replace(" ", "-")
                shutil.make_archive(str(given.keep / name), "gztar", out)
    return short


if __name__ == "__main__":
    sys.exit(main())
