"""`moeprof memory --maxtext`: MaxText's own words, its mesh and its batch; what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

import moeprof
from moeprof.cli.memory import COMMANDS, command
from moeprof.cli.memory.options import arguments_of, take_arguments

CONFIGS = Path(__file__).parents[2] / "data" / "maxtext_configs"
RUN = CONFIGS / "run.yml"
DENSE = ("sparse_matmul=False", "capacity_factor=1.25")
SLICES = ("dcn_fsdp_parallelism=-1", "dcn_data_parallelism=1")


@pytest.fixture
def projected(memory):
    """The command's JSON document."""

    def call(*arguments: object):
        code, out, err = memory("--json", *arguments)
        assert code == 0, err
        return json.loads(out)

    return call


def test_words_stand_behind_the_file_between_options_and_after_two_dashes(projected):
    found = projected("--maxtext", RUN, "max_target_length=256", "--devices", 8, DENSE[0],
                      "--", DENSE[1])  # fmt: skip
    inputs = found["inputs"]
    assert (inputs["sequence"], inputs["devices"], inputs["framework"]) == (256, 8, "maxtext")
    assert inputs["plan"]["fsdp"] == 8
    assert [(row["strategy"], row["pdbs"]) for row in found["rows"]] == [("dense-cf1.25", 3)]
    assert inputs["precision"]["weights"] == "bfloat16"


def test_each_value_is_said_with_its_source(projected):
    said = "\n".join(projected("--maxtext", RUN, *DENSE, "--devices", 8)["said"])
    assert f"From {RUN}: max_target_length 512, weight_dtype bfloat16, per_device_batch" in said
    assert f"From {CONFIGS / 'base.yml'}: gradient_accumulation_steps 1, remat_policy full" in said
    assert "From the command line: capacity_factor 1.25." in said
    assert "ici_fsdp_parallelism × dcn_fsdp_parallelism 8" in said


@pytest.mark.parametrize(
    ("words", "devices", "data", "fsdp", "expert"),
    [
        ((), 8, 1, 8, 1),  # one host is one slice, where dcn_data_parallelism -1 is 1
        ((), 64, 8, 8, 1),  # eight hosts are eight slices: dcn_data_parallelism is -1
        (SLICES, 64, 1, 64, 1),
        ((*SLICES, "ici_expert_parallelism=8", "ici_fsdp_parallelism=1"), 64, 1, 8, 8),
        (("num_slices=1", "ici_expert_parallelism=8"), 64, 1, 8, 8),
        (("num_slices=2",), 64, 2, 32, 1),
    ],
)
def test_degrees_are_filled_as_maxtext_fills_them(projected, words, devices, data, fsdp, expert):
    plan = projected("--maxtext", RUN, *DENSE, *words, "--devices", devices)["inputs"]["plan"]
    assert (plan["data"], plan["fsdp"], plan["expert"]) == (data, fsdp, expert)


def test_the_format_of_activations_is_maxtexts_dtype(projected):
    found = {}
    for dtype in ("bfloat16", "float32", "float16"):
        out = projected("--maxtext", RUN, *DENSE, f"dtype={dtype}", "--devices", 8)
        assert out["inputs"]["precision"]["compute"] == dtype
        rows = out["rows"][0]["components"]
        (found[dtype],) = (row["bytes"] for row in rows if row["name"] == "layer inputs")
    layers, tokens, width = 4, 3 * 512, 512
    assert found["float32"] == layers * tokens * width * 4
    assert found["bfloat16"] == found["float16"] == layers * tokens * width * 2


def test_the_number_of_devices_follows_from_degrees_that_are_all_said(projected):
    for words, number in (
        (("ici_fsdp_parallelism=8", "dcn_data_parallelism=3"), 24),
        (("ici_fsdp_parallelism=4", "num_slices=3"), 12),
        (("ici_fsdp_parallelism=4",), 4),
    ):
        for devices in ((), ("--devices", number)):
            inputs = projected("--maxtext", RUN, *DENSE, *words, *devices)["inputs"]
            assert inputs["devices"] == number


@pytest.mark.parametrize(
    ("words", "number", "said"),
    [
        # 64 GPUs are 8 hosts, and so slices, of 8; 12 are one host and a half.
        (("ici_fsdp_parallelism=64",), 64, "that multiply to 8, of 64 devices in 8 slices"),
        (("ici_fsdp_parallelism=4", "dcn_data_parallelism=3"), 12, "that multiply to 12, of 12"),
    ],
)
def test_slices_are_the_same_whether_the_devices_are_given_or_follow(memory, words, number, said):
    for devices in ((), ("--devices", number)):
        code, out, err = memory("--maxtext", RUN, *DENSE, *words, *devices)
        assert (code, out) == (2, "")
        assert said in err


