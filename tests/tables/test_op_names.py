import pytest

from moeprof.tables.name_rule import op_name_parts


@pytest.mark.parametrize("name", ["", "jit(f)/moe/mul", "params['w:1']", "jit(f)/(only)/x", "(a)"])
def test_a_name_that_was_not_merged_comes_back_alone(name):
    assert op_name_parts(name) == (name,)


def test_merged_names_get_their_shared_beginning():
    name = "jit(step)/shard_map/(grad_sync/psum:grad_sync/psum:psum)"
    beginning = "jit(step)/shard_map"
    assert op_name_parts(name) == (
        f"{beginning}/grad_sync/psum",
        f"{beginning}/grad_sync/psum",
        f"{beginning}/psum",
    )


def test_wrappers_of_derivatives_keep_their_brackets():
    name = "jit(f)/(jvp()/while/body/squeeze:transpose(jvp())/while/body/jit(take)/squeeze)"
    assert op_name_parts(name) == (
        "jit(f)/jvp()/while/body/squeeze",
        "jit(f)/transpose(jvp())/while/body/jit(take)/squeeze",
    )


def test_a_group_without_an_end_is_split_too():
    assert op_name_parts("(transpose(jvp())/psum:jvp()") == ("transpose(jvp())/psum", "jvp()")


def test_a_shared_beginning_may_end_inside_a_bracket():
    name = "jit(f)/jvp(block/(attn)/mul:mlp)/add)"
    assert op_name_parts(name) == ("jit(f)/jvp(block/attn)/mul", "jit(f)/jvp(block/mlp)/add")


def test_colons_inside_brackets_split_nothing():
    assert op_name_parts("(x[:,0]/mul:add)") == ("x[:,0]/mul", "add")


def test_brackets_that_the_parts_leave_open_do_not_hide_the_colons():
    assert op_name_parts("jit(f)/(jvp(a:jvp(b") == ("jit(f)/jvp(a", "jit(f)/jvp(b")


def test_groups_in_groups_are_taken_apart():
    assert op_name_parts("jit(f)/(a:b/(c:d))") == ("jit(f)/a", "jit(f)/b/c", "jit(f)/b/d")


def test_groups_nested_without_end_are_left():
    name = "(a:" * 100_000
    assert len(op_name_parts(name)) < 20
