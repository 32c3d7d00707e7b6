"""``feather patch``: all of it or nothing, whatever is wrong with the tree or happens on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from feather_sglang.cli import main as cli
from feather_sglang.patch import change
from feather_sglang.patch.change import apply_series, replace, revert_series
from feather_sglang.patch.series import Series
from feather_sglang.patch.tree import RECORD, PatchError, Tree, state_of
from tests.patches.conftest import NEWEST, SERIES, contents

SCHEDULER = "sglang/srt/managers/scheduler.py"
QUEUE = "sglang/srt/managers/waiting_queue.py"


def feather(*argv: str) -> int:
    return cli.main(["patch", *argv])


@pytest.fixture
def checkout(site, tmp_path):
    """The same files where a checkout has them; it does not say its version."""
    root = tmp_path / "checkout"
    shutil.copytree(site, root / "python")
    (root / "python" / "sglang" / "_version.py").unlink()
    return root


@pytest.mark.parametrize("where", [".", "sglang"])
def test_there_and_back(site, where, capsys):
    before = contents(site)
    path = str(site / where)
    assert feather("check", "--sglang", path) == 0
    assert feather("apply", "--sglang", path) == 0
    assert "applied" in capsys.readouterr().out
    patched = contents(site)
    assert patched.keys() - before.keys() == {QUEUE, "sglang/srt/managers/schedule_policy_registry.py", RECORD[7:]}
    assert feather("check", "--sglang", path) == 0
    assert feather("apply", "--sglang", path) == 0
    assert "already applied" in capsys.readouterr().out
    assert contents(site) == patched
    assert feather("revert", "--sglang", path) == 0
    assert contents(site) == before
    assert feather("revert", "--sglang", path) == 0
    assert "nothing to revert" in capsys.readouterr().out


def test_a_checkout_gets_the_tests_too_and_is_known_by_its_files(checkout):
    before = contents(checkout)
    assert feather("apply", "--sglang", str(checkout)) == 0
    (tests,) = (name for name in contents(checkout).keys() - before.keys() if name.startswith("test/"))
    assert tests == "test/registered/unit/managers/test_external_schedule_policy.py"
    assert feather("revert", "--sglang", str(checkout)) == 0
    assert contents(checkout) == before
    assert not (checkout / "test").exists()


def test_the_list_says_what_has_no_place_in_an_installed_package(site, checkout, capsys):
    assert feather("list", "--sglang", str(site)) == feather("list", "--sglang", str(checkout)) == feather("list") == 0
    of_site, of_checkout, *others = capsys.readouterr().out.split("SGLang ")[1:]
    assert len(others) == len(SERIES)
    assert [line.split()[0] for line in of_site.splitlines() if "checkout only" in line] == ["0007"]
    assert "checkout only" not in of_checkout
    assert all(f"  {name[:4]}  {SERIES[NEWEST].title(name)}" in of_checkout for name in SERIES[NEWEST].names)


def test_the_record_says_what_was_done(site):
    feather("apply", "--sglang", str(site))
    record = json.loads((site / RECORD[7:]).read_text())
    assert record["sglang"] == NEWEST
    assert record["made_by"].startswith("feather-sglang ")
    assert record["patches"] == SERIES[NEWEST].names


def test_file_modes_stay(site):
    path = site / SCHEDULER
    path.chmod(0o640)
    feather("apply", "--sglang", str(site))
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_hard_link_into_an_installers_cache_is_not_written_through(site, tmp_path):
    os.link(site / SCHEDULER, tmp_path / "cached.py")
    cached = (tmp_path / "cached.py").read_bytes()
    feather("apply", "--sglang", str(site))
    assert (tmp_path / "cached.py").read_bytes() == cached


# --- what is refused -------------------------------------------------------------------------------------------------


def another_version(site):
    (site / "sglang" / "_version.py").write_text("__version__ = version = '0.5.99'\n")


def a_dirty_file(site):
    with (site / SCHEDULER).open("a") as file:
        file.write("# mine\n")


def a_file_that_is_gone(site):
    (site / SCHEDULER).unlink()


def a_file_of_that_name(site):
    (site / QUEUE).write_text("# somebody else's\n")


def half_by_hand(site):
    for name in SERIES[NEWEST].names[:2]:
        patch = SERIES[NEWEST].folder / name
        subprocess.run(["patch", "-p2", "-s", "-d", str(site), "-i", str(patch)], check=True)


REFUSALS = [
    (another_version, "SGLang 0.5.99; expected one of 0.5.20, 0.5.21, 0.5.22, 0.5.23"),
    (a_dirty_file, "changed by others: python/sglang/srt/managers/scheduler.py"),
    (a_file_that_is_gone, "changed by others: python/sglang/srt/managers/scheduler.py"),
    (a_file_of_that_name, "changed by others: python/sglang/srt/managers/waiting_queue.py"),
    (half_by_hand, "the patches are applied in part"),
]


@pytest.mark.parametrize(("fault", "message"), REFUSALS, ids=[fault.__name__ for fault, _ in REFUSALS])
def test_what_it_refuses_stays_as_it_was(site, fault, message, capsys):
    fault(site)
    before = contents(site)
    assert feather("apply", "--sglang", str(site)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert contents(site) == before


def test_what_was_begun_by_hand_is_taken_back(site):
    before = contents(site)
    half_by_hand(site)
    assert feather("check", "--sglang", str(site)) == 1
    assert feather("revert", "--sglang", str(site)) == 0
    assert contents(site) == before


def test_a_patched_tree_with_other_changes_is_not_reverted(site, capsys):
    feather("apply", "--sglang", str(site))
    a_dirty_file(site)
    before = contents(site)
    assert feather("revert", "--sglang", str(site)) == 2
    assert "patched it: use that version to revert" in capsys.readouterr().err
    assert contents(site) == before


def test_a_folder_without_sglang(tmp_path, capsys):
    assert feather("apply", "--sglang", str(tmp_path)) == 2
    assert "is no SGLang" in capsys.readouterr().err


def test_a_series_that_is_damaged_changes_nothing(site, tmp_path):
    shutil.copytree(SERIES[NEWEST].folder, tmp_path / f"sglang-{NEWEST}")
    damaged = Series(tmp_path / f"sglang-{NEWEST}")
    patch = damaged.folder / damaged.names[0]
    patch.write_text(patch.read_text().replace("self.policy_name = policy", "self.policy_name = None"))
    before = contents(site)
    with pytest.raises(PatchError, match="patches themselves are damaged"):
        apply_series(Tree.at(site), damaged, "test")
    assert contents(site) == before


# --- faults on the way -----------------------------------------------------------------------------------------------


class Disk:
    """Fails at the n-th rename or write, as a full disk does."""

    def __init__(self, monkeypatch, fails_at: int) -> None:
        self.calls = 0
        for owner, name in ((change.os, "replace"), (change, "_write")):
            monkeypatch.setattr(owner, name, self._failing(getattr(owner, name), fails_at))

    def _failing(self, function, fails_at):
        def call(*args, **named):
            self.calls += 1
            if self.calls == fails_at:
                raise OSError(28, "No space left on device")
            return function(*args, **named)

        return call


@pytest.mark.parametrize("verb", [apply_series, revert_series])
@pytest.mark.parametrize("root", ["site", "checkout"])
def test_a_write_that_fails_leaves_the_tree_as_it_was(request, monkeypatch, verb, root):
    tree, series = Tree.at(request.getfixturevalue(root)), SERIES[NEWEST]
    folder = tree.checkout or tree.package.parent
    arguments = (tree, series) if verb is revert_series else (tree, series, "test")
    if verb is revert_series:
        apply_series(tree, series, "test")
    before = contents(folder)
    said = []
    for fails_at in range(1, 100):
        with monkeypatch.context() as patched:
            Disk(patched, fails_at)
            try:
                verb(*arguments)
            except PatchError as error:
                said.append(str(error))
            else:
                break
        assert contents(folder) == before
    assert len(said) >= 20  # files that are written, and renamed
    assert all("No space left on device. Nothing was changed" in message for message in said)
    assert state_of(tree, series).is_applied is (verb is apply_series)


def test_an_interrupt_is_undone_too(site, monkeypatch):
    before = contents(site)
    original, calls = os.replace, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(change.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        apply_series(Tree.at(site), SERIES[NEWEST], "test")
    assert contents(site) == before


def test_what_cannot_be_put_back_is_named(site, monkeypatch):
    original, calls = os.replace, []

    def broken(*args):
        calls.append(args)
        if len(calls) > 2:
            raise OSError(5, "Input/output error")
        return original(*args)

    monkeypatch.setattr(change.os, "replace", broken)
    with pytest.raises(PatchError, match=r"could not be put back: python/sglang/\S+"):
        replace(
            Tree.at(site), {f"python/{SCHEDULER}": b"1", f"python/{QUEUE}": b"2", "python/sglang/_version.py": b"3"}
        )
