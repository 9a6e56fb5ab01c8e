from builders.hlo import computation, hlo_proto, op

from moeprof.ingest.hlo.programs import parse_program


def links(*computations) -> dict[str, tuple[str, str]]:
    items = parse_program(hlo_proto(*computations)).module.instructions
    return {item.name: (item.async_pair, item.async_opcode) for item in items}


def test_a_start_and_its_done_name_each_other():
    found = links(
        computation(
            "main",
            op("x", "parameter", "f32[4]"),
            op("ag-start", "all-gather-start", "(f32[4], f32[8])", "x"),
            op("ag-done", "all-gather-done", "f32[8]", "ag-start"),
        )
    )
    assert found["ag-start"] == ("ag-done", "all-gather")
    assert found["ag-done"] == ("ag-start", "all-gather")
    assert found["x"] == ("", "")


def test_wrapped_work_is_named_by_what_it_communicates():
    found = links(
        computation(
            "wrapped",
            op("p", "parameter", "f32[4]"),
            op("rs", "reduce-scatter", "f32[2]", "p"),
            op("out", "bitcast", "f32[2]", "rs"),
        ),
        computation(
            "main",
            op("x", "parameter", "f32[4]"),
            op("start", "async-start", "((f32[4]), f32[2])", "x", called=("wrapped",)),
            op("update", "async-update", "((f32[4]), f32[2])", "start"),
            op("done", "async-done", "f32[2]", "update"),
        ),
    )
    assert found["start"] == ("done", "reduce-scatter")
    assert found["update"] == ("start", "reduce-scatter")
    assert found["done"] == ("start", "reduce-scatter")


def test_wrapped_computation_without_communication_is_named_by_its_result():
    found = links(
        computation(
            "wrapped",
            op("p", "parameter", "f32[4]"),
            op("f", "fusion", "f32[4]", "p"),
            op("out", "tuple", "(f32[4])", "f"),
        ),
        computation(
            "main",
            op("x", "parameter", "f32[4]"),
            op("start", "async-start", "f32[4]", "x", called=("wrapped",)),
            op("done", "async-done", "f32[4]", "start"),
        ),
    )
    assert found["start"] == ("done", "fusion")


def test_send_and_recv_end_in_their_done():
    found = links(
        computation(
            "main",
            op("x", "parameter", "f32[4]"),
            op("send.1", "send", "f32[4]", "x"),
            op("recv.1", "recv", "f32[4]", "x"),
            op("send-done.1", "send-done", "f32[4]", "send.1"),
            op("recv-done.1", "recv-done", "f32[4]", "recv.1"),
        )
    )
    assert found["send.1"] == ("send-done.1", "send")
    assert found["recv-done.1"] == ("recv.1", "recv")


def test_a_start_that_another_round_ends_has_no_partner():
    found = links(
        computation(
            "main",
            op("state", "parameter", "f32[4]"),
            op("recv.1", "recv", "f32[4]", "state"),
            op("recv-done.1", "recv-done", "f32[4]", "state"),
        )
    )
    assert found["recv.1"] == ("", "recv")
    assert found["recv-done.1"] == ("", "")


def test_updates_that_wait_for_each_other_end():
    found = links(
        computation(
            "main",
            op("a", "async-update", "f32[4]", "b"),
            op("b", "async-update", "f32[4]", "a"),
        )
    )
    assert found == {"a": ("", ""), "b": ("", "")}
