"""The tables of games, by hand: two games, two seeds, and the files that runs leave."""

from __future__ import annotations

import pytest

pytest.importorskip("gymnasium")

from afec.experiments.games import CURVE
from afec.report.rows import rows_of
from afec.report.study_tables import tables_of
from afec.report.table import to_markdown
from written_runs import written

HEAD = "game,update,steps,evaluated,return\n"
NONE = float("nan")


def game_run(root, method, seed, matrix, new, benchmark="cartpole-acrobot"):
    """A finished run with these scores, whose new games were evaluated twice each: lower first, `new` at best."""
    config, directory = written(root, method, seed, matrix, benchmark=benchmark)
    first, second = new
    lines = [
        (1, 1, 1, first),
        (1, 2, 1, first - 1),
        (2, 1, 1, 1),
        (2, 1, 2, second - 2),
        (2, 2, 1, 2),
        (2, 2, 2, second),
    ]
    if method == "scratch":
        lines = [line for line in lines if line[0] == line[2]]
    text = "".join(f"{game},{update},{10 * update},{seen},{value}\n" for game, update, seen, value in lines)
    (directory.path / CURVE).write_text(HEAD + text)
    return config, directory


def cells(table):
    """Its rows by their methods, cells by their columns."""
    names = [column.name for column in table.columns]
    return {str(row[0]): dict(zip(names[1:], map(str, row[1:]), strict=True)) for row in table.rows}


def tables(runs):
    return {table.key: table for table in tables_of(rows_of(runs)) if table.key.startswith("game")}


@pytest.fixture
def made(tmp_path):
    """Fine-tuning forgets its first game; AFEC learns the second better than EWC does; scratch better than all."""
    runs = []
    for seed in (0, 1):
        runs += [
            game_run(tmp_path, "finetune", seed, [[1, 1], [10, 1], [2, 8 + 4 * seed]], (10, 8 + 4 * seed)),
            game_run(tmp_path, "ewc", seed, [[1, 1], [10, 1], [7, 4]], (10, 4)),
            game_run(tmp_path, "ewc+afec", seed, [[1, 1], [10, 1], [12, 6]], (10, 5)),
            game_run(tmp_path, "scratch", seed, [[1, 1], [10, NONE], [NONE, 20]], (10, 20)),
        ]
    return tables(runs)


def test_each_game_at_the_end_and_the_accumulated_reward(made):
    found = cells(made["game-scores"])
    assert found["finetune"] == {
        "task 1": "2.0 ± 0.0",
        "task 2": "10.0 ± 2.8",
        "accumulated": "1.2 ± 0.3",
    }  # 2/10 + 8|12/10
    assert found["ewc (λ=30)"]["accumulated"] == "0.6 ± 0.0"  # 2/10 + 4/10
    assert found["scratch"] == {"task 1": "10.0 ± 0.0", "task 2": "20.0 ± 0.0", "accumulated": "–"}


def test_the_maximum_while_new_and_what_afec_adds_to_it(made):
    found = cells(made["game-maxima"])
    assert found["scratch"]["by finetune"] == "1.5 ± 0.0"  # (10/10 + 20/10)/2
    assert found["ewc (λ=30)"] | {"increase %": "–"} == found["ewc (λ=30)"]
    assert found["ewc+afec (λ=30, λ_e=0.1)"]["increase %"] == "25.0 ± 0.0"  # 5 over 4; the first game does not count


def test_forgetting_and_forward_transfer_of_each_game(made):
    lost = cells(made["game-forgetting"])
    assert [lost[name]["task 1"] for name in ("finetune", "ewc (λ=30)")] == ["8.0 ± 0.0", "3.0 ± 0.0"]
    assert lost["ewc+afec (λ=30, λ_e=0.1)"] == {"task 1": "0.0 ± 0.0"}  # better at the end than ever before
    gained = cells(made["game-transfer"])
    assert gained["finetune"] == {"task 2": "−10.0 ± 2.8"}
    assert "scratch" not in gained


def test_the_papers_increase_stands_beside_ours(tmp_path):
    matrix = [[1, 1], [10, 1], [7, 4]]
    runs = [game_run(tmp_path, method, 0, matrix, (10, 4), "atari-2") for method in ("finetune", "ewc+afec", "scratch")]
    table = tables(runs)["game-maxima"]
    found = cells(table)
    assert found["ewc+afec (λ=30, λ_e=0.1)"]["increase %, paper"] == "50.55"
    assert found["scratch"]["by finetune, paper"] == "1.44"
    assert "five million steps" in to_markdown([table])


def test_where_there_is_nothing_to_say_there_is_no_table(tmp_path):
    one = written(tmp_path / "one", "finetune", 0, [[1], [3]], benchmark="cartpole-acrobot")
    assert tables([one]) == {}
    bare = written(tmp_path / "bare", "finetune", 0, [[1, 1], [-3, 1], [-2, -1]], benchmark="cartpole-acrobot")
    assert list(tables([bare])) == ["game-scores", "game-forgetting"]  # no evaluations on the way, and no scratch
