"""Question: of how many microbatches did a stage hold activations at its peak?

From the begin of a piece of forward work until the end of its backward work; where gradients of
weights run apart, until their end. Pieces of a kind are taken to end in any order: only how many
have begun and ended counts.
"""

from __future__ import annotations

import numpy as np
import pandas as pd


def most_held(work: pd.DataFrame, chunks: int) -> float:
    """Microbatches, in parts of 1 / ``chunks``; NaN where as many did not go back as forward.

    Args:
        work: `STAGE_WORK` of one stage and iteration.
        chunks: groups of layers of the stage.
    """
    begin = work.loc[work["kind"] == "forward", "start_ns"].to_numpy()
    for kind in ("weight_gradient", "backward"):
        last = work[work["kind"] == kind]
        if len(last):
            break
    if len(last) != len(begin) or not len(begin):
        return float("nan")
    end = (last["start_ns"] + last["duration_ns"]).to_numpy()
    # what ends when another begins has made room for it
    order = np.lexsort((np.repeat([1, 0], len(begin)), np.concatenate([begin, end])))
    change = np.repeat([1, -1], len(begin))[order]
    return float(np.cumsum(change).max() / chunks)
