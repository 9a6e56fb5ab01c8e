"""`moeprof memory` as users and scripts meet it."""

import json
import subprocess
import sys

import pytest

AMD = ("--model", "deepseek_v3", "--hardware", "mi355x", "--ep", 8, "--fsdp", 8)


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


def test_a_fraction_that_leaves_too_little_beside_the_pool_is_lowered_and_said(memory):
    """39.4 GiB: 7 % of it are 2.8, CUDA and NCCL take 4.5."""
    code, out, _ = memory("--model", "deepseek_v3", "--ep", 64, "--hardware", "a100_40")
    assert code == 0
    assert " - mem_fraction 0.86 is taken: 0.93 would leave too little for" in out


def test_a_row_has_every_kind_with_formula_and_confidence(projected):
    """deepspeedai/DeepSpeed#4527: parts are told, with how they are computed."""
    made = projected(*AMD, "--strategy", "sparse-gmm-deepep", "--pdbs", 8)
    row = row_of(made, "sparse-gmm-deepep", 8)
    kinds = {c["kind"] for c in row["components"]}
    assert kinds == {
        "params", "optimizer", "inputs", "grads", "activations", "temporaries",
        "collective buffers", "EP buffers", "runtime reserve",
    }  # fmt: skip
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


def test_it_fits_up_to_the_overload_that_is_told(projected):
    """Twice an even share does not fit at pdbs 20; the overload that is told does."""
    options = (*AMD, "--strategy", "sparse-gmm", "--pdbs", 20)
    limit = row_of(projected(*options), "sparse-gmm", 20)["fits_up_to_overload"]
    at = [row_of(projected(*options, "--overload", limit + more), "sparse-gmm", 20)
          for more in (0.0, 0.02)]  # fmt: skip
    inside = [row["args_bytes"] + row["temp_bytes"] for row in at]
    assert inside[0] <= at[0]["pool_bytes"] < inside[1]


def test_a_near_miss_has_changes_that_help_projected_again(projected):
    made = projected(*AMD, "--strategy", "sparse-gmm", "--pdbs", "7,8", "--detail", "sparse-gmm@8")
    near = next(row for row in made["rows"] if row["levers"])
    factor = next(x for x in near["levers"] if x["name"] == "ragged_buffer_factor 4")
    again = projected(*AMD, "--strategy", "sparse-gmm", "--pdbs", near["pdbs"],
                      "--ragged-buffer-factor", 4)  # fmt: skip
    after = row_of(again, "sparse-gmm", near["pdbs"])
    assert near["temp_bytes"] - after["temp_bytes"] == factor["saved_bytes"]


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
    assert any(
        said.startswith("Global batch 256 is pdbs 4 on 64 batch shards") for said in made["said"]
    )


def test_strategies_are_a_list_with_spaces_or_commas(projected):
    spaced = projected(*AMD, "--pdbs", 4, "--strategy", "dense-cf2", "sparse-gmm", "--seq", 2048)
    assert list(spaced["largest_pdbs"]) == ["dense-cf2", "sparse-gmm"]
    commas = projected(*AMD, "--pdbs", 4, "--strategy", "dense-cf2,sparse-gmm", "--seq", 2048)
    assert commas["rows"] == spaced["rows"]


def test_a_configuration_fills_in_and_an_option_wins_over_it(projected, tmp_path):
    """huggingface/accelerate#3379: what was asked for is what counts, and it is said."""
    file = tmp_path / "run.yml"
    file.write_text(
        "model_name: deepseek3-671b\nper_device_batch_size: 4\nmax_target_length: 2048\n"
        "weight_dtype: float16\nici_expert_parallelism: 8\ndcn_fsdp_parallelism: 8\n"
        "remat_policy: save_out_proj\nsparse_matmul: false\ncapacity_factor: 2.0\n"
    )
    made = projected("--model", file, "--hardware", "mi355x")
    inputs = made["inputs"]
    assert (inputs["sequence"], inputs["devices"], inputs["remat"]) == (2048, 64, "save_out_proj")
    assert [(row["strategy"], row["pdbs"]) for row in made["rows"]] == [("dense-cf2", 4)]
    formats = inputs["precision"]
    assert (formats["weights"], formats["first_moment"]) == ("float16", "float16")
    won = projected("--model", file, "--hardware", "mi355x", "--weight-dtype", "float32")
    assert won["inputs"]["precision"]["weights"] == "float32"
    assert f"--weight-dtype float32 wins over weight_dtype float16 of {file}." in won["said"]


