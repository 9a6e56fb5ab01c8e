"""Question: what is too short to be told from the cost of a launch?"""

from __future__ import annotations

SHORT_NS = 10_000
"""A launch costs the host some 5 µs, and the device a few more. Kernels below that are short, and
so are gaps up to it: those have no cause."""
