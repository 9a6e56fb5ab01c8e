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
from grouped_gemm_checker import Checker, guarded, guards_whole


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
