"""Tokens that a step reads: told by its program and by nothing that could be something else."""

import dataclasses
from pathlib import Path

import pytest
from builders.programs import parameter
from builders.work import FORWARD, MODULE, hlo, kernel, traced

from moeprof.analyzers import analyze
from moeprof.analyzers.comparison.noise import BEYOND, WITHIN
from moeprof.analyzers.load.batch import Batch, batch_of
from moeprof.analyzers.questions.step_time import step_time
from moeprof.ingest import open_run
from moeprof.reports.comparison.page import comparison_view
from moeprof.reports.run.document import build
from moeprof.session.comparison import Comparison
from moeprof.session.run import Run
from moeprof.tables import trace as tables
from moeprof.tables.law import Law, Need
from moeprof.tables.routing import RECEIVED, ROUTING

DATA = Path(__file__).parents[1] / "data"
TABLE = parameter("table", "bf16[1000,64]", parameter=1)
MS = 1_000_000


def gather(name="look", indices="flat", rows=1024, table="table", **more):
    dims = "offset_dims=1,2 start_map=0 index_vector=1 sizes=1,64"
    shape = f"bf16[{rows},1,64]"
    return hlo(name, "gather", f"{table} {indices}", shape=shape, attributes=dims, **more)


def ids(shape="s32[2,513]", splits="4,1", name="ids", **more):
    return parameter(name, shape, attributes=f"splits={splits}" if splits else "", **more)


def flat(source="ids", rows=1024, name="flat"):
    return hlo(name, "bitcast", source, shape=f"s32[{rows},1]")


OPS = (ids(), TABLE, hlo("cut", "slice", "ids", shape="s32[2,512]"), flat("cut"), gather())
"""8 devices; 4 parts of 2 sequences of 513 tokens, of which 512 are looked up."""


def ran(ops=OPS, *, partitions=8, replicas=1, devices=8, runs=1, steps=2, of="look", more=()):
    """Steps of 0.6 ms, one a millisecond, in each of which a device runs the program `runs` times.

    `more` are (module, op, steps) of further programs.
    """
    programs = [(MODULE, of, range(steps)), *more]
    places = [
        (d, s, m, op) for m, op, in_steps in programs for s in in_steps for d in range(devices)
    ]
    events = [
        kernel(op, s * MS, 600_000, device=d, step=s, module=m, run_id=s) for d, s, m, op in places
    ]
    trace = traced(events, ops)
    executions = [
        {"host": "a", "device": d, "module": m, "step": s, "run_id": s}
        | {"start_ns": s * MS, "duration_ns": 600_000, "busy_ns": 600_000}
        for d, s, m, _op in places
        for _ in range(runs if m == MODULE else 1)
    ]
    modules = [
        {c.name: "" if c.kind == "text" else -1 for c in tables.MODULES.columns}
        | {"module": m, "partitions": partitions, "replicas": replicas, "is_scheduled": True}
        for m in dict.fromkeys(m for m, _op, _steps in programs)
    ]
    return dataclasses.replace(
        trace,
        executions=tables.EXECUTIONS.frame(executions),
        modules=tables.MODULES.frame(modules),
        steps=trace.steps.assign(module=MODULE),
    )


def routed(trace, pairs, experts=8):
    """The same trace, which recorded `pairs` in all of each layer, all of the first expert."""
    rows = [
        {"step": step, "layer": layer, "expert": expert, "rank": 0}
        | {"tokens": 0 if expert else count}
        for step in range(2)
        for layer, count in enumerate(pairs)
        for expert in range(experts)
    ]
    meta = dataclasses.replace(trace.meta, are_steps_numbered_by_script=True)
    return dataclasses.replace(
        trace, meta=meta, routing=ROUTING.frame(rows), received=RECEIVED.frame()
    )


def figures(trace):
    return {metric.metric: metric.value for metric in step_time(trace).headline}


def test_tokens_are_rows_looked_up_times_the_parts_of_the_batch():
    """4 parts · 2 sequences · 512 tokens = 4096, of 8 devices: two share a part.

    512 tokens of a device in an interval of 1 ms are 512,000 a second.
    """
    assert batch_of(ran()) == Batch(tokens=4096, devices=8)
    found = figures(ran())
    assert found["tokens_per_step"] == 4096
    assert found["tokens_per_second_device"] == pytest.approx(512_000)


def test_without_an_interval_the_step_is_the_time():
    """512 tokens in 0.6 ms, which is another figure than that from step to step."""
    found = figures(ran(steps=1))
    assert found["step_tokens_per_second_device"] == pytest.approx(853_333.3, abs=0.1)
    assert found["tokens_per_second_device"] is None


