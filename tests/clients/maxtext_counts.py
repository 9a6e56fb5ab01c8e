"""MaxText's training with its own count of what its routers choose: the oracle of a check.

    python tests/clients/maxtext_counts.py CONFIG key=value …

Counts per expert of each call of a router, as MaxText's own code sees them, go to counts.json in
the working directory when training ends. A layer that is computed again counts again.
"""

from __future__ import annotations

import atexit
import functools
import json
import runpy
from pathlib import Path
from typing import Any

import jax
import numpy as np
from maxtext.layers import moe

TRAIN = "maxtext.trainers.pre_train.train"
_counts: list[list[int]] = []
_get_topk = moe.RoutedMoE.get_topk


@functools.wraps(_get_topk)
def _counted(layer: Any, *args: Any, **kwargs: Any) -> Any:
    weights, indices = _get_topk(layer, *args, **kwargs)

    def count(chosen: Any) -> None:
        each = np.bincount(np.asarray(chosen).ravel(), minlength=layer.num_experts)
        _counts.append(each.tolist())

    jax.debug.callback(count, indices)
    return weights, indices


if __name__ == "__main__":
    moe.RoutedMoE.get_topk = _counted
    atexit.register(lambda: Path("counts.json").write_text(json.dumps(_counts)))
    runpy.run_module(TRAIN, run_name="__main__", alter_sys=True)
