"""Which memory a buffer of a compiled program lies in: the device's own, or the host's.

XLA numbers memory spaces in a layout, ``f32[8]{0:S(5)}``, and colors an allocation by that number
(xla/layout.h). 5 is the host's memory on every backend. All other numbers are parts of the device:
on GPUs 1 is memory that collectives share, which is taken from the same pool. XLA's
CompiledMemoryStats tells device and host apart in the same way.
"""

from __future__ import annotations

import pandas as pd

HOST = 5


def on_device(buffers: pd.DataFrame) -> pd.DataFrame:
    """Rows of `BUFFERS` that lie in the device's memory."""
    return buffers[buffers["color"].ne(HOST)]
