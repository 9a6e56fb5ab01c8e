"""Captures that the tests of the Python face open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import moeprof
from moeprof.cli.main import group

GPU = Path(__file__).parents[1] / "data" / "gpu"
DEEPEP = GPU / "sparse-gmm-deepep"
GMM = GPU / "sparse-gmm"


@pytest.fixture(scope="session")
def deepep() -> moeprof.Run:
    return moeprof.load(DEEPEP)


@pytest.fixture(scope="session")
def gmm() -> moeprof.Run:
    return moeprof.load(GMM)


@pytest.fixture(scope="session")
def printed():
    """What a command prints, to compare with what Python gives."""

    def call(*words: object, code: int = 0) -> str:
        done = CliRunner().invoke(group, [str(word) for word in words])
        assert done.exit_code == code, done.output
        return done.stdout

    return call


@pytest.fixture(scope="session")
def analyzed(printed) -> str:
    """The JSON that the command prints about the capture."""
    return printed("analyze", DEEPEP, "--json").removesuffix("\n")


@pytest.fixture(scope="session")
def whole(analyzed):
    return json.loads(analyzed)
