"""Question: what memory of host and devices do a save and a restore by Orbax take?

    python benchmarks/gpu/checkpoint.py FOLDER

Saves 8 GiB of arrays, split over all GPUs and then held by each of them, restores them while the
first are still there, and prints the rise of the process's resident memory, the fall of the
machine's available memory, and the device's bytes in use with their peak, in GiB. On two GPUs:
`benchmarks/results/gpu_checkpoint.json`. Needs orbax-checkpoint.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # before JAX is imported

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

GIB = 2**30
ARRAYS = 8
LAYOUTS = {"split": PartitionSpec("x"), "replicated": PartitionSpec()}


def _kib(file: str, key: str) -> int:
    lines = Path(file).read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


class Watch:
    """Least available memory of the machine and most resident memory of the process, in GiB."""

    def __init__(self) -> None:
        """Begin to look, every 10 ms."""
        self._seen: list[tuple[float, float]] = []
        threading.Thread(target=self._look, daemon=True).start()
        self.begin()

    def begin(self) -> None:
        """From here on."""
        time.sleep(1)
        self._seen.clear()
        self._first = self._now()

    def said(self, what: str) -> None:
        """Print what has changed since."""
        fall = self._first[0] - min(seen[0] for seen in self._seen)
        rise = max(seen[1] for seen in self._seen) - self._first[1]
        stats = jax.devices()[0].memory_stats() or {}
        used, peak = (stats[key] / GIB for key in ("bytes_in_use", "peak_bytes_in_use"))
        print(f"{what}: host +{rise:.2f}, machine -{fall:.2f}, device {used:.2f}, peak {peak:.2f}")

    def _look(self) -> None:
        while True:
            self._seen.append(self._now())
            time.sleep(0.01)

    @staticmethod
    def _now() -> tuple[float, float]:
        available, resident = _kib("/proc/meminfo", "MemAvail"), _kib("/proc/self/status", "VmRSS")
        return available / 2**20, resident / 2**20


def main(folder: Path) -> None:
    """Save and restore in each layout."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    watch = Watch()
    for name, spec in LAYOUTS.items():
        laid_out = NamedSharding(mesh, spec)
        made = jax.jit(
            lambda: {f"a{i}": jnp.full((2, GIB // 8), float(i)) for i in range(ARRAYS)},
            out_shardings=laid_out,
        )
        state = jax.block_until_ready(made())
        path = folder / name
        watch.begin()
        saver = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
        saver.save(path, args=ocp.args.PyTreeSave(state))
        watch.said(f"{name}, save returned")
        saver.wait_until_finished()
        watch.said(f"{name}, save done")
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
        )
        arguments = ocp.checkpoint_utils.construct_restore_args(abstract)
        watch.begin()
        restored = ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(
            path, args=ocp.args.PyTreeRestore(abstract, restore_args=arguments)
        )
        jax.block_until_ready(restored)
        watch.said(f"{name}, restore")
        del state, restored


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
