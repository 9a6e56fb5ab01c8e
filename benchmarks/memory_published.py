"""Question: how right is `moeprof memory` about runs whose memory was published?

    python benchmarks/memory_published.py [--check]

Projects every row of data/published_memory.toml, prints rows and families, and writes
results/memory_published.json; with ``--check`` it compares with that file instead and exits with 1
where they differ. It takes seconds and needs no device.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from error_bands import Error, Key, band_of, key_of_published, of_published
from published_rows import Family, read_published
from published_score import FamilyScore, Score, as_json, score_all, score_family, summary

from moeprof.projector.framework import NOT_MEASURED, ErrorBand
from moeprof.projector.memory import project
from moeprof.projector.setting import Counts, Setting

RESULT = Path(__file__).parent / "results" / "memory_published.json"
CANDIDATES = tuple(
    Counts(logits, softmax, output)
    for logits, softmax, output in itertools.product((1, 2), (1, 2), (True, False))
)


def measure(families: Sequence[Family]) -> dict[str, object]:
    """The document of the result file."""
    scores = score_all(families)
    lines = summaries(families, scores)
    return {
        "schema": "moeprof.benchmark.memory_published/1",
        "overall": overall(scores),
        "by_metric": {name: overall(group) for name, group in _by_metric(scores).items()},
        "out_of_sample": overall(_of_families(scores, [f for f in families if not f.fitted])),
        "families": [
            {**as_json(line), "platform": f.platform, "source": f.source, "fitted": f.fitted}
            for f, line in zip(families, lines, strict=True)
        ],
        "left_out": left_out(families),
        "left_out_bands": left_out_bands(families),
        "rows": [as_json(score) for score in scores],
    }


def summaries(families: Sequence[Family], scores: Sequence[Score]) -> list[FamilyScore]:
    """One line per family, in their order."""
    return [summary(family, _of_families(scores, [family])) for family in families]


def overall(scores: Sequence[Score]) -> dict[str, object]:
    """Verdicts and errors over some rows; errors as shares, worst by absolute value."""
    errors = [s.error for s in scores if s.error is not None]
    static = [
        s.static_error for s in scores if s.static_error is not None and not s.is_static_input
    ]
    verdicts = [s.verdict_right for s in scores if s.verdict_right is not None]
    decisive = [
        s.verdict_right
        for s in scores
        if s.verdict_right is not None and s.projected_verdict != "borderline"
    ]
    return {
        "rows": len(scores),
        "not_projected": sum(s.unknown is not None for s in scores),
        "sizes": len(errors),
        "median_error": round(statistics.median(map(abs, errors)), 4) if errors else None,
        "bias": round(statistics.median(errors), 4) if errors else None,
        "worst_error": round(max(errors, key=abs), 4) if errors else None,
        "static_sizes": len(static),
        "static_median_error": round(statistics.median(map(abs, static)), 4) if static else None,
        "verdicts": len(verdicts),
        "verdicts_right": sum(verdicts),
        "verdicts_borderline": sum(s.projected_verdict == "borderline" for s in scores),
        "verdicts_decisive": len(decisive),
        "decisive_right": sum(decisive),
        "upper_bounds": sum(s.is_bound for s in scores),
    }


def left_out(families: Sequence[Family]) -> list[dict[str, object]]:
    """Each Megatron family, predicted with counts that the other families alone choose.

    The counts are those of `Counts`. The choice minimises the mean over the others of their median
    absolute errors, so that a family with many rows weighs no more than one with few. Where
    ``as_shipped`` holds, the family took no part in what was chosen. The expert transients of
    MaxText (`moeprof.projector.frameworks.maxtext.account.FITTED`) cannot be chosen so: one family
    alone has measured them.
    """
    chosen_on = [family for family in families if _is_megatron(family)]
    out = []
    for family in chosen_on:
        others = [f for f in chosen_on if f is not family]
        best = min(CANDIDATES, key=lambda counts, others=others: _loss(others, counts))
        line = summary(family, score_family(family, best))
        out.append({**as_json(line), "counts": vars(best), "as_shipped": best == Counts()})
    return out


def left_out_bands(families: Sequence[Family]) -> list[dict[str, object]]:
    """Verdicts of each family with the band that the other families alone measured."""
    out = []
    for family in families:
        by_line: dict[Key, list[Error]] = {}
        for key, error in of_published([f for f in families if f is not family]):
            by_line.setdefault(key, []).append(error)
        found = []
        for row in family.rows:
            if row.unknown or row.metric == "against base" or "verdict" not in row.values:
                continue
            band = _band(row.setting(), by_line)
            found.append((row.values["verdict"], project(row.setting()).verdict_within(band)))
        if found:
            decisive = [wanted == verdict for wanted, verdict in found if verdict != "borderline"]
            counts = {"verdicts": len(found), "decisive": len(decisive), "right": sum(decisive)}
            out.append({"family": family.name, **counts})
    return out


def _band(setting: Setting, by_line: Mapping[Key, Sequence[Error]]) -> ErrorBand:
    """The band of a setting's account; that of its own where no family measured it at all."""
    shipped, key = setting.program.error_band(setting), key_of_published(setting)
    if not shipped.plans:
        return shipped
    errors = by_line.get(key, ())
    return band_of(errors, *key[-2:]) if errors else ErrorBand(NOT_MEASURED, shipped.of)


