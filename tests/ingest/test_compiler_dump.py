"""Programs that the compiler wrote to files: protos and texts tell the same."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
from builders.assignment import assignment_text, value
from builders.hlo import Allocation, LogicalBuffer, computation, hlo_proto, op

from moeprof.analyzers.heap.at_peak import main_module, peak_of
from moeprof.errors import TraceError
from moeprof.ingest.dump import is_dump, open_dump
from moeprof.ingest.dump.instruction_text import parse_instruction

MIB = 1 << 20
STEP = """
    import jax, jax.numpy as jnp

    def loss(w, x, sizes):
        with jax.named_scope("layers_7"), jax.named_scope("moe"):
            y = jax.nn.silu(jax.lax.ragged_dot(x, w["a"], sizes))
            return (jax.lax.ragged_dot(y, w["b"], sizes) ** 2).sum()

    w = {"a": jnp.ones((8, 64, 128)), "b": jnp.ones((8, 128, 64))}
    shapes = jax.eval_shape(lambda: (w, jnp.ones((256, 64)), jnp.ones(8, jnp.int32)))
    jax.jit(jax.value_and_grad(loss)).lower(*shapes).compile()
"""


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """What XLA itself writes for a step with two ragged products."""
    folder = tmp_path_factory.mktemp("dump")
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_proto --xla_dump_hlo_as_text"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    program = [sys.executable, "-c", textwrap.dedent(STEP)]
    subprocess.run(program, env=environment, check=True, timeout=120)
    return folder


def test_of_a_dump_the_largest_program_counts_and_its_rows_sum_to_what_xla_states(dumped):
    trace = open_dump(dumped)
    module = main_module(trace)
    stated = trace.modules.set_index("module").loc[module]
    assert stated["name"] == "jit_loss"
    # 8 · 64 · 128 · 4 B twice, 256 · 64 · 4 B, 8 · 4 B
    assert stated["argument_bytes"] == 2 * 262_144 + 65_536 + 32
    peak = peak_of(trace, module)
    assert peak is not None
    total = stated["argument_bytes"] + stated["output_bytes"] + stated["temp_bytes"]
    assert peak.total_bytes == total - stated["alias_bytes"]
    assert "dense fallback of ragged dot" in set(peak.table["content"])


def described(path) -> tuple[list[int], list[tuple[object, ...]]]:
    """What XLA states of a dump's largest program, and what lies at its peak."""
    trace = open_dump(path)
    module = main_module(trace)
    sizes = ["argument_bytes", "output_bytes", "temp_bytes", "alias_bytes", "constant_bytes"]
    stated = trace.modules.set_index("module").loc[module, sizes].tolist()
    peak = peak_of(trace, module)
    assert peak is not None
    return stated, sorted(peak.table.itertuples(index=False, name=None))


def test_texts_tell_what_the_proto_does(dumped, tmp_path):
    """The same totals, and the same buffers of the same kind, part and source at the peak."""
    for file in dumped.glob("*jit_loss*after_optimizations*.txt"):
        shutil.copy(file, tmp_path)
    assert not list(tmp_path.glob("*.pb"))
    assert described(tmp_path) == described(dumped)


def test_a_buffer_assignment_without_its_program_tells_the_same_sizes(dumped, tmp_path):
    for file in dumped.glob("*jit_loss*after_optimizations-*.txt"):
        shutil.copy(file, tmp_path)
    (alone,) = tmp_path.glob("*-buffer-assignment.txt")
    stated, rows = described(alone)
    all_stated, all_rows = described(dumped)
    assert stated == all_stated
    assert sorted(row[-2] for row in rows) == sorted(row[-2] for row in all_rows)


def test_what_the_compiler_writes_between_its_passes_is_passed_over(dumped, tmp_path):
    (proto,) = dumped.glob("*jit_loss*after_optimizations.hlo.pb")
    shutil.copy(proto, tmp_path)
    shutil.copy(proto, tmp_path / "module_0001.jit_loss.after_spmd_partitioner.hlo.pb")
    assert len(open_dump(tmp_path).modules) == 1


def test_without_live_ranges_the_largest_of_those_that_share_memory_are_shown(tmp_path):
    """At offset 0 lie 4 MiB or 6 MiB, at 6 MiB lies 1 MiB: 7 MiB, what the allocation has."""
    text = assignment_text(
        value("small", 4 * MIB, 0, "f32[1048576]"),
        value("large", 6 * MIB, 0, "f32[1572864]"),
        value("beside", MIB, 6 * MIB, "f32[262144]"),
        temp_bytes=7 * MIB,
    )
    file = tmp_path / "module.buffer-assignment.txt"
    file.write_text(text)
    trace = open_dump(file)
    peak = peak_of(trace, main_module(trace))
    assert peak is not None
    assert {"large", "beside"} <= set(peak.table["op"])
    assert "small" not in set(peak.table["op"])
    assert peak.total_bytes == 7 * MIB
    assert any("no live ranges" in note for note in trace.meta.notes)


