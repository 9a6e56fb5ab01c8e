"""Question: how are the files of several hosts worked on at once?

By threads: numpy, pandas and the native reader let go of the interpreter in their long loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TypeVar

from moeprof.ingest.xspace.threads import thread_count
from moeprof.tell import Tell, unheard

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(
    work: Callable[[Item], Result], items: Sequence[Item], tell: Tell = unheard
) -> list[Result]:
    """Results in the order of the items; the first item that fails, in that order, raises.

    ``tell`` hears of every item that is done.
    """
    numbers = count(1)

    def told(item: Item) -> Result:
        result = work(item)
        tell(next(numbers), len(items))
        return result

    tell(0, len(items))
    threads = min(thread_count(), len(items))
    if threads < 2:
        return [told(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(told, items))
