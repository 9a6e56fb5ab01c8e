"""Eight virtual CPU devices for every test: expert parallelism without an accelerator."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_FLAG = "--xla_force_host_platform_device_count=8"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()

# A shell starts background jobs with SIGINT ignored, and children inherit that: the scripts that
# tests interrupt would not notice.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine than about the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="module", autouse=True)
def _as_the_process_began() -> Iterator[None]:
    """Modules share a process in any order: none leaves 64-bit JAX or a set-up runtime to the next.

    Neither JAX nor the kernels are imported for this: most tests do without.
    """
    yield
    jax, kernels = (sys.modules.get(name) for name in ("jax", "moeprof.kernels"))
    if jax is not None:
        jax.config.update("jax_enable_x64", False)
    if kernels is not None:
        kernels.reset_runtime()
