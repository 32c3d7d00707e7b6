"""``feather calibrate``: what a step costs on a server, from its recording."""

from __future__ import annotations

import argparse
from pathlib import Path

from feather_sglang.cli.errors import UsageError
from feather_sglang.simulate.calibrate import calibrate, write
from feather_sglang.simulate.traces import TraceError


def main(argv: list[str]) -> int:
    """Fit, print, and write what was asked for.

    :raises UsageError: if there is nothing to fit.
    """
    options = _parser().parse_args(argv)
    try:
        fit = calibrate(options.recording)
    except TraceError as error:
        raise UsageError(str(error)) from None
    cost = fit.cost
    print(
        f"{fit.decode_steps:,} decode steps, median error {fit.decode_error:.1%}:\n"
        f"  {1e3 * cost.base:.4g} ms + {1e3 * cost.row:.4g} ms a row + {1e6 * cost.total:.4g} us a KV token + "
        f"{1e6 * cost.distinct:.4g} us a distinct KV token"
    )
    if fit.prefill_error is None:
        print("no prefill step was measured: its price is taken from decode steps, one row a token")
    else:
        print(
            f"{fit.prefill_steps:,} prefill steps, median error {fit.prefill_error:.1%}:\n"
            f"  {1e3 * cost.prefill_base:.4g} ms + {1e3 * cost.prefill_token:.4g} ms a computed token"
        )
    print(", ".join(f"{name} {value:,}" for name, value in fit.machine.items()))
    if options.output is not None:
        write(fit, options.output.stem, options.output)
        print(f"wrote {options.output}: feather simulate TRACE --profile {options.output}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feather calibrate",
        allow_abbrev=False,
        description="Fit a cost profile for feather simulate to the step times in a recording.",
    )
    parser.add_argument("recording", type=Path, metavar="FILE", help="what a server wrote by --feather-record FILE")
    parser.add_argument("-o", "--output", type=Path, metavar="PROFILE", help="write the profile, as JSON")
    return parser
