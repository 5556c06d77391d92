"""`strata tune`: what it prints, saves and leaves behind, and what it says to bad input."""

import json

import pytest
from strata_program import run_strata

QUICK = ("--bytes", "8MiB", "--seconds", "0.1")
USAGE, DOES_NOT_FIT = 2, 3


@pytest.fixture
def drive(tmp_path, monkeypatch):
    monkeypatch.setenv("STRATA_DRIVE_PROFILES", str(tmp_path / "cache" / "drives.json"))
    folder = tmp_path / "drive"
    folder.mkdir()
    return folder


def profiles(drive):
    return json.loads((drive.parent / "cache" / "drives.json").read_text())["drives"]


def test_measures_saves_and_leaves_nothing_behind(drive):
    done = run_strata("tune", "--nvme", drive, *QUICK, "--sustained", "16MiB", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    (tuned,) = result["drives"]
    chosen = tuned["chosen"]
    assert profiles(drive) == {tuned["drive"]: chosen}
    assert (chosen["block_bytes"], chosen["queue_depth"]) in [
        (row["block_bytes"], row["queue_depth"]) for row in tuned["sizes"]
    ]
    assert chosen["burst_bytes"] in [row["burst_bytes"] for row in tuned["mixes"]]
    assert all(row["read_rate"] > 0 and row["write_rate"] > 0 for row in tuned["sizes"])
    assert tuned["saved"] and tuned["sustained"]["first_rate"] > 0
    assert list(drive.iterdir()) == []


def test_prints_a_section_for_the_run_configuration(drive):
    done = run_strata("tune", "--nvme", drive, "--nvme", drive, *QUICK)
    assert done.code == 0, done.err
    assert f'nvme: {{paths: ["{drive}", "{drive}"], block_size: ' in done.out
    assert "saved in " in done.out


def test_says_so_when_the_profile_cannot_be_saved(drive, monkeypatch):
    monkeypatch.setenv("STRATA_DRIVE_PROFILES", str(drive))
    done = run_strata("tune", "--nvme", drive, *QUICK)
    assert done.code == 0
    assert "cannot be saved" in done.err and "not saved" in done.out


def test_dry_run_writes_nothing(drive):
    done = run_strata("tune", "--nvme", drive, "--dry-run")
    assert done.code == 0
    assert "would measure" in done.out
    assert not (drive.parent / "cache").exists()


@pytest.mark.parametrize(
    "words, code, message",
    [
        ((), USAGE, "--nvme is required"),
        (("--nvme", "missing"), USAGE, "missing does not exist"),
        (("--nvme", "file"), USAGE, "file is not a directory"),
        (("--nvme", ".", "--bytes", "1MiB"), USAGE, "at least 8.00 MiB"),
        (("--nvme", ".", "--bytes", "lots"), USAGE, "lots"),
        (("--nvme", ".", "--seconds", "-1"), USAGE, "--seconds"),
        (("--nvme", ".", "--sustained", "1000000TiB"), DOES_NOT_FIT, "free"),
        # The second folder is looked at before the first is measured.
        (("--nvme", ".", "--nvme", "missing"), USAGE, "missing does not exist"),
    ],
)
def test_refuses_bad_input_with_one_line(drive, words, code, message):
    (drive / "file").write_text("x")
    done = run_strata("tune", *words, cwd=drive)
    assert done.code == code
    assert message in done.err
    assert done.err.count("\n") == 1
    assert not (drive.parent / "cache").exists()
