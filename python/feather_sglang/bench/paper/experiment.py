"""What an experiment is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from feather_sglang.bench.paper.verdict import Verdict

Row = Mapping[str, Any]
Work = tuple[Any, ...]

MODELLED = "modelled: a roofline of the GPUs with assumed constants; nothing ran on a GPU"


class Experiment(NamedTuple):
    """One claim, and how it is tested."""

    name: str
    claim: str
    """The paper's, where its abstract or its authors say so; else the question that is asked."""
    source: str
    """``abstract``, or ``question``."""
    method: str
    kind: str
    """Measured or modelled, and on what."""
    work: Callable[[bool], Iterator[Work]]
    """The cells, fewer of them if quick."""
    measure: Callable[[Work], Row]
    """One cell: a plain row. Called in other processes."""
    verdict: Callable[[Sequence[Row]], Verdict]
    alone: bool = False
    """It measures times, so that nothing may run beside it."""
