"""What ``feather simulate`` says: the JSON that programs read, and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from feather_sglang.bench.columns import in_columns
from feather_sglang.bench.results import Circumstances, mean, percentile
from feather_sglang.simulate.engine import Served
from feather_sglang.simulate.profiles import Profile
from feather_sglang.simulate.run import BASELINE, Outcome

SCHEMA = {"name": "feather simulate", "version": 1}


def report(
    outcomes: Sequence[Outcome], profile: Profile, speed: float, level_tokens: int, circumstances: Circumstances
) -> dict[str, Any]:
    """The JSON object. ``policies[NAME]`` has the fields of an arm of ``feather bench serve``; times are modelled, and
    there is no CPU time (None)."""
    rows = [_row(outcome, level_tokens) for outcome in outcomes]
    policies = {row["policy"]: {name: row[name] for name in _FIELDS} for row in rows}
    baseline = policies.get(BASELINE)
    return {
        "schema": SCHEMA,
        **asdict(circumstances),
        "profile": {
            "name": profile.name,
            "what": profile.what,
            "constants": [constant._asdict() for constant in profile.constants],
        },
        "speed": speed,
        "rows": rows,
        "policies": policies,
        "ratio_to_fcfs": _ratios(policies, baseline, lambda arm: arm["throughput_tok_s"]),
        "p99_ttft_ratio_to_fcfs": _ratios(policies, baseline, lambda arm: arm["ttft_s"]["p99"]),
        "decisions_per_second": sum(outcome.passes for outcome in outcomes)
        / sum(outcome.wall_seconds for outcome in outcomes),
    }


def _ratios(policies: Mapping[str, Any], baseline: Any, of: Any) -> dict[str, float]:
    if baseline is None or not of(baseline):
        return {}
    return {name: of(arm) / of(baseline) for name, arm in policies.items()}


_FIELDS = (
    *("throughput_tok_s", "tok_per_cpu_s", "ttft_s", "tpot_s"),
    *("steps", "prefill_tokens", "cached_tokens", "cacheable_tokens"),
)


def _row(outcome: Outcome, level_tokens: int) -> dict[str, Any]:
    served, decodes = outcome.served, max(outcome.decode_steps, 1)
    output = sum(one.job.output for one in served)
    prompt = sum(one.job.length for one in served)
    ttft = [one.first_token - one.arrived for one in served]
    tpot = [(one.finished - one.first_token) / max(one.job.output - 1, 1) for one in served]
    waits = [one.ttft_tokens for one in served]
    return {
        "policy": outcome.policy,
        "requests": len(served),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "seconds": outcome.seconds,
        "throughput_tok_s": output / outcome.seconds,
        "tok_per_cpu_s": None,
        "ttft_s": {"mean": mean(ttft), "p50": percentile(ttft, 50), "p99": percentile(ttft, 99)},
        "ttft_tokens": {"mean": mean(waits), "p50": percentile(waits, 50), "p99": percentile(waits, 99)},
        "tpot_s": {"mean": mean(tpot), "p99": percentile(tpot, 99)},
        "steps": outcome.prefill_steps + outcome.decode_steps,
        "prefill_steps": outcome.prefill_steps,
        "decode_steps": outcome.decode_steps,
        "prefill_tokens": outcome.prefill_tokens,
        "cached_tokens": sum(one.job.length - one.computed for one in served),
        "cacheable_tokens": cacheable_tokens(served, level_tokens),
        "mean_batch": outcome.decode_rows / decodes,
        "distinct_over_total_kv": outcome.distinct_kv / outcome.total_kv if outcome.total_kv else 1.0,
        "passes": outcome.passes,
        "wall_seconds": outcome.wall_seconds,
    }


def cacheable_tokens(served: Sequence[Served], level_tokens: int) -> int:
    """The sum, over requests in the order of their first tokens, of what they have in common with any earlier one,
    without the last token of a prompt; in whole levels of ``level_tokens``."""
    seen: set[int] = set()
    total = 0
    for one in sorted(served, key=lambda one: one.first_token):
        levels = one.job.levels
        shared = next((n for n, level in enumerate(levels) if level not in seen), len(levels))
        total += min(shared * level_tokens, one.job.length - 1)
        seen.update(levels[shared:])
    return total


def render(report: Mapping[str, Any]) -> str:
    """The table, a line a policy. ``reused``: of the cacheable tokens; ``U/T``: distinct of all KV tokens in decode."""
    lines = [list(_COLUMNS)]
    for row in report["rows"]:
        name = row["policy"]
        ratio = report["ratio_to_fcfs"].get(name)
        tail = report["p99_ttft_ratio_to_fcfs"].get(name)
        lines.append(
            [
                name,
                f"{row['throughput_tok_s']:,.0f}",
                "-" if ratio is None else f"{ratio:.3f}",
                f"{row['ttft_s']['mean']:.1f}/{row['ttft_s']['p50']:.1f}/{row['ttft_s']['p99']:.1f}",
                "-" if tail is None else f"{tail:.3f}",
                f"{1000 * row['tpot_s']['mean']:.1f}/{1000 * row['tpot_s']['p99']:.1f}",
                f"{row['prefill_steps']}+{row['decode_steps']}",
                f"{row['prefill_tokens']:,}",
                _share(row["cached_tokens"], row["cacheable_tokens"]),
                f"{row['mean_batch']:.1f}",
                f"{row['distinct_over_total_kv']:.2f}",
            ]
        )
    table = in_columns(lines)
    return "\n".join([table[0], "-" * len(table[0]), *table[1:]])


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


_COLUMNS = (
    "policy",
    "tok/s",
    "÷fcfs",
    "TTFT mean/p50/p99 s",
    "p99÷fcfs",
    "TPOT mean/p99 ms",
    "steps",
    "computed",
    "reused",
    "rows",
    "U/T",
)
