"""Question: what do the parts of a step-time estimate compute with? Numbers, or arrays of them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Real: TypeAlias = float | npt.NDArray[np.floating[Any]] | npt.NDArray[np.signedinteger[Any]]
"""One value, or one per plan."""
