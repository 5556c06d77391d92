"""The arithmetic of the scripts in bench/: what they print of what they measured."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import convergence  # noqa: E402
import convergence_report  # noqa: E402
import rank_sides  # noqa: E402
import ranks_vs_peers  # noqa: E402
import slow_link  # noqa: E402
import step_rows  # noqa: E402
import step_sides  # noqa: E402
import step_vs_deepspeed  # noqa: E402

ABOUT = {"parameters": 100, "compute": "bf16", "recomputed_layers": 4, "uncached_read_bytes": 1400,
         "uncached_written_bytes": 1400}


def ours(seconds):
    return {"seconds": seconds, "loss": 5.0, "nvme_read_bytes": 1400, "nvme_written_bytes": 700}


def samples(loss=5.1):
    return {"ours": [ours(3.0), ours(5.0)],
            "ours_compute": [{"seconds": 2.5, "forward": 1.0, "backward": 1.0, "loss": 5.0}] * 2,
            "theirs": [{"seconds": 6.0, "optimizer": 2.0, "loss": loss}] * 2,
            "theirs_compute": [{"seconds": 3.0, "loss": 5.1}] * 2}


def test_exposed_time_is_a_step_less_its_computing_of_the_same_round():
    row = step_rows.summary(samples(), {name: 4 << 30 for name in samples()}, ABOUT)

    assert row["ours"]["exposed_seconds"]["all"] == [1.0, 3.0]
    assert row["theirs"]["exposed_seconds"]["median"] == 3.0
    assert row["exposed_ratio"] == pytest.approx(2 / 3)
    assert row["total_ratio"]["all"] == [2.0, 1.2]
    assert row["ours"]["cached_share"] == pytest.approx(0.25)
    text = step_vs_deepspeed.table({"tiny": {"nvme": row | {"turns": "all", "not_fitting": ["alone: needs more"]}}})
    assert "14.00 + 7.00 (14.00 + 14.00)" in text
    assert "not alone: needs more" in text


def test_a_row_of_ours_alone_compares_nothing():
    few = {name: samples()[name] for name in ("ours", "ours_compute")}
    row = step_rows.summary(few, {name: 1 << 30 for name in few}, ABOUT)

    assert "theirs" not in row and "total_ratio" not in row
    assert "deepspeed" not in step_vs_deepspeed.table({"tiny": {"nvme": row | {"turns": "ours", "not_fitting": []}}})


def test_sides_that_do_not_train_the_same_are_refused():
    with pytest.raises(RuntimeError, match="do not train the same"):
        step_rows.summary(samples(loss=9.0), {name: 0 for name in samples()}, ABOUT)


def test_t_hide_is_exact_where_offloading_adds_a_constant_time():
    found = step_vs_deepspeed.t_hide([(1024, 1 + 50 / 1024), (256, 1 + 50 / 256)])
    assert found["bound"] == "between"
    assert found["tokens"] == pytest.approx(500)
    assert step_vs_deepspeed.t_hide([(256, 1.01)])["bound"] == "at most"
    assert step_vs_deepspeed.t_hide([(256, 2.0), (512, 1.5)]) == {
        "bound": "more than", "tokens": 512, "points": [(256, 2.0), (512, 1.5)]}


def test_what_does_not_fit_is_said_in_words(monkeypatch):
    shape = step_sides.SHAPES["360m"]
    monkeypatch.setattr(step_sides, "memory_available", lambda: 13 << 30)
    name, reasons = step_sides.choose_grouping("nvme", shape, str(ROOT))
    assert name != "all"
    assert "all: needs about" in reasons[0] and "of memory" in reasons[0]
    monkeypatch.setattr(step_sides, "memory_available", lambda: 1 << 30)
    name, reasons = step_sides.choose_grouping("nvme", shape, str(ROOT))
    assert name is None and len(reasons) == len(step_sides.GROUPINGS)


def test_shapes_have_the_parameters_of_their_names():
    assert step_sides.parameters_of(step_sides.SHAPES["134m"]) == 134_515_008
    assert step_sides.parameters_of(step_sides.SHAPES["360m"]) >= 350e6
    assert step_sides.parameters_of(step_sides.SHAPES["1b"]) >= 1e9


def run_of(states, seed, last):
    return {"states": states, "seed": seed, "held_out": [[0, 4.0], [10, last]], "last_training_loss": last, "steps": 10}


def test_narrow_states_are_judged_by_the_spread_of_seeds():
    runs = [run_of("fp32", 1, 3.0), run_of("fp32", 2, 3.01), run_of("remainder+8bit", 1, 3.005),
            run_of("remainder+8bit", 2, 3.015), run_of("remainder+bf16", 1, 3.02), run_of("remainder+bf16", 2, 3.05)]
    lines = convergence_report.table({"10m": {"runs": runs}}).splitlines()

    assert lines[3].endswith("| +0.0050 | +0.0050 | yes |")
    assert lines[4].endswith("| +0.0300 | +0.0400 | NO |")


def test_the_table_of_the_page_is_replaced_and_nothing_else():
    page = (ROOT / "docs" / "convergence.md").read_text(encoding="utf-8")
    once = convergence_report.replace_table(page, "| a |")
    assert "| a |" in once
    assert convergence_report.replace_table(once, "| b |") == convergence_report.replace_table(page, "| b |")


def test_curves_are_read_from_the_log_of_a_run(tmp_path):
    lines = [{"step": 0, "eval_loss": 4.0}, {"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "eval_loss": 2.5}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    assert convergence.curves_of(tmp_path) == {"held_out": [[0, 4.0], [2, 2.5]], "last_training_loss": 2.0, "steps": 2}
    assert convergence.encodings("fp32") == ("fp32", "fp32")
    assert convergence.encodings("remainder+8bit") == ("remainder", "8bit")


def test_slow_link_compares_with_the_plain_run_of_the_same_round():
    rounds = [{"seed": 42, "runs": {slow_link.PLAIN: {"seconds": 2.0, "bytes": 8e6, "loss": 5.0},
                                    "two hops": {"seconds": 1.0, "bytes": 2e6, "loss": 5.25}}},
              {"seed": 43, "runs": {slow_link.PLAIN: {"seconds": 4.0, "bytes": 8e6, "loss": 6.0},
                                    "two hops": {"seconds": 3.0, "bytes": 2e6, "loss": 5.75}}}]
    rows = slow_link.summary(rounds)

    assert rows["two hops"]["of_plain_seconds"] == [0.5, 0.75]
    assert rows["two hops"]["loss_beside_plain"] == [0.25, -0.25]
    assert "| two hops | 2.00 | 0.62 | 2.0 | +0.2500, -0.2500 |" in slow_link.table(rows, 20)


def test_a_job_takes_as_long_as_its_slowest_rank_and_moves_the_bytes_of_all():
    answers = [{"seconds": 2.0, "forward": 0.5, "nvme_read_bytes": 10, "loss": 4.0},
               {"seconds": 3.0, "forward": 0.4, "nvme_read_bytes": 20, "loss": 5.0}]
    assert rank_sides.merged(answers) == {"seconds": 3.0, "forward": 0.4, "nvme_read_bytes": 30, "loss": 4.5}


def test_cpus_are_divided_among_ranks_and_none_is_left_without():
    assert [rank_sides.cpus_of(rank, 2, [0, 1, 4, 5]) for rank in (0, 1)] == [[0, 1], [4, 5]]
    assert [rank_sides.cpus_of(rank, 3, [0, 1, 2, 3]) for rank in range(3)] == [[0], [1], [2, 3]]
    assert [rank_sides.cpus_of(rank, 3, [6, 7]) for rank in range(3)] == [[6], [6], [7]]


def test_a_row_of_ranks_says_who_is_faster_smaller_and_exposes_less():
    peaks = {name: 2 << 30 for name in samples()} | {"theirs": 4 << 30}
    steps = {name: [step | {"cpu_seconds": 2.0 if name.startswith("ours") else 3.0, "sent_bytes": 40} for step in taken]
             for name, taken in samples().items()}
    row = ranks_vs_peers.row_of(steps, peaks, ABOUT, ranks=2) | {"load": [0.5, 1.5]}
    text = ranks_vs_peers.table({"nvme/fsdp2": row, "host/fsdp2": {"skipped": "needs more"}})

    assert "total 1.60 (MAD 0.40, worst 1.20), CPU 1.50 (MAD 0.00); ours / theirs: exposed 0.67, RSS 0.50" in text
    assert row["ours"]["sent_bytes_per_rank"] == 20
    assert "strata" in text and "0.5 to 1.5" in text
    assert "host/fsdp2       skipped: needs more" in text


class RankOfATest:
    def __init__(self, fails=False):
        self.about, self.killed, self.fails = {"parameters": 1}, False, fails

    def ready(self):
        if self.fails:
            raise RuntimeError("no memory")
        return self

    def kill(self):
        self.killed = True


def test_a_rank_that_fails_takes_the_others_with_it():
    ranks = [RankOfATest(), RankOfATest(fails=True)]
    with pytest.raises(RuntimeError, match="no memory"):
        rank_sides.RankedSide(ranks)
    assert all(rank.killed for rank in ranks)