def table(scores: Sequence[Score], lines: Sequence[FamilyScore]) -> str:
    """Rows, then families."""
    return "\n".join([*map(_row_text, scores), "", *map(_family_text, lines)])


def main() -> int:
    """Measure, print, and write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the result file")
    options = parser.parse_args()
    families = read_published()
    scores = score_all(families)
    print(table(scores, summaries(families, scores)))
    document = measure(families)
    print(json.dumps(document["overall"], indent=1))
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if options.check:
        return 0 if RESULT.read_text(encoding="utf-8") == text else 1
    RESULT.write_text(text, encoding="utf-8")
    return 0


def _row_text(s: Score) -> str:
    text = f"{s.id}  {s.family[:24]:24}  {s.metric or '':12}"
    if s.unknown:
        return f"{text}  not projected: {s.unknown}"
    if s.error is not None:
        text += f"  {s.projected_gib:7.2f} of {s.published_gib:7.2f} GiB  {s.error:+6.1%}"
    if s.static_error is not None:
        text += f"  static {s.static_error:+6.1%}"
    if s.verdict_right is not None:
        text += f"  {s.verdict}, projected {s.projected_verdict}"
        text += "" if s.verdict_right else "  WRONG"
    return text


def _family_text(line: FamilyScore) -> str:
    text = f"{line.family:28}"
    if line.median_error is not None:
        text += (
            f"  {line.sizes:2} sizes, median error {line.median_error:5.1%}, bias {line.bias:+6.1%}"
        )
    if line.verdicts:
        text += f"  {line.verdicts_right} of {line.verdicts} verdicts"
    return text


def _of_families(scores: Sequence[Score], families: Sequence[Family]) -> list[Score]:
    names = {family.name for family in families}
    return [score for score in scores if score.family in names]


def _is_megatron(family: Family) -> bool:
    projected = [row for row in family.rows if not row.unknown and row.metric]
    return any(row.values["world"] == "megatron" for row in projected)


def _loss(families: Sequence[Family], counts: Counts) -> float:
    errors = [summary(f, score_family(f, counts)).median_error for f in families]
    return statistics.mean(error for error in errors if error is not None)


def _by_metric(scores: Sequence[Score]) -> dict[str, list[Score]]:
    names = sorted({s.metric for s in scores if s.metric is not None and s.unknown is None})
    return {name: [s for s in scores if s.metric == name] for name in names}


if __name__ == "__main__":
    sys.exit(main())
