"""The gate that learns what a step costs, and stops where that serves the queue faster."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from feather_sglang.core.gates.forming import Formed, Forming
from feather_sglang.core.gates.rates import Rate, Trial
from feather_sglang.core.gates.regression import Affine, Coefficients, Load, Regression
from feather_sglang.core.interface import Candidate, Step, View

LOOKING = ("look alike", "look mixed")
"""Regimes in which the gate only learns. The others: fill, alike."""


class Model:
    """Stops exactly when that lowers the predicted time in which the queue is served.

    **What is maximised.** Decode tokens per second over all the time that requests experience, prefill included. What
    is deferred is paid for later: the rate is that of everything served, so a batch of one, which pays the fixed part
    of a step for one token, cannot game it.

    **Two regimes.** *Fill* admits whoever is planned. *Alike* opens no family beside another: it holds back those whose
    prefix would compete for the cache with the one that is read again and again. No single admission leads from one to
    the other (in a mixed batch one more stranger costs nothing), so the gate predicts what each would give from the
    learned cost of a step, tries *alike* if that promises ``MARGIN`` more, and stays where the measured rate is higher.
    Where reading again costs nothing (rows sorted by family, a kernel that shares) it concludes: never stop.

    **Joining.** In *fill*, each prefill pass stops decode for a fixed time. With a backlog that outlasts the free rows,
    requests wait for each other until what the empty rows cost adds up to that time: the rule of the economic order
    quantity, at most twice the optimum whatever comes. A row left empty now is a row-step that is run later, at the
    *price*: the mean of what is nobody's alone in a step (its fixed part, shared prefixes, missed re-reads, prefill
    passes) for each row.

    **Exploration.** What one family costs shows only to who has seen it. So the gate looks at ``PROBE`` decode steps of
    one family, few rows first, and then at as many of several: at the start, where that costs least, after a change of
    the device, and, as long as reading shared KV again is a good part of a step, at gaps that double. Where nothing is
    shared nothing is held back. It has no random part: equal on every rank.
    """

    name = "model"
    REFIT, REFIT_IN_PROBE = 16, 4
    """Decode steps between two solutions."""
    HORIZON = 192
    """Decode steps over which prices and rates are means."""
    FEW, DOUBLING = 4, 6
    """Rows that a probe of an empty batch begins with, and passes until it may have twice as many."""
    PROBE, PATIENCE = 30, 240
    """Decode steps wanted of each kind of batch, and those after which the gate looks no longer."""
    EMPTY = 0.125
    """Share of the rows that joining leaves empty at most, whatever the fit says of their price."""
    APART = 64
    """Decode steps without two rows that share, after which there are no families to keep apart."""
    MARGIN, OPTIMISM = 1.05, 2.0
    """A trial must promise so much more, with so many times the rows of a family that were seen: its queue grows while
    others are served."""
    WORTH = 0.05
    """Share of a step that reading shared KV again must take for looking again to be worth it."""
    FIRST_GAP, LONGEST_GAP = 4096, 65_536
    """Decode steps until the gate looks again."""
    MIXED = 1.3
    """Effective families from which a batch counts as several."""

    def __init__(self, seed: int = 0) -> None:
        self._decode = Regression()
        self._prefill = Affine()
        self._formed = Formed()
        self._mean = Load(0.0, 0.0, 0.0, 0.0)
        self._shared = self._passes = self._averaged = 0.0
        """Of a decode step in this regime: mean shared KV, prefill passes; and the steps in these means."""
        self._forgone, self._most = 0.0, 0.0
        """Seconds that rows left empty have cost since the last prefill pass, and the most rows of late."""
        self._prefilled, self._filled = 0.0, 0
        """Seconds of prefill since the last decode step, and passes."""
        self._mixed, self._decoded = 0, 0.0
        """Tokens that rows generated meanwhile together with chunks of prompts, and seconds of that."""
        self._steps = 0
        self._stops = {"mixing": 0, "joining": 0, "probing": 0}
        self._gap = self.FIRST_GAP
        self._since: int | None = None
        """The step from which the regime is in force; None: nothing was decided in it."""
        self._opened: deque[int] = deque(maxlen=256)
        """Steps at which a family was opened in an empty batch, and that are not known yet."""
        self._look()

    # --- deciding ------------------------------------------------------------------------------------------------

    def cut(self, view: View, candidates: Sequence[Candidate]) -> int:
        if self._since is None and not self._first_batch(view):
            self._since = view.step
        taken, why = self._taken(view, candidates)
        taken = max(taken, view.overdue)
        self._admitted += taken
        if taken < len(candidates):
            self._stops[why] += 1
        if taken and not view.order:
            self._opened.append(view.step)
        self._formed.add(view.step, Forming(view).add(candidates[:taken]))
        return taken

    def _taken(self, view: View, candidates: Sequence[Candidate]) -> tuple[int, str]:
        """How many, and why not more."""
        if self._regime == "look alike":
            return self._one_family(view, candidates), "probing"
        if self._regime == "alike":
            return self._one_family(view, candidates), "mixing"
        rows = len(view.order)
        if self._regime == "fill" and candidates:
            if rows > self._most * (1 - self.EMPTY) and view.waiting > len(candidates) and not view.overdue:
                self._forgone += self._price(self._decode.coefficients) * len(candidates)
                if self._forgone < self._prefill.base:
                    return 0, "joining"
            self._forgone, self._most = 0.0, max(rows + len(candidates), 0.99 * self._most)
        return len(candidates), ""

    def _first_batch(self, view: View) -> bool:
        """Whether the gate looks at several families in a batch of which nobody was replaced yet.

        Its prefill came at once, and its rate is one without passes: nothing that goes on.
        """
        waited = self._steps >= self._until - self.PATIENCE // 2
        return self._regime == "look mixed" and self._admitted <= len(view.order) and not waited

    def _price(self, coefficients: Coefficients) -> float:
        """Seconds of overhead for each row and step."""
        mean = self._mean
        seconds = (
            coefficients.step
            + coefficients.distinct * self._shared
            + coefficients.missed * mean.missed(coefficients.edge)
            + self._prefill.base * self._passes
        )
        return seconds / mean.rows if mean.rows else 0.0

    def _one_family(self, view: View, candidates: Sequence[Candidate]) -> int:
        """How many can join without another prefix competing for the cache.

        While the gate only looks, few at first; else no family is opened beside a row that still runs, whose siblings
        would come, too.
        """
        forming = Forming(view)
        looks = self._regime == "look alike"
        if forming.groups > 1 or (forming.groups and forming.strangers and not looks):
            return 0
        self._looked += looks
        room = self.FEW << self._looked // self.DOUBLING if looks else 1 << 30
        for i, candidate in enumerate(candidates):
            stranger = candidate.add_total < 2 * candidate.add_distinct
            if (
                forming.opens(candidate)
                or (stranger and view.order and not looks)
                or (forming.families and forming.rows >= room)
            ):
                return max(i, 0 if view.order else 1)
            forming.add([candidate])
        return len(candidates)

    # --- learning ------------------------------------------------------------------------------------------------

    def observe(self, step: Step) -> None:
        if step.kind == "decode":
            if step.requests:
                self._observe_decode(step)
            return
        decode = 0.0
        if step.kind == "mixed":  # what a decode step of these rows would not have taken is that of a prefill pass
            load = Load(step.requests, step.total_kv, step.distinct_kv, 0.0)
            decode = min(self._decode.coefficients.seconds(load), step.seconds)
            self._mixed += step.tokens
        self._decoded += decode
        self._prefilled += self._prefill.observe(step.computed, step.seconds - decode)
        self._filled += 1
        self._passes += 1 / min(self._averaged + 1, self.HORIZON)

    def _observe_decode(self, step: Step) -> None:
        self._steps += 1
        _, _, shared, competing, families = self._formed.batch_of(step)
        load = Load(step.requests, step.total_kv, step.distinct_kv, competing)
        changes = self._decode.changes
        seconds = self._decode.observe(load, step.seconds)
        if self._regime != "alike" or self._tried:  # else families that were there before are still leaving
            self._averaged += 1
            rate = 1 / min(self._averaged, self.HORIZON)
            self._mean = Load(*(mean + (new - mean) * rate for mean, new in zip(self._mean, load, strict=True)))
            self._shared += (shared - self._shared) * rate
            self._passes -= self._passes * rate
        if self._decode.changes != changes:
            self._gap = self.FIRST_GAP
            self._look()
        if self._since is not None and step.seq >= self._since:
            self._follow(step.seq, load, families, step.tokens + self._mixed, seconds + self._decoded)
        self._prefilled, self._filled, self._mixed, self._decoded = 0.0, 0, 0, 0.0
        if self._steps % (self.REFIT_IN_PROBE if self._regime in LOOKING else self.REFIT) == 0:
            self._decode.solve()

    # --- regimes -------------------------------------------------------------------------------------------------

    def _enter(self, regime: str) -> None:
        """Steps that are told later, and ran before the next decision, say nothing about it."""
        self._regime = regime
        self._since = None
        self._admitted = 0

    def _look(self) -> None:
        """Everything anew: one family first."""
        self._enter("look alike")
        self._seen_alike = self._seen_mixed = self._looked = 0
        self._family = Load(0.0, 0.0, 0.0, 0.0)
        self._rates = {"fill": Rate(self.HORIZON), "alike": Rate(self.HORIZON)}
        self._trial = Trial()
        self._until = self._steps + self.PATIENCE
        self._tried = self._apart = self._undecided = 0

    def _follow(self, seq: int, load: Load, families: float, tokens: int, seconds: float) -> None:
        """What a decode step says about the regime."""
        late = self._steps >= self._until
        alike = families < self.MIXED
        if self._regime == "look alike":
            self._seen_alike += families > 0 and alike
            if alike and load.rows > self._family.rows:
                self._family = load
            if self._seen_alike >= self.PROBE or late:
                self._enter("look mixed")
                self._until = self._steps + self.PATIENCE
                self._start_means()
            return
        if self._regime == "fill" or (self._regime == "look mixed" and not (families and alike)):
            self._rates["fill"].add(tokens, seconds, self._prefilled, self._filled)
        if self._regime == "look mixed":
            self._seen_mixed += not alike
            if self._seen_mixed >= self.PROBE or late:
                self._decode.solve()
                self._enter("fill")
                self._until, self._undecided = self._steps + self._gap, self._steps + self.PATIENCE
                self._consider()
        elif self._regime == "alike":
            self._follow_alike(seq, families, tokens, seconds)
        elif late and self._could_matter():
            self._gap = min(2 * self._gap, self.LONGEST_GAP)
            self._look()
        elif self._steps < self._undecided and self._steps % self.REFIT == 0:
            self._consider()

    def _follow_alike(self, seq: int, families: float, tokens: int, seconds: float) -> None:
        """Whether to go on with one family at a time."""
        late, trial = self._steps >= self._until, self._trial
        self._apart = 0 if families else self._apart + 1
        if not self._tried and families >= self.MIXED and not late:
            return  # families that were there before are still leaving
        self._tried += 1
        rates, base = self._rates, self._prefill.estimate
        rates["alike"].add(tokens, seconds, self._prefilled, self._filled)
        loses = False
        if self._tried == 1:
            loses = families >= self.MIXED  # it did not come to one family
            self._until = self._steps + self._gap
        elif late:
            loses = rates["alike"].cost(base) > rates["fill"].cost(base)
            self._until = self._steps + self._gap
        opened = self._opened
        while opened and opened[0] <= seq:
            opened.popleft()
            loses |= trial.end(rates["fill"].cost(base))
        trial.add(tokens, seconds + self._filled * base)
        if trial.steps >= trial.LONGEST:
            loses |= trial.end(rates["fill"].cost(base))
        if loses or self._apart > self.APART:
            self._enter("fill")
            self._until = self._steps + self._gap
            self._start_means()

    def _consider(self) -> None:
        """Tries one family at a time, if that promises more."""
        if not self._seen_mixed or self._promise() <= self.MARGIN * self._rates["fill"].value:
            return
        self._undecided = 0
        self._enter("alike")
        self._trial, self._tried, self._until = Trial(), 0, self._steps + self.PATIENCE
        self._start_means()
        self._mean, self._shared, self._averaged = self._promised(), self._family.competing, self.PROBE
        self._passes = 0.0

    def _promised(self) -> Load:
        """A batch of one family, as large as it may become."""
        family = self._family
        rows = min(self.OPTIMISM * family.rows, max(self._mean.rows, family.rows))
        grown = rows / family.rows if family.rows else 0.0
        private = family.distinct - family.competing
        return Load(rows, family.total * grown, family.competing + private * grown, family.competing)

    def _promise(self) -> float:
        """Decode tokens per second of that batch, with the prefill that a token has cost so far."""
        batch, fill = self._promised(), self._rates["fill"]
        seconds = self._decode.coefficients.seconds(batch)
        return 1 / (seconds / batch.rows + fill.prefill / fill.tokens) if batch.rows and fill.tokens else 0.0

    def _start_means(self) -> None:
        self._averaged = 0.0

    def _could_matter(self) -> bool:
        """Whether reading shared KV again takes a good part of a step, or would if it missed the cache."""
        coefficients, mean = self._decode.coefficients, self._mean
        reread = (coefficients.total + coefficients.missed) * (mean.total - mean.distinct)
        return reread > self.WORTH * coefficients.seconds(mean)

    # --- what it knows -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Coefficients in seconds; stops by their reason."""
        coefficients = self._decode.coefficients
        return {
            "coefficients": coefficients._asdict(),
            "noise": self._decode.noise,
            "prefill_pass": self._prefill.base,
            "price": self._price(coefficients),
            "steps": self._steps,
            "changes": self._decode.changes,
            "regime": self._regime,
            "tokens_per_second": {name: rate.value for name, rate in self._rates.items()},
            "stops": dict(self._stops),
        }

    def dump(self) -> dict[str, Any]:
        return {"decode": self._decode.dump(), "prefill": self._prefill.dump(), "mean": list(self._mean)} | {
            "shared": self._shared,
            "passes": self._passes,
        }

    def load(self, learned: Mapping[str, Any]) -> None:
        try:
            decode, prefill = Regression(), Affine()
            decode.load(learned["decode"])
            prefill.load(learned["prefill"])
            mean = Load(*map(float, learned["mean"]))
            shared, passes = float(learned["shared"]), float(learned["passes"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is not what the gate model learned: {error}") from None
        self._decode, self._prefill, self._mean, self._shared, self._passes = decode, prefill, mean, shared, passes
        self._averaged = self.HORIZON
