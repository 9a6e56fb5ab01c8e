"""Question: how does XLA compile calls whose kernels are not there?

Its GPU compiler refuses a custom call for which no handler is registered. These handlers answer
what it asks when it compiles, their API version, and fail with a clear error should a program that
was compiled so ever be run. Structures and offsets are those of xla/ffi/api/c_api.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import jax

_METADATA = 1  # XLA_FFI_Extension_Metadata
_UNIMPLEMENTED = 12  # XLA_FFI_Error_Code_UNIMPLEMENTED
_FIRST_VERSION = (0, 1)  # jaxlib 0.7 passes no API when it asks for the version: it has this one
_MESSAGE = b"compiled by moeprof to tell its memory: this call has no kernel and cannot be run"


class _Extension(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
    )


class _Version(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("version", _Version),
        ("traits", ctypes.c_uint32),
    )


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", ctypes.POINTER(_Metadata)))


class _ErrorArgs(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


class _Api(ctypes.Structure):
    """The head of XLA_FFI_Api: its version, and the first of its functions."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("version", _Version),
        ("internal_api", ctypes.c_void_p),
        ("error_create", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArgs))),
    )


class _CallFrame(ctypes.Structure):
    """The head of XLA_FFI_CallFrame."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.POINTER(_Extension)),
        ("api", ctypes.POINTER(_Api)),
    )


def _answer(frame: ctypes._Pointer[_CallFrame]) -> int | None:  # called by XLA, on its threads
    call = frame.contents
    extension = call.extension_start
    while extension:
        if extension.contents.type == _METADATA:
            asked = ctypes.cast(extension, ctypes.POINTER(_MetadataExtension)).contents
            major, minor = _FIRST_VERSION
            if call.api:
                major, minor = call.api.contents.version.major, call.api.contents.version.minor
            asked.metadata.contents.version.major = major
            asked.metadata.contents.version.minor = minor
            asked.metadata.contents.traits = 0
            return None
        extension = ctypes.cast(extension.contents.next, ctypes.POINTER(_Extension))
    args = _ErrorArgs(ctypes.sizeof(_ErrorArgs), None, _MESSAGE, _UNIMPLEMENTED)
    error: int | None = call.api.contents.error_create(ctypes.byref(args))
    return error


_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))(_answer)


def register_placeholders(targets: Iterable[str], platform: str) -> None:
    """Let XLA compile custom calls of these targets in this process, for ``CUDA`` or ``ROCM``."""
    for target in targets:
        capsule = jax.ffi.pycapsule(_HANDLER)  # type: ignore[no-untyped-call]
        jax.ffi.register_ffi_target(target, capsule, platform=platform)
