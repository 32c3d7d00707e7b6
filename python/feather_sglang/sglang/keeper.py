"""Keeps what the gates of one scheduler learn: in memory while another gate is at work, and in the state file.

Every rank reads the file at its start, when nobody writes, and then takes what the leader of its queue read. One rank
writes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from feather_sglang.core.interface import Gate
from feather_sglang.sglang import learned
from feather_sglang.sglang.learned import Learned, StateError

logger = logging.getLogger(__name__)


class Keeper:
    """What was learned in one scheduler.

    :param path: the state file; None: what is learned ends with the server.
    :param learned_on: see ``Learned.learned_on``.
    :param every: seconds between two saves.
    :param writes: whether this rank is the one that writes.
    :param lost: called whenever it could not be saved.
    :raises StateError: if the file cannot be used here.
    """

    def __init__(
        self,
        path: Path | None,
        learned_on: Mapping[str, str],
        *,
        every: float,
        writes: bool,
        lost: Callable[[], None],
    ) -> None:
        self.path = path
        self._learned_on = dict(learned_on)
        self._every = every
        self._writes = writes and path is not None
        self._lost = lost
        self._due = time.monotonic() + every
        self.known: dict[str, dict[str, Any]] = {}
        """By name, as read, or as left when another took over: equal on all ranks."""
        if path is not None and (found := learned.read(path)) is not None:
            learned.check(path, found, learned_on)
            self.known = found.gates

    def resume(self, gate: Gate) -> None:
        """Have a new gate go on from what it knew.

        :raises StateError: if it is not a dump of such a gate.
        """
        if dump := self.known.get(gate.name):
            load(gate, dump, self.path)

    def leave(self, gate: Gate) -> None:
        """Another gate takes over."""
        if dump := gate.dump():
            self.known[gate.name] = dump

    def tick(self, gate: Gate) -> None:
        """A pass is over: save, if it is time."""
        if self._writes and time.monotonic() >= self._due:
            self.save(gate)

    def save(self, gate: Gate) -> None:
        """Write the file, if this is the rank that does. What goes wrong costs a warning: the other ranks go on."""
        if not self._writes:
            return
        assert self.path is not None
        self._due = time.monotonic() + self._every
        try:
            dump = gate.dump()
            gates = {**self.known, **({gate.name: dump} if dump else {})}
            saved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            learned.write(self.path, Learned(self._learned_on, gates, saved))
        except Exception as error:
            logger.warning("feather: what was learned is not saved to %s: %s", self.path, error)
            self._lost()


def load(gate: Gate, dump: Mapping[str, Any], path: Path | None) -> None:
    """Have a gate go on from a dump.

    :param path: where it is from, for the message.
    :raises StateError: if it is not a dump of such a gate.
    """
    try:
        gate.load(dump)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        where = f"the state file {path}" if path is not None else "what was learned"
        raise StateError(
            f"{where} does not fit the gate {gate.name}: {error}. Forget it: feather state reset {path or 'FILE'}"
        ) from None
