"""Operations and the kernels that no op is known for, on rows written by hand."""

from builders.work import hlo, kernel, traced

from moeprof.analyzers.questions.ops import ops


def test_a_kernel_of_a_guessed_op_takes_nothing_from_the_op_of_its_name():
    """XLA names kernels after ops, so that a guess's kernel may be called as a known op is."""
    rows = (hlo("add", "fusion", shape="f32[8]", op_name="jit(s)/norm/add"), hlo("other", "copy"))
    sure = kernel("add", 0, 300, "k1")
    guess = kernel("other", 400, 200, "add", evidence="graph", confidence=0.3)
    table = ops(traced((sure, guess), rows)).table
    shown = table[["op", "opcode", "shape", "kernel", "per_step_ns"]].to_numpy().tolist()
    assert shown == [["add", "fusion", "f32[8]", "k1", 300.0], ["add", "", "", "add", 200.0]]


def test_an_op_of_two_kernels_names_the_costliest():
    """Two runs of two kernels: four pieces."""
    rows = (hlo("dot", "custom-call", shape="f32[8]"),)
    work = [kernel("dot", 1000 * i, 100, "split") for i in range(2)]
    work += [kernel("dot", 1000 * i + 500, 300, "sum") for i in range(2)]
    (row,) = ops(traced(work, rows)).table.to_dict("records")
    assert (row["kernel"], row["calls"], row["per_step_ns"]) == ("sum (+1 more)", 4.0, 800.0)
