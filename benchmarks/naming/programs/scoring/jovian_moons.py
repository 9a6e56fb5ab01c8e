"""Tuples of arrays; each piece of a sequence is chosen from by its experts; momentum by hand."""

import json
import os

import jax
import jax.numpy as jnp

SIZES = {"d": 96, "f": 130, "e": 4, "l": 3, "b": 2, "s": 48, "v": 270, "h": 6, "c": 16}
LARGE = {"d": 1536, "f": 3072, "e": 12, "l": 5, "b": 4, "s": 1536, "v": 16000, "h": 12, "c": 512}
SIZES |= json.loads(os.environ.get("SIZES", "{}"))
VARIANTS = {"e=d": {"e": 24, "d": 24}}
METIS, THEBE, CARME = SIZES["d"], SIZES["f"], SIZES["e"]
LEDA = max(1, 2 * SIZES["c"] // CARME)
ELARA = 0.1


def io(moon, dust):
    glow = jnp.linalg.norm(moon, axis=-1, keepdims=True) * METIS**-0.5  # is: norm
    return moon / (glow + 1e-6) * dust  # is: norm


def europa(moon, ice):
    (crust, rim), core = ice
    tide = jnp.tensordot(moon, crust, 1) + rim  # is: attention
    tide = tide.reshape(*moon.shape[:2], 3, SIZES["h"], -1)  # is: attention
    east, west, north = (tide[:, :, n] for n in range(3))  # is: attention
    tide = jax.nn.dot_product_attention(east, west, north, is_causal=True)  # is: attention
    return jnp.tensordot(tide.reshape(moon.shape), core, 1)  # is: attention


def ganymede(moon, rock):
    ridge, (basin, crater) = rock
    pull = jax.nn.softmax(moon @ ridge, axis=-1)  # is: router
    pull, spot = jax.lax.top_k(pull.T, LEDA)  # is: router
    near = moon[spot]  # is: permute
    far = jax.lax.dot_general(near, basin, (((2,), (1,)), ((0,), (0,))))  # is: grouped_gemm
    far = jax.nn.gelu(far[..., :THEBE]) * far[..., THEBE:]  # is: expert_elementwise
    far = jax.lax.dot_general(far, crater, (((2,), (1,)), ((0,), (0,))))  # is: grouped_gemm
    far = far * pull[..., None]  # is: unpermute|combine
    return jnp.zeros_like(moon).at[spot].add(far)  # is: unpermute|combine


def callisto(moon, orbit):
    dust, ice, ash, rock = orbit
    moon = moon + europa(io(moon, dust), ice)  # is: attention
    arcs = io(moon, ash).reshape(-1, SIZES["c"], METIS)
    arcs = jax.vmap(ganymede, in_axes=(0, None))(arcs, rock)
    return moon + arcs.reshape(moon.shape), None  # is: unpermute|combine


def jupiter(storm, band):
    (spot, belt), orbits, (dust, zone) = storm
    moon = jnp.take(spot, band[:, :-1], axis=0) + belt  # is: embedding
    moon, _ = jax.lax.scan(callisto, moon, orbits)
    moon = io(moon, dust) @ zone  # is: head
    moon = jax.nn.log_softmax(moon)  # is: loss
    hit = jnp.take_along_axis(moon, band[:, 1:, None], axis=-1)  # is: loss
    return -(1 - ELARA) * hit.mean() - ELARA * moon.mean()  # is: loss


def sinope(storm, drift, hour, band):
    dark, wind = jax.value_and_grad(jupiter)(storm, band)
    force = sum(jnp.sum(jnp.square(gust)) for gust in jax.tree.leaves(wind))  # is: optimizer
    force = jnp.minimum(1.0, 0.5 * jax.lax.rsqrt(force + 1e-12))  # is: optimizer
    drift = jax.tree.map(lambda old, gust: 0.9 * old + force * gust, drift, wind)  # is: optimizer
    hour = hour + 1  # is: optimizer
    pace = 0.05 * jnp.minimum(hour / 100, 1.0)  # is: optimizer
    storm = jax.tree.map(lambda here, old: here - pace * old, storm, drift)  # is: optimizer
    return storm, drift, hour, dark


def build(devices):
    """Step, its arguments, and where they lie."""

    def make():
        comet = iter(jax.random.split(jax.random.key(1610), 16))
        many, d, f, v = SIZES["l"], METIS, THEBE, SIZES["v"]

        def rain(*size):
            return jax.random.uniform(next(comet), size, minval=-1) * (3 / size[-2]) ** 0.5

        ice = (rain(many, d, 3 * d), jnp.zeros((many, 3 * d))), rain(many, d, d)
        rock = rain(many, d, CARME), (rain(many, CARME, d, 2 * f), rain(many, CARME, f, d))
        orbits = jnp.ones((many, d)), ice, jnp.ones((many, d)), rock
        storm = (rain(v, d), rain(SIZES["s"], d)), orbits, (jnp.ones(d), rain(d, v))
        band = jax.random.randint(next(comet), (SIZES["b"], SIZES["s"] + 1), 0, v)
        return storm, jax.tree.map(jnp.zeros_like, storm), jnp.zeros((), jnp.int32), band

    return jax.jit(sinope, donate_argnums=(0, 1)), make, None
