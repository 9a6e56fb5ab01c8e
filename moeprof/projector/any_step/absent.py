"""Question: how does a script run on devices that are not there?

What it does outside `jax.jit` is evaluated by shapes alone. Of each call of a jitted function the
program is kept (`Call`), and its results are `AbsentArray` again. What is asked of JAX without a
promise that it stays is in this file alone. Tested with jax 0.7.2, 0.10.2 and 0.12.0.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import array, config, core, debugging, dispatch, dtypes, pjit, stages, xla_bridge
from jax._src.interpreters import mlir
from jax._src.lax import lax as lax_internal
from jax._src.mesh import get_concrete_mesh
from jax._src.numpy.array_methods import _set_array_base_attributes
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from moeprof.projector.any_step.absent_array import (
    AbsentArray,
    Call,
    World,
    caller,
    here,
    is_absent,
    is_of_jax,
    passing,
    set_world,
    shown,
    stating_memory,
)
from moeprof.projector.any_step.mesh import (
    alive_beside,
    default_sharding,
    is_on_host,
    is_over_devices,
    meshes_of,
    sharding_like,
    spec_of,
)

_set_array_base_attributes(AbsentArray, exclude={"item", "tolist"})  # type: ignore[no-untyped-call]


# What is evaluated outside `jax.jit`.


def _is_folding(args: Sequence[Any]) -> bool:
    """Whether it is inside `jax.ensure_compile_time_eval`, which wants values and has them."""
    return bool(config.eager_constant_folding.value) and not any(map(is_absent, args))


def _on_cpu(run: Callable[..., Any], *args: Any, **params: Any) -> Any:
    with jax.default_device(here().cpu):
        return run(*args, **params)


def _new(aval: Any, sharding: Sharding | None, like: Sequence[Any] = ()) -> Any:
    """An array of a shape; split as is told, else as one of the same shape beside it."""
    if not isinstance(aval, core.ShapedArray):
        return None  # an effect's
    told = sharding or _explicit(aval, like) or sharding_like(aval, like)
    if isinstance(told, NamedSharding):  # says it in its type, where axes are explicit
        aval = core.update_aval_with_sharding(aval, told)
    return AbsentArray(aval, told or default_sharding(), told is not None)


def _explicit(aval: Any, like: Sequence[Any]) -> Sharding | None:
    """The sharding that its type has, in meshes of explicit axes, over devices."""
    named = getattr(aval, "sharding", None)
    if not isinstance(named, NamedSharding) or named.mesh.empty or not any(named.spec):
        return None
    meshes = [*meshes_of(like), get_concrete_mesh()]
    over = [m for m in meshes if m is not None and m.abstract_mesh.shape == named.mesh.shape]
    return NamedSharding(over[0], named.spec) if over else None


def _evaluate(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if primitive is pjit.jit_p:
        return _call(*args, **params)
    if primitive is dispatch.device_put_p:
        return _put(*args, devices=params["devices"])
    if primitive.name == "stage":
        return _new(jax.typeof(args[0]), None)
    out, _ = primitive.abstract_eval(*map(jax.typeof, args), **params)
    told = params.get("sharding", params.get("dst_sharding"))
    told = told if is_over_devices(told) else None
    if not primitive.multiple_results:
        return _new(out, told, args)
    return [_new(aval, told, args) for aval in out]


def _put(*values: Any, devices: Sequence[Any], **_: Any) -> list[Any]:
    return [_put_one(value, where) for value, where in zip(values, devices, strict=True)]


def _put_one(value: Any, where: Any) -> Any:
    """The value where it is told to be; itself, where it is there already."""
    where = getattr(where, "sharding", where)  # of a layout
    if where is None or isinstance(where, Sharding):
        told = where
    elif hasattr(where, "device_kind"):
        told = SingleDeviceSharding(where)
    else:  # a kind of memory
        kind = str(getattr(where, "name", where)).rpartition(".")[2].lower()
        told = value.sharding.with_memory_kind(None if kind == "device" else kind)
    if is_absent(value) and told in (None, value.sharding):
        value.commit(told is not None)
        return value
    return _new(jax.typeof(value), told)


# Calls of jitted functions.


def _call(*args: Any, jaxpr: Any, **params: Any) -> list[Any]:
    """The results of a jitted function, which a program of the user's is kept of."""
    stated = [_stated(each, params["ctx_mesh"]) for each in params["out_shardings"]]
    body, every = jaxpr.jaxpr, [*jaxpr.consts, *args]
    source = str(body.debug_info.func_src_info or "")
    own = f"{params['name']} {source}"
    file, _, line = source.rpartition(" at ")[2].rpartition(":")
    is_kept = not is_of_jax(file) and not is_on_host(args)
    others = alive_beside(every, stated) if is_kept else Counter()
    with passing() if is_kept else contextlib.nullcontext():  # its plan has its results
        results = _results(body, jaxpr.out_avals, stated, args)
    for each in filter(is_absent, results):
        each.made_by = own
    if is_kept:
        if params.get("compiler_options_kvs"):
            here().left_out[_OPTIONS] += 1
        given = [_stated(each, params["ctx_mesh"]) for each in params["in_shardings"]]
        told = [None] * len(jaxpr.consts) + given
        here().on_call(
            Call(
                name=str(params["name"]),
                source=shown(file, line),
                at=caller(),
                jaxpr=jaxpr,
                arguments=tuple(map(spec_of, every, told)),
                out_shardings=tuple(stated),
                donated=(False,) * len(jaxpr.consts) + tuple(params["donated_invars"]),
                keep_unused=bool(params["keep_unused"]),
                is_fed=any(is_absent(each) and each.made_by == own for each in args),
                results_bytes=sum(each.device_bytes for each in results if is_absent(each)),
                others_bytes=sum(others.values()),
                others=tuple(others.most_common(5)),
            )
        )
    for value, is_donated in zip(args, params["donated_invars"], strict=True):
        if is_donated and is_absent(value) and not any(value is each for each in results):
            value.delete()
    return results


