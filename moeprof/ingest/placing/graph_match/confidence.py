"""Question: how sure is a matched op? The only place that gives the levels a meaning.

All levels come from one launch of a graph, whose kernels are aligned in time order with the
instructions in the order of the compiler's schedule.
"""

from __future__ import annotations

NAMED = 1.0
"""The kernel's name is that of one instruction, and no other instruction could share its kernel."""

ENCLOSED = 0.8
"""By order, between a known instruction before and one after: every other placement would leave
an instruction without a kernel, or a kernel without an instruction."""

OPEN = 0.6
"""The same, but known on one side only (the beginning or the end of a graph)."""

UNEVEN = 0.3
"""By order, where that does not settle it: counts differ, another placement fits as well, names
say nothing at all, or the program carries no schedule. A guess."""

NOT_FOUND = 0.0
"""No instruction fits: the kernel stays without an op."""
