"""`moeprof memory` as users and scripts meet it."""

import json
import subprocess
import sys

import pytest

from moeprof.cli import main as command_line

AMD = ("--model", "deepseek_v3", "--hardware", "mi355x", "--ep", 8, "--fsdp", 8)


@pytest.fixture
def memory(monkeypatch, capsys):
    """Run the command as a shell would: exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["moeprof", "memory", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture
def projected(memory):
    """The JSON document of a projection."""

    def call(*arguments: object) -> dict:
        code, out, _ = memory(*arguments, "--json")
        assert code == 0
        return json.loads(out, parse_constant=pytest.fail)

    return call


def row_of(made: dict, strategy: str, pdbs: int) -> dict:
    return next(r for r in made["rows"] if (r["strategy"], r["pdbs"]) == (strategy, pdbs))


def size_of(row: dict, *kinds: str) -> int:
    return sum(c["bytes"] for c in row["components"] if c["kind"] in kinds)


def test_the_published_table_comes_out(projected):
    """DeepSeek-V3 on 64 MI355X, seq 4096 (ROCm/rocm-blogs, maxtext-dropless-moe)."""
    made = projected(*AMD)
    largest = made["largest_pdbs"]
    assert largest["dense-cf1.25"] >= 16
    assert (largest["sparse-gmm"], largest["sparse-gmm-deepep"]) == (7, 9)
    assert largest["sparse-ragged-dot"] == 0
    assert made["inputs"]["devices"] == 64


def test_every_default_is_taken_and_said(memory):
    code, out, _ = memory("--model", "deepseek_v3", "--ep", 64)
    assert code == 0
    assert " - Not given, so taken: hardware h100_sxm, seq 4096." in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_row_has_every_kind_with_formula_and_confidence(projected):
    """deepspeedai/DeepSpeed#4527: parts are told, with how they are computed."""
    made = projected(*AMD, "--strategy", "sparse-gmm-deepep", "--pdbs", 8)
    row = row_of(made, "sparse-gmm-deepep", 8)
    kinds = {c["kind"] for c in row["components"]}
    assert {"params", "optimizer", "grads", "activations", "temporaries", "EP buffers"} <= kinds
    assert all(c["formula"] and c["source"] and c["confidence"] for c in row["components"])
    assert sum(c["bytes"] for c in row["components"]) == row["total_bytes"]
    assert {c["pool"] for c in row["components"] if c["kind"] == "EP buffers"} == {"outside"}
    # 62,914,759,680 B of weights and moments (bf16, 64 devices)
    assert size_of(row, "params", "optimizer") == 62_914_759_680


def test_without_a_sequence_length_activations_are_unknown_not_zero(projected, memory):
    made = projected(*AMD, "--seq", "unknown")
    assert made["largest_pdbs"]["sparse-gmm"] is None
    row = row_of(made, "sparse-gmm", 1)
    assert (row["verdict"], row["total_bytes"]) == ("unknown", None)
    unknown = [c for c in row["components"] if c["bytes"] is None]
    assert unknown
    assert all("cannot estimate" in c["formula"] for c in unknown)
    assert size_of(row, "params", "optimizer") == 62_914_759_680
    assert "cannot estimate activations" in memory(*AMD, "--seq", "unknown")[1]


def test_what_an_option_says_is_what_is_counted(projected):
    """bf16 weights alone, then fp32 with a master copy: 6 and 16 B per parameter on 64 devices."""
    narrow = row_of(projected(*AMD, "--pdbs", 1), "sparse-gmm", 1)
    wide = projected(
        *AMD, "--pdbs", 1, "--weight-dtype", "fp32", "--master-dtype", "fp32",
        "--moment-dtype", "float32",
    )  # fmt: skip
    assert wide["inputs"]["precision"]["weights"] == "float32"
    row = row_of(wide, "sparse-gmm", 1)
    assert 3 * size_of(row, "params", "optimizer") == 8 * size_of(narrow, "params", "optimizer")


def test_overload_raises_only_what_is_routed(projected):
    even = row_of(projected(*AMD, "--pdbs", 4, "--overload", 1.0), "sparse-gmm", 4)
    full = row_of(projected(*AMD, "--pdbs", 4, "--overload", 2.5), "sparse-gmm", 4)
    for before, after in zip(even["components"], full["components"], strict=True):
        grows = after["bytes"] > before["bytes"]
        assert grows == before["is_routed"], before["name"]


