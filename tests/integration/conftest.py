"""Fixtures of the tests that run the program."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """tiny(kind, **options of make_tiny): the folder of a tiny model, made once."""
    folders = {}

    def folder_of(kind, **options):
        from tiny_models import make_tiny

        key = (kind, *sorted(options.items()))
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp(kind)
            make_tiny(kind, folders[key], **options)
        return folders[key]

    return folder_of
