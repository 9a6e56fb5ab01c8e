"""`moeprof memory diff`: what another compilation holds, from dumps of the compiler alone."""

from __future__ import annotations

import json

from builders.assignment import assignment_text, value
from click.testing import CliRunner

from moeprof.cli.memory.subcommands import diff as command

GIB = 1 << 30
RAGGED = "jit(step)/transpose(jvp())/layers_7/moe/ragged_dot_general"


def dumped(folder, name: str, dense: int):
    """A program of 3 GiB of logits and `dense` arrays bf16[64,32768,1024] of ragged products."""
    arrays = [
        value(f"select.{n}", 4 * GIB, (3 + 4 * n) * GIB, "bf16[64,32768,1024]", RAGGED)
        for n in range(dense)
    ]
    logits = value("logits", 3 * GIB, 0, "bf16[49152,32768]", "jit(step)/jvp()/head/dot")
    lives = {part.op: (1, 5) for part in (logits, *arrays)}
    temp = (3 + 4 * dense) * GIB
    file = folder / f"{name}.gpu_after_optimizations-buffer-assignment.txt"
    file.write_text(
        assignment_text(logits, *arrays, temp_bytes=temp, parameter_bytes=GIB, lives=lives)
    )
    return file


def test_dense_buffers_of_a_ragged_product_stand_on_top(tmp_path):
    """12 × 64 · 32768 · 1024 · 2 B = 12 × 4 GiB = 48 GiB."""
    base, new = dumped(tmp_path, "old", 2), dumped(tmp_path, "new", 14)
    done = CliRunner().invoke(command, [str(base), str(new), "--json"], catch_exceptions=False)
    document = json.loads(done.stdout)
    top = document["rows"][0]
    assert document["schema"] == "moeprof.memory_difference/1"
    assert top["content"] == "dense fallback of ragged dot"
    assert top["change_bytes"] == 48 * GIB
    assert (top["base_buffers"], top["new_buffers"]) == (2, 14)
    assert (top["shape"], top["op_name"], top["layer"]) == ("bf16[64,32768,1024]", RAGGED, 7)
    parts = {row["part"]: row for row in document["totals"]}
    assert parts["temp"]["change_bytes"] == 48 * GIB
    assert parts["peak"]["base_bytes"] == 12 * GIB  # 1 of arguments + 3 + 2 × 4


def test_the_text_says_it_within_80_columns(tmp_path):
    base, new = dumped(tmp_path, "old", 2), dumped(tmp_path, "new", 14)
    done = CliRunner().invoke(command, [str(base), str(new)], catch_exceptions=False)
    assert "+48.00 GiB  dense fallback of ragged dot, layer 7" in done.stdout
    assert "peak      12.00 GiB → 60.00 GiB" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_program_differs_in_nothing_from_itself(tmp_path):
    base = dumped(tmp_path, "old", 2)
    done = CliRunner().invoke(command, [str(base), str(base)], catch_exceptions=False)
    assert "no buffer of the one is missing in the other" in done.stdout


def test_a_missing_file_is_one_line_without_a_traceback(tmp_path, monkeypatch, capsys):
    done = CliRunner().invoke(command, [str(tmp_path / "none"), str(tmp_path / "none")])
    assert "no such file or folder" in str(done.exception)
