"""A captured program of NVIDIA GPUs as ROCm's profiler of jaxlib would have recorded it.

Same program, same times; what differs is what AMD's profiler writes otherwise or not at all: names
of kernels (hipBLASLt, composable kernel, RCCL, MORI, rocclr; ``.kd`` behind those of XLA), launches
under the name of the HIP call, with the op that they launch, on lines ``Host Threads/N`` of their
own, numbers of devices that are none of the planes', no run ids, no ids of graphs and their nodes,
no device names, no versions. Annotations are left out, as the programs of the real files had none.

`SEEN` is all that occurs in two real files of AMD GPUs (gfx950 with JAX 0.8, MI300X with JAX 0.6):
a twin has no plane, line or stat beside these.
"""

from __future__ import annotations

import gzip
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))

from descriptors import message_class

_MEMORY_STATS = frozenset(
    {"allocator_name", "bytes_reserved", "bytes_allocated", "bytes_available", "fragmentation"}
    | {"peak_bytes_in_use", "requested_bytes", "allocation_bytes", "addr", "id", "data_type"}
    | {"region_type"}
)
SEEN = {
    "planes": frozenset(
        {"/host:metadata", "/device:GPU:#", "/device:CUSTOM:Megascale Trace", "/host:CPU"}
        | {"Task Environment"}
    ),
    "lines": frozenset(
        {"Stream ##", "Stream ##(MemcpyOther)", "Stream ##(Kernel)", "Host Threads/#", "python"}
        | {"python#", "py_xla_execute/#", "tf_pjrt_thread_pool/#"}
    ),
    "stats of planes": frozenset(
        {"device_vendor", "clock_rate", "core_count", "memory_bandwidth", "memory_size"}
        | {"compute_cap_major", "compute_cap_minor", "graph_protos"}
        | {"profile_start_time", "profile_stop_time"}
    ),
    "stats of names": frozenset({"Hlo Proto"}),
    "stats of devices": frozenset(
        {"correlation_id", "kernel_details", "memcpy_details", "tf_op", "name", "hlo_op"}
        | {"hlo_module", "program_id", "theoretical_occupancy_pct", "occupancy_min_grid_size"}
        | {"occupancy_suggested_block_size"}
    ),
    "stats of hosts": _MEMORY_STATS
    | {"device_id", "correlation_id", "memcpy_details", "tf_op", "name", "hlo_op", "hlo_module"}
    | {"program_id", "module_name", "_pt", "_p", "_ct", "_c"},
}
"""Names that real files have; ``#`` stands for a number."""

MI355X = {
    "device_vendor": "AMD",
    "clock_rate": 2_400_000,
    "core_count": 256,
    "memory_bandwidth": 4_096_000_000_000,
    "memory_size": 309_220_868_096,
    "compute_cap_major": 9,
    "compute_cap_minor": 5,
}
_DEVICE = 53_022
"""What all calls say, whichever device they launch on."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)*")
_DETAILS = " grid:256,1,1 block:256,1,1 private_mem:0 group_mem:0 occ_pct:0"
_ARGUMENTS = "(ncclDevKernelArgsStorage<4096ul>)"
_COPIES = re.compile(r"^Memcpy([HD])2([HD])$")
_ENDS = {"H": "Host", "D": "Device"}

_KERNELS: tuple[tuple[str, str], ...] = (
    (r"^nvjet_\w*?_(\d+)x(\d+)_(\d+)x.*_(?:coop[AB]_)?([NT]{3})$", r"Cijk_\4_BBS_BH_MT\1x\2x\3.kd"),
    (r"^ncclDevKernel_SendRecv.*", "void rcclGenericKernel<1, false>" + _ARGUMENTS),
    (r"^nccl\w+DevKernel_|^ncclDevKernel_.*", "ncclDevKernel_Generic_4" + _ARGUMENTS),
    (r"^moeprof::.*MoeDispatchPlan.*", "EpDispatchCopyToStaging_bf16"),
    (r"^moeprof::.*Moe(?:Cached)?Dispatch.*", "EpDispatchIntraNodeKernel_bf16"),
    (r".*moeprof::.*MoeCombine.*", "EpCombineIntraNodeKernel_bf16_nop2p"),
    (
        r".*moeprof::gpu::GroupedGemmTiles<(.*)>.*",
        r"void ck_tile::kentry<ck_tile::gfx950_t, 1, ck_tile::GroupedGemmKernel<\1> >(Args)",
    ),
    (r".*moeprof::.*GroupedGemmPlan.*", "primus_turbo::compute_grouped_gemm_args(Args)"),
    (r"^Memset.*", "__amd_rocclr_fillBufferAligned"),
    (r"^MemcpyD2D$|^MemcpyP2P$|^memcpy\d+(_post)?$", "__amd_rocclr_copyBuffer"),
)


def write_twin(run: Path, target: Path) -> Path:
    """The twin of a run folder as `target`, whose devices JAX calls by their name."""
    shutil.copytree(run, target)
    (file,) = target.rglob("*.xplane.pb.gz")
    file.with_suffix("").write_bytes(as_amd(file.read_bytes()))
    file.unlink()
    meta = target / "meta.json"
    meta.write_text(meta.read_text("utf-8").replace("NVIDIA H200", "AMD Instinct MI355X"), "utf-8")
    return target


def as_amd(data: bytes) -> bytes:
    """The twin of a serialized XSpace, compressed or not."""
    space = message_class("tensorflow.profiler.XSpace")()
    space.ParseFromString(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    calls = _kernels_by_correlation(space)
    twin = message_class("tensorflow.profiler.XSpace")()
    twin.hostnames.extend(space.hostnames)
    for plane in space.planes:
        if _numberless(plane.name) in SEEN["planes"]:
            made = twin.planes.add(id=plane.id, name=plane.name)
            _Copy(plane, made, calls).copy()
    return twin.SerializeToString()


def names_in(data: bytes) -> dict[str, set[str]]:
    """What a serialized XSpace has of each key of `SEEN`, numbers as ``#``."""
    space = message_class("tensorflow.profiler.XSpace")()
    space.ParseFromString(data)
    found: dict[str, set[str]] = {key: set() for key in SEEN}
    for plane in space.planes:
        stat = {key: value.name for key, value in plane.stat_metadata.items()}
        where = "stats of devices" if plane.name.startswith("/device") else "stats of hosts"
        found["planes"].add(_numberless(plane.name))
        found["stats of planes"] |= {stat[s.metadata_id] for s in plane.stats}
        for metadata in plane.event_metadata.values():
            found["stats of names"] |= {stat[s.metadata_id] for s in metadata.stats}
        for line in plane.lines:
            found["lines"].add(_numberless(line.name))
            for event in line.events:
                found[where] |= {stat[s.metadata_id] for s in event.stats}
    return found


