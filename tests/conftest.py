"""Eight virtual CPU devices for every test: expert parallelism without an accelerator."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["MOEPROF_CACHE"] = "off"  # a test must not be answered by what an earlier one kept
_FLAG = "--xla_force_host_platform_device_count=8"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()


def _caught(number: int, frame: object) -> None:
    """Do nothing: the one who ignored the signal for this process still has it so."""


# A shell starts background jobs with SIGINT and SIGQUIT ignored, nohup with SIGHUP, and children
# inherit that: shells among them cannot even trap such a signal. What is caught here is at its
# default in children.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else _caught)

# How long an example takes says more about the machine than about the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="module", autouse=True)
def _as_the_process_began(request: pytest.FixtureRequest) -> Iterator[None]:
    """Modules share a process in any order: none leaves 64-bit JAX or a set-up runtime to the next.

    Nor programs that were compiled quickly, but to those that are marked so too. Neither JAX nor
    the kernels are imported for this: most tests do without.
    """
    is_quick = request.node.get_closest_marker("quick") is not None
    if is_quick or "builders.quick" in sys.modules:
        from builders import quick

        quick.compile_quickly(is_quick)
    yield
    jax, kernels = (sys.modules.get(name) for name in ("jax", "moeprof.kernels"))
    if jax is not None:
        jax.config.update("jax_enable_x64", False)
    if kernels is not None:
        kernels.reset_runtime()
