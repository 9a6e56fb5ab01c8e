"""A framework is one object in one folder; nothing else asks for its name."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import moeprof
from moeprof.projector import framework as registry
from moeprof.projector.framework import FRAMEWORKS, framework, that_have
from moeprof.projector.frameworks.maxtext import MaxText
from moeprof.projector.request.plan import Request

ROOT = Path(__file__).parents[2]


class Toy(MaxText):
    """One more program: MaxText's step, of one build, whose runs cannot be tiled."""

    name = "toy"
    title = "Toy trainer"
    lacks = (*MaxText.lacks, "vocab_tiling")
    strategies = ("sparse-gmm",)


@pytest.fixture
def toy(monkeypatch):
    """A folder with an object, and a line of the registry."""
    module = ModuleType("toy_framework")
    module.FRAMEWORK = Toy()
    monkeypatch.setitem(sys.modules, "toy_framework", module)
    monkeypatch.setitem(registry.FRAMEWORKS, "toy", "toy_framework")
    yield module.FRAMEWORK
    framework.cache_clear()


def test_one_line_makes_a_framework_known(toy):
    run = {"model": "mixtral_8x7b", "ep": 8, "pdbs": 1}
    found = moeprof.memory(**run, framework="toy")
    assert found.cells["strategy"].tolist() == ["sparse-gmm"]
    assert "\nToy trainer 0.2.5 · Mixtral-8x7B" in str(found)
    same = moeprof.memory(**run, strategy="sparse-gmm")
    assert found.cells.equals(same.cells)
    assert len(moeprof.search("mixtral_8x7b", 8, framework="toy", top=2).plans) == 2


def test_what_it_lacks_is_refused_with_those_that_have_it(toy):
    with pytest.raises(moeprof.MoeprofError, match="framework toy does not have it"):
        moeprof.memory("mixtral_8x7b", vocab_tiling=8, framework="toy")
    with pytest.raises(moeprof.MoeprofError, match="one of maxtext, bundled, megatron, toy"):
        moeprof.memory("mixtral_8x7b", framework="mars")


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_object_is_what_its_folder_says(name):
    found = framework(name)
    assert found.name == name
    assert found.title
    options = {field.replace("-", "_") for field in Request.__dataclass_fields__}
    of_files = {"is_scanned", "has_float32_weight_sum"}  # keys of configurations alone
    assert set(found.lacks) <= options | {"sync_free", "overlap"} | of_files
    assert all(that_have(option) for option in found.lacks)


def test_nothing_else_compares_names_of_frameworks():
    """Where a program differs its object says how; `--compile` names the one that it compiles."""
    name = re.compile(rf"[!=]= *\"({'|'.join(FRAMEWORKS)})\"|\"({'|'.join(FRAMEWORKS)})\" *[!=]=")
    files = [
        path
        for folder in ("moeprof", "reports", "analyzers")
        for path in (ROOT / folder).rglob("*.py")
        if "frameworks" not in path.parts
    ]
    assert len(files) > 400
    assert [path.name for path in files if name.search(path.read_text(encoding="utf-8"))] == []


def test_documents_keep_the_former_name_of_a_framework():
    inputs = json.loads(moeprof.memory("mixtral_8x7b", ep=8, pdbs=1).to_json())["inputs"]
    assert inputs["world"] == inputs["framework"] == "maxtext"


@pytest.mark.parametrize("name", ["maxtext", "bundled"])
def test_a_policy_of_megatrons_modules_is_refused_elsewhere(name):
    run = {"model": "mixtral_8x7b", "ep": 8, "pdbs": 1, "remat": "selective:moe_act"}
    with pytest.raises(moeprof.MoeprofError, match="selective:MODULE,… is of Megatron-LM"):
        moeprof.memory(**run, framework=name)
    assert moeprof.memory(**run, framework="megatron").verdict


def test_a_host_that_is_too_small_leaves_no_batch_that_fits():
    found = moeprof.memory("mixtral_8x7b", ep=8, strategy="sparse-gmm", host_memory=64)
    assert found.largest_pdbs == {"sparse-gmm": 0}
    assert found.verdict == "oom"


def test_an_unknown_size_is_no_fit():
    found = moeprof.memory("mixtral_8x7b", ep=8, strategy="sparse-gmm", seq="unknown")
    assert (found.verdict, found.fits) == ("unknown", None)
    assert "cannot be told" in str(found).splitlines()[0]


def test_a_capacity_beyond_all_experts_is_refused():
    with pytest.raises(moeprof.MoeprofError, match="at most 1,000,000"):
        moeprof.memory("mixtral_8x7b", ep=8, strategy="dense-cf1e18")
