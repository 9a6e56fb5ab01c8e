"""Question: what would this step take of each of N GPUs, by its compiler, without one of them?

    from moeprof.projector.compiled.plan import plan

    def build(devices):
        mesh = Mesh(np.array(devices), ("fsdp",))
        ...
        return step, (state, batch)     # ShapeDtypeStructs with shardings over the mesh

    print(plan(build, "h100_sxm", devices=64).by("content", "component"))

`examples/plan_memory.py` is a whole one. The step is compiled in a process of its own, so this
one may hold JAX, a GPU, or neither.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprof.errors import CompileError, MoeprofError, SelectionError, one_line
from moeprof.ingest.dump.open import open_dump
from moeprof.interpreter import module_command
from moeprof.projector.compiled import load_target, require_compiler
from moeprof.projector.compiled.child import SHOWN_LETTERS
from moeprof.projector.compiled.result import (
    CompiledPlan,
    LaidOut,
    has_triton_products,
    is_laid_out,
    read_plan,
    totals_of,
)
from moeprof.specs.hardware import HardwareSpec, load_hardware

_CHILD = "moeprof.projector.compiled.child"
_BY_LIBRARIES = "--xla_gpu_enable_triton_gemm=false"
_POLL_S = 0.1


@dataclass(frozen=True)
class Named:
    """A function another process can find: in a module, or in the script that was run."""

    module: str
    name: str
    script: str = ""


def plan(
    build: Callable[..., Any] | str,
    hardware: str = "h100_sxm",
    devices: int = 8,
    *,
    options: Mapping[str, object] | None = None,
    donate_argnums: Sequence[int] = (),
    ep_size: int = 1,
    ep_axis: str = "expert",
    without_triton: bool = True,
    timeout_s: float = 900.0,
) -> CompiledPlan:
    """Compile a step for GPUs that are not there and say what it takes of each.

    Args:
        build: a function at the top of a module or script, or ``"module:function"``. It is called
            in another process as ``build(devices, **options)`` with a list of JAX devices to make a
            mesh of, and returns the step, jitted or not, and its arguments: pytrees of
            `jax.ShapeDtypeStruct` with shardings over that mesh. No array is made of them.
        hardware: a key of ``moeprof hardware``: h100_sxm, h200_sxm or b200.
        devices: how many, 8 to a host; below 8 one host with so many.
        options: keyword arguments of `build` that JSON can hold.
        donate_argnums: as of `jax.jit`, where `build` returns a function that is not jitted.
        ep_size: ranks of an EP group, where the step calls `moeprof.kernels.moe_dispatch`.
        ep_axis: the mesh axis that the group is on.
        without_triton: whether to compile again without Triton's products, which tells how much
            memory depends on the kernels that a run chooses.
        timeout_s: seconds after which the compiler is stopped.

    Returns:
        The plan of one device. The flags of ``XLA_FLAGS`` in this process's environment hold.

    Raises:
        SelectionError: no such hardware, devices, or function.
        CompileError: the compiler is not installed, `build` or the compiler fails, or time is up.
    """
    named = _named(build)
    return compile_named(
        named,
        load_hardware(hardware),
        devices,
        dict(options or {}),
        what=named.name,
        donate=tuple(donate_argnums),
        ep_size=ep_size,
        ep_axis=ep_axis,
        without_triton=without_triton,
        timeout_s=timeout_s,
    )


def compile_named(
    build: Named,
    hardware: HardwareSpec,
    devices: int,
    options: Mapping[str, object],
    *,
    what: str,
    donate: tuple[int, ...] = (),
    ep_size: int = 1,
    ep_axis: str = "expert",
    outside: Mapping[str, int | None] | None = None,
    is_bundled: bool = False,
    without_triton: bool = True,
    timeout_s: float = 900.0,
) -> CompiledPlan:
    """`plan` of a function by its name; `what` says of what on stderr."""
    laid_out = lay_out(
        build,
        hardware,
        devices,
        options,
        what=what,
        donate=donate,
        ep_axis=(ep_size, ep_axis),
        is_bundled=is_bundled,
        without_triton=without_triton,
        timeout_s=timeout_s,
    )
    return read_plan(laid_out, hardware, devices, outside or {})


def lay_out(
    build: Named,
    hardware: HardwareSpec,
    devices: int,
    options: Mapping[str, object],
    *,
    what: str,
    donate: tuple[int, ...] = (),
    ep_axis: tuple[int, str] = (1, "expert"),
    is_bundled: bool = False,
    without_triton: bool = True,
    timeout_s: float = 900.0,
) -> LaidOut:
    """Compile a function, and again without Triton's products where it has some and that counts."""
    target = load_target(hardware, devices)
    require_compiler(target)
    print(
        f"moeprof: compiling {what} for {devices} × {hardware.name}, which takes a minute or so",
        file=sys.stderr,
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="moeprof-plan-") as folder:
        dump = Path(folder) / "dump"
        dump.mkdir()
        request = {
            "build": vars(build),
            "hardware": hardware.key,
            "devices": devices,
            "options": _json(options),
            "donate": donate,
            "ep_size": ep_axis[0],
            "ep_axis": ep_axis[1],
            "is_bundled": is_bundled,
            "dump": str(dump),
        }
        began = time.perf_counter()
        _fill(request, what, Path(folder), timeout_s)
        found = LaidOut(open_dump(dump), time.perf_counter() - began)
        if without_triton and has_triton_products(dump):
            dump = Path(folder) / "by-libraries"
            dump.mkdir()
            request["dump"] = str(dump)
            found = _with_libraries(found, request, what, Path(folder), timeout_s)
        print(f"moeprof: compiled in {found.compile_s:.0f} s", file=sys.stderr, flush=True)
        return found