@pytest.mark.parametrize("need", [Need.PROGRAMS, Need.PROGRAMS_THAT_RAN])
def test_tokens_fall_with_the_programs_that_tell_them(need):
    """A law that breaks what is said of programs leaves no token of them."""
    law = Law("device_work", "fail", "programs are mixed up", (need,))
    trace = dataclasses.replace(ran(), trust=(law,))
    found = build(trace, analyze(trace, ["step_time"]))["analyses"]["step_time"]["headline"]
    tokens = [metric for metric in found if metric["metric"].startswith("tokens_per_")]
    assert [(m["value"], m["withheld"]) for m in tokens] == [(None, "device_work")] * 2
    assert next(m["value"] for m in found if m["metric"] == "interval_mean") == MS


def test_a_batch_of_whole_sequences():
    ops = (ids("s32[2,512]"), TABLE, flat(), gather())
    assert batch_of(ran(ops)) == Batch(4096, 8)


def test_tokens_may_be_gathered_from_other_devices_first():
    """Each device looks up the tokens of all, as each has some columns of the table."""
    shift = (
        hlo("near", "fusion", "ids", shape="s32[2,512]", called="body"),
        parameter("inside", "s32[2,512]", computation="body", parameter=0),
        hlo("zero", "constant", shape="s32[]", computation="body"),
        hlo("above", "broadcast", "zero", shape="s32[2,512]", computation="body"),
        hlo(
            "least", "maximum", "inside above", shape="s32[2,512]", computation="body", is_root=True
        ),
    )
    far = hlo("far", "all-gather", "near", shape="s32[8,512]")
    ops = (ids("s32[2,512]"), TABLE, *shift, far, flat("far", 4096), gather(rows=4096))
    assert batch_of(ran(ops)) == Batch(4096, 8)


def test_two_arguments_joined_before_the_lookup_are_no_gathered_one():
    """2 · 512 chosen and 2 · 512 rejected ids on each of 4 parts are 8192 tokens, not 4096."""
    pair = (ids("s32[2,512]", name="chosen"), ids("s32[2,512]", name="rejected", parameter=2))
    both = hlo("both", "concatenate", "chosen rejected", shape="s32[4,512]")
    assert batch_of(ran((*pair, TABLE, both, flat("both", 2048), gather(rows=2048)))) is None
    far = hlo("far", "all-gather", "both", shape="s32[16,512]")
    assert batch_of(ran((*pair, TABLE, both, far, flat("far", 8192), gather(rows=8192)))) is None


@pytest.mark.parametrize("opcode", ["broadcast", "concatenate"])
def test_an_argument_that_is_repeated_is_no_gathered_one(opcode):
    """Looked up 4 times over these are 16,384 tokens, not 4096."""
    given = "ids" if opcode == "broadcast" else "ids ids ids ids"
    more = hlo("more", opcode, given, shape="s32[4,2,512]")
    assert (
        batch_of(ran((ids("s32[2,512]"), TABLE, more, flat("more", 4096), gather(rows=4096))))
        is None
    )


def test_an_argument_that_is_repeated_and_gathered_is_no_more_than_gathered():
    """Of 2 devices gathered, and twice over."""
    far = hlo("far", "all-gather", "ids", shape="s32[4,512]")
    more = hlo("more", "broadcast", "far", shape="s32[2,4,512]")
    ops = (ids("s32[2,512]"), TABLE, far, more, flat("more", 4096), gather(rows=4096))
    assert batch_of(ran(ops)) is None
    assert batch_of(ran((*ops[:3], flat("far", 2048), gather(rows=2048)))) == Batch(4096, 8)


def test_a_step_of_several_runs_reads_as_many_batches():
    assert batch_of(ran(runs=3)) == Batch(3 * 4096, 8)


def test_a_program_of_one_device_has_the_whole_batch():
    ops = (ids("s32[2,512]", splits=""), TABLE, flat(), gather())
    assert batch_of(ran(ops, partitions=1, devices=1)) == Batch(1024, 1)


