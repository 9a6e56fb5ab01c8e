"""Question: what text does the bundled model learn from? (the Python standard library's sources)

Every Python installation carries megabytes of real English and code, so training needs no download.
Tokens are bytes.
"""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from moeprof.errors import SpecError

VOCAB = 256
_LIMIT_BYTES = 8 * 2**20


@functools.cache
def load_text(limit_bytes: int = _LIMIT_BYTES) -> np.ndarray:
    """The sources of the top-level standard modules, by name, cut at ``limit_bytes``: uint8 [N].

    Raises:
        SpecError: this Python installation has no sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    pieces: list[bytes] = []
    size_bytes = 0
    for path in sorted(folder.glob("*.py")):
        if size_bytes >= limit_bytes:
            break
        pieces.append(path.read_bytes())
        size_bytes += len(pieces[-1])
    if not pieces:
        raise SpecError(f"training text: expected *.py files in {folder}, found none.")
    return np.frombuffer(b"".join(pieces)[:limit_bytes], np.uint8)


def batches(sequences: int, length: int, *, seed: int = 0) -> Iterator[np.ndarray]:
    """Endless batches int32 [sequences, length + 1] of windows at random places.

    Batch i depends on the seed and the text alone.

    Raises:
        SpecError: the text is shorter than one window.
    """
    text = load_text()
    if len(text) <= length:
        raise SpecError(
            f"training text: expected more than {length} bytes for one sequence, "
            f"found {len(text)}. Lower the sequence length."
        )
    random = np.random.default_rng(seed)
    window = np.arange(length + 1)
    while True:
        start = random.integers(0, len(text) - length, sequences)
        yield text[start[:, None] + window].astype(np.int32)
