"""Out-of-memory messages: what failed, what fills the memory, and what to change.

A log is read line by line (`log_lines`, `failures`, `read`), put beside what a run or a compiler
left (`sources`), explained (`capacity`, `explain`, `changes`) and written as a `document`. Here are
the values that these hand on: what a message may tell, and what can be said of it. None is "not
told".
"""

from dataclasses import dataclass, field, fields

from moeprof.units import format_bytes

POOL = "pool"
"""XLA's own pool had no room for a request while a program was started or an array was made."""
COMPILE = "compile"
"""The compiler found that a program needs more than the device has."""
OUTSIDE = "outside"
"""Another library, or the driver, found no room beside XLA's pool."""
RESERVE = "reserve"
"""The device had no room for the pool itself."""
HOST = "host"
"""Memory of the host: its own, or the pool of pinned memory."""
LOAD = "load"
"""A TPU had no room in one piece for a compiled program, so that it could not be loaded."""
PLAN = "plan"
"""Nothing failed: a compiled program, and what it needs."""

HBM, PINNED, HOST_RAM, SHARED, TENSOR = "hbm", "pinned_host", "host", "shared", "tensor"
"""Memories of `Failure.space`: the device's, pinned memory of the host and the rest of it, shared
memory of a GPU's core (LDS on AMD), tensor memory. On TPU also vmem, smem, sflag and cmem."""
CHIP_SPACES = frozenset({"vmem", "smem", "sflag", "cmem", SHARED, TENSOR})
"""Memories on the chip, which blocks of a kernel fill."""


@dataclass(frozen=True)
class Failure:
    """One allocation that failed, at ``line`` of the log.

    ``who`` names the allocator or library, ``device`` its device; ``free_bytes`` and
    ``capacity_bytes`` are what the message states of it. ``space`` is the memory that ran out.
    ``needed_bytes`` is the sum that the compiler wants; ``request_bytes`` a single allocation.
    ``is_raised``: the step failed by it; an allocator alone may have tried again with less.
    ``piece_bytes`` is the largest piece that was free, ``program`` the name of what was to run.
    ``refused_bytes`` is the least that the driver refused right before.
    """

    kind: str
    who: str
    line: int
    text: str
    rank: str = ""
    device: str = ""
    request_bytes: int | None = None
    needed_bytes: int | None = None
    free_bytes: int | None = None
    capacity_bytes: int | None = None
    space: str = HBM
    is_raised: bool = True
    piece_bytes: int | None = None
    program: str = ""
    refused_bytes: int | None = None


@dataclass(frozen=True)
class ListedBuffer:
    """A buffer that the message lists among the largest at the program's peak."""

    size_bytes: int
    op_name: str = ""
    source: str = ""
    label: str = ""
    shape: str = ""
    is_argument: bool = False
    padding_bytes: int = 0


@dataclass(frozen=True)
class ProgramText:
    """What the message says of the program that was to run."""

    argument_bytes: int | None = None
    constant_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    temp_bytes: int | None = None
    total_bytes: int | None = None
    fragmentation_bytes: int | None = None
    reserved_bytes: int | None = None
    budget_bytes: int | None = None
    after_remat_bytes: int | None = None
    before_remat_bytes: int | None = None
    buffers: tuple[ListedBuffer, ...] = ()

    @property
    def is_told(self) -> bool:
        """Whether any size of the program is there."""
        return any(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True)
class PoolText:
    """What the message says of a pool at that moment.

    ``taken_bytes`` is what the pool took of the memory so far: less than its limit where it grows.
    ``driver_free_bytes`` is what the driver says is free beside it.
    """

    limit_bytes: int | None = None
    in_use_bytes: int | None = None
    peak_bytes: int | None = None
    largest_free_bytes: int | None = None
    source: str = ""
    taken_bytes: int | None = None
    driver_free_bytes: int | None = None

    @property
    def free_bytes(self) -> int | None:
        """What is not in use; None where that is not told."""
        if self.limit_bytes is None or self.in_use_bytes is None:
            return None
        return max(self.limit_bytes - self.in_use_bytes, 0)


@dataclass(frozen=True)
class Message:
    """A failure with what was said about it; ``devices`` and ``ranks`` are all that said the same.

    ``repeats`` counts the failures that were the same.
    """

    failure: Failure
    program: ProgramText = field(default_factory=ProgramText)
    pool: PoolText = field(default_factory=PoolText)
    ranks: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    repeats: int = 1


FULL = "full"
IN_PIECES = "fragmented"
COULD_NOT_GROW = "could_not_grow"
_ROUNDING = 0.01
"""What a pool took may be written with two decimals, its limit exactly."""


def state_of(message: Message, limit: int, in_use: int) -> str:
    """The state by sizes alone; empty where the request is not known.

    A pool that is allowed to take more tries that first: it fails for want of growth where what it
    may still take would hold the request, or where the driver said that it refused.
    """
    request, pool = message.failure.request_bytes, message.pool
    if message.failure.refused_bytes is not None:
        return COULD_NOT_GROW
    if request is None:
        return ""
    if request > limit - in_use:
        return FULL
    if pool.driver_free_bytes is not None and pool.driver_free_bytes < request:
        return COULD_NOT_GROW
    room = 0 if pool.taken_bytes is None else limit - pool.taken_bytes
    return COULD_NOT_GROW if room > _ROUNDING * limit and room >= request else IN_PIECES


# What an explanation of a failure can say: its verdicts, and its values.

ALREADY_FULL = "pool_already_full"
PROGRAM_TOO_LARGE = "program_too_large"
TOGETHER_TOO_LARGE = "together_too_large"
FRAGMENTED = "pool_fragmented"
NOT_GROWN = "pool_could_not_grow"
OUTSIDE_POOL = "outside_pool"
NOT_RESERVED = "pool_not_reserved"
NOT_LOADED = "program_not_loaded"
ON_CHIP = "on_chip_memory"
HOST_MEMORY = "host_memory"
NOT_TOLD = "cannot_be_told"
FITS_ALONE = "program_fits_alone"


@dataclass(frozen=True)
class Explanation:
    """The verdict, in a sentence; sizes in bytes, None where the text does not tell.

    ``is_inside`` is whether the memory was XLA's pool's. ``held_bytes`` is what others than this
    program held, ``excess_bytes`` how much is missing at least. ``is_arena``: the request is XLA's
    arena of temporaries, which is one allocation, so that arguments come on top.
    """

    verdict: str
    sentence: str
    is_inside: bool | None
    limit_bytes: int | None = None
    needed_bytes: int | None = None
    held_bytes: int | None = None
    excess_bytes: int | None = None
    is_arena: bool | None = None
    not_told: tuple[str, ...] = ()
    who: str = ""
    """The allocator or library whose request failed."""
    space: str = ""
    """The memory that ran out, as `Failure.space` names it."""
    state: str = ""
    """How the pool was: full, fragmented or could not grow; empty where no pool failed so."""


def missing(needed: int | None, limit: int | None) -> int | None:
    """How much more is needed than there is; None where one of them is not known."""
    return None if needed is None or limit is None else max(needed - limit, 0)


def sized(size: int | None) -> str:
    """One decimal from 1 GiB on: more digits than messages have are no knowledge."""
    if size is None:
        return "an unknown amount"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else format_bytes(size)