def _called(*args: Any, **params: Any) -> Any:
    return _call(*args, **params), None, None, []


def _results(body: Any, avals: Any, stated: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """An argument that is returned as it is stays the same array, as in JAX.

    Where nothing tells how a result is split, it is as the next argument of its shape.
    """
    given = {id(var): value for var, value in zip(body.invars, args, strict=True)}
    made = {id(var): eqn for eqn in body.eqns for var in eqn.outvars}
    alike: dict[Any, deque[Any]] = defaultdict(deque)
    for value in args:
        if is_absent(value) and value.committed:
            alike[value.shape].append(value)
    out = []
    for var, aval, sharding in zip(body.outvars, avals, stated, strict=True):
        value, eqn = given.get(id(var)), made.get(id(var))
        if value is not None and is_absent(value) and sharding in (None, value.sharding):
            out.append(value)
            continue
        if sharding is None and eqn is not None and eqn.primitive.name == "sharding_constraint":
            sharding = _stated(eqn.params["sharding"], None)
        turn = alike[getattr(aval, "shape", None)]
        out.append(_new(aval, sharding, [turn[0]] if turn else args))
        turn.rotate(-1)
    return out


def _stated(sharding: Any, mesh: Any) -> Sharding | None:
    """A sharding over devices, if one was given."""
    if is_over_devices(sharding) or not isinstance(sharding, Sharding):
        return sharding if isinstance(sharding, Sharding) else None
    over = mesh if isinstance(mesh, Mesh) and not mesh.empty else get_concrete_mesh()
    return None if over is None or over.empty else NamedSharding(over, sharding.spec)  # type: ignore[attr-defined]


def flat_function(call: Call) -> Callable[..., Any]:
    """The function of a call, of the arrays that it closed over and its arguments one by one."""
    body, consts = call.jaxpr.jaxpr, len(call.jaxpr.consts)

    def step(*args: Any) -> Any:
        return tuple(core.eval_jaxpr(body, args[:consts], *args[consts:]))

    step.__name__ = call.name
    return step


@contextlib.contextmanager
def at_top() -> Iterator[None]:
    """Out of whatever JAX was tracing, with its own way to lower programs."""
    stages.Traced.lower = _LOWER  # type: ignore[method-assign]
    with core.set_current_trace(core.eval_trace):  # type: ignore[no-untyped-call]
        yield


# In place of what looks at devices.

_LOWER = stages.Traced.lower
_OPTIONS = "compiler_options of jax.jit or compile(); flags of XLA_FLAGS are used"


class _Ahead:
    """A function that the script lowers and compiles before it calls it."""

    def __init__(self, traced: Any) -> None:
        self._traced = traced

    def compile(self, *options: Any, **named: Any) -> _Ahead:
        """It as it is: nothing is compiled before the script has ended."""
        if any(options) or named.get("compiler_options"):
            here().left_out[_OPTIONS] += 1
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results, as of the jitted function."""
        traced = self._traced
        lifted = getattr(traced, "_consts", None)
        if lifted is None:  # jax 0.7
            lifted = traced._args_flat[: traced._num_consts]
        given = jax.tree.leaves((args, kwargs))
        return jax.tree.unflatten(
            jax.tree.structure(traced.out_info), _call(*lifted, *given, **traced._params)
        )

    def __getattr__(self, name: str) -> Any:
        """Of what it would say of itself, nothing."""
        return lambda *_, **__: {} if name == "cost_analysis" else None


def enter(world: World) -> None:
    """Let JAX in this process see the devices of a world, and nothing else, from now on."""
    set_world(world)
    core.pytype_aval_mappings[AbsentArray] = lambda value: value.aval
    dtypes.canonicalize_value_handlers[AbsentArray] = lambda value: value
    stages.Traced.lower = lambda self, **_: _Ahead(self)  # type: ignore
    for name in ("debug_callback_p", "debug_print_p"):
        if (printing := getattr(debugging, name, None)) is not None:
            mlir.register_lowering(printing, lambda *_, **__: [], platform="cuda")
    device = type(world.devices[0])
    device.memory_stats = stating_memory(device.memory_stats)
    for owner, name, made_of in _IN_PLACE:
        original = getattr(owner, name, None)
        setattr(owner, name, made_of(original))
        if inspect.ismodule(owner):
            _replace(original, getattr(owner, name))


def _replace(original: Any, new: Any) -> None:
    """Everywhere in JAX where it was imported."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "jax":
            for key, value in list(vars(module).items()):
                if value is original:
                    setattr(module, key, new)


def _processing(original: Any) -> Any:
    def process_primitive(self: Any, primitive: Any, args: Any, params: Any) -> Any:
        if _is_folding(args):
            return _on_cpu(original, self, primitive, args, params)
        return _evaluate(primitive, args, params)

    return process_primitive


def _process_shard_map(self: Any, primitive: Any, fun: Any, args: Any, **params: Any) -> Any:
    def shard_map(*given: Any) -> Any:
        return primitive.bind(fun, *given, **params)

    return jax.jit(shard_map)(*args)


def _unless_folding(run: Callable[..., Any]) -> Callable[[Any], Any]:
    def around(original: Any) -> Any:
        def of_values(*args: Any, **params: Any) -> Any:
            return _on_cpu(original, *args, **params) if _is_folding(args) else run(*args, **params)

        return of_values

    return around


def _getting(original: Any) -> Any:
    return lambda tree: original(jax.tree.map(lambda x: np.asarray(x) if is_absent(x) else x, tree))


def _filling(original: Any) -> Any:
    def full(*args: Any, **params: Any) -> Any:
        told = inspect.signature(original).bind(*args, **params).arguments
        where = told.pop("sharding", None)
        if not is_over_devices(where):
            return original(*args, **params)
        with passing():  # JAX makes its parts alone
            made = original(**told)
        if not is_absent(made):
            return made
        aval, made = jax.typeof(made), None  # gone before what is kept is counted
        return _new(aval, getattr(where, "sharding", where))

    return full


def _filling_like(original: Any) -> Any:
    def full_like(x: Any, *args: Any, **params: Any) -> Any:
        told = inspect.signature(original).bind(x, *args, **params).arguments
        if not is_absent(x) or not x.committed or x.weak_type or told.get("sharding") is not None:
            return original(x, *args, **params)
        is_same = tuple(told.get("shape") or x.shape) == x.shape
        return original(**{**told, "sharding": x.sharding if is_same else None})

    return full_like


def _from_callback(
    shape: Any, sharding: Any, data_callback: Any, dtype: Any = None, **_: Any
) -> Any:
    sharding = getattr(sharding, "sharding", sharding)
    if dtype is None:  # the data of one device say
        first = sharding.devices_indices_map(tuple(shape))[next(iter(sharding.device_set))]
        dtype = jax.typeof(data_callback(first)).dtype
    return _new(core.ShapedArray(tuple(shape), jax.dtypes.canonicalize_dtype(dtype)), sharding)


def _from_local(sharding: Any, local_data: Any, global_shape: Any = None) -> Any:
    aval = jax.typeof(local_data)
    shape = aval.shape if global_shape is None else tuple(global_shape)
    return _new(core.ShapedArray(shape, aval.dtype), sharding)


def _from_parts(shape: Any, sharding: Any, arrays: Any, **_: Any) -> Any:
    aval = core.ShapedArray(tuple(shape), jax.typeof(arrays[0]).dtype)
    return AbsentArray(aval, sharding, True, arrays if all(map(is_absent, arrays)) else ())


def _answering(answer: Callable[[], Any]) -> Callable[[Any], Any]:
    """The answer about absent devices; the original's about a CPU, if that is asked for."""

    def around(original: Any) -> Any:
        def asked(*args: Any, **params: Any) -> Any:
            backend = params.get("backend") or next((x for x in args if isinstance(x, str)), None)
            return original(*args, **params) if backend == "cpu" else answer()

        return asked

    return around


def _initialize(*_: Any, **__: Any) -> None:
    here().left_out["jax.distributed.initialize"] += 1


def _always(new: Any) -> Callable[[Any], Any]:
    return lambda original: new


_devices = _answering(lambda: list(here().devices))
_count = _answering(lambda: len(here().devices))
_IN_PLACE: list[tuple[Any, str, Callable[[Any], Any]]] = [
    (core.EvalTrace, "process_primitive", _processing),
    (core.EvalTrace, "process_shard_map", _always(_process_shard_map)),
    (pjit, "_pjit_call_impl_python", _unless_folding(_called)),
    (dispatch, "_batched_device_put_impl", _unless_folding(_put)),
    (jax, "device_get", _getting),
    (lax_internal, "full_like", _filling_like),
    (lax_internal, "full", _filling),
    (array, "make_array_from_callback", _always(_from_callback)),
    (array, "make_array_from_process_local_data", _always(_from_local)),
    (array, "make_array_from_single_device_arrays", _always(_from_parts)),
    (xla_bridge, "devices", _devices),
    (xla_bridge, "local_devices", _devices),
    (xla_bridge, "device_count", _count),
    (xla_bridge, "local_device_count", _count),
    (xla_bridge, "process_count", _answering(lambda: 1)),
    (xla_bridge, "process_index", _answering(lambda: 0)),
    (xla_bridge, "default_backend", _answering(lambda: "gpu")),
    (jax.distributed, "initialize", _always(_initialize)),
]