def _with_libraries(
    found: LaidOut, request: Mapping[str, object], what: str, folder: Path, timeout_s: float
) -> LaidOut:
    """With the arena without Triton's products, or why it is not known: the first plan stays."""
    began = time.perf_counter()
    try:
        _fill(request, what, folder, timeout_s, _BY_LIBRARIES)
        temp = totals_of(open_dump(Path(str(request["dump"])))).temp_bytes
        found = found._replace(library_temp_bytes=temp, is_range_known=temp is not None)
    except MoeprofError as error:
        why = f"not known: the peak where libraries compute all products. {one_line(error)}"
        found = found._replace(is_range_known=False, notes=(why,))
    return found._replace(compile_s=found.compile_s + time.perf_counter() - began)


def _json(options: Mapping[str, object]) -> object:
    try:
        return json.loads(json.dumps(options))
    except (TypeError, ValueError) as error:
        raise SelectionError(
            f"plan options: expected values that JSON can hold, found {error}. Give names or "
            "numbers, and make the rest in `build`."
        ) from error


def _fill(
    request: Mapping[str, object], what: str, folder: Path, timeout_s: float, flags: str = ""
) -> None:
    """Fill the dump folder; the compiler is stopped once memory is laid out.

    The code that it would generate next takes as long again, needs NVIDIA's assembler, and changes
    nothing of the layout.
    """
    errors = folder / "stderr.txt"
    answered = folder / "answer.json"
    answered.unlink(missing_ok=True)
    (folder / "request.json").write_text(json.dumps(request), "utf-8")
    with errors.open("wb") as stderr:
        child = subprocess.Popen(
            module_command(_CHILD, str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            env=child_environment(flags),
            start_new_session=True,
        )
        try:
            _wait_for_layout(child, Path(str(request["dump"])), timeout_s)
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"compile {what}: not done after {timeout_s:g} s and stopped. Compile fewer layers "
                "(scanned layers cost nothing), or allow more time with timeout_s."
            ) from None
        finally:
            _end(child)
    if is_laid_out(Path(str(request["dump"]))):
        return
    if not answered.exists():
        raise CompileError(
            f"compile {what}: the compiler's process ended with {_ending(child.returncode)}"
            f"{_last_line(errors.read_text('utf-8', 'replace'))}"
        )
    answer = json.loads(answered.read_text("utf-8"))
    at = f" (at {answer['at']})" if answer["at"] else ""
    text = one_line(answer["error"])[:SHOWN_LETTERS]
    raise CompileError(f"compile {what}: {text}{at}")


def _wait_for_layout(child: subprocess.Popen[bytes], dump: Path, timeout_s: float) -> None:
    """Wait until memory is laid out, or the child ends."""
    last = time.monotonic() + timeout_s
    while child.poll() is None and not is_laid_out(dump):
        if time.monotonic() > last:
            raise subprocess.TimeoutExpired(_CHILD, timeout_s)
        time.sleep(_POLL_S)


def child_environment(flags: str = "") -> dict[str, str]:
    """The caller's, with its import path, and JAX told not to look for a GPU (up to 0.9: twice).

    `flags` are XLA's, which win over the caller's.
    """
    paths = [entry or str(Path.cwd()) for entry in sys.path]
    no_gpu = {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    own = {"PYTHONPATH": os.pathsep.join(paths)}
    if flags:
        own["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    return {**os.environ, **no_gpu, **own}


def _end(child: subprocess.Popen[bytes]) -> None:
    """Stop the child, and what it started, if it still runs."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _ending(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"signal {name}" + (", as when memory runs out" if name == "SIGKILL" else "")
    return f"code {code} and no answer"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[-1][:SHOWN_LETTERS]}" if lines else ""


def _named(build: Callable[..., Any] | str) -> Named:
    if isinstance(build, str):
        module, _, name = build.partition(":")
        if not module or not name.isidentifier():
            raise SelectionError(f"plan: expected build as MODULE:FUNCTION, found {build!r}.")
        return Named(module, name)
    module, name = getattr(build, "__module__", ""), getattr(build, "__qualname__", "")
    if not module or not name.isidentifier():
        raise SelectionError(
            f"plan: expected build to be a function at the top of a module, which another process "
            f"can import, found {name or build!r}. Move it there; values go into `options`."
        )
    if module != "__main__":
        return Named(module, name)
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None:
        raise SelectionError(
            f"plan: {name} was typed into an interactive session, which another process cannot "
            "read. Write it to a file and give plan('module:function')."
        )
    return Named(module, name, str(Path(script).resolve()))
