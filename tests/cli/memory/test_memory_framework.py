"""`moeprof memory` says first whose program it projects, and which build."""

import json
import re

import pytest


@pytest.mark.parametrize(
    ("asked", "program"),
    [
        (("--hardware", "mi355x"), "MaxText rocm-26.2"),
        (("--hardware", "h200_sxm"), "MaxText 0.2.5"),
        (("--hardware", "h200_sxm", "--maxtext-build", "rocm-26.2"), "MaxText rocm-26.2"),
        (("--hardware", "mi355x", "--maxtext-build", "0.2.5"), "MaxText 0.2.5"),
        (("--framework", "bundled"), "Bundled model"),
        (("--world", "megatron"), "Megatron-LM"),
    ],
)
def test_framework_and_build_stand_in_the_first_line(memory, tmp_path, asked, program):
    page = tmp_path / "page.html"
    run = ("--model", "mixtral_8x7b", "--ep", 8, "--strategy", "sparse-gmm", "--pdbs", 1, *asked)
    code, out, _ = memory(*run, "--html", page)
    assert code == 0
    first = out.splitlines()[0]
    assert first.startswith(f"{program}: ")
    assert f"\n{program} · Mixtral-8x7B 46.7 B" in out
    (facts,) = re.findall(r'<p class="facts">([^<]*Mixtral[^<]*)', page.read_text())
    assert facts.startswith(f"{program} · Mixtral-8x7B 46.7 B")
    inputs = json.loads(memory(*run, "--json")[1])["inputs"]
    assert inputs["world"] == inputs["framework"]
    assert program.endswith(inputs["build"] or "")


def test_a_search_says_whose_program_it_is(memory):
    code, out, _ = memory("search", "--model", "mixtral_8x7b", "--devices", 8, "--top", 1)
    assert code == 0
    assert out.startswith("MaxText 0.2.5 · Mixtral-8x7B")
