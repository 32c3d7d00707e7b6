"""The calls fit every FlashInfer that they were written for: the reference that they are run on has its parameters."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import json
from pathlib import Path

import pytest

from tests.attention.flashinfer_signatures import METHODS, RECORD, parameters_of
from tests.attention.reference_wrapper import ReferenceWrapper

VERSIONS = json.loads(RECORD.read_text())


def as_lists(parameters):
    return {name: [list(each) for each in given] for name, given in parameters.items()}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("method", METHODS)
def test_the_reference_has_the_parameters_of(version, method):
    parameters = inspect.signature(getattr(ReferenceWrapper, method)).parameters.values()
    assert VERSIONS[version][method] == [[each.name, each.default is not each.empty] for each in parameters]


def test_the_record_is_that_of_the_installed_version():
    spec = importlib.util.find_spec("flashinfer")
    if spec is None or spec.origin is None:
        pytest.skip("FlashInfer is not installed")
    version = importlib.metadata.version("flashinfer-python")
    assert version in VERSIONS, f"record {version}: see flashinfer_signatures.py"
    source = (Path(spec.origin).parent / "cascade.py").read_text()
    assert as_lists(parameters_of(source)) == VERSIONS[version]