def _numberless(name: str) -> str:
    return _NUMBER.sub("#", name)


def kernel_name(name: str, op: str) -> str:
    """What AMD's libraries and profiler call a kernel, a copy or a memory set of an op."""
    if copied := _COPIES.match(name):
        source, target = (_ENDS[end] for end in copied.groups())
        if not op:
            return f"Copy{source}To{target}"
    made = next((re.sub(p, to, name) for p, to in _KERNELS if re.match(p, name)), name)
    made = re.sub(r"^Cijk_(\w)(\w)\w", lambda m: f"Cijk_{_SIDES[m[1]]}_{_OTHER[m[2]]}", made)
    return made if made.endswith(".kd") else f"{made} [clone .kd]" if "(" in made else f"{made}.kd"


_SIDES = {"N": "Ailk", "T": "Alik"}
_OTHER = {"N": "Bljk", "T": "Bjlk"}


def call_name(name: str) -> str:
    """The HIP call that NVIDIA's profiler names by the driver's call, or by what it brings."""
    if driver := re.match(r"cu([A-Z]\w+)", name):
        return f"hip{driver[1]}"
    if copied := _COPIES.match(name):
        return f"hipMemcpy{copied[1]}to{copied[2]}Async"
    if name.startswith("Memset"):
        return "hipMemsetAsync"
    if name.startswith("nvjet"):
        return "hipExtModuleLaunchKernel"
    return "hipLaunchKernel" if "(" in name else "hipModuleLaunchKernel"


