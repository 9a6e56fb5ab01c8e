"""Does with arrays what scripts do before their first step, and says what of it went otherwise."""

import copy
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.experimental.pjit import pjit
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

N = 8
jax.distributed.initialize()
assert (jax.device_count(), jax.local_device_count(), len(jax.devices("cuda"))) == (N, N, N)
assert (jax.process_count(), jax.process_index(), jax.default_backend()) == (1, 0, "gpu")
device = jax.devices()[0]
assert (device.platform, "H100" in device.device_kind) == ("gpu", True)
assert device.memory_stats()["bytes_limit"] > 0
multihost_utils.sync_global_devices("start")

mesh = Mesh(np.array(jax.devices()), ("x",))
rows, all_of_it = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())

# Where arrays come to lie.
host = np.arange(64.0, dtype=np.float32).reshape(16, 4)
placed = jax.device_put(host, rows)
assert placed.sharding == rows
assert placed.committed
assert placed.dtype == jnp.float32
assert jax.device_put(placed, rows) is placed
assert placed.addressable_shards[0].data.shape == (2, 4)
assert len(placed.addressable_shards) == N
assert jax.device_put({"a": host}, all_of_it)["a"].sharding.is_fully_replicated
assert jnp.asarray(host).devices() == {device}
assert not jnp.asarray(host).committed
assert jnp.asarray(np.int64(3)).dtype == jnp.int32
for like in (
    jnp.zeros_like(placed),
    placed * 2 + 1,
    jnp.zeros((16, 4), device=rows),
    placed.copy(),
):
    assert like.sharding == rows, like.sharding
for made in (
    jax.make_array_from_callback((16, 4), rows, lambda place: host[place]),
    jax.make_array_from_process_local_data(rows, host),
    jax.lax.with_sharding_constraint(jnp.ones((16, 4)), rows),
    jax.jit(lambda: jnp.ones((16, 4)), out_shardings=rows)(),
):
    assert made.sharding == rows
    assert made.shape == (16, 4)
with jax.default_device(jax.devices("cpu")[0]):
    assert jnp.ones(3).devices() == {jax.devices("cpu")[0]}

# What is read is 0, what has to be known as a program is made is not.
number = jnp.sum(placed)
assert (float(number), int(number), bool(number), number.item()) == (0.0, 0, False, 0.0)
assert f"{number:.1f}" == "0.0"
assert np.asarray(placed).sum() == 0
assert jax.device_get(number) == 0
assert range(3)[jnp.argmax(placed)] == 0
assert placed.tolist()[0] == [0.0] * 4
assert pickle.loads(pickle.dumps(placed)).shape == copy.deepcopy(placed).shape == (16, 4)
with jax.ensure_compile_time_eval():
    assert int(jnp.prod(jnp.array([2, 3]))) == 6

# Arrays as such.
first, *rest = placed
assert first.shape == (4,)
assert len(rest) == 15
assert len(placed) == 16
assert placed.nbytes == 256
assert isinstance(placed, jax.Array)
assert not isinstance(placed, jax.core.Tracer)
assert placed.at[0].set(1).shape == placed.shape
assert (host + placed).shape == (placed @ host.T)[:, :4].shape
assert jax.tree.map(jnp.shape, jax.vmap(lambda x: {"a": x.sum()})(placed)) == {"a": (16,)}
assert jax.grad(lambda x: jnp.sum(jax.nn.silu(x)))(placed).sharding == rows
key, other = jax.random.split(jax.random.key(0))
assert jax.random.normal(key, (3,)).shape == (3,)
assert other.shape == ()
jax.block_until_ready({"a": placed})

# A function that is compiled ahead, with the mesh around it and an array that it closes over.
table = jnp.ones((4, 4))
with mesh:
    ahead = pjit(lambda x: x @ table, in_shardings=P("x"), out_shardings=P("x"))
    compiled = ahead.lower(placed).compile()
    compiled.cost_analysis()
step = jax.jit(
    lambda x: jax.shard_map(
        lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()
    )(x),
    donate_argnums=0,
)
x = compiled(placed)
assert x.sharding.is_equivalent_to(rows, 2), x.sharding
total = step(x)
assert x.is_deleted()
assert total.shape == (2, 4)
assert SingleDeviceSharding(device).device_set == {device}
print("all of it worked", file=sys.stderr)
raise SystemExit(7)
