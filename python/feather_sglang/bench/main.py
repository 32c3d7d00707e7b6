"""``feather bench KIND``: finds the bench."""

from __future__ import annotations

from importlib import import_module

from feather_sglang.cli.errors import UsageError

# Kind: (module with main(argv), what it measures).
KINDS = {
    "attention": ("feather_sglang.bench.attention", "decode steps with shared prefixes read once, or by every row"),
    "gates": ("feather_sglang.bench.gates", "when to stop filling the batch: every gate, on modelled step times"),
    "length": (
        "feather_sglang.bench.length",
        "going by length: parking, skewed batches, bins of output length",
    ),
    "orders": (
        "feather_sglang.bench.orders",
        "who comes next: the orders and SGLang's policies, on modelled step times",
    ),
    "overhead": ("feather_sglang.bench.overhead", "ordering the waiting queue: SGLang's policies and the index"),
    "paper": ("feather_sglang.bench.paper.main", "the experiments of the Feather paper, each with a verdict"),
    "serve": ("feather_sglang.bench.serve", "real servers, one a policy, on your workload or ours"),
    "tie": ("feather_sglang.bench.tie", "the simulator and SGLang's real Scheduler, side by side"),
}


def main(argv: list[str]) -> int:
    """Run a bench; its exit status.

    :raises UsageError: if there is no such bench, or its input is bad.
    """
    kind, *rest = argv or ["--help"]
    if kind in ("-h", "--help"):
        lines = "\n".join(f"  {name:<10} {what}" for name, (_, what) in KINDS.items())
        print(f"usage: feather bench KIND [options]\n\nkinds:\n{lines}\n\n`feather bench KIND --help` explains more.")
        return 0
    if kind not in KINDS:
        raise UsageError(f"there is no bench {kind!r}; expected one of {', '.join(KINDS)}: `feather bench --help`")
    status: int = import_module(KINDS[kind][0]).main(rest)
    return status