class _Copy:
    """One plane, copied as AMD's profiler writes it."""

    def __init__(self, plane: Any, made: Any, calls: dict[int, Any]) -> None:
        self.plane, self.made, self.calls = plane, made, calls
        self.stat = {key: value.name for key, value in plane.stat_metadata.items()}
        self.is_device = plane.name.startswith("/device:GPU")
        self.events: dict[str, int] = {}
        self.stats: dict[str, int] = {}

    def copy(self) -> None:
        """Fill the new plane."""
        self._plane_stats()
        if self.plane.name == "/host:metadata":
            for metadata in self.plane.event_metadata.values():
                made = self.made.event_metadata[metadata.id]
                made.id, made.name = metadata.id, metadata.name
                self._add_stats(made, metadata, SEEN["stats of names"])
        for line in self.plane.lines:
            self._line(line)

    def _plane_stats(self) -> None:
        if self.is_device:
            for name, value in MI355X.items():
                is_text, is_signed = isinstance(value, str), name.endswith(("rate", "count"))
                kind = "str_value" if is_text else "int64_value" if is_signed else "uint64_value"
                kind = "int64_value" if name.startswith("compute_cap") else kind
                stat = self.made.stats.add(metadata_id=self._id(name))
                setattr(stat, kind, value)
            return
        self._add_stats(self.made, self.plane, SEEN["stats of planes"])

    def _line(self, line: Any) -> None:
        made = {False: None, True: None}
        for event in line.events:
            name = self.plane.event_metadata[event.metadata_id].name
            if self._text(event, "step_num"):
                continue
            is_call = not self.is_device and self._correlation(event) >= 0
            if made[is_call] is None:
                made[is_call] = self._new_line(line, is_call=is_call)
            if self.is_device:
                self._work(made[False], event, name)
            elif is_call:
                self._call(made[True], event, name)
            else:
                self._plain(made[False], event, name)

    def _new_line(self, line: Any, *, is_call: bool) -> Any:
        name, number = line.name, line.id
        if self.is_device:
            is_copy = all(
                _COPIES.match(self.plane.event_metadata[e.metadata_id].name)
                and self._text(e, "hlo_op") == ""
                for e in line.events
            )
            name = re.match(r"Stream #\d+", name)[0] + "(MemcpyOther)" * is_copy
        elif is_call:
            number = abs(line.id) % 10_000
            name = f"Host Threads/{number}"
        else:
            name = name.replace("pjrt_async_work_runner", "tf_pjrt_thread_pool")
        return self.made.lines.add(
            id=number, name=name, timestamp_ns=line.timestamp_ns, display_name=name
        )

    def _work(self, line: Any, event: Any, name: str) -> None:
        op = self._text(event, "hlo_op")
        made = self._event(line, event, kernel_name(name, op))
        kept = SEEN["stats of devices"] - {"kernel_details", "memcpy_details"}
        self._add_stats(made, event, kept - {s for s in kept if s.startswith(("occ", "theor"))})
        is_copy = not op and _COPIES.match(name)
        key, text = (
            ("memcpy_details", "kind:Unknown size:4 dest:2 async:1")
            if is_copy
            else ("kernel_details", _DETAILS)
        )
        made.stats.add(metadata_id=self._id(key), ref_value=self._id(text))

    def _call(self, line: Any, event: Any, name: str) -> None:
        made = self._event(line, event, call_name(name))
        made.stats.add(metadata_id=self._id("device_id"), uint64_value=_DEVICE)
        self._add_stats(made, event, frozenset({"correlation_id"}))
        work = self.calls.get(self._correlation(event))
        if work is None:  # it went into a graph, or its work was not recorded
            return
        brought, text_of = work
        for key in ("tf_op", "name", "hlo_op", "hlo_module"):
            if text := text_of(brought, key):
                made.stats.add(metadata_id=self._id(key), ref_value=self._id(text))
        if program := text_of(brought, "program_id"):
            made.stats.add(metadata_id=self._id("program_id"), int64_value=int(program))

    def _plain(self, line: Any, event: Any, name: str) -> None:
        made = self._event(line, event, re.sub(r"^cu(?=[A-Z]\w+$)", "hip", name))
        own = {"device_id", "correlation_id", "hlo_op", "hlo_module", "program_id"}
        self._add_stats(made, event, SEEN["stats of hosts"] - own)

    def _event(self, line: Any, event: Any, name: str) -> Any:
        number = self.events.setdefault(name, len(self.events) + 1)
        metadata = self.made.event_metadata[number]
        metadata.id, metadata.name = number, name
        return line.events.add(
            metadata_id=number, offset_ps=event.offset_ps, duration_ps=event.duration_ps
        )

    def _add_stats(self, made: Any, source: Any, kept: frozenset[str]) -> None:
        for stat in source.stats:
            name = self.stat.get(stat.metadata_id, "")
            if name not in kept:
                continue
            copied = made.stats.add()
            copied.CopyFrom(stat)
            copied.metadata_id = self._id(name)
            if stat.WhichOneof("value") == "ref_value":
                copied.ref_value = self._id(self.stat[stat.ref_value])

    def _id(self, name: str) -> int:
        number = self.stats.setdefault(name, len(self.stats) + 1)
        metadata = self.made.stat_metadata[number]
        metadata.id, metadata.name = number, name
        return number

    def _text(self, event: Any, name: str) -> str:
        return _text(self.stat, event, name)

    def _correlation(self, event: Any) -> int:
        return int(self._text(event, "correlation_id") or -1)


def _text(stat_names: dict[int, str], event: Any, name: str) -> str:
    """A stat of an event as text; empty where it has none."""
    for stat in event.stats:
        if stat_names.get(stat.metadata_id) == name:
            kind = stat.WhichOneof("value")
            value = getattr(stat, kind)
            return stat_names[value] if kind == "ref_value" else str(value)
    return ""


def _kernels_by_correlation(space: Any) -> dict[int, tuple[Any, Callable[..., str]]]:
    """The device work that each launch brought, and how to read its stats."""
    found: dict[int, tuple[Any, Callable[..., str]]] = {}
    for plane in space.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        names = {key: value.name for key, value in plane.stat_metadata.items()}

        def text_of(event: Any, name: str, names: dict[int, str] = names) -> str:
            return _text(names, event, name)

        for line in plane.lines:
            for event in line.events:
                if identity := text_of(event, "correlation_id"):
                    found.setdefault(int(identity), (event, text_of))
    return found
