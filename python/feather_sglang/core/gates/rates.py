"""How fast decode goes in a regime of the model gate, and whether it goes slower than in another one."""

from __future__ import annotations


class Rate:
    """Means over decode steps, with forgetting.

    :param horizon: steps after which one counts 1/e.
    """

    def __init__(self, horizon: int) -> None:
        self._kept = 1 - 1 / horizon
        self.tokens = self.decode = self.prefill = self.passes = 0.0

    def add(self, tokens: int, decode: float, prefill: float, passes: int) -> None:
        """A decode step of so many tokens and seconds; before it, so many seconds in so many prefill passes."""
        self.tokens = self.tokens * self._kept + tokens
        self.decode = self.decode * self._kept + decode
        self.prefill = self.prefill * self._kept + prefill
        self.passes = self.passes * self._kept + passes

    @property
    def value(self) -> float:
        """Decode tokens per second, prefill included."""
        seconds = self.decode + self.prefill
        return self.tokens / seconds if seconds else 0.0

    def cost(self, base: float) -> float:
        """Seconds for a token: decode, and the fixed part ``base`` of prefill passes.

        The rest of prefill is left out: a request brings the same prompt in every regime, and a batch that is filling
        up would seem slow for what it computes in advance.
        """
        return (self.decode + base * self.passes) / self.tokens if self.tokens else 0.0


class Trial:
    """Whether batches of one family cost more than a known cost: a sequential test (CUSUM; Page, Biometrika 1954).

    A family is dear when it is admitted and cheap when it has been, so it counts when it ends, or after ``LONGEST``
    steps: by its steps times the share of their time that the other regime would not have taken, less ``SMALL``, by
    which the sizes of families vary. What was lost and not won back is added up: a large loss is noticed soon. What
    ends first does not count: rows of other families were still leaving.
    """

    LOST, SMALL, LONGEST = 24.0, 0.03, 128
    """Steps that may be lost; and steps after which a family that goes on counts."""

    def __init__(self) -> None:
        self.lost = 0.0
        self.steps = 0
        """Of the family that runs."""
        self._begun = False
        self._tokens = self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """A decode step, with the fixed part of the prefill passes before it."""
        self.steps += 1
        self._tokens += tokens
        self._seconds += seconds

    def end(self, cost: float) -> bool:
        """A family has ended; whether the regime loses against ``cost`` seconds for a token."""
        if self._begun and self._seconds:
            lost = 1 - self._tokens * cost / self._seconds
            self.lost = max(self.lost + self.steps * (lost - self.SMALL), 0.0)
        self._begun = True
        self.steps, self._tokens, self._seconds = 0, 0.0, 0.0
        return self.lost > self.LOST
