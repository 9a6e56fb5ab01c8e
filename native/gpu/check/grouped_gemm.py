"""Question: is the grouped GEMM on this GPU right?

Needs PyTorch, whose float32 products are the oracle, and nothing else. Every part runs in its own
process with a time limit, so that a kernel that traps or hangs costs one part only.

    python native/gpu/check/grouped_gemm.py FOLDER [PART...]
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grouped_gemm_calls import Choice, Library, load_cases

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


def random_cases(count, seed):
    """(lens, rows, k, n) around every edge of tiles, halves and chunks; k and n multiples of 8."""
    rng = random.Random(seed)
    edges = [
        0,
        1,
        2,
        7,
        8,
        15,
        16,
        17,
        63,
        64,
        65,
        127,
        128,
        129,
        191,
        192,
        193,
        255,
        256,
        257,
        300,
    ]
    sides = [8, 16, 24, 56, 64, 72, 120, 128, 136, 192, 248, 256, 264, 320, 448, 512, 520, 776]
    for _ in range(count):
        groups = rng.choice([1, 1, 2, 3, 5, 8, 31, 33, 70])
        lens = [rng.choice(edges) for _ in range(groups)]
        if rng.random() < 0.3:
            lens[rng.randrange(groups)] = rng.randrange(500, 1500)
        rows = max(1, sum(lens) + rng.choice([0, 0, 1, 63, 64, 200]))
        yield lens, rows, rng.choice(sides), rng.choice(sides)


def part_probe(library):
    """Which element of b reaches which place: a picks one row of b by a single 1."""
    torch = library.torch
    ok = True
    for choice in (Choice(256, 1), Choice(128, 1), Choice(256, 2)):
        for trans_b in (False, True):
            for dtype in (torch.bfloat16,):
                k, n = 64, 256
                bits = torch.arange(k * n, dtype=torch.int32, device="cuda") + 0x0080
                values = bits.to(torch.int16).view(torch.bfloat16).reshape(k, n)
                a = torch.eye(64, device="cuda").repeat(4, 1).to(dtype)
                b = (values.t() if trans_b else values).contiguous()[None]
                out, _ = guarded(torch, (256, n), dtype)
                lens = torch.tensor([256], dtype=torch.int32, device="cuda")
                library.forward(a, b, out, lens, trans_b, choice)
                torch.cuda.synchronize()
                got = out.view(torch.int16).to(torch.int32) - 0x0080
                want = (bits - 0x0080).reshape(k, n).repeat(4, 1)
                wrong = got != want
                if not bool(wrong.any()):
                    continue
                ok = False
                print(f"  probe {choice} trans_b={trans_b}: {int(wrong.sum())} of {wrong.numel()}")
                for row, col in wrong.nonzero()[:: max(1, int(wrong.sum()) // 12)].tolist()[:12]:
                    value = int(got[row, col])
                    place = divmod(value, n) if 0 <= value < k * n else "nowhere"
                    print(f"    out[{row}, {col}] has b at {place}, expected {(row % 64, col)}")
    for choice in (Choice(256, 1), Choice(256, 2)):
        # dB: lhs picks one row of rhs.
        k, m, n = 64, 256, 256
        bits = torch.arange(k * n, dtype=torch.int32, device="cuda") + 0x0080
        rhs = bits.to(torch.int16).view(torch.bfloat16).reshape(k, n)
        lhs = torch.eye(64, device="cuda").repeat(1, 4).to(torch.bfloat16).contiguous()
        out, _ = guarded(torch, (1, m, n), torch.bfloat16)
        lens = torch.tensor([k], dtype=torch.int32, device="cuda")
        library.variable_k(lhs, rhs, out, lens, choice)
        torch.cuda.synchronize()
        got = out[0].view(torch.int16).to(torch.int32) - 0x0080
        want = (bits - 0x0080).reshape(k, n).repeat(4, 1)
        wrong = got != want
        if bool(wrong.any()):
            ok = False
            print(f"  probe dB {choice}: {int(wrong.sum())} of {wrong.numel()}")
            for row, col in wrong.nonzero()[:: max(1, int(wrong.sum()) // 12)].tolist()[:12]:
                value = int(got[row, col])
                place = divmod(value, n) if 0 <= value < k * n else "nowhere"
                print(f"    out[{row}, {col}] has rhs at {place}, expected {(row % 64, col)}")
    print("probe", "right" if ok else "WRONG")


def table_cases(small_only=False):
    for name, sizes in load_cases().CASES.items():
        yield name, sizes.small
        if not small_only:
            yield name + " (large)", sizes.large


def finish(part, checker):
    print(f"{part}: {checker.done} products, {checker.failed} wrong", flush=True)


def part_simt(library):
    torch, checker = library.torch, Checker(library)
    choice = Choice(64)
    for name, case in table_cases(small_only=True):
        args = list(case.group_lens), case.rows, case.k, case.n
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for trans_b in (False, True):
                checker.forward(name, *args, dtype, trans_b, choice, wide=trans_b, offs=trans_b)
            checker.variable_k(name, *args, dtype, dtype, choice)
            checker.variable_k(name, *args, dtype, torch.float32, choice)
    checker.forward("no depth", [3, 4], 9, 0, 16, torch.bfloat16, False, Choice())
    checker.forward("no groups", [], 9, 16, 16, torch.bfloat16, False, Choice())
    checker.variable_k("no rows", [0, 0], 0, 16, 24, torch.bfloat16, torch.bfloat16, Choice())
    finish("simt", checker)


def run_tiles(library, part, pairs, forward):
    torch, checker = library.torch, Checker(library)
    choices = [Choice(256, 1), Choice(128, 1)] if pairs == 1 else [Choice(256, 2)]
    plans = [(f"random {i}", *case) for i, case in enumerate(random_cases(60, seed=pairs))]
    for name, case in table_cases():
        plans.append((name, list(case.group_lens), case.rows, case.k, case.n))
    for index, (name, lens, rows, k, n) in enumerate(plans):
        for choice in choices:
            if forward:
                for trans_b in (False, True):
                    dtype = torch.float16 if index % 3 == 2 else torch.bfloat16
                    checker.forward(
                        name, lens, rows, k, n, dtype, trans_b, choice, index % 2, index % 4 == 3
                    )
            else:
                dtype = torch.float16 if index % 3 == 2 else torch.bfloat16
                checker.variable_k(name, lens, rows, k, n, dtype, dtype, choice, index % 2)
                checker.variable_k(name, lens, rows, k, n, dtype, torch.float32, choice)
        if checker.failed > 12:
            print("  too many; the rest is left out")
            break
    # Few blocks: every block does many units, and the rings wrap often.
    if checker.failed == 0:
        for blocks in (2, 6):
            lens = [300, 0, 129, 64, 700, 1, 65]
            choice = Choice(256, pairs, blocks)
            if forward:
                for trans_b in (False, True):
                    checker.forward(
                        "few blocks", lens, 1400, 520, 776, torch.bfloat16, trans_b, choice
                    )
            else:
                checker.variable_k(
                    "few blocks", lens, 1400, 520, 776, torch.bfloat16, torch.bfloat16, choice
                )
    # Many groups: the plan's chunks of 256, and the search over 32 lanes.
    rng = random.Random(5)
    lens = [rng.choice([0, 0, 1, 3, 70]) for _ in range(1500)]
    if forward:
        checker.forward(
            "1500 groups", lens, sum(lens) + 5, 64, 72, torch.bfloat16, False, choices[0]
        )
    else:
        checker.variable_k(
            "1500 groups", lens, sum(lens) + 5, 64, 72, torch.bfloat16, torch.bfloat16, choices[0]
        )
    finish(part, checker)


def part_fault(library):
    torch = library.torch
    wrong = 0

    def check(name, lens, offs, expected, choice):
        nonlocal wrong
        lens = torch.tensor(lens, dtype=torch.int64, device="cuda")
        offs = None if offs is None else torch.tensor(offs, dtype=torch.int64, device="cuda")
        a = torch.randn(100, 64, device="cuda").bfloat16()
        b = torch.randn(lens.numel(), 64, 64, device="cuda").bfloat16()
        out, whole = guarded(torch, (100, 64), torch.bfloat16)
        out.zero_()  # ones are NaN, which is what must come out
        library.forward(a, b, out, lens, False, choice, offs)
        torch.cuda.synchronize()
        fault = library.take_fault()
        grad, whole_grad = guarded(torch, (lens.numel(), 64, 64), torch.bfloat16)
        grad.zero_()
        library.variable_k(a, a, grad, lens, choice, offs)
        torch.cuda.synchronize()
        fault2 = library.take_fault()
        useless = bool(out.isnan().all()) and bool(grad.isnan().all())
        whole = guards_whole(whole) and guards_whole(whole_grad)
        if fault != expected or fault2 != expected or not useless or not whole:
            wrong += 1
            print(
                f"  WRONG fault {name} {choice}: {fault}, {fault2}, expected {expected}, "
                f"all NaN {useless}, guards {whole}"
            )

    for choice in (Choice(), Choice(64), Choice(256, 1)):
        check("negative", [3, -2, 4], None, (1, 1, -2, 1, 100), choice)
        check("past", [50, 51, 4], None, (2, 1, 51, 101, 100), choice)
        check("huge", [50, 2**62, 2**62], None, (2, 1, 2**62, 50 + 2**62, 100), choice)
        check("offs", [5, 6, 7], [0, 5, 12, 18], (3, 2, 12, 18, 11), choice)
        check("last offs", [5, 6, 7], [0, 5, 11, 19], (3, 3, 19, 18, 18), choice)
    print(f"fault: {wrong} wrong")


PARTS = {
    "probe": part_probe,
    "simt": part_simt,
    "plain forward": lambda lib: run_tiles(lib, "plain forward", 1, True),
    "plain variable K": lambda lib: run_tiles(lib, "plain variable K", 1, False),
    "pairs forward": lambda lib: run_tiles(lib, "pairs forward", 2, True),
    "pairs variable K": lambda lib: run_tiles(lib, "pairs variable K", 2, False),
    "fault": part_fault,
}
LIMIT_S = 90  # of one part
BUILD = str(Path(__file__).parents[1] / "build.sh")


def run_one(folder, part):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(1)
    PARTS[part](Library(Path(folder) / "libmoeprof_gpu.so"))


def run_in_process(folder, part, device):
    """Prints what the part says; whether it ran to its end and found nothing wrong."""
    start = time.monotonic()
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": str(device), "CUDA_MODULE_LOADING": "EAGER"}
    command = [sys.executable, __file__, folder, "--one", part]
    try:
        done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=LIMIT_S)
        right = done.returncode == 0 and "WRONG" not in done.stdout
        output = done.stdout + (
            f"\n  exit status {done.returncode}\n{done.stderr[-1500:]}" if done.returncode else ""
        )
    except subprocess.TimeoutExpired as late:
        right = False
        output = (late.stdout or b"").decode() + f"\n{part}: more than {LIMIT_S} s"
    print(f"== {part} ({time.monotonic() - start:.0f} s)\n{output}", flush=True)
    return right


def main(folder, parts):
    """Builds the library and runs the parts side by side; the number of those that failed."""
    folder = str(Path(folder).resolve())
    env = {"PYTHON": sys.executable, **os.environ}
    subprocess.run([BUILD, folder, "moeprof_gpu"], check=True, env=env, timeout=400)
    names = parts or list(PARTS)
    devices = int(os.environ.get("CHECK_DEVICES", "1"))
    with ThreadPoolExecutor(len(names)) as pool:
        right = pool.map(
            lambda it: run_in_process(folder, it[1], it[0] % devices), enumerate(names)
        )
        return sum(not one for one in right)


if __name__ == "__main__":
    if sys.argv[2:3] == ["--one"]:
        run_one(sys.argv[1], sys.argv[3])
    else:
        sys.exit(main(sys.argv[1], sys.argv[2:]))
