"""What ``feather serve`` reads of SGLang's command line before SGLang does, and checks while that is still cheap."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feather_sglang.cli.errors import UsageError
from feather_sglang.cli.server import is_free

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 30000


@dataclass(frozen=True)
class Arguments:
    """The user's arguments, as given, and those of them that matter before SGLang is loaded."""

    argv: list[str]
    given: frozenset[str]
    """Options named on the command line or in the file of ``--config``, as ``model-path``."""
    host: str
    port: int
    model_path: str | None
    device: str | None
    context_length: int | None

    @classmethod
    def read(cls, argv: list[str]) -> Arguments:
        """:raises UsageError: for a value that is not one, or a configuration file that is not one."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        for option in ("--config", "--host", "--port", "--model-path", "--model", "--device"):
            parser.add_argument(option)
        parser.add_argument("--context-length", type=int)
        try:
            known, _ = parser.parse_known_args(argv)
        except argparse.ArgumentError as error:
            raise UsageError(f"{error}: give the option a value, or leave it out") from None
        config = {} if known.config is None else _read_config(Path(known.config))
        named = {word.partition("=")[0][2:].replace("_", "-") for word in argv if word.startswith("--")}

        def value(option: str) -> Any:
            return getattr(known, option) or config.get(option.replace("_", "-"))

        return cls(
            argv=argv,
            given=frozenset(named | config.keys()),
            host=value("host") or DEFAULT_HOST,
            port=_port(value("port") or DEFAULT_PORT),
            model_path=value("model_path") or value("model"),
            device=value("device"),
            context_length=value("context_length"),
        )

    def check_model(self) -> None:
        """:raises UsageError: if the model folder is none."""
        if self.model_path is not None:
            _check_model(self.model_path)

    def check(self) -> None:
        """:raises UsageError: if the model folder is none, or the port cannot be listened on."""
        self.check_model()
        try:
            free = is_free(self.host, self.port)
        except OSError as error:
            raise UsageError(
                f"--host {self.host} cannot be listened on ({error.strerror}): give an address of this machine"
            ) from None
        if not free:
            raise UsageError(
                f"port {self.port} on {self.host} is in use or not allowed: name a free one with --port, "
                "or end the server that holds it"
            )

    def with_defaults(self, defaults: Mapping[str, str | None]) -> list[str]:
        """The arguments, with those of ``defaults`` (option to value; None: a switch) that the user did not give."""
        missing: list[str] = []
        for option, default in defaults.items():
            if option not in self.given:
                missing += [f"--{option}"] if default is None else [f"--{option}", default]
        return missing + self.argv


def _port(text: Any) -> int:
    try:
        port = int(text)
    except ValueError:
        port = 0
    if not 0 < port < 65536:
        raise UsageError(f"--port {text} is not a port: give a number from 1 to 65535")
    return port


def _read_config(path: Path) -> dict[str, Any]:
    """SGLang's YAML configuration, its keys spelled as options."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read ({error.strerror}): give an existing YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise UsageError(f"--config {path} is not YAML ({problem}): expected lines of `option: value`") from None
    if not isinstance(content or {}, dict):
        raise UsageError(f"--config {path} holds a {type(content).__name__}: expected lines of `option: value`")
    return {str(key).replace("_", "-"): value for key, value in (content or {}).items()}


# What SGLang can read a model's shape from.
_CONFIGURATIONS = ("config.json", "params.json")


def _check_model(name: str) -> None:
    path = Path(name).expanduser()
    if path.is_dir():
        if not any((path / file).is_file() for file in _CONFIGURATIONS):
            raise UsageError(
                f"--model-path {name} holds no model: expected a folder with {_CONFIGURATIONS[0]} and weights, "
                "or a Hugging Face id; leave it out for the embedded model"
            )
    elif not path.exists() and not _may_be_remote(name):
        raise UsageError(
            f"--model-path {name} does not exist: expected a folder with {_CONFIGURATIONS[0]} and weights, "
            "or a Hugging Face id such as Qwen/Qwen3-0.6B; leave it out for the embedded model"
        )


def _may_be_remote(name: str) -> bool:
    """An id on a hub (``name``, ``owner/name``) or an address, as far as the spelling tells."""
    return "://" in name or re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) is not None
