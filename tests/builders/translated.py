"""Programs of JAX as the tables of a trace, and what is translated from them as functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from moeprof.hlo.program import Program, programs_in
from moeprof.ingest.hlo.programs import parse_program
from moeprof.ingest.program_frames import hlo_frame
from moeprof.replay.translate import Translation


def program(module: bytes) -> tuple[str, Program]:
    """Name of the entry, and the program of a serialized HloModuleProto."""
    size, length = len(module), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    found = parse_program(b"\x0a" + length + bytes([size]) + module)
    return found.module.entry, programs_in(hlo_frame({1: found}), [1])[1]


def translated(module: bytes):
    """The entry computation as a function, and the opcodes that it has."""
    entry, made = program(module)
    translation = Translation(made)
    name = translation.function(entry)
    text = "\n\n".join("\n".join(lines) for lines in translation.functions.values())
    names = {"jax": jax, "jnp": jnp, "lax": lax}
    exec(text, names)
    return names[name], translation.opcodes
