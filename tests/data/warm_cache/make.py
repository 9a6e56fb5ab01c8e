"""Two captures of one program on XLA:CPU, before and after it is in JAX's compilation cache.

    python make.py            # writes cold.xplane.pb.gz and warm.xplane.pb.gz beside itself

The second process compiles other programs before, so its program has another id; events of a
program from the cache carry the id of its first compilation all the same, which is that of
another program there (jax 0.10.2).
"""

import gzip
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
STEPS, RECORDED = 6, 3


def run(others: int, folder: str) -> None:
    """Train a few steps, the last of them under the profiler."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)
    if others > 1:
        jax.jit(lambda x: x + 1)(np.ones(3))  # moves the ids of all others
    for place in range(others):
        jax.jit(lambda x, place=place: jnp.sin(x @ x) * (place + 2))(jnp.ones((5 + place,) * 2))

    def loss(w, x):
        for _ in range(8):
            x = jnp.tanh(x @ w)
        return (x**2).mean()

    @jax.jit
    def train(w, x):
        value, gradient = jax.value_and_grad(loss)(w, x)
        return w - 0.1 * gradient, value

    w, x = jnp.eye(192), jnp.ones((48, 192))
    for number in range(STEPS):
        if number == STEPS - RECORDED:
            jax.profiler.start_trace(folder)
        with jax.profiler.StepTraceAnnotation("fit", step_num=number):
            w, value = train(w, x)
        float(value)
    jax.profiler.stop_trace()


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        for name, others in (("cold", 1), ("warm", 5)):
            folder = Path(cache) / name
            environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": cache, "JAX_PLATFORMS": "cpu"}
            command = [sys.executable, __file__, str(others), str(folder)]
            subprocess.run(command, check=True, env=environment)
            [profile] = folder.rglob("*.xplane.pb")
            target = HERE / f"{name}.xplane.pb.gz"
            target.write_bytes(gzip.compress(profile.read_bytes(), 9, mtime=0))


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else main()
