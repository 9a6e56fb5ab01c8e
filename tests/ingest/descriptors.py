"""Message classes of XLA's own formats, for oracles: from the descriptors in the xprof wheel.

The wheel ships no Python classes for XSpace and HloProto, but its library carries the
FileDescriptorProto of every .proto file that it was built from, as protoc embeds them.
"""

from __future__ import annotations

import importlib.util
import mmap
from functools import cache
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

_FILES = {
    "xla": "xla/service/hlo.proto",
    "xla.gpu": "xla/service/gpu/backend_configs.proto",
    "tensorflow.profiler": "xplane.proto",
}
# Fields of FileDescriptorProto, all length-delimited but the lists of numbers and the edition.
_BYTES_FIELDS = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15})
_NUMBER_FIELDS = frozenset({10, 11, 14})


@cache
def message_class(full_name: str) -> type[message.Message]:
    """The class of ``xla.HloProto``, ``tensorflow.profiler.XSpace`` or a message beside them.

    Raises:
        LookupError: the library holds no such message.
    """
    pool = descriptor_pool.DescriptorPool()
    package = full_name.rpartition(".")[0]
    with _library().open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as so:
        _add(pool, so, _FILES.get(package, package), set())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))


def _library() -> Path:
    spec = importlib.util.find_spec("xprof")
    if spec is None or spec.origin is None:
        raise LookupError("the oracle needs the package xprof, which is not installed")
    return Path(spec.origin).parent / "convert" / "profiler_plugin_c_api.so"


def _add(pool: descriptor_pool.DescriptorPool, so: mmap.mmap, name: str, known: set[str]) -> None:
    """Add the file whose path ends in `name`, after the files that it imports."""
    file = _find(so, name)
    if file.name in known:
        return
    known.add(file.name)
    for imported in file.dependency:
        _add(pool, so, imported, known)
    pool.Add(file)


def _find(so: mmap.mmap, name: str) -> descriptor_pb2.FileDescriptorProto:
    wanted = name.encode()
    at = so.find(wanted)
    while at >= 0:
        # field 1, then a one-byte length, then the path that ends here
        for start in range(max(at - 128, 0), at):
            length = at + len(wanted) - start - 2
            if so[start] == 0x0A and so[start + 1] == length:
                file = descriptor_pb2.FileDescriptorProto()
                file.ParseFromString(so[start : _end(so, start)])
                if file.message_type or file.enum_type:
                    return file
        at = so.find(wanted, at + 1)
    raise LookupError(f"the xprof library holds no descriptor of {name}")


def _end(so: mmap.mmap, start: int) -> int:
    """Where the FileDescriptorProto that begins at `start` ends: at the first alien byte."""
    position, seen_name = start, False
    while position < len(so):
        tag = so[position]
        number, kind = tag >> 3, tag & 7
        if tag >= 0x80 or (number == 1 and seen_name):
            break
        if kind == 2 and number in _BYTES_FIELDS:
            length, after = _varint(so, position + 1)
            position = after + length
        elif kind == 0 and number in _NUMBER_FIELDS:
            _, position = _varint(so, position + 1)
        else:
            break
        seen_name = True
    return position


def _varint(so: mmap.mmap, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = so[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
