"""Options: where they come from, and one line for a bad one, before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sglang.srt.server_args import ServerArgs

from feather_sglang.bench.tiny_llama import write_model
from feather_sglang.sglang.arguments import options_of
from feather_sglang.sglang.options import FLAGS, OptionError, Options, chunk_size_of, read_options, settings_of


def config(tmp_path, text, name="options.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return ["--config", str(path)]


def test_the_command_line_wins_over_yaml_over_the_environment_over_the_default(launch, tmp_path, monkeypatch):
    assert options_of(launch()) == read_options({}, {})
    monkeypatch.setenv("FEATHER_ORDER", "missing")
    monkeypatch.setenv("FEATHER_GATE", "static")
    monkeypatch.setenv("FEATHER_BARRIER_MIN", "1")
    yaml = config(tmp_path, "feather-gate: never\nfeather-barrier-min: 2\nfeather-aging: 0.5\n")
    options = options_of(launch(*yaml, "--feather-barrier-min", "3"))
    assert options.order == "missing"
    assert options.gate == "never"
    assert options.barrier_min == 3
    assert options.aging == 0.5
    assert options.on_mismatch == "refuse"


def test_a_yaml_file_may_choose_the_policy(launch, tmp_path):
    args = launch(*config(tmp_path, "schedule-policy: feather\nfeather-order: missing\n"))
    assert args.schedule_policy == "feather"
    assert options_of(args).order == "missing"


def test_every_option_has_a_flag_and_a_variable():
    assert {flag.name for flag in FLAGS} == set(Options.__slots__)
    assert all(flag.option.startswith("--feather-") and flag.variable.startswith("FEATHER_") for flag in FLAGS)


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--feather-gate", "foo"], ["--feather-gate", "'foo'", "never, static"]),
        (["--feather-order", "lpm"], ["--feather-order", "'lpm'", "missing, held"]),
        (["--feather-chunk-size", "0"], ["--feather-chunk-size is 0", "positive multiple of the page size"]),
        (["--feather-chunk-size", "-64"], ["--feather-chunk-size is -64"]),
        (["--feather-chunk-size", "big"], ["'big'", "a whole number of tokens"]),
        (["--feather-chunk-size", "72", "--page-size", "16"], ["72", "page size (16)", "Try 64"]),
        (["--feather-aging", "-1"], ["aging"]),
        (["--feather-aging", "nan"], ["aging"]),
        (["--feather-barrier-min", "-1"], ["barrier"]),
        (["--feather-max-wait", "-1"], ["wait"]),
        (["--feather-max-wait", "inf"], ["wait"]),
        (["--feather-lanes", "0"], ["--feather-lanes 0: expected a whole number of at least 1"]),
        (["--feather-lanes", "65"], ["--feather-lanes 65: expected at most 64"]),
        (["--feather-length", "guess"], ["--feather-length", "request, family, max-tokens"]),
        (["--feather-refill-rows", "0"], ["--feather-refill-rows 0: expected a whole number of at least 1"]),
        (["--feather-on-mismatch", "ignore"], ["refuse, fcfs"]),
        (["--enable-priority-scheduling"], ["--enable-priority-scheduling", "fcfs and lof"]),
        (["--enable-pdmux"], ["--enable-pdmux"]),
    ],
)
def test_a_bad_option_is_one_line_and_nothing_starts(launch, argv, parts):
    line = launch(*argv)
    assert line.startswith("feather: ")
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("options.yaml", "- a\n- list\n", "dictionary"),
        ("options.yaml", "feather-gate: [\n", "while parsing"),
        ("options.json", "{}", "YAML"),
    ],
)
def test_a_yaml_file_that_is_not_one_is_one_line(launch, tmp_path, name, text, part):
    line = launch(*config(tmp_path, text, name))
    assert line.startswith("feather: --config cannot be used: ")
    assert part in line


def test_a_bad_variable_is_named(launch, monkeypatch):
    monkeypatch.setenv("FEATHER_GATE", "foo")
    assert launch().startswith(
        "feather: FEATHER_GATE is 'foo'; expected one of never, static, ucb, q, model, offline, refill."
    )


def test_a_program_gets_an_exception(start_alone, monkeypatch):
    """``Engine`` takes no arguments of ours, and must not end the program that made it."""
    with pytest.raises(OptionError, match="FEATHER_GATE is 'foo'"):
        start_alone(options={"gate": "foo"})
    with pytest.raises(OptionError, match="page size"):
        start_alone(options={"chunk_size": "72"}, page_size=16)


def test_other_policies_are_not_looked_at(launch, monkeypatch):
    monkeypatch.setenv("FEATHER_GATE", "foo")
    assert launch("--schedule-policy", "fcfs", "--feather-aging", "-1").schedule_policy == "fcfs"


@pytest.mark.parametrize(("page", "chunk"), [(1, 64), (16, 64), (64, 64), (48, 96), (100, 100), (128, 128)])
def test_the_chunk_is_the_smallest_multiple_of_the_page_that_is_at_least_64(page, chunk):
    assert chunk_size_of(read_options({}, {}), page) == chunk


def test_the_core_gets_what_was_asked_for():
    options = read_options({"order": "missing", "max_wait": "2", "chunk_size": "128"}, {"FEATHER_AGING": "0.25"})
    settings = settings_of(options, page_size=64, kv_capacity=1000, hash_key=(3, 4))
    assert (settings.order, settings.gate, settings.chunk_size, settings.aging) == ("missing", "never", 128, 0.25)
    assert (settings.barrier_min, settings.max_wait_tokens) == (256, 20_000)
    assert (settings.kv_capacity, settings.hash_key) == (1000, (3, 4))


def test_options_and_key_travel_to_the_children(launch):
    import pickle

    args = launch("--feather-order", "missing")
    copy = pickle.loads(pickle.dumps(args))
    assert options_of(copy) == options_of(args)
    assert copy._feather["hash_key"] == args._feather["hash_key"]
    assert isinstance(copy, ServerArgs)


@pytest.mark.slow
def test_the_launcher_lists_the_policy_and_refuses_in_one_line(tmp_path):
    shown = subprocess.run(
        [sys.executable, "-m", "sglang.launch_server", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert "shortest-prefill-first,feather}" in shown
    assert all(flag.option in shown for flag in FLAGS)
    model = str(write_model(tmp_path / "model"))
    for command in (["-m", "sglang.launch_server"], [str(Path(sys.executable).with_name("sglang")), "serve"]):
        refused = subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore",
                *command,
                "--model-path",
                model,
                "--schedule-policy",
                "feather",
                "--feather-gate",
                "foo",
            ],
            capture_output=True,
            text=True,
        )
        assert refused.returncode != 0
        lines = [line for line in refused.stderr.splitlines() if line.startswith("feather:")]
        assert len(lines) == 1, refused.stderr
        assert "Traceback" not in refused.stderr
