"""Question: is one grouped product of a library right, and does it write nothing else?

PyTorch's float32 products are the oracle. Outputs lie between guard bytes and hold ones before.
"""

from __future__ import annotations

GUARD = 4096  # bytes before and after every output
GUARD_BYTE = 0xA5
# Relative error of one result: half a unit in the last place and a little for the order of sums.
ROUNDING = {"bfloat16": 2**-8, "float16": 2**-10, "float32": 1e-5}


def guarded(torch, shape, dtype):
    """An output full of ones between guard bytes: (view, whole)."""
    count = 1
    for side in shape:
        count *= side
    size = count * dtype.itemsize
    whole = torch.full((GUARD + size + GUARD,), GUARD_BYTE, dtype=torch.uint8, device="cuda")
    body = whole[GUARD : GUARD + size]
    body.fill_(0xFF)
    return body.view(dtype).view(shape), whole


def guards_whole(whole):
    return bool((whole[:GUARD] == GUARD_BYTE).all()) and bool((whole[-GUARD:] == GUARD_BYTE).all())


def compare(torch, found, expected, rounding, offsets=None):
    """ "" or what is wrong: first index, values, the map of wrong 64 x 64 blocks."""
    found = found.float()
    scale = expected.pow(2).mean().sqrt().item()
    wrong = ~((found - expected).abs() <= rounding * expected.abs() + rounding * scale)
    if not bool(wrong.any()):
        return ""
    first = wrong.nonzero()[0].tolist()
    where = tuple(first)
    lines = [
        f"{int(wrong.sum())} of {wrong.numel()} wrong; first {where}: "
        f"found {found[where].item():.6g}, expected {expected[where].item():.6g}; "
        f"rms {scale:.4g}, NaN {int(found.isnan().sum())}"
    ]
    flat = wrong.reshape(-1, wrong.shape[-1])
    rows, cols = flat.shape
    blocks = []
    for r in range(0, rows, 64):
        counts = [int(flat[r : r + 64, c : c + 64].sum()) for c in range(0, cols, 64)]
        if any(counts):
            blocks.append(f"    rows {r:6d}: " + " ".join(f"{n:4d}" for n in counts[:24]))
        if len(blocks) == 12:
            break
    lines += ["    wrong per 64 x 64 block:", *blocks]
    r0, c0 = (first[-2], first[-1]) if len(first) > 1 else (0, first[0])
    lead = tuple(first[:-2])
    sub = found[lead][r0 : r0 + 4, c0 : c0 + 12], expected[lead][r0 : r0 + 4, c0 : c0 + 12]
    for name, values in zip(("found", "expect"), sub, strict=True):
        for row in values.tolist():
            lines.append(f"    {name:6s} " + " ".join(f"{v:9.3g}" for v in row))
    return "\n".join(lines)


def forward_oracle(torch, a, b, lens, trans_b):
    n = b.shape[1] if trans_b else b.shape[2]
    out = torch.zeros((a.shape[0], n), device="cuda")
    row = 0
    for g, length in enumerate(lens):
        if length:
            matrix = b[g].float()
            out[row : row + length] = a[row : row + length].float() @ (
                matrix.t() if trans_b else matrix
            )
        row += length
    return out


def variable_k_oracle(torch, lhs, rhs, lens):
    out = torch.zeros((len(lens), lhs.shape[1], rhs.shape[1]), device="cuda")
    row = 0
    for g, length in enumerate(lens):
        if length:
            out[g] = lhs[row : row + length].float().t() @ rhs[row : row + length].float()
        row += length
    return out


class Checker:
    """Runs one product after another and counts."""

    def __init__(self, library):
        self.library, self.torch = library, library.torch
        self.done = self.failed = 0

    def _operand(self, *shape, dtype, used=None):
        x = self.torch.randn(shape, device="cuda").to(dtype)
        if used is not None:
            x[used:] = float("nan")
        return x

    def _report(self, name, complaint):
        self.done += 1
        if complaint:
            self.failed += 1
            if self.failed <= 6:
                print(f"  WRONG {name}: {complaint}", flush=True)

    def _lens(self, lens, wide):
        dtype = self.torch.int64 if wide else self.torch.int32
        return self.torch.tensor(lens, dtype=dtype, device="cuda").reshape(-1)

    def forward(self, name, lens, rows, k, n, dtype, trans_b, choice, wide=False, offs=False):
        torch = self.torch
        a = self._operand(rows, k, dtype=dtype, used=sum(lens))
        b = self._operand(len(lens), *((n, k) if trans_b else (k, n)), dtype=dtype)
        out, whole = guarded(torch, (rows, n), dtype)
        lens_there = self._lens(lens, wide)
        sums = None
        if offs:
            sums = torch.zeros(len(lens) + 1, dtype=lens_there.dtype, device="cuda")
            sums[1:] = lens_there.cumsum(0)
        self.library.forward(a, b, out, lens_there, trans_b, choice, sums)
        torch.cuda.synchronize()
        label = (
            f"{name} forward {dtype} trans_b={trans_b} {choice} rows {rows} k {k} n {n} "
            f"lens {lens if len(lens) < 12 else f'{len(lens)} groups'}"
        )
        complaint = compare(
            torch,
            out,
            forward_oracle(torch, a, b, lens, trans_b),
            2 * ROUNDING[str(dtype)[6:]],
        )
        if not complaint and not guards_whole(whole):
            complaint = "a guard byte around the output was written"
        fault = self.library.take_fault()
        if not complaint and fault:
            complaint = f"a fault was reported: {fault}"
        self._report(label, complaint)

    def variable_k(self, name, lens, rows, m, n, dtype, out_dtype, choice, wide=False):
        torch = self.torch
        lhs = self._operand(rows, m, dtype=dtype, used=sum(lens))
        rhs = self._operand(rows, n, dtype=dtype, used=sum(lens))
        out, whole = guarded(torch, (len(lens), m, n), out_dtype)
        self.library.variable_k(lhs, rhs, out, self._lens(lens, wide), choice)
        torch.cuda.synchronize()
        label = (
            f"{name} variable K {dtype} -> {out_dtype} {choice} rows {rows} m {m} n {n} "
            f"lens {lens if len(lens) < 12 else f'{len(lens)} groups'}"
        )
        complaint = compare(
            torch,
            out,
            variable_k_oracle(torch, lhs, rhs, lens),
            # The tensor cores' float32 sums keep fewer bits than fused multiply-adds.
            2
            * (
                ROUNDING[str(out_dtype)[6:]]
                if choice.tile_cols == 64
                else max(1e-4, ROUNDING[str(out_dtype)[6:]])
            ),
        )
        if not complaint and not guards_whole(whole):
            complaint = "a guard byte around the output was written"
        fault = self.library.take_fault()
        if not complaint and fault:
            complaint = f"a fault was reported: {fault}"
        self._report(label, complaint)