def test_what_is_left_in_a_configuration_needs_no_devices(projected, tmp_path):
    """AMD's configuration of DeepSeek-V3 leaves dcn_data_parallelism at -1."""
    file = tmp_path / "run.yml"
    file.write_text(
        "model_name: deepseek3-671b\ndcn_data_parallelism: -1\nici_data_parallelism: 1\n"
        "ici_expert_parallelism: 8\ndcn_fsdp_parallelism: 8\nper_device_batch_size: 1\n"
    )
    made = projected("--model", file, "--hardware", "mi355x")
    assert made["inputs"]["devices"] == 64
    assert any("is -1, what is left: 1" in said for said in made["said"])
    more = projected("--model", file, "--hardware", "mi355x", "--devices", 128)
    assert more["inputs"]["plan"]["data"] == 2
    assert "--dp is 2: what is left of 128 devices." in more["said"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("per_device_batch_size: 0.5", "expected whole sequences, found 0.5 for each of data"),
        ("ici_expert_parallelism: zero", "expected a whole number of at least 1, or -1"),
        ("grad_dtype: float12", "expected one of float32, bfloat16"),
        ("max_target_length: -5", "expected a whole number of at least 1"),
    ],
)
def test_a_configuration_that_cannot_be_is_named(memory, tmp_path, text, said):
    file = tmp_path / "run.yml"
    file.write_text(f"model_name: deepseek3-671b\n{text}\n")
    code, _, err = memory("--model", file)
    assert code == 1
    assert str(file) in err
    assert said in err
    assert err.count("\n") == 1


def test_sixty_experts_have_their_valid_degrees_named(memory, tmp_path):
    """AI-Hypercomputer/maxtext#5259: 60 experts do not split over 64."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({
        "model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936,
        "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
        "intermediate_size": 5632, "shared_expert_intermediate_size": 5632,
        "torch_dtype": "bfloat16",
    }))  # fmt: skip
    code, out, err = memory("--model", file, "--ep", 64, "--devices", 64)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "60 experts cannot be split evenly over expert 64" in err
    assert "valid on 64 devices: 1, 2, 4" in err  # of the divisors of 60 those that divide 64
    code, _, err = memory("--model", file, "--ep", 60, "--devices", 60)
    assert code == 0


def test_an_uneven_pipeline_is_told_stage_by_stage(projected, tmp_path):
    """NVIDIA-NeMo/Megatron-Bridge#5077: 8 layers as 1, 2, 2, 3; two dense ones first."""
    file = tmp_path / "model.yml"
    file.write_text(
        "base_emb_dim: 1024\nbase_num_decoder_layers: 8\nfirst_num_dense_layers: 2\n"
        "base_num_query_heads: 8\nbase_num_kv_heads: 8\nhead_dim: 128\nbase_mlp_dim: 4096\n"
        "base_moe_mlp_dim: 512\nnum_experts: 16\nnum_experts_per_tok: 2\nvocab_size: 32000\n"
    )
    made = projected("--model", file, "--world", "megatron", "--pp", 4, "--layers-per-stage",
                     "1,2,2,3", "--microbatches", 4, "--pdbs", 1, "--remat", "none")  # fmt: skip
    row = row_of(made, "sparse-gmm", 1)
    assert [stage["stage"] for stage in row["stages"]] == [0, 1, 2, 3]
    sizes = [stage["args_bytes"] for stage in row["stages"]]
    # The last has the most layers with experts and the head; the second one dense, one MoE.
    assert max(sizes) == sizes[3]
    assert sizes[1] < sizes[2]  # a dense layer has 3·1024·4096, a MoE layer 16·3·1024·512
    whole = made["inputs"]["model"]["parameters"]
    assert sum(sizes) == 18 * whole  # 2 + 4 + 4 + 4 + 4 B on one device each


def test_what_a_run_of_megatron_chooses_changes_its_account(projected):
    run = ("--model", "mixtral_8x7b", "--world", "megatron", "--tp", 2, "--dp", 4, "--ep", 8,
           "--pdbs", 1, "--strategy", "sparse-gmm", "--remat", "none")  # fmt: skip
    plain = row_of(projected(*run), "sparse-gmm", 1)["temp_bytes"]
    fused = row_of(projected(*run, "--fused-loss"), "sparse-gmm", 1)["temp_bytes"]
    # the softmax: 4096 tokens · 32000 / 2 logits · 4 B
    assert plain - fused == 4096 * 16000 * 4
    whole = row_of(projected(*run, "--no-sequence-parallel"), "sparse-gmm", 1)["temp_bytes"]
    # Per layer 4 tensors between blocks, t · d · 2 B each, hold twice the tokens, experts' too.
    assert whole > plain
    one = ("--model", "mixtral_8x7b", "--world", "megatron", "--dp", 8, "--ep", 8, "--pdbs", 1,
           "--strategy", "sparse-gmm")  # fmt: skip
    every = row_of(projected(*one), "sparse-gmm", 1)["temp_bytes"]
    half = row_of(projected(*one, "--recomputed-layers", 16), "sparse-gmm", 1)["temp_bytes"]
    assert half > every


