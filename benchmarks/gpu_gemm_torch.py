"""Question: how does torch compute the three passes of a grouped product and of a dense one?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gpu_gemm_shapes import Shape


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


def torch_sample(call: Callable[[], Any]) -> Callable[[int], float]:
    """Seconds per call by CUDA events."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample(calls: int) -> float:
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls

    return sample
