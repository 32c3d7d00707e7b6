"""Where a backend gets the plan of a decode batch from: the scheduler, or the KV slots of its rows.

Under ``--schedule-policy feather`` the scheduler knows what rows share, and offers it while a batch is run: a forward
pass works on copies of its batch, on which nothing that SGLang does not know survives. Under any other policy the rows'
slots tell.
"""

from __future__ import annotations

from typing import Any

from feather_sglang.core.interface import Decode
from feather_sglang.core.sharing import (
    FREE,
    Costs,
    Paths,
    Sharing,
    SharingCache,
    in_batch_order,
    paths_from_slots,
    paths_of_rows,
)


def paths_of_batch(decode: Decode, reqs: list[Any]) -> Paths:
    """What the rows of a batch share, by what the scheduler core says of all running rows."""
    position = {t.id: row for row, req in enumerate(reqs) if (t := req.__dict__.get("feather")) is not None}
    return paths_of_rows(decode.rows, decode.shared, position, [req.kv.cache_protected_len for req in reqs])


class PlanSource:
    """The plans of one attention backend, and a count of where they came from.

    :param pool: SGLang's ``ReqToTokenPool``.
    :param sharing: ``on`` (whatever the price), ``auto`` (by the costs), ``off``.
    :param adjacent: whether the kernel takes only groups of neighbours in the batch.
    """

    offered: Paths | None = None
    """What the scheduler of this process knows of the rows of the batch that it is running; None: nothing."""

    def __init__(self, pool: Any, sharing: str, costs: Costs, *, adjacent: bool = False) -> None:
        self.sharing = sharing
        self.scheduler = self.slots = 0
        """Decode steps whose plan came from there."""
        self.tokens = self.saved = 0
        """KV tokens of the rows of all decode steps, and of these, those not read because of sharing."""
        self._pool = pool
        self._adjacent = adjacent
        costs = FREE._replace(levels=costs.levels) if sharing == "on" else costs
        self._by_scheduler, self._by_slots = SharingCache(costs), SharingCache(costs)
        self._rows: object = None
        self._steps = 0

    def plan(self, forward_batch: Any, lengths: list[int]) -> Sharing:
        """The plan of a decode batch.

        :param lengths: KV tokens of each row.
        """
        plan = Sharing((), (0,) * len(lengths), 0)
        if self.sharing != "off" and len(lengths) > 1:
            plan = self._from_scheduler(forward_batch, lengths) or self._from_slots(forward_batch, lengths)
        self.tokens += sum(lengths)
        self.saved += plan.saved
        return plan

    def state(self) -> dict[str, Any]:
        """Figures for operators, in plain values."""
        return {
            "sharing": self.sharing,
            "scheduler": self.scheduler,
            "slots": self.slots,
            "plans": self._by_scheduler.made + self._by_slots.made,
            "kv_tokens": self.tokens,
            "kv_tokens_saved": self.saved,
        }

    def _from_scheduler(self, forward_batch: Any, lengths: list[int]) -> Sharing | None:
        paths = self.offered
        if paths is None or len(paths.order) != len(lengths):
            return None
        plan = self._by_scheduler.plan(paths, lambda: self._fit(paths))
        if not self._holds(plan, forward_batch):
            return None
        self.scheduler += 1
        return plan

    def _from_slots(self, forward_batch: Any, lengths: list[int]) -> Sharing:
        """A plan is made at the first two steps of the same rows: when SGLang has seen the result of a prefill, it puts
        the slots of its cache in place of equal ones of the row, and under overlap it sees it one step late.
        """
        self.slots += 1
        indices = forward_batch.req_pool_indices.cpu()
        rows = (indices.tolist(), self._pool.req_generation[indices].tolist())
        self._steps = self._steps + 1 if rows == self._rows else 0
        self._rows = rows

        def paths() -> Paths:
            table = self._pool.req_to_token[indices, : max(lengths)].cpu().numpy()
            return self._fit(paths_from_slots(lambda some, k: table[some, k].tolist(), lengths))

        plan = self._by_slots.plan((rows, min(self._steps, 1)), paths)
        if not self._holds(plan, forward_batch):  # before 0.5.22 a flush begins the generations anew
            self._by_slots.forget()
            plan = self._by_slots.plan(rows, paths)
        return plan

    def _holds(self, plan: Sharing, forward_batch: Any) -> bool:
        """Whether the rows of every range hold the same slots, of which the last tells; where looking is free."""
        table = self._pool.req_to_token
        if table.device.type != "cpu" or not plan.ranges:
            return True
        indices = forward_batch.req_pool_indices.numpy()
        last = (table.numpy()[indices[list(each.rows)], each.end - 1] for each in plan.ranges)
        return all((slots == slots[0]).all() for slots in last)

    def _fit(self, paths: Paths) -> Paths:
        return in_batch_order(paths) if self._adjacent else paths
