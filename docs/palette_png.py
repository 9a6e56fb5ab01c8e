"""Question: how does a picture of a page become a small file?

Pages have few colours; what is left beside the 256 most frequent ones is the soft edge of letters,
which takes the nearest of these. One byte per pixel compresses to a third of what a browser writes.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

_COLOURS = 256


def palette_png(pixels: np.ndarray) -> bytes:
    """A PNG of at most 256 colours of `pixels`, uint8 [height, width, 3 or 4]; without alpha."""
    height, width = pixels.shape[:2]
    packed = pixels[..., :3].reshape(-1, 3).astype(np.int64) @ np.array([65536, 256, 1])
    colours, places, counts = np.unique(packed, return_inverse=True, return_counts=True)
    kept = colours[np.sort(np.argsort(-counts, kind="stable")[:_COLOURS])]
    index = _nearest(_channels(colours), _channels(kept))[places].astype(np.uint8)
    rows = np.zeros((height, width + 1), np.uint8)  # each begins with its filter, 0: none
    rows[:, 1:] = index.reshape(height, width)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            _chunk(b"PLTE", _channels(kept).astype(np.uint8).tobytes()),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            _chunk(b"IEND", b""),
        )
    )


def _channels(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=-1)


def _nearest(colours: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """For each colour the place of the nearest that is kept."""
    found = np.zeros(len(colours), np.int64)
    for start in range(0, len(colours), 4096):
        part = colours[start : start + 4096, None, :] - kept[None, :, :]
        found[start : start + 4096] = (part**2).sum(-1).argmin(-1)
    return found


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
