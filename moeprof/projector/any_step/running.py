"""Question: which programs does a script run first, if its devices are not there?

The process of `moeprof memory --script`, given a folder with ``request.json``. It runs the script
until it has settled, lowers the programs that count, and leaves ``answer.json`` with a file for
each. Then it ends at once: no handler of the script runs, so that nothing half done is written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import pickle
import re
import runpy
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import jax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding

from moeprof.errors import MoeprofError
from moeprof.projector.any_step import absent
from moeprof.projector.any_step.absent_array import (
    AbsentArray,
    Call,
    World,
    is_users,
    shown,
)
from moeprof.projector.any_step.exported import Lowered, lower
from moeprof.projector.any_step.mesh import by_device, mesh_of
from moeprof.projector.compiled import Target, load_target
from moeprof.projector.compiled.child import PRINTED, SHOWN_LETTERS, reason_of
from moeprof.specs.hardware import HardwareSpec, load_hardware

SETTLED_CALLS = 16
"""Calls of a program, each given results of the one before, after which a script has settled."""
_BY_ERROR = "of programs before it ended with an error"
_BY_TIME = "of programs before its time was over"
_UNFED = "of programs none of which was given results of its own"
_IDENTITY = re.compile(r"0x[0-9a-f]+|id=\d+")
"""Which object of Python it is: another one each time that a function is made anew."""


@dataclass(eq=False)
class _Seen:
    """A program: its last call, and the one with most other arrays alive."""

    call: Call
    fullest: Call
    bound_bytes: int
    calls: int = 0
    fed: int = 0

    @property
    def at_least_bytes(self) -> int:
        """What it takes of a device at the least, with all that is alive beside it."""
        return self.call.arguments_bytes + self.fullest.others_bytes

    @property
    def at_most_bytes(self) -> int:
        """More than it can take."""
        return self.bound_bytes + self.fullest.others_bytes


class Held:
    """What arrays hold of each device; the most that one held outside a program, and since where.

    Of a program that runs, its plan says more.
    """

    def __init__(self) -> None:
        """Begin with no array."""
        self.most_bytes, self.most_at = 0, ""
        self._sums: Counter[frozenset[Any]] = Counter()
        self._gone: deque[tuple[frozenset[Any], int]] = deque()  # collected at any time
        self._lock = threading.RLock()

    def add(self, array: AbsentArray, is_measured: bool = True) -> Callable[[], object]:
        """Count an array, until what is returned is called or it is collected."""
        places, size = array.places, array.device_bytes
        with self._lock:
            self._sums[places] += size
            while self._gone:
                where, less = self._gone.popleft()
                self._sums[where] -= less
                if not self._sums[where]:
                    del self._sums[where]
            if is_measured and self._sums.total() > self.most_bytes:
                most = max(by_device(self._sums).values())
                if most > self.most_bytes:
                    self.most_bytes, self.most_at = most, array.made_at
        return weakref.finalize(array, self._gone.append, (places, size))


class _Run:
    """What was seen of a script so far."""

    def __init__(self, folder: Path, request: dict[str, Any]) -> None:
        self.folder, self.request = folder, request
        hardware = load_hardware(request["hardware"])
        self.target = load_target(hardware, 1)
        self.world = World(
            folder=str(Path(request["script"]).parent) + os.sep,
            devices=_devices(self.target, hardware, request["devices"]),
            cpu=jax.devices("cpu")[0],
            pool_bytes=request["pool_bytes"],
            on_call=self.called,
            on_new=self.made,
        )
        self.held = Held()
        self.seen: dict[object, _Seen] = {}
        self.digests: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()
        self.lock = threading.RLock()
        self.began = time.perf_counter()

    def run(self) -> NoReturn:
        """Run the script to its end, or until it has settled or time is up."""
        script, module = self.request["script"], self.request.get("module")
        sys.argv = [script, *self.request["arguments"]]
        sys.path.insert(0, str(Path.cwd() if module else Path(script).parent))
        late = f"{self.request['seconds']:g} s"
        signal.signal(signal.SIGALRM, lambda *_: self.end(late, unsettled=_BY_TIME))
        absent.enter(self.world)
        self.began = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, self.request["seconds"])
        try:
            if module:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script, run_name="__main__")
        except SystemExit as error:
            self.end("its own exit", *((self.why_left(error), _BY_ERROR) if error.code else ()))
        except BaseException as error:
            self.end(
                "an error of its own",
                f"{reason_of(error).rpartition(' (at ')[0] or reason_of(error)}{_at(error)}",
                _BY_ERROR,
            )
        self.end("its end")

    def why_left(self, error: SystemExit) -> str:
        """Exit code and place, with the last line that the script wrote before."""
        is_number = isinstance(error.code, int)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        text = (self.folder / PRINTED).read_text("utf-8", "replace")
        written = [line.strip() for line in (text if is_number else str(error.code)).splitlines()]
        last = next((line for line in reversed(written) if line), "")[:SHOWN_LETTERS]
        after = f', after "{last}"' if last else ""
        return f"exit code {error.code if is_number else 1}{_at(error)}{after}"

    def made(self, array: AbsentArray) -> Callable[[], object]:
        """Count an array that takes memory."""
        return self.held.add(array, not getattr(self.world.passing, "is_on", False))

    def called(self, call: Call) -> None:
        """Count a call of a program; the last one ends the script."""
        with self.lock:
            digest = self.digests.get(call.jaxpr)
            if digest is None:
                digest = self.digests[call.jaxpr] = digest_of(call.jaxpr)
            key = call.key, digest
            if key not in self.seen:
                self.seen[key] = _Seen(call, call, bound_bytes(call))
            seen = self.seen[key]
            seen.calls, seen.fed, seen.call = seen.calls + 1, seen.fed + call.is_fed, call
            if call.others_bytes > seen.fullest.others_bytes:
                seen.fullest = call
            weighty = self.weighty()
            has_looped = any(each.fed for each in weighty)
            if has_looped and len(weighty) >= self.request["programs"]:
                self.end(f"{len(weighty)} programs")
            if seen in weighty and seen.fed >= SETTLED_CALLS - 1:
                self.end(f"{seen.calls} calls of {call.name}")

    def weighty(self) -> list[_Seen]:
        """The programs that may be the one that takes most."""
        floor = max(each.at_least_bytes for each in self.seen.values())
        return [each for each in self.seen.values() if each.at_most_bytes >= floor]

    def end(self, why: str, error: str = "", unsettled: str = "") -> NoReturn:
        """Leave the answer, and the process; ``unsettled``: why its step may be still to come."""
        ran_s = time.perf_counter() - self.began
        signal.setitimer(signal.ITIMER_REAL, 0)
        with self.lock:
            held_bytes, held_at = self.held.most_bytes, self.held.most_at
            weighty = self.weighty() if self.seen else []
            if not any(each.fed for each in weighty):
                unsettled = unsettled or _UNFED
            with absent.at_top():
                rows = [self.row(at, each) for at, each in enumerate(weighty)]
        if "moeprof.kernels.runtime" in sys.modules:
            self.world.left_out["GPU kernels of moeprof.kernels; their slow twins are planned"] += 1
        answer = {
            "ended": why,
            "error": error,
            "unsettled": unsettled,
            "ran_s": ran_s,
            "programs": rows,
            "light": sorted({each.call.name for each in self.seen.values() if each not in weighty}),
            "outside_jit": {"size_bytes": held_bytes, "line": held_at},
            "reads": [[*key, number] for key, number in self.world.reads.most_common()],
            "left_out": dict(self.world.left_out),
            "flags": os.environ.get("XLA_FLAGS", ""),
        }
        (self.folder / "answer.json").write_text(json.dumps(answer), "utf-8")
        sys.stdout.flush()
        os._exit(0)

    def row(self, at: int, seen: _Seen) -> dict[str, Any]:
        """A program as the answer has it; the program itself goes to a file."""
        call = seen.call
        row = {
            "name": call.name,
            "source": call.source,
            "at": call.at,
            "calls": seen.calls,
            "at_most_bytes": seen.at_most_bytes,
            "results_bytes": call.results_bytes,
            "others_bytes": seen.fullest.others_bytes,
            "others": [list(each) for each in seen.fullest.others],
        }
        try:
            lowered = lower_call(call, self.target.platform)
        except MoeprofError as error:
            return {**row, "error": str(error)}
        (self.folder / f"{at}.program").write_bytes(pickle.dumps(lowered))
        return {**row, "file": f"{at}.program", "error": ""}


def lower_call(call: Call, platform: str) -> Lowered:
    """The program of a call, for the devices of its mesh, or for one.

    Raises:
        MoeprofError: it cannot be lowered.
    """
    over = mesh_of_call(call)
    mesh = over.abstract_mesh if over is not None else mesh_of(None, 1, ())
    shapes = [
        jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            spec.shape, spec.dtype, sharding=_on(spec.sharding, over), weak_type=spec.weak_type
        )
        for spec in call.arguments
    ]
    step = jax.jit(
        absent.flat_function(call),
        out_shardings=tuple(_on(each, over) for each in call.out_shardings),
        donate_argnums=tuple(at for at, given in enumerate(call.donated) if given),
        keep_unused=call.keep_unused,
    )
    found = lower(step, shapes, {}, mesh, platform)
    names = argument_names(call)
    arguments = tuple(
        dataclasses.replace(each, name=name)
        for each, name in zip(found.arguments, names, strict=True)
    )
    return dataclasses.replace(found, arguments=arguments)


def argument_names(call: Call) -> list[str]:
    """What the function calls its arguments, as ``params['w']``."""
    consts, given = len(call.jaxpr.consts), len(call.jaxpr.jaxpr.invars)
    names = getattr(call.jaxpr.jaxpr.debug_info, "arg_names", None) or ()
    lead = max(given - len(names), 0)  # arrays closed over come first
    told = [
        str(name or f"argument {at}") for at, name in enumerate(names[-given:] if given else ())
    ]
    return [f"closed over {at}" for at in range(consts + lead)] + told


def bound_bytes(call: Call) -> int:
    """More than the call can take of a device.

    Arguments, those that are split as a whole too, and all that it computes, unsplit.
    """
    made: int = sum(
        prod(aval.shape) * int(aval.dtype.itemsize)
        for eqn in _equations(call.jaxpr.jaxpr)
        for aval in (var.aval for var in eqn.outvars)
        if hasattr(aval, "shape")
    )
    gathered = sum(
        prod(spec.shape) * int(spec.dtype.itemsize) for spec in call.arguments if spec.is_split
    )
    return call.arguments_bytes + gathered + made


def digest_of(jaxpr: Any, known: dict[int, bytes] | None = None) -> bytes:
    """Of what a program computes; alike for two that differ in the values of floats alone.

    A rate that is given as a static argument changes no bytes, an integer may be a length.
    """
    known = {} if known is None else known
    body = getattr(jaxpr, "jaxpr", jaxpr)
    if id(body) in known:
        return known[id(body)]
    numbers: dict[Any, int] = {}
    digest = hashlib.blake2b(digest_size=16)

    def told(var: Any) -> str:
        text = f"{getattr(var.aval, 'shape', var.aval)}{getattr(var.aval, 'dtype', '')}"
        if not hasattr(var, "val"):
            return f"{numbers.setdefault(var, len(numbers))}{text}"
        return text if "float" in text else f"={var.val}{text}"

    digest.update(str([told(var) for var in (*body.constvars, *body.invars)]).encode())
    for eqn in body.eqns:
        digest.update(eqn.primitive.name.encode())
        digest.update(str([told(var) for var in (*eqn.invars, *eqn.outvars)]).encode())
        for name in sorted(eqn.params.keys() - {"weak_type"}):
            for value in jax.tree.leaves(eqn.params[name], is_leaf=lambda each: each is None):
                is_inner = hasattr(getattr(value, "jaxpr", value), "eqns")
                said = b"" if is_inner else _IDENTITY.sub("", f"{name}={value!s}").encode()
                digest.update(digest_of(value, known) if is_inner else said)
    digest.update(str([told(var) for var in body.outvars]).encode())
    known[id(body)] = digest.digest()
    return known[id(body)]


def mesh_of_call(call: Call) -> Mesh | None:
    """The mesh that the program is over, if any of its arrays are split; results come last."""
    told = [*(spec.sharding for spec in call.arguments), *call.out_shardings]
    inner = (value for eqn in _equations(call.jaxpr.jaxpr) for value in eqn.params.values())
    for each in itertools.chain(told, inner):
        mesh = each if isinstance(each, Mesh) else getattr(each, "mesh", None)
        if isinstance(mesh, Mesh) and mesh.size > 1:
            return mesh
    return None


def _equations(body: Any) -> Iterator[Any]:
    for eqn in body.eqns:
        yield eqn
        for value in jax.tree.leaves(list(eqn.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def _on(sharding: Any, mesh: Mesh | None) -> Any:
    """The sharding where it is over the mesh; of one device there is none."""
    if mesh is None or not isinstance(sharding, NamedSharding):
        return None
    return sharding if sharding.mesh.size == mesh.size else None


def _devices(target: Target, hardware: HardwareSpec, devices: int) -> tuple[Any, ...]:
    """As many as there are to be, all of one host: one process has all of them.

    Each says which slice it is of, as real ones do: on GPUs a machine of its own.
    """
    found = topologies.get_topology_desc(
        platform=target.platform, target_config=target.config, topology=f"1x1x{devices}"
    )
    kind: Any = type(found.devices[0])
    kind.slice_index = property(lambda device: device.id // hardware.slice_devices)
    return tuple(found.devices)


def _at(error: BaseException) -> str:
    """Line of the script, or of what it imports, that raised."""
    lines = [
        shown(frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if is_users(frame.filename)
    ]
    return f" (at {lines[-1]})" if lines else ""


def main() -> None:
    """Run what the request asks for."""
    folder = Path(sys.argv[1])
    _Run(folder, json.loads((folder / "request.json").read_text("utf-8"))).run()


if __name__ == "__main__":
    main()