@pytest.mark.parametrize(
    ("ops", "more"),
    [
        ((ids(splits=""), *OPS[1:]), {}),  # of 8 devices, in parts that nobody knows
        (OPS, {"replicas": 2}),
        (OPS, {"partitions": 4}),  # 8 devices work
        (OPS, {"partitions": -1}),
        ((ids("s32[2,700]"), TABLE, flat(), gather()), {}),  # 1024 of 1400 ids
        ((ids("s32[2048]", splits="4"), TABLE, flat(rows=2048), gather(rows=2048)), {}),
        ((ids("s32[1,2]", splits="2,1"), TABLE, flat(rows=2), gather(rows=2)), {}),  # 2 or 1 a part
        ((ids(), parameter("table", "s32[1000,64]"), *OPS[2:]), {}),  # no weight
        ((*OPS[:4], hlo("hash", "rng", "flat", shape="s32[1024,1]"), gather(indices="hash")), {}),
        ((*OPS, ids("s32[2,100]", name="x"), flat("x", 200, "y"), gather("z", "y", 200)), {}),
    ],
)
def test_what_could_be_something_else_says_nothing(ops, more):
    trace = ran(ops, **more)
    assert batch_of(trace) is None
    assert figures(trace)["tokens_per_step"] is None
    assert figures(trace)["tokens_per_second_device"] is None


def test_a_positions_table_without_ids_is_no_batch():
    places = (hlo("places", "iota", shape="s32[512,1]"), gather("where", "places", 512))
    assert batch_of(ran((*OPS, *places))) == Batch(4096, 8)


def test_one_table_asked_for_two_arguments_says_nothing():
    """Chosen and rejected, 4096 each: what is of one shape is no less two batches."""
    second = ids("s32[2,513]", name="rejected", parameter=2)
    cut = hlo("cut2", "slice", "rejected", shape="s32[2,512]")
    again = (second, cut, flat("cut2", name="flat2"), gather("look2", "flat2"))
    assert batch_of(ran((*OPS, *again))) is None
    same = gather("look2", "flat")  # the lookup that the way back repeats
    assert batch_of(ran((*OPS, same))) == Batch(4096, 8)


def test_positions_in_a_table_of_their_own_are_harmless():
    at = ids("s32[2,512]", name="at", parameter=2)
    own = parameter("places", "bf16[512,64]", parameter=3)
    places = (at, own, flat("at", name="flat2"), gather("where", "flat2", table="places"))
    assert batch_of(ran((*OPS, *places))) == Batch(4096, 8)


def test_runs_that_differ_between_steps_say_nothing():
    trace = ran()
    assert batch_of(dataclasses.replace(trace, executions=trace.executions.iloc[:-1])) is None


def test_a_second_program_that_trains_in_the_step_says_nothing():
    """It looks tokens up and has a way back; one that has none evaluates, and does not count."""
    back = "jit(step)/transpose(jvp())/mlp/mul"
    second = [{**row, "module": 8} for row in OPS]
    way_back = hlo("way", "multiply", "look look", shape="bf16[1024,1,64]", op_name=back)
    evaluation = ran((*OPS, *second), more=[(8, "look", [0])])
    training = ran((*OPS, *second, {**way_back, "module": 8}), more=[(8, "look", [0])])
    assert batch_of(evaluation) == Batch(4096, 8)
    assert batch_of(training) is None


def test_a_second_program_that_trains_counts_where_its_tokens_are_not_told():
    """Its own lookup is of 1024 of 1400 ids."""
    second = [{**row, "module": 8} for row in (ids("s32[2,700]"), TABLE, flat(), gather())]
    back = "jit(step)/transpose(jvp())/mlp/mul"
    way_back = hlo("way", "multiply", "look look", shape="bf16[1024,1,64]", op_name=back)
    ops = (*OPS, *second, {**way_back, "module": 8})
    assert batch_of(ran(ops, more=[(8, "look", [0])])) is None


def test_a_second_program_that_takes_ids_in_every_step_says_nothing():
    second = [{**row, "module": 8} for row in OPS]
    assert batch_of(ran((*OPS, *second), more=[(8, "look", [0])])) == Batch(4096, 8)
    assert batch_of(ran((*OPS, *second), more=[(8, "look", [0, 1])])) is None
    makes = [{**row, "module": 8} for row in (ids(), OPS[2])]  # and gives what it cut
    assert batch_of(ran((*OPS, *makes), more=[(8, "cut", [0, 1])])) == Batch(4096, 8)


def test_without_a_lookup_the_rows_of_the_router_tell_it():
    """One-hot products look nothing up: 1024 rows chosen for are 2 sequences of 512, not of 513."""
    scores = hlo("scores", "add", shape="f32[1024,8]", op_name=FORWARD + "router/add")
    choice = hlo(
        "choice",
        "sort",
        "scores",
        shape="f32[1024,8]",
        op_name=FORWARD + "router/top_k",
        details="dimensions=1",
    )
    assert batch_of(ran((ids(), scores, choice), of="choice")) == Batch(4096, 8)
    other = ids("s32[2,300]", name="other")
    assert batch_of(ran((other, scores, choice), of="choice")) is None