def test_megatron_counts_devices_without_experts(projected):
    made = projected("--model", "moe_1t", "--world", "megatron", "--pp", 24, "--vpp", 4,
                     "--ep", 8, "--devices", 768, "--hardware", "mi355x", "--remat", "none",
                     "--microbatches", 96, "--pdbs", 1)  # fmt: skip
    assert made["inputs"]["devices"] == 768
    assert made["inputs"]["plan"]["data"] == 32  # 768 / 24
    (row,) = [row for row in made["rows"] if row["strategy"] == "sparse-gmm"]
    assert len(row["stages"]) == 24
    assert row["total_bytes"] == max(stage["total_bytes"] for stage in row["stages"])


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
        (("--model", "deepseek_v3", "--overload", 0), "imbalance: expected at least 1"),
        (("--model", "deepseek_v3", "--ep", 0), "--ep: expected at least 1, or -1"),
        (("--model", "deepseek_v3", "--ep", -1), "say how many with --devices"),
        (("--model", "deepseek_v3", "--ep", -1, "--fsdp", -1, "--devices", 8),
         "only one degree may be -1, found --fsdp and --ep"),
        (("--model", "deepseek_v3", "--ep", 3, "--fsdp", -1, "--devices", 8),
         "--fsdp -1: 8 devices are not a multiple of 3 (ep 3)"),
        ((*AMD, "--global-batch", 100), "nearest: 64 or 128"),
        ((*AMD, "--global-batch", 64, "--pdbs", 4), "Give one of them."),
        ((*AMD, "--detail", "sparse-gmm"), "expected STRATEGY@PDBS"),
        ((*AMD, "--detail", "magic@3"), "expected STRATEGY@PDBS with one of"),
        ((*AMD, "--pdbs", "4,x"), "--pdbs: expected whole numbers of at least 1 (4,8 or auto)"),
        ((*AMD, "--pdbs", 999999999), "--pdbs: expected at most 4096, found 999999999."),
        ((*AMD, "--seq", "long"), "--seq: expected whole numbers of at least 1 (one, or unknown)"),
        ((*AMD, "--world", "megatron", "--optimizer", "adafactor"), "found 'adafactor'"),
        ((*AMD, "--world", "megatron", "--compile"), "--compile: expected a framework whose step"),
        (("--model", "deepseek_v3", "--world", "mars"), "framework: expected one of"),
        (
            ("--model", "deepseek_v3", "--no-sequence-parallel"),
            "--sequence-parallel: framework maxtext does not have it",
        ),
        *(
            (
                ("--model", "deepseek_v3", "--world", world, option, value),
                f"{option}: framework {world} does not have it. Leave it out, or give --framework "
                "maxtext",
            )
            for world, option, value in (
                ("megatron", "--mem-fraction", 0.5),
                ("megatron", "--vocab-tiling", 8),
                ("megatron", "--ragged-buffer-factor", 2),
                ("bundled", "--vocab-tiling", 8),
                ("bundled", "--ragged-buffer-factor", 2),
                ("bundled", "--grad-dtype", "fp32"),
            )
        ),
        (
            ("--model", "deepseek_v3", "--world", "bundled", "--fused-loss"),
            "--fused-loss: framework bundled does not have it",
        ),
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


@pytest.mark.parametrize(
    ("hardware", "options", "size"),
    [  # 20 and 64 multiprocessors, 256 rows of 14,336 B for each of 8 peers
        ("h100_sxm", (), 335_709_824),
        ("mi355x", (), 1_074_271_232),
        ("h100_sxm", ("--deepep-sms", 64), 1_074_271_232),
    ],
)
def test_deepep_takes_what_its_library_does_on_that_device(projected, hardware, options, size):
    shared = ("--model", "deepseek_v3", "--devices", 64, "--ep", 8, "--pdbs", 1)
    made = projected(*shared, "--strategy", "sparse-gmm-deepep", "--hardware", hardware, *options)
    row = row_of(made, "sparse-gmm-deepep", 1)
    (buffer,) = (r for r in row["components"] if r["name"] == "DeepEP NVLink buffer")
    assert buffer["bytes"] == size


def test_what_surely_fits_is_said_first_and_what_is_borderline_beside_it(memory):
    """DeepEP goes to 9 by the account's size; its error leaves 8 and 9 open."""
    code, out, _ = memory(*AMD)
    assert code == 0
    first = " ".join(out.split("\n\n")[0].split())
    assert "sparse-gmm-deepep at pdbs 7 needs" in first
    assert "GiB left. Borderline at pdbs 8 to 9." in first
    code, out, _ = memory(*AMD, "--pdbs", "2,8", "--strategy", "sparse-gmm-deepep")
    assert "sparse-gmm-deepep at pdbs 2 needs" in " ".join(out.split("\n\n")[0].split())
    code, out, _ = memory(*AMD, "--pdbs", "8,9", "--strategy", "sparse-gmm-deepep")
    assert "sparse-gmm-deepep at pdbs 9 needs" in " ".join(out.split("\n\n")[0].split())
