import json

import pytest
from click.testing import CliRunner

from moeprof.cli import main as command_line
from moeprof.cli.main import group


def test_all_models_are_listed_in_eighty_columns():
    lines = CliRunner().invoke(group, ["models"]).output.splitlines()
    assert lines[0].split() == ["key", "total", "active", "layers", "experts", "attention"]
    assert len(lines) == 2 + 27
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    assert rows["deepseek_v3"] == ["671", "37.55", "58/61", "256", "×", "8", "MLA", "128"]
    assert rows["minimax_m1"][-4:] == ["GQA", "64/8,", "70", "linear"]
    assert rows["llama3_1_405b"][2:4] == ["0/126", "-"]


def test_one_model_is_shown_with_its_source_and_other_names():
    text = CliRunner().invoke(group, ["models", "deepseek3-671b"]).output
    assert "also: deepseek3-671b" in text
    assert "published: total 671, active 37 (billions)" in text
    assert "source: AMD-AGI/Primus" in text
    assert "widths: hidden 7168, expert 2048, shared 2048, dense 18432, vocab 129280" in text


def test_the_json_is_strict_and_holds_the_model():
    text = CliRunner().invoke(group, ["models", "--json"]).output
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["schema"] == "moeprof.models/1"
    models = {model["key"]: model for model in document["models"]}
    assert len(models) == 27
    assert models["deepseek_v3"]["parameters"] == 671_026_419_200
    assert models["deepseek_v3"]["model"]["attention"]["kv_lora_rank"] == 512
    assert models["small"]["total_published_billions"] is None


def test_a_configuration_is_shown_as_it_is_read(tmp_path):
    file = tmp_path / "config.json"
    widths = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000}
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    file.write_text(json.dumps({"model_type": "mixtral", **widths, **heads, **experts}))
    text = CliRunner().invoke(group, ["models", str(file)]).output
    assert "46.7" in text  # published for Mixtral-8x7B
    assert "widths: hidden 4096, expert 14336" in text
    document = json.loads(CliRunner().invoke(group, ["models", str(file), "--json"]).output)
    assert document["models"][0]["source"] == str(file)


def test_an_unknown_key_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["moeprof", "models", "nope"])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "expected a preset, a config.json or a MaxText .yml, found 'nope'" in error
    assert len(error.splitlines()) == 1
