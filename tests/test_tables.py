"""Tables in the docs are what the files in results/ say, and each folder there has a study."""

from __future__ import annotations

import csv
import importlib.util
import re
from pathlib import Path

import pytest

from afec.lab.studies import load_study, study_names

ROOT = Path(__file__).parent.parent
SEEDS = """benchmark,method,seed,aac,old_accuracy,new_accuracy,bwt,epochs,samples
b,finetune,0,0.30,0.2,0.4,-0.5,10,100
b,finetune,1,0.40,0.4,0.4,-0.3,20,300
b,ewc (λ=1),0,0.50,0.5,0.5,,30,400
b,ewc (λ=1),1,0.70,0.7,0.7,,40,600
"""


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("tables_of_the_docs", ROOT / "docs" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def small(tables, tmp_path, monkeypatch):
    """`small(spec)`: a table of two methods and two seeds."""
    (tmp_path / "results" / "one").mkdir(parents=True)
    (tmp_path / "results" / "one" / "seeds.csv").write_text(SEEDS)
    (tmp_path / "results" / "two.csv").write_text(SEEDS.replace("0.70", "0.602"))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    tables.lines_of.cache_clear()
    yield lambda **spec: tables.table({"file": "one/seeds.csv", **spec}).splitlines()[2:]
    tables.lines_of.cache_clear()


def test_tables_in_the_pages_are_those_of_the_results(tables):
    for page in tables.PAGES:
        text = page.read_text()
        assert tables.with_tables(text) == text, f"{page.name}: run `python docs/tables.py`"


def test_no_table_of_results_is_made_by_hand(tables):
    """A mean ± std outside of the marks would be a number that nothing compares. The seeds of nets.md were not kept."""
    for page in set(tables.PAGES) - {ROOT / "docs" / "nets.md"}:
        rest = tables.TABLE.sub("", page.read_text())
        found = [line for line in rest.splitlines() if line.startswith("|") and re.search(r"\d ± \d", line)]
        assert not found, f"{page.name}: {found[0]}"


def test_a_row_is_mean_and_std_over_the_seeds_by_hand(small):
    (row,) = small(columns=["aac", "bwt", "epochs", "compute", "worst"], rows=["finetune"])
    assert row == "| `finetune` | 35.0 ± 7.1 | −40.0 ± 14.1 | 15 | 1.00 × | 20 |"
    (row,) = small(columns=["aac", "compute", "paper"], rows=[{"row": "ewc (λ=1)", "paper": "9", "name": "EWC"}])
    assert row == "| EWC | 60.0 ± 14.1 | 2.50 × | 9 |"


def test_a_difference_is_paired_by_hand(small):
    """0.2 and 0.3: mean 0.25, standard error 0.05, and Student's t of one degree of freedom is 12.706."""
    (row,) = small(columns=["aac"], rows=[["ewc (λ=1)", "finetune"]])
    assert row == "| `ewc` (λ=1) minus `finetune` | +25.0 (−38.5 to +88.5; 2 of 2) |"


def test_a_difference_that_leaves_zero_out_is_bold(small):
    """0.2 and 0.202, of another file: mean 0.201, standard error 0.001."""
    (row,) = small(columns=["aac"], rows=[["two.csv: ewc (λ=1)", "finetune"]])
    assert row == "| `ewc` (λ=1) minus `finetune` | **+20.1** (+18.8 to +21.4; 2 of 2) |"


def test_a_column_of_the_file_is_a_number_whether_or_not_it_has_a_heading(small, tables, tmp_path):
    """The columns of the scenario `class` had none, and their cells were empty."""
    (tmp_path / "results" / "class.csv").write_text(SEEDS.replace("aac", "final_accuracy"))
    (row,) = small(file="class.csv", columns=["final_accuracy"], rows=["finetune"])
    assert row == "| `finetune` | 35.0 ± 7.1 |"


def test_losses_are_shown_as_they_are_by_hand(small):
    """0.30 and 0.40; the difference of 0.2 and 0.3, whose interval is ± 12.706 · 0.05."""
    asked = {"columns": ["aac"], "digits": 3}
    assert small(**asked, rows=["finetune"]) == ["| `finetune` | 0.350 ± 0.071 |"]
    (row,) = small(**asked, rows=[["ewc (λ=1)", "finetune"]])
    assert row == "| `ewc` (λ=1) minus `finetune` | +0.250 (−0.385 to +0.885; 2 of 2) |"


def test_the_protocol_of_a_row_is_a_text_and_two_of_them_are_no_one_row(small, tables, tmp_path):
    head, *lines = SEEDS.splitlines()
    file = tmp_path / "results" / "class.csv"
    file.write_text("\n".join([f"{head},prediction", *(f"{line},classifier" for line in lines)]))
    (row,) = small(file="class.csv", columns=["aac", "prediction"], rows=["finetune"])
    assert row == "| `finetune` | 35.0 ± 7.1 | classifier |"
    tables.lines_of.cache_clear()
    file.write_text("\n".join([f"{head},prediction", *(f"{line},{rule}" for line in lines for rule in ("a", "b"))]))
    with pytest.raises(
        tables.TableError, match="seed 0 of 'finetune' more than once; say which by `where`: .'prediction'"
    ):
        small(file="class.csv", columns=["aac"], rows=["finetune"])


def test_a_text_that_another_row_brings_may_be_missing(small):
    rows = small(columns=["aac", "paper"], rows=["finetune", {"row": "ewc (λ=1)", "paper": "9"}])
    assert rows == ["| `finetune` | 35.0 ± 7.1 | |", "| `ewc` (λ=1) | 60.0 ± 14.1 | 9 |"]


def test_a_file_of_two_benchmarks_is_read_where_the_table_says(small, tables, tmp_path):
    """Before, the lines of the second benchmark took the place of the first one's without a word."""
    second = SEEDS.replace("b,", "c,").replace("0.30", "0.50").replace(",100\n", ",200\n").split("\n", 1)[1]
    (tmp_path / "results" / "both.csv").write_text(SEEDS + second)
    asked = {"file": "both.csv", "columns": ["aac", "compute"]}
    assert small(**asked, rows=["finetune"], where={"benchmark": "b"}) == ["| `finetune` | 35.0 ± 7.1 | 1.00 × |"]
    assert small(**asked, rows=[{"row": "ewc (λ=1)", "where": {"benchmark": "c"}}]) == [
        "| `ewc` (λ=1) | 60.0 ± 14.1 | 2.00 × |"
    ]
    with pytest.raises(tables.TableError, match="seed 0 of 'finetune' more than once; say which by `where`: .'bench"):
        small(**asked, rows=["finetune"])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"columns": ["aac"], "rows": ["mas"]}, "one/seeds.csv has no method 'mas'; it has .'ewc"),
        ({"columns": ["bwt"], "rows": ["ewc (λ=1)"]}, "ewc .λ=1. has no bwt"),
        (
            {"columns": ["aac"], "rows": ["finetune"], "where": {"benchmark": "c"}},
            "has no line where .'benchmark': 'c'",
        ),
        (
            {"columns": ["final"], "rows": ["ewc (λ=1)"]},
            "one/seeds.csv has no column 'final', and no row brings a text",
        ),
    ],
)
def test_what_a_file_does_not_have_is_no_number(small, tables, spec, words):
    with pytest.raises(tables.TableError, match=words):
        small(**spec)


