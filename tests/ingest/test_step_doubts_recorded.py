"""Update programs and annotated evaluations raise no false alarm."""

import pytest

from moeprof.ingest import open_run


@pytest.mark.parametrize("name", ["between_steps/update_every_third", "spill/evaluation"])
def test_steps_are_in_no_doubt(recorded, name):
    trace = open_run(recorded / "cases" / f"{name}.xplane.pb.gz")
    assert next(own for own in trace.trust if own.check == "steps").verdict == "ok"
