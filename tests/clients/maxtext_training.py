"""Question: how is a tiny MaxText training started, alone or under capture, and its end seen?"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAIN = ("-m", "maxtext.trainers.pre_train.train")
KERNELS = (str(ROOT / "examples" / "maxtext_kernels.py"),)
COUNTS = (str(ROOT / "tests" / "clients" / "maxtext_counts.py"),)
"""What the command runs: MaxText, and MaxText on moeprof's kernels."""
LIMIT_S = 900.0
STEPS = 12
WINDOW = 3  # of these that a capture records
OPTIONS: dict[str, object] = {
    "model_name": "deepseek3-tiny",
    "override_model_config": "true",
    "run_name": "tiny",
    "base_output_directory": "out",
    "dataset_type": "synthetic",
    "enable_checkpointing": "false",
    "steps": STEPS,
    "base_num_decoder_layers": 3,
    "first_num_dense_layers": 1,
    "vocab_size": 512,
    "per_device_batch_size": 1,
    "max_target_length": 64,
    "attention": "dot_product",
    "enable_goodput_recording": "false",
    "log_config": "false",
    "megablox": "False",
    "jax_cache_dir": "cache",
}


@dataclass(frozen=True)
class Place:
    """Where cases run."""

    python: str
    base: str
    work: Path
    is_gpu: bool

    def mesh(self, **sizes: int) -> dict[str, object]:
        """Options of a mesh of eight devices; a GPU is alone."""
        axes = ("fsdp", "expert")
        return {f"ici_{a}_parallelism": 1 if self.is_gpu else sizes.get(a, 1) for a in axes}


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, and all lines that it wrote."""

    code: int
    lines: Sequence[str]
    folder: Path

    def has(self, text: str) -> bool:
        """Whether a line has the text."""
        return any(text in line for line in self.lines)

    @property
    def losses(self) -> list[float]:
        """Loss of every step, of the metrics file."""
        metrics = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["learning/loss"] for line in metrics]


class Training:
    """One MaxText command, alone or under `moeprof capture`, in a folder of its own."""

    def __init__(
        self,
        place: Place,
        name: str,
        options: Mapping[str, object],
        *,
        capture: Sequence[str] | None = (),
        script: Sequence[str] = TRAIN,
        rank: tuple[int, int] = (0, 1),
    ) -> None:
        """Start it. `capture` are options of `moeprof capture`, None for no capture at all."""
        self.folder = place.work / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / f"log{rank[0]}.txt"
        every = OPTIONS | {"hardware": "gpu" if place.is_gpu else "cpu"} | dict(options)
        words = arguments = [
            *script,
            place.base,
            *(f"{key}={value}" for key, value in every.items()),
        ]
        if capture is not None:
            words = ["-m", "moeprof", "capture", "--out", "run", "--steps", str(WINDOW)]
            words += [*capture, *arguments]
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [place.python, *words],
                cwd=self.folder,
                env=environment(place, *rank),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # what it starts ends with it
            )

    def lines(self) -> list[str]:
        """What it has written so far."""
        return self.log.read_text(errors="replace").splitlines()

    def terminate_when(self, text: str) -> None:
        """Send SIGTERM as soon as it has written `text`, as a scheduler does."""
        deadline = time.monotonic() + LIMIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if any(text in line for line in self.lines()):
                self.process.send_signal(signal.SIGTERM)
                return
            time.sleep(0.05)

    def end(self) -> Ended:
        """Wait for its end."""
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        return Ended(code, self.lines(), self.folder)


def environment(place: Place, rank: int, processes: int) -> dict[str, str]:
    """What MaxText reads: its own launcher's variables, and how many devices there are."""
    mine = {
        "DECOUPLE_GCLOUD": "TRUE",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "MOEPROF_LAUNCH_ID": str(place.work),
    }
    if place.is_gpu:
        mine |= {"JAX_COORDINATOR_IP": "127.0.0.1", "JAX_COORDINATOR_PORT": free_port()}
        mine |= {"NNODES": str(processes), "NODE_RANK": str(rank)}
        return os.environ | mine
    mine |= {"JAX_PLATFORMS": "cpu", "JAX_COORDINATOR_ADDRESS": "127.0.0.1"}
    mine |= {"JAX_PROCESS_COUNT": str(processes), "PROCESSES_IN_JOB": str(processes)}
    mine |= {"JOB_INDEX": "0", "JOB_COMPLETION_INDEX": str(rank)}
    # Compiled a quarter faster; how fast the code is matters to nobody here.
    flags = ("--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true")
    count = f"--xla_force_host_platform_device_count={8 // processes}"
    mine["XLA_FLAGS"] = " ".join((count, *flags))
    return os.environ | mine


def free_port() -> str:
    """A port of this machine that nobody listens on: several checks may share a GPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def base_yml(python: str) -> str:
    """MaxText's own configuration, beside its package; imports nothing of it."""
    ask = "import importlib.util as u; print(u.find_spec('maxtext').submodule_search_locations[0])"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{python} has no MaxText: pip install maxtext==0.2.5, or --python PATH")
    return str(Path(done.stdout.strip()) / "configs" / "base.yml")
