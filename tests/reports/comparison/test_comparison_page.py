"""The page of a comparison: opened from disk in Chromium, and its numbers added up by hand."""

from __future__ import annotations

import json

import pytest
from accessibility import violations
from builders.report_cases import HOSTILE
from builders.work import hlo, kernel, traced

from moeprof.analyzers.comparison.compare import compare
from moeprof.analyzers.comparison.gates import outcome, parse_gate
from moeprof.analyzers.comparison.notes import SETTING_CHANGES, setting_changes
from moeprof.answers.values import encodable
from moeprof.reports.comparison.document import build_comparison, comparison_json
from moeprof.reports.comparison.figures import components, step
from moeprof.reports.comparison.page import comparison_view, render
from moeprof.reports.run.document import build

US = 1000


def run(dot_us: int, scope: str = "attention", late_us: int = 0, steps: int = 3):
    """Back to back: a product, 50 µs of the optimizer; every other product `late_us` longer."""
    lengths = [(dot_us + late_us * (place % 2)) * US for place in range(steps)]
    at = [sum(lengths[:place]) + place * 50 * US for place in range(steps)]
    events = [kernel("dot.1", at[n], length, step=n) for n, length in enumerate(lengths)]
    events += [kernel("add.1", at[n] + lengths[n], 50 * US, step=n) for n in range(steps)]
    ops = [
        hlo("dot.1", "dot", op_name=f"jit(step)/jvp()/{scope}/dot_general", shape="f32[4,4]"),
        hlo("add.1", "add", op_name="jit(step)/optimizer/add", shape="f32[4]"),
    ]
    return traced(events, ops, {n: (at[n], lengths[n] + 50 * US) for n in range(steps)})


def compared(base, new, *gates: str, settings=None):
    found = compare(base, new)
    outcomes = [outcome(parse_gate(gate), found) for gate in gates]
    sides = build(base, {}), build(new, {})
    return build_comparison(*sides, found, outcomes, settings=settings, arguments=["base", "new"])


@pytest.fixture(scope="module")
def slower():
    """400 µs → 500 µs of attention: the step of 450 µs takes 550."""
    return compared(run(400), run(500), "step>+20%", "attention>+200us", "memory>+1%")


@pytest.fixture(scope="module")
def hostile():
    """Every hostile name as the scope of an op, a path and a setting."""
    rows = [{"setting": name, "base": name, "new": ""} for name in map(encodable, HOSTILE)]
    return compared(
        run(400, HOSTILE[0]), run(500, HOSTILE[5]), settings=SETTING_CHANGES.frame(rows)
    )


@pytest.fixture(scope="module")
def page(open_once, slower):
    """The page of the slower run, opened once for all that only read it."""
    return open_once(render(slower))


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (420, "dark")])
def test_nothing_complains_and_nothing_is_wider_than_the_screen(
    open_html, slower, hostile, scheme, width
):
    document = hostile if width == 420 else slower
    visited = open_html(render(document), width, scheme, is_drawn=True)
    assert visited.complaints == []
    assert visited.requests == [visited.page.url]
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= width
    assert visited.page.evaluate("window.hacked") is None
    assert violations(visited.page) == []


def test_the_first_screen_says_what_changed_and_by_what(page):
    verdict = page.inner_text(".trust >> nth=0")
    assert verdict == "Verdict The new run's step is 22.2 % slower, more than the noise explains."
    assert page.inner_text(".step-figure") == "450.0 → 550.0 µs"
    leading = page.inner_text(".changes li >> nth=0").split("\n")
    assert leading == ["+100.0 µs", "attention", "the same calls take longer +100.0 µs"]
    assert page.inner_text("#gates li >> nth=0").startswith("✗ failed")
    assert page.inner_text("#gates li >> nth=1").startswith("✓ passed")
    assert page.inner_text("#gates li >> nth=2").startswith("? not known")
    box = page.locator("#leading").bounding_box()
    assert box is not None
    assert box["y"] < 900


def test_bars_of_both_runs_have_one_scale(page):
    base, new = page.eval_on_selector_all(
        ".bars .stack",
        "bars => bars.map(bar => [...bar.children].reduce((sum, part) => sum + "
        "part.getBoundingClientRect().width, 0))",
    )
    assert base / new == pytest.approx(450 / 550, abs=0.01)


def test_cells_hold_the_numbers_of_the_document(page, slower):
    tables = (("step", 3, slower["step"]["rows"]), ("ops", 1, slower["rows"]["rows"]))
    for table, place, rows in tables:
        wanted = [row["change_ns"] for row in rows if row.get("level", "op") == "op"]
        cells = page.eval_on_selector_all(
            f"#{table}-table tbody tr", f"r => r.map(x => x.cells[{place}].dataset.value)"
        )
        assert [json.loads(cell) for cell in cells] == wanted


