"""Question: does a line say that an allocation failed, and whose, of how much?

The forms are those of XLA's pool (BFC) and PJRT clients, TPU's compiler and runtime, the CUDA and
HIP drivers, NCCL and RCCL, NVSHMEM and DeepEP, and PyTorch. A line in which the pool only tries
("this is not a failure") is none; neither is RESOURCE_EXHAUSTED of anything but memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from moeprof.projector.oom import (
    COMPILE,
    HBM,
    HOST,
    HOST_RAM,
    LOAD,
    OUTSIDE,
    PINNED,
    POOL,
    RESERVE,
    SHARED,
    TENSOR,
    Failure,
)
from moeprof.projector.oom.log_lines import SIZE, Line, size_bytes

TORCH = "PyTorch's allocator"
PINNED_DRIVER = "pinned host memory"
_NOT_A_FAILURE = "not a failure"
_CHEAP = re.compile(
    r"(?i)out of (?:host )?memory|out_?of_?memory|memory trying to|That was not possible|alloc"
    r"|enough memory|bad_alloc|oom-kill|cuMemCreate|exceeding available bytes"
)
_Reader = Callable[[re.Match[str], str], dict[str, object]]


def _compile(found: re.Match[str], text: str) -> dict[str, object]:
    return {
        "kind": COMPILE,
        "who": "the compiler",
        "space": found["space"].lower(),
        "needed_bytes": size_bytes(found["used"]),
        "capacity_bytes": size_bytes(found["of"]),
    }


def _cores(found: re.Match[str], text: str) -> dict[str, object]:
    """HBM that the TensorCore and the SparseCores of a TPU want together."""
    parts = [size_bytes(found[name]) for name in ("tensor", "sparse") if found[name]]
    return {
        "kind": COMPILE,
        "who": "the compiler",
        "needed_bytes": sum(part for part in parts if part is not None),
        "capacity_bytes": size_bytes(found["of"]),
    }


def _requires(found: re.Match[str], text: str) -> dict[str, object]:
    return {
        "kind": COMPILE,
        "who": "the compiler",
        "needed_bytes": size_bytes(found["used"]),
        "capacity_bytes": size_bytes(found["of"]),
    }


def _tpu_runtime(found: re.Match[str], text: str) -> dict[str, object]:
    device = re.search(r"\((\w+)_HBM\d*\)", text)
    return {
        "kind": POOL,
        "who": "TPU runtime",
        "request_bytes": size_bytes(found["size"]),
        "free_bytes": size_bytes(found["free"]),
        "device": device[1] if device else "",
    }


def _loading(found: re.Match[str], text: str) -> dict[str, object]:
    """A program that a TPU cannot load: it lies at the bottom of the memory, in one piece."""
    device = re.search(r"\((\w+)_HBM\d*\)", text)
    partition = re.search(r"partition (\d+)", text)
    name = re.search(r"Error loading program '([^']+)'", text)
    free = re.search(rf"There are ({SIZE}) free", text)
    piece = re.search(rf"({SIZE}) reservable", text)
    return {
        "kind": LOAD,
        "who": "TPU runtime",
        "request_bytes": size_bytes(found["size"]),
        "free_bytes": size_bytes(free[1]) if free else None,
        "piece_bytes": size_bytes(piece[1]) if piece else None,
        "program": name[1] if name else "",
        "device": device[1] if device else partition[1] if partition else "",
    }


def _allocator(found: re.Match[str], text: str) -> dict[str, object]:
    rounded, is_host = found["rounded"], "host" in found["name"]
    return {
        "kind": HOST if is_host else POOL,
        "space": PINNED if is_host else HBM,
        "who": found["name"],
        "request_bytes": size_bytes(f"{rounded} B" if rounded else found["size"]),
        "device": "" if is_host else _digits(found["name"]),
        "is_raised": False,
    }


def _of_driver_pool(found: re.Match[str], text: str) -> dict[str, object]:
    """A pool that the driver keeps (cuda_async)."""
    return {
        "kind": POOL,
        "who": found["name"],
        "request_bytes": size_bytes(f"{found['size']} B"),
        "device": _digits(found["name"]),
        "is_raised": False,
    }


def _xla(found: re.Match[str], text: str) -> dict[str, object]:
    replica = re.search(r"Execution of replica (\d+)|device ordinal (\d+)", text)
    return {
        "kind": POOL,
        "who": "XLA's pool",
        "request_bytes": size_bytes(found["size"]),
        "device": (replica[1] or replica[2]) if replica else "",
    }


def _driver(found: re.Match[str], text: str) -> dict[str, object]:
    return {"kind": RESERVE, "who": "the driver", "request_bytes": size_bytes(found["size"])}


def _pinned(found: re.Match[str], text: str) -> dict[str, object]:
    size = found["size"] or found["bytes"] or found["told"] or ""
    request = size_bytes(f"{size} B" if size.isdecimal() else size)
    return {
        "kind": HOST,
        "who": PINNED_DRIVER,
        "request_bytes": request,
        "space": PINNED,
        "is_raised": False,
    }


def _collectives(found: re.Match[str], text: str) -> dict[str, object]:
    is_amd = re.search(r"(?i)rccl|\bhip", text) is not None
    return {"kind": OUTSIDE, "who": "RCCL" if is_amd else "NCCL"}


def _exchange(found: re.Match[str], text: str) -> dict[str, object]:
    is_named = re.search(r"(?i)deep_?ep|intranode|internode", text)
    is_shared = re.search(r"(?i)nvshmem|cuMem|_to_heap", text)
    who = "DeepEP" if is_named else "NVSHMEM" if is_shared else "a library beside XLA"
    size = re.search(SIZE, text)
    return {"kind": OUTSIDE, "who": who, "request_bytes": size_bytes(size[0]) if size else None}


def _torch(found: re.Match[str], text: str) -> dict[str, object]:
    device = re.search(r"GPU (\d+)", text)
    total = re.search(rf"(?:total capacity of ({SIZE})|({SIZE}) total capacity)", text)
    free = re.search(rf"(?:of which ({SIZE}) is free|({SIZE}) free)", text)
    return {
        "kind": POOL,
        "who": TORCH,
        "request_bytes": size_bytes(found["size"]),
        "capacity_bytes": size_bytes(total[0]) if total else None,
        "free_bytes": size_bytes(free[0]) if free else None,
        "device": device[1] if device else "",
    }


def _library(found: re.Match[str], text: str) -> dict[str, object]:
    size = re.search(SIZE, text)
    return {
        "kind": OUTSIDE,
        "who": found["who"] if "who" in found.groupdict() and found["who"] else "the driver",
        "request_bytes": size_bytes(size[0]) if size else None,
    }


def _host(found: re.Match[str], text: str) -> dict[str, object]:
    return {"kind": HOST, "who": "the host", "space": HOST_RAM}


# The first form that fits counts.
_FORMS: tuple[tuple[re.Pattern[str], _Reader], ...] = (
    (
        re.compile(
            rf"Ran out of memory in memory space (?P<space>\w+)\.? Used (?P<used>{SIZE}) of "
            rf"(?P<of>{SIZE})"
        ),
        _compile,
    ),
    (
        re.compile(rf"enough memory\. Requires (?P<used>{SIZE}), has (?P<of>{SIZE}) available"),
        _requires,
    ),
    (
        re.compile(
            rf"TensorCore Hbm usage:? (?P<tensor>{SIZE})(?:, SparseCore Hbm usage:? "
            rf"(?P<sparse>{SIZE}))?, exceeding available bytes: (?P<of>{SIZE})"
        ),
        _cores,
    ),
    (re.compile(rf"Attempting to reserve (?P<size>{SIZE}) at the bottom of memory"), _loading),
    (
        re.compile(
            rf"Attempting to (?:allocate|reserve) (?P<size>{SIZE}).*?There are (?P<free>{SIZE}) "
            "free"
        ),
        _tpu_runtime,
    ),
    (
        re.compile(
            rf"(?:Allocator \((?P<name>[\w.\-]+)\) )ran out of memory trying to allocate "
            rf"(?P<size>{SIZE})(?: \(rounded to (?P<rounded>\d+)\))?"
        ),
        _allocator,
    ),
    (
        re.compile(r"(?P<name>\S+) cuMemAllocAsync failed to allocate (?P<size>\d+)"),
        _of_driver_pool,
    ),
    (re.compile(rf"CUDA out of memory\. Tried to allocate (?P<size>{SIZE})"), _torch),
    (re.compile(rf"HIP out of memory\. Tried to allocate (?P<size>{SIZE})"), _torch),
    (
        re.compile(
            rf"Out of memory (?:while trying to allocate|allocating|when allocating|trying to "
            rf"allocate) (?P<size>{SIZE})"
        ),
        _xla,
    ),
    (re.compile(rf"Failed to allocate request for (?P<size>{SIZE}[^o]*)on device ordinal"), _xla),
    (
        re.compile(
            rf"allocate(?: pinned)? host memory of size:? (?P<size>{SIZE}|\d+)"
            rf"|alloc(?:ate)? (?P<bytes>\d+) bytes on host:"
            rf"|Out of host memory(?:.*?(?P<told>{SIZE}))?"
            r"|(?:cuMemHostAlloc|cuMemAllocHost|cudaHostAlloc|cudaMallocHost|hipHostMalloc|"
            r"hipHostAlloc)\b.*(?i:out.?of.?memory)"
        ),
        _pinned,
    ),
    (
        re.compile(
            rf"(?i)failed to allocate (?P<size>{SIZE}(?: \([\d,]+ bytes\))?)"
            r"(?: from device\b|.*(?:OUT_OF_MEMORY|OutOfMemory|hipError_t))"
        ),
        _driver,
    ),
    (
        re.compile(
            r"(?i)(?:n|r)ccl.*(?:out of memory|OutOfMemory)|(?:Cuda|HIP) failure (?:\d+ )?"
            r"'out of memory'"
        ),
        _collectives,
    ),
    (
        re.compile(
            r"(?i)(?:deep_?ep|intranode|internode|nvshmem|mori)"
            r".*(?:out of memory|failed to allocate)"
            r"|cuMemCreate failed|allocate_physical_memory_to_heap failed"
            rf"|Failed to allocate (?P<size>{SIZE})"
        ),
        _exchange,
    ),
    (re.compile(r"std::bad_alloc|oom-kill|Out of memory: Killed process"), _host),
    (
        re.compile(
            r"(?P<who>CUBLAS|CUDNN|HIPBLAS|MIOPEN)_STATUS_ALLOC_FAILED"
            r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
            r"|HIP_ERROR_OutOfMemory|(?:CUDA|HIP|cuda|hip)\w*(?: error)?.{0,80}out of memory"
        ),
        _library,
    ),
)


def failure_in(line: Line) -> Failure | None:
    """The failed allocation that a line reports; None where it reports none."""
    text = line.text
    if chip := told_on_chip(text):
        return Failure(line=line.number, rank=line.rank, text=text, **chip)  # type: ignore[arg-type]
    if not _CHEAP.search(text) or _NOT_A_FAILURE in text:
        return None
    for pattern, read in _FORMS:
        if found := pattern.search(text):
            told = read(found, text)
            return Failure(line=line.number, rank=line.rank, text=text, **told)  # type: ignore[arg-type]
    return None


def _digits(name: str) -> str:
    found = re.search(r"\d+", name)
    return found[0] if found else ""


# Memory on the chip: shared memory (LDS), tensor memory, VMEM and SMEM. A kernel asks for more of
# it than a core has, whatever else lies in the device's memory.

_CHEAP_ON_CHIP = re.compile(
    r"(?i)shared (?:mem|data)|tensor memory|local memory \(|would exceed|vmem|smem|sflag|cmem"
)
_COUNT = r"(?:0x[0-9a-f]+|\d+)"
_FORMS_ON_CHIP = (
    # Triton; where it names tensor memory it counts columns
    re.compile(
        rf"out of resource: (?P<space>shared|tensor) memory, Required: (?P<need>{_COUNT}), "
        rf"Hardware limit: (?P<of>{_COUNT})"
    ),
    # XLA's own Triton kernels and Pallas on GPUs
    re.compile(
        rf"(?P<space>Shared) memory size limit exceeded(?:: requested (?P<need>{_COUNT}), "
        rf"available: (?P<of>{_COUNT}))?"
    ),
    re.compile(r"(?P<space>Shared) memory requested exceeds device resources"),
    # Mosaic GPU
    re.compile(
        r"exceeds available (?P<space>shared) memory:? (?:smem_bytes=)?"
        rf"(?P<need>{_COUNT}) > (?:max_smem_bytes=)?(?P<of>{_COUNT})"
    ),
    # ptxas, and LLVM for AMD
    re.compile(
        rf"uses too much (?P<space>shared) data \((?P<need>{_COUNT}) bytes, (?P<of>{_COUNT}) max\)"
    ),
    re.compile(
        rf"(?P<space>local) memory \((?P<need>{_COUNT})\) exceeds limit \((?P<of>{_COUNT})\)"
    ),
    # TPU's compiler
    re.compile(
        rf"Scoped allocation with size (?P<need>{SIZE}) and limit (?P<of>{SIZE}) exceeded scoped "
        r"(?P<space>\w+) limit"
    ),
    re.compile(
        r"Allocation \(size=(?P<need>\d+)\) would exceed memory \(size=(?P<of>\d+)\)"
        r".*?\bspace=(?P<space>\w+)"
    ),
    re.compile(
        rf"Ran out of memory in memory space (?P<space>vmem|smem|sflag|cmem)\b"
        rf"(?:\.? Used (?P<need>{SIZE}) of (?P<of>{SIZE}))?"
    ),
)
_SPACES = {"shared": SHARED, "local": SHARED, "tensor": TENSOR}


def told_on_chip(text: str) -> dict[str, object] | None:
    """Fields of a `Failure` where a line says that a kernel needs too much; None where not."""
    if not _CHEAP_ON_CHIP.search(text):
        return None
    for pattern in _FORMS_ON_CHIP:
        if found := pattern.search(text):
            sizes = found.groupdict()
            space = _SPACES.get(sizes["space"].lower(), sizes["space"].lower())
            is_columns = space == TENSOR
            return {
                "kind": COMPILE,
                "who": "the compiler",
                "space": space,
                "needed_bytes": None if is_columns else _bytes_on_chip(sizes.get("need")),
                "capacity_bytes": None if is_columns else _bytes_on_chip(sizes.get("of")),
            }
    return None


def _bytes_on_chip(text: str | None) -> int | None:
    """A size, or a plain number of bytes, in hexadecimal too."""
    if text is None:
        return None
    is_plain = re.fullmatch(_COUNT, text) is not None
    return int(text, 0) if is_plain else size_bytes(text)
