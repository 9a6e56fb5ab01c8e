from moeprof.recording.next_step import NextStep


def test_the_first_step_of_the_window_s_kind_after_it_is_noted_without_the_time_of_closing():
    """Closed for 400 ns; another function runs at 900, the step at 1,000: it would have at 600."""
    facts = {}
    after = NextStep()
    assert not after.begins("train", 50)
    after.expect(facts, "train", 400)
    assert not after.begins("helper", 900)
    assert after.begins("train", 1_000)
    assert facts == {"next_step_start_ns": 600}
    assert not after.begins("train", 2_000)
    assert facts == {"next_step_start_ns": 600}