def test_a_slice_has_the_devices_of_a_host_of_that_hardware(projected):
    """Four GPUs in a tray of a GB200 NVL72: dcn_data_parallelism -1 is the number of trays."""
    found = projected("--maxtext", RUN, *DENSE, "--devices", 8, "--hardware", "gb200")
    plan = found["inputs"]["plan"]
    assert (plan["data"], plan["fsdp"]) == (2, 4)


@pytest.mark.parametrize(
    ("words", "pdbs"),
    [
        (("ici_tensor_parallelism=2",), 6),  # 8 devices × 3 over FSDP 4
        (("ici_tensor_parallelism=2", "per_device_batch_size=0.5"), 1),
        (("ici_pipeline_parallelism=2", "num_pipeline_microbatches=2"), 3),
        (("ici_pipeline_parallelism=2", "num_pipeline_microbatches=6"), 1),
    ],
)
def test_devices_of_other_axes_share_their_sequences(projected, words, pdbs):
    found = projected("--maxtext", RUN, *DENSE, *words, "--devices", 8)
    assert {row["pdbs"] for row in found["rows"]} == {pdbs}


@pytest.mark.parametrize(
    ("words", "train", "evaluation"),
    [
        (("eval_per_device_batch_size=3",), 3, 3),
        (("eval_per_device_batch_size=0",), 3, None),  # MaxText's 0: as at a step
        (("eval_per_device_batch_size=4", "ici_tensor_parallelism=2"), 6, 8),  # 8 × 4 over FSDP 4
        (("eval_per_device_batch_size=0.5", "ici_tensor_parallelism=2"), 6, 1),
        (("eval_per_device_batch_size=6", "ici_pipeline_parallelism=2",
          "num_pipeline_microbatches=4", "per_device_batch_size=2"), 1, 3),
    ],
)  # fmt: skip
def test_an_evaluation_has_sequences_per_device_of_all_too(projected, words, train, evaluation):
    found = projected("--maxtext", RUN, *DENSE, *words, "--devices", 8)
    assert {row["pdbs"] for row in found["rows"]} == {train}
    assert found["inputs"]["eval_pdbs"] == evaluation


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((RUN, *DENSE, "eval_per_device_batch_size=0.5", "--devices", 8), "eval_per_device_batch"),
        (
            (RUN, *DENSE, "opt_type=foo", "--devices", 8),
            "expected one of adamw, adam_pax, sgd, muon",
        ),
        ((RUN, *DENSE, "attention=[5]", "--devices", 8), "expected one of flash, dot_product,"),
        ((RUN, *DENSE, "remat_policy=ful", "--devices", 8), "found 'ful'"),
        ((RUN,), "ici_fsdp_parallelism is -1, what is left of the devices: give --devices N."),
        ((RUN, "sparse_matmul=False", "--devices", 8), "every expert takes every token"),
        ((RUN, "--devices", 8, "--model", "deepseek_v3"), "found both"),
        ((RUN, "--devices", 8, "--script", "x.py"), "found --script and --maxtext"),
        ((RUN, "--devices", 8, "word"), "expected key=value, found 'word'"),
        ((RUN, *DENSE, "ici_fsdp_parallelism=4", "--devices", 8), "that multiply to 8, of 8"),
        ((RUN, *DENSE, "ici_sequence_parallelism=2", "--devices", 8), "has no such axis"),
        ((RUN, *DENSE, "per_device_batch_size=0.5", "--devices", 8), "expected whole sequences"),
        ((RUN, *DENSE, "per_device_batch_size=-1", "--devices", 8), "a number above 0, found -1"),
        (
            (
                RUN,
                *DENSE,
                "gradient_accumulation_steps=4",
                "ici_pipeline_parallelism=2",
                "--devices",
                8,
            ),
            "gradient_accumulation_steps 4 of the command line with 2 pipeline",
        ),
        (
            (
                RUN,
                *DENSE,
                "num_pipeline_microbatches=3",
                "ici_pipeline_parallelism=2",
                "--devices",
                8,
            ),
            "a multiple of the 2 stages, as MaxText does, found 3",
        ),
        (
            (RUN, *DENSE, "dcn_fsdp_parallelism=2", "--devices", 8),
            "expected dcn degrees that multiply to 1, of 8 devices in 1 slice",
        ),
        (
            (RUN, *DENSE, "per_device_batch_size=.inf", "--devices", 8),
            "per_device_batch_size of the command line: expected a number of at most 1,000",
        ),
        (
            (RUN, *DENSE, "gradient_accumulation_steps=" + 400 * "9", "--devices", 8),
            "expected a number of at most 1,000,000,000, found 9999",
        ),
        ((RUN, *DENSE, "eval_per_device_batch_size=4097", "--devices", 8), "at most 4096"),
        ((RUN, *DENSE, "per_device_batch_size=.nan", "--devices", 8), "found nan"),
        ((RUN, "sparse_matmul=False", "capacity_factor=.inf", "--devices", 8), "found inf"),
        ((RUN, *DENSE, "model_name=" + 300 * "x", "--devices", 8), "was not found"),
        (
            (RUN, *DENSE, "max_target_length=0", "--devices", 8),
            "max_target_length of the command line: expected a whole number of at least 1",
        ),
        ((RUN, *DENSE, "gradient_accumulation_steps=0", "--devices", 8), "of the command line"),
        ((RUN, *DENSE, "ici_fsdp_parallelism=0", "--devices", 8), "of the command line"),
        ((RUN, *DENSE, "num_slices=0", "--devices", 8), "num_slices of the command line"),
        (
            (RUN, *DENSE, "weight_dtype=int4", "--devices", 8),
            "weight_dtype of the command line: expected one of",
        ),
        (
            (RUN, *DENSE, "base_emb_dim=0", "override_model_config=True", "--devices", 8),
            "base_emb_dim of the command line: expected an integer from 1",
        ),
        ((RUN, *DENSE, "num_slices=3", "--devices", 8), "of 8 devices in 3 slices"),
    ],
)
def test_what_cannot_be_is_one_line_and_wrong_usage(memory, arguments, said):
    code, out, err = memory("--maxtext", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_microbatches_of_a_pipeline_are_not_accumulated_without_one(projected):
    inputs = projected("--maxtext", RUN, *DENSE, "num_pipeline_microbatches=4", "--devices", 8)
    assert inputs["inputs"]["microbatches"] == 1


def test_what_is_in_no_account_is_noted(projected):
    words = ("use_ring_of_experts=True", "cast_logits_to_fp32=False",
             "checkpoint_storage_concurrent_gb=8")  # fmt: skip
    said = " ".join(projected("--maxtext", RUN, *DENSE, *words, "--devices", 8)["said"])
    assert "use_ring_of_experts True: tokens of all ranks" in said
    assert "cast_logits_to_fp32 False: logits are counted as with True." in said
    assert "checkpoint_storage_concurrent_gb 8: the host's memory is counted with 96 GB" in said
    words = ("use_ring_of_experts=False", "cast_logits_to_fp32=True",
             "checkpoint_storage_concurrent_gb=96")  # fmt: skip
    said = " ".join(projected("--maxtext", RUN, *DENSE, *words, "--devices", 8)["said"])
    assert not any(word.split("=")[0] in said for word in words)


def test_a_fault_of_a_file_is_of_that_file_and_no_wrong_usage(memory, tmp_path):
    run = tmp_path / "own.yml"
    run.write_text(f"base_config: {RUN}\nmax_target_length: 0\n", encoding="utf-8")
    (tmp_path / "models").symlink_to(CONFIGS / "models")
    code, _, err = memory("--maxtext", run, *DENSE, "--devices", 8)
    assert (code, err.count("\n")) == (1, 1)
    assert f"{run}: key max_target_length: expected a whole number of at least 1" in err
    name = 300 * "x" + ".yml"
    code, _, err = memory("--maxtext", name, "--devices", 8)
    assert (code, err.count("\n")) == (1, 1)


def test_python_takes_the_same_words():
    found = moeprof.memory(maxtext=[str(RUN), *DENSE], devices=8)
    assert found.shown == ("dense-cf1.25", 3)
    assert "From the command line: capacity_factor 1.25." in found.notes


@pytest.mark.parametrize(
    ("given", "own", "words"),
    [
        (
            ["--script", "-m", "pkg.train", "--devices", "8", "--", "--lr", "1"],
            ["--script", "-m pkg.train", "--devices", "8"],
            ("--lr", "1"),
        ),
        (
            ["--maxtext", "run.yml", "a=1", "--json", "b=2", "--html", "c=3.html"],
            ["--maxtext", "run.yml", "--json", "--html", "c=3.html"],
            ("a=1", "b=2"),
        ),
        (
            ["--maxtext=run.yml", "--strategy", "sparse-gmm", "dense", "a=1", "--", "b=2"],
            ["--maxtext=run.yml", "--strategy", "sparse-gmm", "dense"],
            ("a=1", "b=2"),
        ),
    ],
)
def test_arguments_are_of_moeprof_or_of_the_program(given, own, words):
    context = click.Context(command)
    assert take_arguments(context, given, COMMANDS) == own
    assert arguments_of(context) == words


SMALL = ("--model", "small")


@pytest.mark.parametrize(
    "run", [SMALL, (*SMALL, "--compile"), ("--maxtext", RUN, *DENSE, "--devices", 8)]
)
@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--programs", 3), "--programs"),
        (("--programs", 3, "--seconds", 5), "--programs and --seconds"),
    ],
)
def test_what_stops_a_program_is_refused_where_none_is_run(memory, run, given, named):
    code, _, err = memory(*run, *given)
    assert code == 2
    assert f"memory {named}: expected --script, --from, or --maxtext with --compile" in err
