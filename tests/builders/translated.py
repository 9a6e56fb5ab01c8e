"""Programs of JAX as the tables of a trace, and what is translated from them as functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from moeprof.ingest.frames.of_programs import hlo_frame
from moeprof.ingest.hlo.programs import Program, parse_program
from moeprof.replay.ops import Ops, ops_of
from moeprof.replay.translate import Translation


def program(module: bytes) -> tuple[Program, Ops]:
    """A serialized HloModuleProto, as field 1 of an HloProto."""
    size, length = len(module), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    found = parse_program(b"\x0a" + length + bytes([size]) + module)
    return found, ops_of(hlo_frame({1: found}), 1)


def translated(module: bytes):
    """The entry computation as a function, and the opcodes that it has."""
    found, ops = program(module)
    translation = Translation(ops)
    name = translation.function(found.module.entry)
    text = "\n\n".join("\n".join(lines) for lines in translation.functions.values())
    names = {"jax": jax, "jnp": jnp, "lax": lax}
    exec(text, names)
    return names[name], translation.opcodes