def test_every_folder_of_results_is_a_published_study():
    """Or of a script, by the command that stands beside it."""
    folders = {path.name for path in (ROOT / "results").iterdir() if path.is_dir()}
    others = folders - set(study_names())
    for line in (ROOT / "results" / "README.md").read_text().splitlines():
        if script := re.match(r"\| `(\S+)` \|.*`python ((?:bench|examples)/\w+\.py) ", line):
            assert (ROOT / script[2]).is_file()
            others.discard(script[1])
    assert not others, "neither a study nor the work of a script in bench/ or examples/"
    for name in folders & set(study_names()):
        study = load_study(name)
        assert study.published
        tables = {output.file for output in study.outputs if output.file.endswith(".csv")}
        assert all((ROOT / "results" / name / file).is_file() for file in tables)


def test_no_reported_seed_is_a_tuning_seed():
    for file in (ROOT / "results").glob("*/*.csv"):
        with file.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        if rows and {"method", "aac", "seed"} <= rows[0].keys():
            assert all(int(row["seed"]) < 100 for row in rows), file


@pytest.mark.parametrize(
    ("picture", "made"),
    [
        ("compute-two-tasks.png", "pay-digits/compute-regression.png"),
        ("compute-ten-tasks.png", "pay-ten-tasks/compute.png"),
        ("strengths.png", "strengths/strength.png"),
    ],
)
def test_pictures_of_results_are_those_that_the_study_made(picture, made):
    """A page cannot show a file outside docs/."""
    assert (ROOT / "docs" / picture).read_bytes() == (ROOT / "results" / made).read_bytes()


def test_columns_of_other_lines(small, tmp_path):
    second = SEEDS.replace("b,", "c,").replace("0.30", "0.50").split("\n", 1)[1]
    (tmp_path / "results" / "both.csv").write_text(SEEDS + second)
    nets = {"first": {"benchmark": "b"}, "second": {"benchmark": "c"}}
    assert small(file="both.csv", columns=list(nets), cells=nets, rows=["finetune"]) == [
        "| `finetune` | 35.0 ± 7.1 | 45.0 ± 7.1 |"
    ]
