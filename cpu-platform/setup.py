"""The version is that of the repository's other distribution; an sdist carries its own."""

import email
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def version() -> str:
    stated = HERE / "PKG-INFO"
    if stated.exists():
        return email.message_from_string(stated.read_text())["Version"]
    return tomllib.loads((HERE.parent / "cht-rs" / "Cargo.toml").read_text())["package"]["version"]


setup(version=version())