def test_a_degree_of_minus_one_is_filled_in_and_said(projected):
    made = projected("--model", "mixtral_8x7b", "--ep", -1, "--devices", 8)
    assert made["inputs"]["plan"]["expert"] == 8
    assert "--ep is 8: what is left of 8 devices." in made["said"]
    spread = projected("--model", "deepseek_v3", "--ep", 8, "--devices", 64)
    assert spread["inputs"]["plan"]["fsdp"] == 8
    assert "--fsdp is 8: what is left of 64 devices." in spread["said"]


def test_a_global_batch_is_split_and_said(projected):
    made = projected(*AMD, "--global-batch", 256)
    assert {row["pdbs"] for row in made["rows"]} == {4}  # 256 / 64
    assert any(said.startswith("Global batch 256 is pdbs 4 on 64 devices") for said in made["said"])


def test_strategies_are_a_list_with_spaces_or_commas(projected):
    spaced = projected(*AMD, "--pdbs", 4, "--strategy", "dense-cf2", "sparse-gmm", "--seq", 2048)
    assert list(spaced["largest_pdbs"]) == ["dense-cf2", "sparse-gmm"]
    commas = projected(*AMD, "--pdbs", 4, "--strategy", "dense-cf2,sparse-gmm", "--seq", 2048)
    assert commas["rows"] == spaced["rows"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "expected --model with a name or a file, found none"),
        (("deepseek_v3",), "A model is given as --model deepseek_v3."),
        (("--model", "nope"), "found 'nope'"),
        (("--model", "deepseek_v3", "--hardware", "h1"), "no hardware is named 'h1'"),
        (("--model", "deepseek_v3", "--strategy", "magic"), "found 'magic'"),
        (("--model", "deepseek_v3", "--remat", "half"), "found 'half'"),
        (("--model", "deepseek_v3", "--weight-dtype", "fp7"), "--weight-dtype: expected one of"),
        (("--model", "deepseek_v3", "--mem-fraction", 1.2), "mem-fraction: expected a share"),
        (("--model", "deepseek_v3", "--overload", 0), "overload: expected a number above 0"),
        (("--model", "deepseek_v3", "--ep", 0), "--ep: expected at least 1, or -1"),
        (("--model", "deepseek_v3", "--ep", -1), "say how many with --devices"),
        (("--model", "deepseek_v3", "--ep", -1, "--fsdp", -1, "--devices", 8),
         "only one degree may be -1, found --fsdp and --ep"),
        (("--model", "deepseek_v3", "--ep", 3, "--fsdp", -1, "--devices", 8),
         "--fsdp -1: 8 devices are not a multiple of 3 (ep 3)"),
        ((*AMD, "--global-batch", 100), "The nearest: 64 or 128."),
        ((*AMD, "--global-batch", 64, "--pdbs", 4), "give one"),
        ((*AMD, "--detail", "sparse-gmm"), "expected STRATEGY@PDBS"),
        ((*AMD, "--detail", "magic@3"), "expected STRATEGY@PDBS with one of"),
        (("--model", "deepseek_v3", "--world", "mars"), "world: expected one of"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line_and_wrong_usage(memory, arguments, said):
    code, out, err = memory(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("moeprof: ")
    assert err.count("\n") == 1


def test_a_plan_that_fits_neither_experts_nor_devices_has_two_complaints(memory):
    """pytorch/torchtitan#4258: both numbers, and the valid choices."""
    code, _, err = memory("--model", "deepseek_v3", "--ep", 24, "--devices", 64)
    assert code == 2
    assert "256 experts" in err
    assert "24" in err
    assert "64" in err


def test_only_what_a_projection_needs_is_imported():
    code = (
        "import sys; sys.argv = ['moeprof', 'memory', *sys.argv[1:]]\n"
        "from moeprof.cli.main import group\n"
        "group(standalone_mode=False)\n"
        "heavy = ('jax', 'pandas', 'plotly', 'jinja2', 'pyarrow', 'scipy')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    )
    for options in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, AMD), *options], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == "[]\n"


def test_the_page_is_written_and_said_beside_the_data(memory, tmp_path):
    out_file = tmp_path / "page.html"
    code, out, err = memory(*AMD, "--pdbs", 4, "--json", "--html", out_file)
    assert code == 0
    assert json.loads(out)["schema"] == "moeprof.memory/1"
    assert err == f"moeprof: page written to {out_file}\n"
    assert "<title>What fits: DeepSeek-V3 · moeprof</title>" in out_file.read_text()
    assert memory(*AMD, "--html", tmp_path / "no" / "page.html")[0] == 1