def test_a_text_tells_device_and_host_apart(tmp_path):
    """On the device 2 MiB of arguments, 7 of temporaries; on the host 5 and 3."""
    text = assignment_text(
        value("act", 7 * MIB, 0, "f32[1835008]"),
        temp_bytes=7 * MIB,
        parameter_bytes=2 * MIB,
        lives={"act": (0, 3), "copy.8": (1, 2)},
        on_host=(5 * MIB, 3 * MIB),
    )
    file = tmp_path / "module.buffer-assignment.txt"
    file.write_text(text)
    trace = open_dump(file)
    stated = trace.modules.iloc[0]
    parts = ("argument", "output", "alias", "temp")
    assert [stated[f"{part}_bytes"] // MIB for part in parts] == [2, 2, 2, 7]
    assert [stated[f"host_{part}_bytes"] // MIB for part in parts] == [5, 5, 5, 3]
    peak = peak_of(trace, main_module(trace))
    assert peak is not None
    assert peak.total_bytes == 9 * MIB
    assert sorted(peak.table["size_bytes"]) == [2 * MIB, 7 * MIB]


def test_a_result_in_the_place_of_a_parameter_is_no_argument_of_its_own(tmp_path):
    text = assignment_text(value("a", 4, 0, "f32[1]"), temp_bytes=4, parameter_bytes=MIB)
    first = f" value: <0 w @0> (size={MIB},offset=0): f32[{MIB // 4}]{{0}}"
    file = tmp_path / "module.buffer-assignment.txt"
    file.write_text(text.replace(first, f"{first}\n{first.replace('<0 w', '<9 new_w')}"))
    trace = open_dump(file)
    peak = peak_of(trace, main_module(trace))
    assert peak is not None
    assert peak.table["size_bytes"].tolist() == [MIB, 4]


def test_a_packed_proto_alone_is_read(tmp_path):
    proto = hlo_proto(
        computation("main", op("w", "parameter", "f32[4]"), op("y", "add", "f32[4]", "w", "w")),
        buffers=(LogicalBuffer(1, "w", 16), LogicalBuffer(2, "y", 16, allocation=1)),
        allocations={0: Allocation(16, (5,)), 1: Allocation(16)},
    )
    file = tmp_path / "step.hlo.pb.gz"
    file.write_bytes(gzip.compress(proto))
    assert is_dump(file)
    trace = open_dump(file)
    assert trace.modules["argument_bytes"].tolist() == [16]
    assert trace.events.empty


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("bad.hlo.pb", b"\xff\xff", "expected an HloProto"),
        ("notes.txt", b"hello", "expected compiled programs"),
        ("x-buffer-assignment.txt", b"nothing here", "expected a buffer assignment"),
    ],
)
def test_what_is_no_program_is_said_in_one_line(tmp_path, name, content, says):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(TraceError, match=says) as raised:
        open_dump(file)
    assert "\n" not in str(raised.value)


def test_an_instruction_is_read_from_every_form_of_its_text():
    whole = parse_instruction(
        "ROOT %fusion.3 = (bf16[8,4]{1,0:T(8,128)(2,1)}, /*index=1*/s32[]) fusion(bf16[8]{0} %p.0, "
        "f32[] %p.1), kind=kLoop, calls=%fused, metadata={op_name=\"jit(f)/w[\\'a\\']/add\" "
        'source_file="/a b/c.py" source_line=12}'
    )
    assert whole is not None
    assert (whole.name, whole.opcode, whole.shape) == ("fusion.3", "fusion", "(bf16[8,4], s32[])")
    assert (whole.operands, whole.called) == (("p.0", "p.1"), ("fused",))
    assert (whole.op_name, whole.frames) == ("jit(f)/w['a']/add", (("/a b/c.py", 12, ""),))
    assert (whole.is_root, whole.attributes.fusion_kind) == (True, "kLoop")
    short = parse_instruction("fusion.1265.remat3 = fusion(custom-call.224, add), kind=kOutput")
    assert short is not None
    assert (short.opcode, short.operands, short.shape) == (
        "fusion",
        ("custom-call.224", "add"),
        "",
    )
    assert parse_instruction("Size: 2.00G") is None
