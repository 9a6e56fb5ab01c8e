"""What `moeprof memory` says of a configuration and of a pipeline that could be better."""

import json

import pytest
import yaml

from moeprof.cli import main as command_line
from moeprof.errors import SelectionError
from moeprof.projector.framework import framework
from moeprof.projector.request import wanted
from moeprof.projector.request.config import with_config
from moeprof.projector.request.plan import Request
from moeprof.specs.model import GqaSpec, ModelSpec
from moeprof.specs.sources.document import LoadedModel

MODEL = ModelSpec(2, 64, 4, GqaSpec(2, 16), 8, 2, 128, 1000)
SIX = {
    "model_type": "ernie4_5_moe",
    "hidden_size": 64,
    "intermediate_size": 256,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "moe_num_experts": 8,
    "moe_k": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "vocab_size": 1000,
}
YAML = {
    "decoder_block": "mixtral",
    "base_emb_dim": 64,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 2,
    "head_dim": 16,
    "base_mlp_dim": 128,
    "base_num_decoder_layers": 12,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 1000,
}


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command as a shell would: exit code, and all its text on one line."""

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["moeprof", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        return int(ended.value.code or 0), " ".join("".join(capsys.readouterr()).split())

    return call


@pytest.fixture
def memory(command, tmp_path):
    def call(keys: dict, *arguments: object) -> tuple[int, str]:
        is_yaml = "base_emb_dim" in keys
        path = tmp_path / ("run.yml" if is_yaml else "config.json")
        path.write_text(yaml.safe_dump(keys) if is_yaml else json.dumps(keys), encoding="utf-8")
        return command("memory", "--model", path, "--seq", 128, "--pdbs", 1, *arguments)

    return call


def test_the_sentinel_of_ernie_is_the_last_layer_and_unknown_keys_are_named(memory):
    code, out = memory({**SIX, "num_hyper_layers": 3})
    assert code == 0
    assert "not understood, so not in the account: num_hyper_layers 3" in out


def test_a_key_that_is_misspelt_is_named_where_the_plan_does_not_fit_for_it(memory):
    keys = {
        "base_emb_dim": 128, "base_num_query_heads": 4, "base_num_kv_heads": 2, "head_dim": 32,
        "base_mlp_dim": 256, "base_num_decoder_layers": 3, "vocab_size": 1024,
        "decoder_block": "mixtral", "num_expert": 4, "num_experts_per_tok": 2,
        "ici_expert_parallelism": 4,
    }  # fmt: skip
    code, out = memory(keys)
    assert code == 2
    text = " ".join(out.split())
    assert "a model without experts has none to spread over expert 4; set it to 1. In " in text
    assert text.endswith("run.yml not understood, so not in the account: num_expert 4.")
    code, out = memory({**keys, "num_expert": None}, "--devices", 4)  # nothing that is not read
    assert code == 2
    assert "not understood" not in out


def test_layers_of_a_kind_that_is_not_known_are_refused(memory):
    code, out = memory({**SIX, "layer_types": ["mamba"] * 6})
    assert code != 0
    assert "key layer_types: expected full_attention" in out
    assert "found 'mamba'" in out


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"remat_policy": "custom"}, "remat_policy custom of"),
        ({"opt_type": "lion"}, "opt_type lion of"),
        ({"ici_diloco_parallelism": 2}, "Not projected, of"),
        ({"ici_pipeline_parallelism": 2, "num_layers_per_pipeline_stage": 3},
         "MaxText repeats its stages layers / (2 × 3) times; not taken, give --vpp."),
    ],
)  # fmt: skip
def test_a_value_that_is_not_taken_is_named(memory, keys, said):
    code, out = memory({**YAML, **keys})
    assert code == 0
    assert said in out


def test_an_option_that_says_it_needs_no_word_on_the_value(memory):
    code, out = memory({**YAML, "remat_policy": "custom"}, "--remat", "full")
    assert code == 0
    assert "custom" not in out.replace("remat full", "")


def test_fewer_microbatches_than_stages_are_advised_against(memory):
    _, out = memory(YAML, "--pp", 4, "--microbatches", 3)
    assert "3 microbatches for 4 pipeline stages: some always idle; use at least 4" in out
    _, out = memory(YAML, "--pp", 4, "--microbatches", 4)
    assert "use at least" not in out


def test_microbatches_of_a_pipeline_are_none_without_one():
    keys = {"num_pipeline_microbatches": 4}
    for degree, more, microbatches in ((1, {}, None), (2, {}, 4),
                                       (1, {"gradient_accumulation_steps": 3}, 3)):  # fmt: skip
        options = {**keys, **more, "ici_pipeline_parallelism": degree}
        loaded = LoadedModel(MODEL, "run.yml", options=options)
        taken = with_config(Request(), loaded, framework("maxtext"))[0]
        assert (taken.pp, taken.microbatches) == (degree, microbatches)
    loaded = LoadedModel(MODEL, "run.yml", options=keys)
    assert with_config(Request(pp=2), loaded, framework("maxtext"))[0].microbatches == 4
    assert with_config(Request(), loaded, framework("maxtext"))[0].microbatches is None


def test_accumulation_over_a_pipeline_is_refused_where_no_account_has_it():
    options = {"gradient_accumulation_steps": 4, "ici_pipeline_parallelism": 2}
    loaded = LoadedModel(MODEL, "run.yml", options=options)
    with pytest.raises(SelectionError, match=r"steps 4 of run\.yml with 2 pipeline"):
        with_config(Request(), loaded, framework("maxtext"))
    assert with_config(Request(pp=1), loaded, framework("maxtext"))[0].microbatches == 4
    assert with_config(Request(microbatches=2), loaded, framework("maxtext"))[0].microbatches == 2
    # Megatron-LM's microbatches of a pipeline are those that it accumulates over.
    assert with_config(Request(), loaded, framework("megatron"))[0].microbatches == 4


def test_layers_that_do_not_divide_name_the_option(memory):
    code, out = memory(YAML, "--pp", 5)
    assert code != 0
    assert "or give the layers of each stage with --layers-per-stage" in out
    code, out = memory(YAML, "--pp", 5, "--layers-per-stage", "3,3,2,2,2")
    assert code == 0
    _, out = memory(YAML, "--pp", 5, "--schedule", "1f1b")
    assert "--layers-per-stage chooses the layers of each" in out


def test_the_pipeline_command_gives_the_same_advice(command):
    words = ("pipeline", "--stages", 6, "--microbatches")
    few = command(*words, 3)[1]
    assert "3 microbatches for 6 pipeline stages: some always idle; use at least 6" in few
    assert "use at least" not in command(*words, 6)[1]
    assert "Use at least 6." in command(*words, 3, "--virtual", 2)[1]


def test_what_a_maxtext_configuration_alone_can_say_counts(memory):
    keys = {"scan_layers": False, "float32_weight_sum": False}
    code, out = memory({**YAML, **keys})
    assert code == 0
    assert "layers are not scanned" in out
    assert "scan_layers False, float32_weight_sum False" in out
    assert "layers are not scanned" not in memory(YAML)[1]
    loaded = LoadedModel(MODEL, "run.yml", options={**keys})
    taken = with_config(Request(), loaded, framework("maxtext"))[0]
    assert (taken.is_scanned, taken.has_float32_weight_sum) == (False, False)
    taken, said = with_config(Request(), loaded, framework("bundled"))
    assert (taken.is_scanned, taken.has_float32_weight_sum) == (None, None)
    assert "scan_layers False: bundled has none, left out." in said


@pytest.mark.parametrize(
    ("more", "pdbs", "microbatches", "evaluation"),
    [
        ({}, (4,), 1, None),
        ({"ici_tensor_parallelism": 2}, (8,), 1, None),  # 8 devices × 4 over FSDP 4
        ({"ici_tensor_parallelism": 2, "per_device_batch_size": 0.5}, (1,), 1, None),
        ({"ici_context_parallelism": 4}, (16,), 1, None),  # 8 × 4 over FSDP 2
        ({"ici_pipeline_parallelism": 2}, (4,), 2, None),  # 8 × 4 over FSDP 4, in 2 microbatches
        ({"ici_pipeline_parallelism": 2, "num_pipeline_microbatches": 8}, (1,), 8, None),
        ({"ici_tensor_parallelism": 2, "eval_per_device_batch_size": 2}, (8,), 1, 4),
        ({"gradient_accumulation_steps": 3, "ici_tensor_parallelism": 2}, (8,), 3, None),
        ({"dcn_data_parallelism": -1}, (4,), 1, None),  # of 16: MaxText's own two of -1
    ],
)
def test_a_file_of_maxtext_means_the_same_as_a_model_and_as_a_command_line(
    tmp_path, more, pdbs, microbatches, evaluation
):
    file = tmp_path / "run.yml"
    own = {"ici_fsdp_parallelism": -1, "per_device_batch_size": 4, "megablox": False}
    file.write_text(yaml.safe_dump({**YAML, **own, **more}))
    devices = 16 if "dcn_data_parallelism" in more else 8
    as_model, as_command = (
        wanted(Request(devices=devices, seq="128", **named))
        for named in ({"model": str(file)}, {"maxtext": (str(file),)})
    )
    for found in (as_model, as_command):
        assert (found.batches, found.setting.microbatches) == (pdbs, microbatches)
        assert found.setting.eval_pdbs == evaluation
    assert as_model.setting.plan == as_command.setting.plan
    is_shared = pdbs != ((own | more)["per_device_batch_size"],)
    assert ("so of each data × fsdp × expert" in " ".join(as_model.said)) == is_shared


def test_accumulated_gradients_are_microbatches_of_a_pipeline_where_the_framework_has_them(
    tmp_path,
):
    """8 devices × 2 over DP 4, in 2 microbatches, 3 times: Megatron has both as microbatches."""
    file = tmp_path / "run.yml"
    own = {"ici_pipeline_parallelism": 2, "gradient_accumulation_steps": 3}
    file.write_text(yaml.safe_dump({**YAML, **own, "per_device_batch_size": 2}))
    asked = {"devices": 8, "framework": "megatron", "strategy": ("sparse-gmm",)}
    found = wanted(Request(model=str(file), **asked))
    assert (found.batches, found.setting.microbatches) == ((2,), 6)


def test_an_option_wins_over_the_batch_of_a_file_and_it_is_said(memory):
    keys = {**YAML, "per_device_batch_size": 0.25, "ici_pipeline_parallelism": 2}
    code, out = memory(keys, "--devices", 8)  # --pdbs 1
    assert code == 0
    assert "--pdbs 1 wins over per_device_batch_size 0.25 of" in out


def test_no_policy_of_maxtext_recomputes_whole_layers(tmp_path):
    """MaxText 0.2.5, get_remat_policy: none is no policy for jax.checkpoint, as full is."""
    file = tmp_path / "run.yml"
    file.write_text(yaml.safe_dump({**YAML, "remat_policy": "none"}))
    for named in ({"model": str(file)}, {"maxtext": (str(file),), "devices": 1}):
        found = wanted(Request(strategy=("sparse-gmm",), **named))
        assert found.setting.plan.remat.text == "full"
        assert "remat_policy none: MaxText recomputes whole layers" in " ".join(found.said)
