"""A command line of MaxText: which layer of it wins, and what it refuses, by files written here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moeprof.errors import MoeprofError, SelectionError, SpecError
from moeprof.specs.parameters import parameter_count
from moeprof.specs.presets import load_preset
from moeprof.specs.sources.maxtext_command import (
    Installed,
    configuration,
    installed_maxtext,
    read_maxtext_command,
)

CONFIGS = Path(__file__).parents[1] / "data" / "maxtext_configs"
BASE, RUN, MODEL = (
    str(CONFIGS / name) for name in ("base.yml", "run.yml", "models/eight-experts.yml")
)
NO_VARIABLES: dict[str, str] = {}


@pytest.fixture
def installed(tmp_path):
    """A MaxText whose files are the small ones here, with one key that no file has."""
    types = tmp_path / "types.py"
    types.write_text("class Run:\n  steps: int = 5\n  run_name: str = ''\n", encoding="utf-8")
    return Installed(CONFIGS, types, "MaxText 9")


def read(*words, environ=NO_VARIABLES, installed=None):
    return configuration(words, environ, installed)


def test_the_command_line_is_above_the_models_file_above_the_given_file_above_its_base():
    found = read(RUN, "max_target_length=256", "learning_rate=3e-4")
    expected = {
        "learning_rate": (3e-4, "the command line"),
        "max_target_length": (256, "the command line"),
        "base_emb_dim": (512, MODEL),
        "per_device_batch_size": (3, RUN),
        "weight_dtype": ("bfloat16", RUN),
        "remat_policy": ("full", BASE),
    }
    assert {key: (found.values[key], found.sources[key]) for key in expected} == expected
    assert found.notes == ()


def test_a_models_file_is_above_the_users_file_as_in_maxtext(tmp_path):
    run = tmp_path / "run.yml"
    run.write_text(f"base_config: {BASE}\nmodel_name: eight-experts\nbase_emb_dim: 99\n")
    (tmp_path / "models").symlink_to(CONFIGS / "models")
    assert read(str(run)).values["base_emb_dim"] == 512


def test_the_model_has_the_sizes_of_the_file_by_hand():
    model = read_maxtext_command((RUN,), NO_VARIABLES).model
    attention = 512 * (8 + 2 + 2) * 64 + 8 * 64 * 512
    experts, router, norms = 8 * 3 * 512 * 1024, 512 * 8 + 8, 2 * 512  # with the router's bias
    layers = 4 * (attention + experts + router + norms)
    assert parameter_count(model) == layers + 2 * 2048 * 512 + 512
    assert (model.experts, model.top_k, model.weight_dtype) == (8, 2, "bfloat16")


def test_words_change_a_model_only_where_override_is_on():
    with pytest.raises(SelectionError, match=r"base_emb_dim 64 \(there 512\).*override_model_con"):
        read(RUN, "base_emb_dim=64")
    assert read(RUN, "base_emb_dim=512").values["base_emb_dim"] == 512
    found = read(RUN, "base_emb_dim=64", "override_model_config=True")
    assert (found.values["base_emb_dim"], found.values["num_experts"]) == (64, 8)
    loaded = read_maxtext_command((RUN, "base_emb_dim=64", "override_model_config=True"), {})
    assert loaded.model.hidden == 64
    assert not [note for note in loaded.notes if "override_model_config" in note]


def test_a_variable_is_above_all_and_twice_is_refused():
    found = read(RUN, environ={"M_REMAT_POLICY": "minimal", "M_SPARSE_MATMUL": "false"})
    assert (found.values["remat_policy"], found.values["sparse_matmul"]) == ("minimal", False)
    assert found.sources["remat_policy"] == "variable M_REMAT_POLICY"
    with pytest.raises(SelectionError, match="set by the command line and by the variable"):
        read(RUN, "remat_policy=full", environ={"M_REMAT_POLICY": "minimal"})
    with pytest.raises(SelectionError, match=f"set by {re.escape(MODEL)} and by the variable"):
        read(RUN, environ={"M_NUM_EXPERTS": "4"})
    with pytest.raises(SelectionError, match="M_MEGABLOX: expected a value like True, found 'x'"):
        read(RUN, environ={"M_MEGABLOX": "x"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("steps",), "expected key=value, found 'steps'"),
        (("=3",), "expected key=value, found '=3'"),
        (("max_target_length=long",), "max_target_length: expected a number, as 512 of"),
        (("max_target_length=",), "expected a number, as 512 of"),
        (("megablox=maybe",), "megablox: expected True or False, as True of"),
        (("remat_polcy=full",), "found remat_polcy. Is remat_policy meant?"),
        (("remat_policy=[",), "remat_policy: expected YAML, found damage"),
        (("model_name=nothing",), "models/nothing.yml was not found (MaxText is not installed"),
    ],
)
def test_what_maxtext_would_refuse_is_one_line_of_wrong_usage(words, said):
    with pytest.raises(SelectionError) as refused:
        read(RUN, *words)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_switches_are_read_as_maxtext_reads_them():
    found = read(RUN, "megablox=0", "sparse_matmul=off", "scan_layers=True")
    values = [found.values[key] for key in ("megablox", "sparse_matmul", "scan_layers")]
    assert values == [False, False, True]


def test_a_reference_is_the_value_of_its_key(tmp_path):
    run = tmp_path / "run.yml"
    run.write_text(f"base_config: {RUN}\nper_device_batch_size: ${{num_vocab_tiling}}\n"
                   "run_name: a${base_emb_dim}b${max_target_length}\n")  # fmt: skip
    (tmp_path / "models").symlink_to(CONFIGS / "models")
    values = read(str(run), "max_target_length=${steps}", "steps=256").values
    assert (values["per_device_batch_size"], values["max_target_length"]) == (1, 256)
    assert values["run_name"] == "a512b256"  # of the model's file, and of a word's word
    # MaxText looks for a word's reference among words alone.
    for word, said in (("run_name=${head_dim}", "found 'head_dim'"),
                       ("run_name=${run_name}", "lead to a value")):  # fmt: skip
        with pytest.raises(SelectionError, match=said):
            read(RUN, word)
    run.write_text(f"base_config: {RUN}\nper_device_batch_size: ${{none}}\n")
    with pytest.raises(SpecError, match=r"run\.yml: key per_device_batch_size: .*found 'none'"):
        read(str(run))


def test_a_key_that_stands_twice_is_refused_as_in_maxtext(tmp_path):
    run = tmp_path / "run.yml"
    run.write_text(f"base_config: {BASE}\nper_device_batch_size: 9\nper_device_batch_size: 4\n")
    with pytest.raises(SpecError, match=r"run\.yml: .*key per_device_batch_size stands twice"):
        read(str(run))
    with pytest.raises(SelectionError, match="key a stands twice"):
        read(RUN, "hf={a: 1, a: 2}")


def test_a_key_of_the_installed_maxtext_alone_is_known(installed):
    assert read(RUN, "steps=3", installed=installed).values["steps"] == 3
    with pytest.raises(SelectionError, match=r"found stepz\. Is steps meant"):
        read(RUN, "stepz=3", installed=installed)


def test_without_maxtexts_list_of_keys_only_what_looks_like_a_known_one_is_refused():
    assert (
        "not checked, as MaxText's list of keys is not here: lora" in read(RUN, "lora=3").notes[0]
    )
    with pytest.raises(SelectionError, match="Is per_device_batch_size meant"):
        read(RUN, "per_device_batchsize=3")


def test_files_of_the_installed_maxtext_are_found_by_name(tmp_path, installed, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("base.yml", "src/maxtext/configs/base.yml"):
        found = read(text, "model_name=eight-experts-Instruct", installed=installed)
        assert found.values["num_experts"] == 8
        assert found.sources["num_experts"] == "MaxText 9's models/eight-experts.yml"
        assert found.sources["remat_policy"] == "MaxText 9's base.yml"


def test_without_a_base_its_values_are_those_of_the_table_and_a_model_is_a_preset(tmp_path):
    run = tmp_path / "run.yml"
    run.write_text("base_config: base.yml\nmodel_name: mixtral-8x7b\nsteps: 3\n")
    loaded = read_maxtext_command((str(run),), NO_VARIABLES)
    assert parameter_count(loaded.model) == parameter_count(load_preset("mixtral_8x7b"))
    assert loaded.model.weight_dtype == "float32"
    options = {"max_target_length": 2048, "per_device_batch_size": 12.0, "attention": "flash"}
    assert {key: loaded.options[key] for key in options} == options
    assert loaded.sources["max_target_length"] == "MaxText 0.2.5, by moeprof's table"
    notes = " ".join(loaded.notes)
    assert "base_config base.yml was not found" in notes
    assert "not checked, as MaxText's list of keys is not here: steps" in notes
    assert "the preset mixtral_8x7b" in notes
    with pytest.raises(SelectionError, match="so num_experts cannot change it"):
        read(str(run), "num_experts=4", "override_model_config=True")


def test_files_that_inherit_from_each_other_end(tmp_path):
    run = tmp_path / "run.yml"
    run.write_text("base_config: run.yml\n")
    with pytest.raises(SpecError, match="key base_config: expected an end, found 20 files"):
        read(str(run))


@pytest.mark.parametrize("text", ["", "- a", "a: [", "a: b: c"])
def test_a_damaged_file_is_one_line_that_names_it(tmp_path, text):
    run = tmp_path / "run.yml"
    run.write_text(text)
    with pytest.raises(MoeprofError, match=re.escape(str(run))) as refused:
        read(str(run))
    assert "\n" not in str(refused.value)


def test_a_short_sequence_has_whole_scores_where_maxtext_selects():
    short = read_maxtext_command((RUN, "max_target_length=64"), NO_VARIABLES).options
    assert short["attention"] == "dot_product"
    assert read_maxtext_command((RUN,), NO_VARIABLES).options["attention"] == "flash"


def test_maxtext_is_looked_up_and_not_imported(tmp_path, monkeypatch):
    package = tmp_path / "maxtext"
    (package / "configs").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("MAXTEXT_CONFIGS_DIR", raising=False)
    found = installed_maxtext()
    assert found is not None
    assert found.configs == package / "configs"