@pytest.mark.parametrize(
    ("pairs", "is_known"),
    [
        ([8192, 8192], True),  # top-2
        ([8000, 8192], True),  # a capacity cut pairs off before they were counted
        ([8000, 8000], False),  # no whole number of experts per token
        ([4096 * 9, 4096 * 9], False),  # 9 of 8 experts
        ([1024, 1024], False),  # counted on one of 8 devices
    ],
)
def test_routing_that_contradicts_the_program_says_nothing(pairs, is_known):
    found = batch_of(routed(ran(), pairs))
    assert found == (Batch(4096, 8) if is_known else None)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        # README: sequences of 64 tokens, one on each of 8 devices
        ("maxtext/deepseek3_tiny_ep8_cf125.xplane.pb.gz", Batch(512, 8)),
        ("maxtext/deepseek3_tiny_fsdp8_ragged_dot.xplane.pb.gz", Batch(512, 8)),
        # 2 sequences of 512 tokens on each of 2 devices
        ("gpu/dense-cf1.25", Batch(2048, 2)),
        ("gpu/sparse-gmm-deepep-graphs", Batch(2048, 2)),
    ],
)
def test_tokens_of_recorded_runs_are_those_of_their_configuration(name, batch):
    assert batch_of(open_run(DATA / name)) == batch


# Two runs of which a step reads other numbers of tokens.


def other_work() -> Comparison:
    """4096 tokens in a step of base, 8192 in one of new, both of 1 ms."""
    cut = hlo("cut", "slice", "ids", shape="s32[4,512]")
    more = (ids("s32[4,513]"), TABLE, cut, flat("cut", rows=2048), gather(rows=2048))
    return Comparison(Run(ran(steps=4)), Run(ran(more, steps=4)))


def test_a_comparison_says_in_its_first_lines_that_the_work_changed():
    found = other_work()
    lines = str(found).splitlines()
    assert lines[0].startswith("step 1.000 → 1.000 ms")
    assert lines[1] == "tokens per step 4,096 → 8,192  (× 2)"
    assert lines[2].startswith("time per token 244 → 122 ns  (−50.0 %, ")
    (token,) = found.document()["token"]["rows"]
    assert (token["base_tokens"], token["new_tokens"]) == (4096, 8192)
    assert token["base_ns"] == pytest.approx(MS / 4096)
    assert token["new_ns"] == pytest.approx(MS / 8192)
    assert "tokens per step: 4,096 in base, 8,192 in new" in found.notes
    assert list(found.token["change_share"]) == [-0.5]
    verdict = comparison_view(found.document()).verdict
    assert "It is of other work: tokens per step 4,096 → 8,192" in verdict


@pytest.mark.parametrize("expression", ["step>-3%", "step>-1us", "compute>+1%"])
def test_a_gate_on_the_step_says_that_the_work_changed(expression):
    offered = "-3%" if expression.endswith("-3%") else "+1%" if "+1%" in expression else "+2%"
    remark = other_work().check(expression)["remark"]
    told = "tokens per step 4,096 → 8,192: a gate on time per token is"
    assert remark.endswith(f"{told} 'token>{offered}'")


def test_a_gate_on_time_per_token():
    found = other_work()
    assert found.check("token>-49%")["verdict"] == "passed"
    assert found.check("token>-51%")["verdict"] == "failed"
    assert found.check("token>-51%")["remark"] in (BEYOND, WITHIN)
    assert "tokens" not in found.check("memory>+1%")["remark"]


def test_of_equal_work_nothing_is_said_and_of_unknown_work_a_gate_is_not_known():
    same = Comparison(Run(ran(steps=4)), Run(ran(steps=4)))
    assert "tokens per step" not in str(same)
    assert same.check("step>+2%")["remark"] in (BEYOND, WITHIN)
    assert list(same.token["change_ns"]) == [0]
    law = Law("device_work", "fail", "programs are mixed up", (Need.PROGRAMS,))
    unknown = Comparison(Run(dataclasses.replace(ran(steps=4), trust=(law,))), Run(ran(steps=4)))
    assert unknown.document()["token"]["rows"] == []
    assert "tokens per step: not known in base, 4,096 in new" in unknown.notes
    gate = unknown.check("token>+2%")
    assert (gate["verdict"], gate["change"]) == ("not known", None)
    assert "tokens per step of both" in gate["remark"]


def test_a_comparison_says_that_one_run_alone_recorded_routing():
    found = Comparison(Run(ran()), Run(routed(ran(), [4096])))
    assert "routing: none in base, recorded in new" in found.notes
