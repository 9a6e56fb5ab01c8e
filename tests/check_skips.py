"""Fail when a test was skipped that the allow-list does not name with a reason.

Usage: check_skips.py JUNIT_XML ALLOW_LIST. A line of the list is `test id  # reason`.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def skipped_tests(junit: Path) -> set[str]:
    """Ids `module::name` of the tests that a run skipped."""
    cases = ET.parse(junit).getroot().iter("testcase")
    skipped = (case for case in cases if case.find("skipped") is not None)
    return {f"{case.get('classname')}::{case.get('name')}" for case in skipped}


def allowed_skips(path: Path) -> set[str]:
    """Ids in the allow-list; each must carry a reason."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    entries = [line.partition("#") for line in lines if line and not line.startswith("#")]
    unexplained = [test for test, _, reason in entries if not reason.strip()]
    if unexplained:
        sys.exit(f"{path}: no reason given for {', '.join(unexplained)}")
    return {test.strip() for test, _, _ in entries}


def main() -> None:
    """Compare the two and name what is not allowed."""
    junit, allow_list = Path(sys.argv[1]), Path(sys.argv[2])
    unexpected = sorted(skipped_tests(junit) - allowed_skips(allow_list))
    if unexpected:
        sys.exit("skipped, but not in the allow-list:\n  " + "\n  ".join(unexpected))
    print(f"no test skipped beyond {allow_list}")


if __name__ == "__main__":
    main()
