"""docs/trust.md lists every law of the registry, and records hold no other."""

import re
import runpy
from pathlib import Path

from moeprof.analyzers.laws import laws_of
from moeprof.ingest import open_run
from moeprof.tables.law import REGISTRY

ROOT = Path(__file__).parents[2]
NAMES = [law.name for law in REGISTRY]
_JUDGED = re.compile(r'(?:Law\(\s*|\bcheck = |\bCHECK = )"(\w+)"', re.IGNORECASE)
JUDGES = [ROOT / "moeprof" / "ingest", ROOT / "analyzers" / "laws"]


def test_the_page_is_what_the_registry_says():
    page = (ROOT / "docs" / "trust.md").read_text()
    assert runpy.run_path(str(ROOT / "docs" / "write_trust.py"))["written"](page) == page


def test_each_law_stands_once():
    assert len(set(NAMES)) == len(NAMES)


def test_the_record_of_a_capture_holds_laws_of_the_registry_in_its_order():
    trace = open_run(ROOT / "tests" / "data" / "gpu" / "sparse-gmm-deepep")
    found = [law.check for law in laws_of(trace)]
    assert len(found) > 25
    assert found == [name for name in NAMES if name in found]


def test_every_law_that_the_code_judges_is_in_the_registry():
    files = [file for folder in JUDGES for file in folder.rglob("*.py")]
    texts = [file.read_text() for file in files]
    judged = {name for text in texts for name in re.findall(_JUDGED, text)}
    assert {"launches", "tokens"} <= judged
    assert judged <= set(NAMES)