def test_the_page_carries_its_document(slower):
    page = render(slower)
    start = page.index('class="document">') + len('class="document">')
    carried = json.loads(page[start : page.index("</script>", start)])
    assert carried == json.loads(comparison_json(slower))


def test_a_bar_is_as_long_as_its_change_and_pale_within_the_noise():
    # base 400 and 600 µs, new 420 and 620: a change of 20 of which steps differ by 200
    noisy = compared(run(400, late_us=200), run(420, late_us=200))
    bars = step(noisy)["data"]
    assert [bar["x"][0] for bar in bars[:2]] == pytest.approx([0.02, 0.02])
    assert [bar["opacity"] for bar in bars[:2]] == [0.4, 0.4]
    assert bars[0]["error_x"]["array"][0] > 0.02
    # axis: whiskers beyond 0.8 of the largest change are cut there, 4 % of the whole as a margin
    assert step(noisy)["layout"]["xaxis"]["range"] == pytest.approx([-0.00144, 0.03744], rel=0.01)
    assert "this may be nothing" in comparison_view(noisy).verdict


def test_equal_runs_have_no_figure_and_say_so():
    same = compared(run(400), run(400))
    assert step(same) is None
    assert components(same) is None
    assert comparison_view(same).verdict == "The step is as long as before."


def test_multiples_are_told_as_multiples():
    """50 → 1200 µs of attention beside 50 of the optimizer: 100 → 1250, 12.5 times as long."""
    far = compared(run(50), run(1200))
    view = comparison_view(far)
    assert "12.5 times as long" in view.verdict
    assert view.step_detail.startswith("× 12.5, noise ±0.0 %")  # from 10 times more on
    assert view.memory_table is None  # nothing of it is known


def test_without_steps_the_page_says_what_is_missing(open_html):
    document = compared(run(400, steps=0), run(400))
    page = open_html(render(document), is_drawn=True).page
    assert "Which run is faster cannot be told" in page.inner_text(".trust >> nth=0")
    assert "no whole step to measure in base" in page.inner_text(".notes")


def record(argv, flags="", mesh=None):
    return {"schema": "moeprof.run/1", "argv": argv, "xla_flags": flags, "mesh": mesh or {}}


def test_what_was_set_differently_is_told_option_by_option():
    base = record(
        ["python", "train.py", "--lr", "1e-3", "--ep=8", "--fast", "--shift", "-1", "data"],
        "--xla_a=1 --xla_b=2",
        {"expert": 4},
    )
    new = record(
        ["python", "train.py", "--lr", "1e-3", "--ep", "4", "--shift", "-2", "other"],
        "--xla_a=1",
        {"expert": 8},
    )
    assert setting_changes(base, new).to_dict("split")["data"] == [
        ["--ep", "8", "4"],
        ["--fast", "given", ""],
        ["--shift", "-1", "-2"],
        ["argument 1", "data", "other"],
        ["XLA_FLAGS --xla_b", "2", ""],
        ["mesh expert", "4", "8"],
    ]
    assert setting_changes(base, None).empty
    assert setting_changes(base, base).empty


@pytest.mark.parametrize("missing", [None, {}])
def test_a_mesh_that_one_run_did_not_record_is_told_once(missing):
    mesh = {"data": 1, "fsdp": 8, "expert": 2}
    base, new = record(["python", "t.py"]) | {"mesh": missing}, record(["python", "t.py"], "", mesh)
    assert setting_changes(base, new).to_dict("split")["data"] == [
        ["mesh", "not recorded", "fsdp 8 × expert 2"]
    ]
    assert setting_changes(new, base).to_dict("split")["data"] == [
        ["mesh", "fsdp 8 × expert 2", "not recorded"]
    ]
    assert setting_changes(base, base).empty
    only_ones = record(["python", "t.py"], "", {"data": 1})
    assert list(setting_changes(base, only_ones)["new"]) == ["data 1"]


def test_arguments_of_the_form_key_value_are_compared_by_key():
    """As MaxText and Hydra take them: whatever their order, and one more moves no other."""
    train = ["python", "-m", "maxtext.trainers.pre_train.train", "base.yml"]
    base = record([*train, "steps=12", "run_name=a", "ici_expert_parallelism=8", "dump/a=1/x"])
    new = record([*train, "ici_expert_parallelism=4", "remat_policy=", "run_name=a", "steps=12"])
    assert setting_changes(base, new).to_dict("split")["data"] == [
        ["ici_expert_parallelism", "8", "4"],
        ["argument 2", "dump/a=1/x", ""],
        ["remat_policy", "", '""'],
    ]
    again = record([*train, "lr=1", "lr=2"])
    assert setting_changes(record([*train, "lr=1"]), again).to_dict("split")["data"] == [
        ["lr", "1", "1, 2"]
    ]
