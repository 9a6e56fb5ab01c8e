"""Pairs of a begin and an end are the complete event that they tell of."""

import json

from builders.chrome import Rank, write

from moeprof.ingest import open_run


def in_pairs(events):
    """Each complete event as a pair, in order of time on every thread, inner ones inside."""
    pairs, rest = [], []
    for event in events:
        if event["ph"] != "X":
            rest.append(event)
            continue
        begin = {**event, "ph": "B"}
        length = begin.pop("dur")
        end = {"ph": "E", "pid": event["pid"], "tid": event["tid"], "ts": event["ts"] + length}
        pairs += [(begin["ts"], 1, -length, begin), (end["ts"], 0, 0, end)]
    return rest + [event for *_, event in sorted(pairs, key=lambda pair: pair[:3])]


def opened(folder, name, events):
    return open_run(write(folder / f"{name}.trace.json", json.dumps({"traceEvents": events})))


def test_pairs_are_read_as_complete_events(tmp_path):
    events = Rank(1, 701, 10).jax()
    whole, pairs = (opened(tmp_path, n, e) for n, e in (("x", events), ("be", in_pairs(events))))
    columns = ["name", "kind", "start_ns", "duration_ns", "step"]
    kept = [trace.events[columns].astype({"name": "str"}) for trace in (whole, pairs)]
    assert len(kept[0]) > 0
    assert kept[0].to_dict("list") == kept[1].to_dict("list")
    assert pairs.steps["duration_ns"].tolist() == whole.steps["duration_ns"].tolist()


def test_an_end_without_a_beginning_is_counted_and_left_out(tmp_path):
    events = [*Rank(1, 701, 10).jax(), {"ph": "E", "pid": 1, "tid": 7, "ts": 5}]
    trace = opened(tmp_path, "odd", events)
    left_out = trace.dropped.set_index("what")["count"]
    assert left_out["ends without a beginning"] == 1
