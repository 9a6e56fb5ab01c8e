import re
from itertools import groupby

from moeprof.analyzers.classify import findings
from moeprof.analyzers.classify.components import HOW
from moeprof.analyzers.classify.findings import NAMELESS, RULES


def test_the_docstring_lists_the_evidence_in_the_order_of_the_table():
    told = re.findall(r"^\d+\. (\w+) ", findings.__doc__ or "", re.MULTILINE)
    evidence = [HOW[how].evidence for how, _ in RULES]
    assert told == [name for name, _ in groupby(evidence)]


def test_of_a_nameless_op_only_targets_and_structure_speak():
    assert {HOW[how].evidence for how, _ in NAMELESS} == {"target", "structure"}
    assert [rule for rule in RULES if rule in NAMELESS] == list(NAMELESS)
