"""Question: how does torch compute the three passes of a grouped product and of a dense one?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpu.gemm_shapes import Shape
from gpu.timing import Sample


def torch_calls(shape: Shape) -> dict[tuple[str, str], Callable[[], Any]]:
    """`torch._grouped_mm` and a dense product, by what and pass."""
    import torch

    torch.manual_seed(0)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    a = torch.randn(shape.rows, shape.k, **options)
    b = torch.randn(shape.groups, shape.k, shape.n, **options)
    d_out = torch.randn(shape.rows, shape.n, **options)
    ends = np.cumsum(shape.group_lens).astype(np.int32)
    offsets = torch.from_numpy(ends).cuda()
    one = b[0]
    return {
        ("grouped", "forward"): lambda: torch._grouped_mm(a, b, offs=offsets),
        ("grouped", "dA"): lambda: torch._grouped_mm(d_out, b.transpose(1, 2), offs=offsets),
        ("grouped", "dB"): lambda: torch._grouped_mm(a.t(), d_out, offs=offsets),
        ("dense", "forward"): lambda: a @ one,
        ("dense", "dA"): lambda: d_out @ one.t(),
        ("dense", "dB"): lambda: a.t() @ d_out,
    }


def torch_sample(call: Callable[[], Any]) -> Sample:
    """Seconds per call by the host's clock, as `jax_sample` takes them."""
    import torch

    def sample(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / calls

    return sample
