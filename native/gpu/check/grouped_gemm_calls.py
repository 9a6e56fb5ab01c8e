"""Question: how does a program call the grouped GEMM of a library on torch tensors?"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def load_cases():
    path = ROOT / "moeprof" / "kernels" / "products" / "cases.py"
    spec = importlib.util.spec_from_file_location("grouped_gemm_cases", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Choice:
    """Which kernel: tile columns (0: by shape, 64: multiply-adds) and pairs (1: no, 2: yes)."""

    tile_cols: int = 0
    pairs: int = 0
    max_blocks: int = 0


class FaultSink(ctypes.Structure):
    """As in native/gpu/faults/fault_report.h."""

    _fields_ = (
        ("record", ctypes.c_void_p),
        ("claim", ctypes.c_void_p),
        ("generation", ctypes.c_uint32),
    )


class Library:
    """The library's raw calls on torch tensors."""

    def __init__(self, path):
        import torch

        self.torch = torch
        self.lib = ctypes.CDLL(str(path))
        self.lib.MoeprofGpuGroupedGemmScratchBytes.restype = ctypes.c_size_t
        self.lib.MoeprofGpuGroupedGemmScratchBytes.argtypes = [ctypes.c_int64]
        self.record = torch.zeros(7, dtype=torch.int64).pin_memory()  # a FaultRecord
        self.claim = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.faults = FaultSink(self.record.data_ptr(), self.claim.data_ptr(), 1)
        self.types = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
        self.scratch = {}

    def _scratch(self, groups):
        if groups not in self.scratch:
            size = self.lib.MoeprofGpuGroupedGemmScratchBytes(groups)
            # All ones: a plan that nobody wrote would be seen.
            self.scratch[groups] = self.torch.full(
                (size,), 0xFF, dtype=self.torch.uint8, device="cuda"
            )
        return self.scratch[groups]

    def _call(self, function, left, right, out, lens, offs, sizes, flag, choice):
        text = ctypes.create_string_buffer(512)
        p, i, q = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        rc = function(
            p(self.torch.cuda.current_stream().cuda_stream),
            i(self.types[left.dtype]),
            p(left.data_ptr()),
            p(right.data_ptr()),
            p(out.data_ptr()),
            p(lens.data_ptr()),
            p(offs.data_ptr() if offs is not None else None),
            i(lens.dtype == self.torch.int64),
            q(lens.numel()),
            *(q(size) for size in sizes),
            i(flag),
            p(self._scratch(lens.numel()).data_ptr()),
            ctypes.byref(self.faults),
            i(choice.tile_cols),
            i(choice.pairs),
            i(choice.max_blocks),
            text,
            i(512),
        )
        if rc:
            raise RuntimeError(text.value.decode())

    def forward(self, a, b, out, lens, trans_b, choice, offs=None):
        n = b.shape[1] if trans_b else b.shape[2]
        sizes = (a.shape[0], a.shape[1], n)
        self._call(self.lib.MoeprofGpuGroupedGemmRaw, a, b, out, lens, offs, sizes, trans_b, choice)

    def variable_k(self, lhs, rhs, out, lens, choice, offs=None):
        sizes = (lhs.shape[0], lhs.shape[1], rhs.shape[1])
        is_float = out.dtype == self.torch.float32 and lhs.dtype != self.torch.float32
        self._call(
            self.lib.MoeprofGpuVariableKGemmRaw, lhs, rhs, out, lens, offs, sizes, is_float, choice
        )

    def take_fault(self):
        """(kind, index, found, sum, expected) as the device reported them, or None."""
        words = self.record.tolist()
        is_complete, kind = words[0] & 0xFFFFFFFF, words[0] >> 32
        if not is_complete:
            return None
        self.record.zero_()
        self.faults.generation += 1
        return kind, *words[2:6]
