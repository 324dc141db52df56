"""The page: what stands in it, where it comes from, and that what cannot be read is said."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import shlex
from html.parser import HTMLParser

import numpy as np
import pytest

from afec.cli import main
from afec.cli import reports as command
from afec.lab import find_runs, load_benchmark, resolve
from afec.lab.spec import benchmark_names
from afec.report.figures import FIGURES, OF_CLASSES, OF_GAMES
from afec.report.page import page
from afec.report.paper import Published, published, published_after, published_transfer
from afec.report.reading import read
from afec.report.reproduce import command_for
from afec.report.rows import ordered, rows_of
from afec.report.statistics import bootstrap_interval, number
from afec.report.study_tables import after_tasks, differences, results, tables_of
from afec.report.svg import draw, ticks
from afec.report.table import to_latex
from afec.report.trust import verdicts
from written_runs import learned, written


def write(runs, out, *more):
    assert main(["report", str(runs), "-o", str(out), "--no-pictures", *more]) == 0
    return out.read_text(encoding="utf-8")


class Tables(HTMLParser):
    """The tables of a page: rows of texts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.cell = [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "table":
            self.found.append([])
        elif tag == "tr":
            self.found[-1].append([])
        elif tag in ("td", "th") and self.found:
            self.found[-1][-1].append("")
            self.cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.cell = None
            self.found[-1][-1][-1] = " ".join(self.found[-1][-1][-1].split())

    def handle_data(self, data):
        if self.cell:
            self.found[-1][-1][-1] += data


def test_the_tables_have_mean_spread_seeds_and_cost(study, tmp_path):
    table = Tables(write(study, tmp_path / "r.html")).found[0]
    rows = {row[0]: dict(zip(table[0], row, strict=True)) for row in table[1:]}
    assert list(rows) == ["finetune", "ewc (λ=30)", "ewc@equal-compute (λ=30)", "ewc+afec (λ=30, λ_e=0.1)"]
    # Five tasks at 0.50, 0.51 and 0.52, less 0.2 for each task since: 0.5, 0.3, 0.1, 0, 0 and so on.
    assert rows["finetune"]["AAC"] == "18.6 ± 0.6"  # 18.0, 18.6 and 19.2
    assert rows["ewc+afec (λ=30, λ_e=0.1)"]["AAC"] == "51.0 ± 1.0"  # 60 − 5·(0+1+2+3+4)/5, and one more for each seed
    assert rows["ewc+afec (λ=30, λ_e=0.1)"]["new task"] == "61.0 ± 1.0"
    assert rows["ewc+afec (λ=30, λ_e=0.1)"]["old tasks"] == "48.5 ± 1.0"
    assert rows["finetune"]["compute"] == "1.00 ×"
    assert rows["ewc+afec (λ=30, λ_e=0.1)"]["compute"] == "1.80 ×"  # 20 epochs, and 16 of θ_e


def test_the_papers_numbers_stand_beside_ours(tmp_path):
    for method in ("finetune", "ewc", "ewc+afec", "joint"):
        for seed in (0, 1):
            epochs = (1,) * 20
            written(
                tmp_path / "runs", method, seed, learned(20, 0.5, 0.02 * seed, 0.01), epochs, (0,) * 20, "cifar100-sc"
            )
    found = Tables(write(tmp_path / "runs", tmp_path / "r.html")).found
    after = {row[0]: dict(zip(found[1][0], row, strict=True)) for row in found[1][1:]}
    assert found[1][0] == ["method", "A2", "A5", "A10", "A10, paper", "A20", "A20, paper"]
    ours = after["ewc (λ=30)"]
    assert (ours["A10, paper"], ours["A20, paper"]) == ("52.25 ± 2.99", "51.74 ± 1.74")
    assert ours["A10"] == "46.5 ± 1.4"  # 50 − (0+…+9)/10, and 2 more for the other seed
    assert after["joint"]["A10, paper"] == "–"
    text = (tmp_path / "r.html").read_text()
    assert "ours are at the smaller scale <code>smoke</code>" in text
    assert "cifar100-sc at scale smoke" in text


def test_what_the_paper_says_is_found_by_benchmark_setting_and_net():
    config = resolve(load_benchmark("cifar10-regression"), "ewc", sets={"net": {"name": "vgg11"}})
    assert published(config, 2) == Published(73.55, 1.26)
    moved = resolve(
        load_benchmark("cifar10-regression"), "ewc", sets={"stream": {"setting": "transfer"}, "net": {"name": "vgg11"}}
    )
    assert published(moved, 2) is None
    assert published(config, 1) is None  # it is printed for the whole sequence only
    assert published_transfer(moved) == Published(76.66, 0.44)
    assert published(resolve(load_benchmark("omniglot"), "ewc+afec"), 25) == Published(84.08)
    longer = resolve(load_benchmark("cifar100-sc"), "ewc@equal-compute")
    assert published(longer, 10) is None
    assert published_after("cifar10-100") == [2, 22]
    assert published_after("digits") == []


def test_bootstrap_by_hand():
    low, high = bootstrap_interval([0.0, 1.0], [0.0, 0.0])  # means of the four draws: 0, ½, ½, 1
    assert (low, high) == (0.0, 1.0)  # each end is a quarter of all draws, so no narrower interval has 95 % of them
    three = bootstrap_interval([0.0, 0.0, 0.9], [0.0] * 3)  # 8/27 of the draws have mean 0, 1/27 has 0.9
    assert three == (0.0, pytest.approx(0.9))
    assert all(math.isnan(end) for end in bootstrap_interval([1.0], [0.0]))
    many = bootstrap_interval(list(np.linspace(0, 1, 30)), [0.0] * 30)
    assert many == bootstrap_interval(list(np.linspace(0, 1, 30)), [0.0] * 30)  # no chance in it
    assert many[0] < 0.5 < many[1]


def test_numbers_are_printed_with_a_minus_and_without_a_negative_zero():
    assert [number(-0.04), number(-26.06), number(-0.04, sign=True)] == ["0.0", "−26.1", "−0.04"]


def test_differences_are_paired_old_and_new_apart_and_at_equal_compute(study):
    runs = [(one.config, one) for one in find_runs(study)]
    table = differences(ordered(rows_of(runs)))
    found = {(row[1].text, row[2].text): row for row in table.rows}
    assert {against for against, _ in found} == {"ewc (λ=30)", "ewc@equal-compute (λ=30)"}
    assert found["ewc (λ=30)", "AAC"][3].text == "+5.0"
    assert found["ewc@equal-compute (λ=30)", "new task"][3].text == "+3.0"
    assert found["ewc@equal-compute (λ=30)", "old tasks"][6].text == "3 of 3"
    assert found["ewc (λ=30)", "AAC"][7].text == "unknown: all seeds alike"


def test_a_difference_that_both_intervals_leave_out_is_outside(tmp_path):
    for seed, gain in enumerate((0.11, 0.12, 0.13)):
        written(tmp_path, "ewc", seed, learned(2, 0.5), benchmark="digits")
        written(tmp_path, "ewc+afec", seed, learned(2, 0.5, gain), benchmark="digits")
    row = differences(ordered(rows_of([(one.config, one) for one in find_runs(tmp_path)]))).rows[0]
    assert (row[3].text, row[6].text, row[7].text) == ("+12.0", "3 of 3", "outside")


def said(root):
    """What the page answers to `can I trust it`."""
    readings = [read(one.config, one) for one in find_runs(root)]
    rows = ordered(rows_of([(one.config, one.run) for one in readings]))
    return {one.text: one.good for one in verdicts(rows, readings)}


@pytest.mark.parametrize(
    ("epochs", "text", "good"),
    [
        (8, "Every row with AFEC has its counterpart at equal compute.", True),
        (
            4,
            "ewc@equal-compute (λ=30) is called so and cost less: 0.67 of the samples of ewc+afec (λ=30, λ_e=0.1).",
            False,
        ),
    ],
)
def test_equal_compute_is_measured_and_not_believed(epochs, text, good, tmp_path):
    written(tmp_path, "ewc", 0, learned(2, 0.5), benchmark="digits")
    written(tmp_path, "ewc@equal-compute", 0, learned(2, 0.55), (4, epochs), benchmark="digits")  # 4 + 8 or 4 + 4
    written(tmp_path, "ewc+afec", 0, learned(2, 0.6), theta_e=(0, 4), benchmark="digits")  # 4 + 4 + 4
    assert said(tmp_path)[text] is good


def test_rows_that_are_all_alike_are_a_doubt(tmp_path):
    text = "All rows have the same AAC: too little was learned here to tell methods apart."
    for method in ("finetune", "ewc"):
        written(tmp_path, method, 0, learned(2, 0.5), benchmark="digits")
    assert said(tmp_path)[text] is False
    written(tmp_path, "mas", 0, learned(2, 0.51), benchmark="digits")
    assert text not in said(tmp_path)


def test_a_difference_that_one_interval_covers_is_not_outside(tmp_path):
    for seed, gain in enumerate((0.01, 0.02, 0.12)):
        written(tmp_path, "ewc", seed, learned(2, 0.5), benchmark="digits")
        written(tmp_path, "ewc+afec", seed, learned(2, 0.5, gain), benchmark="digits")
    row = differences(ordered(rows_of([(one.config, one) for one in find_runs(tmp_path)]))).rows[0]
    assert row[4].text.startswith("+1")  # the bootstrap leaves zero out
    assert row[5].text.startswith("−")  # Student's t does not
    assert row[7].text == "inside Student's"


def test_what_is_missing_failed_unfinished_and_damaged_is_there(troubled, tmp_path):
    text = write(troubled, tmp_path / "r.html")
    for said in ("8 finished", "1 unfinished", "1 failed", "1 damaged", "1 missing"):
        assert f">{said}<" in text
    runs = next(table for table in Tables(text).found if table[0][0] == "state")
    states = [row[0] for row in runs[1:]]
    assert sorted(states) == sorted(["finished"] * 8 + ["unfinished", "failed", "damaged", "missing"])
    assert "ValueError: the disk is &lt;full&gt;" in text
    assert "a score is no accuracy from 0 to 1" in text
    assert "8 runs are finished; 1 failed, 1 damaged, 1 unfinished, 1 missing" in text


def test_the_list_of_runs_has_the_strengths_in_the_order_of_the_rows(tmp_path):
    for strength in (1000, 10):
        for seed in (1, 0):
            written(
                tmp_path / "runs",
                "ewc",
                seed,
                learned(2, 0.5),
                benchmark="digits",
                method={"ewc": {"strength": strength}},
            )
    written(tmp_path / "runs", "ewc+afec", 0, learned(2, 0.5), benchmark="digits")
    written(tmp_path / "runs", "finetune", 0, learned(2, 0.5), benchmark="digits", training={"lr": 0.5})
    written(tmp_path / "runs", "finetune", 0, learned(2, 0.5), benchmark="digits", training={"lr": 0.25})
    text = write(tmp_path / "runs", tmp_path / "r.html")
    runs = next(table for table in Tables(text).found if table[0][0] == "state")
    names = [(row[0], row[2].rsplit(" ", 1)[0], row[3]) for row in runs[1:]]
    assert [(name, seed) for state, name, seed in names if state == "finished"] == [
        ("finetune, lr=0.25", "0"),
        ("finetune, lr=0.5", "0"),
        ("ewc (λ=10)", "0"),
        ("ewc (λ=10)", "1"),
        ("ewc (λ=1000)", "0"),
        ("ewc (λ=1000)", "1"),
        ("ewc+afec (λ=30, λ_e=0.1)", "0"),
    ]
    assert ("missing", "ewc+afec (λ=30, λ_e=0.1)", "1") in names
    assert {row[2].rsplit(" ", 1)[1] for row in runs[1:]} == {run.config.hash for run in find_runs(tmp_path / "runs")}


def test_words_are_explained_where_they_first_stand(tmp_path):
    """Between the place where a word is used first and the next table there is what it means."""
    for seed, gain in enumerate((0.01, -0.02, 0.03)):
        for method, base in (("finetune", 0.4), ("ewc", 0.5), ("ewc+afec", 0.5 + gain)):
            written(tmp_path / "runs", method, seed, learned(5, base), (4,) * 5, (0,) * 5, "digits")
    text = write(tmp_path / "runs", tmp_path / "r.html")
    body = text[text.index("<main>") :]
    for word, meaning in (
        ("AAC", "AAC: the mean test accuracy of all tasks after the last one"),
        ("ero is inside", "Zero is inside: the interval contains zero, so chance alone can explain the difference."),
        (">BWT<", "BWT (backward transfer): what old tasks have gained or lost since they were learned"),
        (">forgetting<", "forgetting: how far old tasks are below their best accuracy"),
        (">FWT zero-shot<", "FWT zero-shot (forward transfer): "),
        (">A2<", "A2: the mean test accuracy of the first 2 tasks just after task 2 was learned"),
        (
            ">zero is<",
            "Zero is inside where both 95 % intervals contain it: chance alone can explain such a difference.",
        ),
    ):
        first = body.index(word)
        here = body[first : body.index("<table", first)] if "<table" in body[first:] else body[first:]
        assert meaning in here, word
    assert "A5, after the last task, is AAC." in body


def test_headlines_say_zero_is_inside_only_of_an_interval_that_has_it(study, tmp_path):
    """In this study all seeds differ by the same, so the interval is +5.0 to +5.0 and nothing is known of chance."""
    text = write(study, tmp_path / "r.html")
    (line,) = re.findall(r"<li>(ewc\+afec .* against ewc \(.*)</li>", text)
    assert "AAC +5.0 (+5.0 to +5.0; all seeds differ by the same, so nothing is known of chance;" in line
    assert "zero is inside" not in line


def test_a_page_without_any_finished_run(study, tmp_path):
    for run in find_runs(study):
        (run.path / "DONE").unlink()
    text = write(study, tmp_path / "r.html")
    assert ">12 unfinished<" in text
    assert "No run is finished yet." in text
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no run at all" in write(empty, tmp_path / "e.html")


def test_commands_make_the_very_same_runs_again(study, tmp_path, monkeypatch):
    written(study, "ewc", 7, learned(5, 0.5), (4,) * 5, (0,) * 5, "digits", training={"lr": 0.5, "patience": None})
    asked = []
    monkeypatch.setattr(
        "afec.cli.work.do", lambda jobs, *rest: asked.extend((job.config.hash, job.seed) for job in jobs)
    )
    hashes = {(run.config.hash, run.seed) for run in find_runs(study)}
    text = write(study, tmp_path / "r.html")
    commands = re.findall(r"<pre>(afec run .*?)</pre>", text, flags=re.S)
    for line in "\n".join(commands).replace("&#34;", '"').replace("&#39;", "'").splitlines():
        assert main(shlex.split(line)[1:]) == 0
    assert set(asked) == hashes


def test_a_benchmark_that_has_changed_is_said_and_the_configuration_shown(study, tmp_path):
    run = find_runs(study)[0]
    file = run.path / "config.toml"
    file.write_text(file.read_text().replace("batch_size = 64", "batch_size = 65\nbatch_shape = 3"))
    assert not command_for(run.config, [0]).exact
    text = write(study, tmp_path / "r.html")
    assert "not from this version" in text
    assert "batch_shape = 3" in text


def test_only_our_own_script_and_style_are_obeyed(study, tmp_path):
    text = write(study, tmp_path / "r.html")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#39;", "'")
    for name in ("style", "script"):
        (inner,) = re.findall(rf"<{name}>(.*?)</{name}>", text, flags=re.S)
        known = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{known}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.findall(r"\sstyle=|\son\w+=|https?://(?!www\.w3\.org/2000/svg)", text)


def test_each_file_of_a_run_is_read_once(study, monkeypatch):
    from afec.lab import directory

    opened = []
    plain = directory.plain_text
    monkeypatch.setattr(directory, "plain_text", lambda path, *a, **k: opened.append(path) or plain(path, *a, **k))
    page([read(run.config, run) for run in find_runs(study)], "runs", "afec")
    assert sorted(opened) == sorted(set(opened))
    assert sum(path.name == "scores.csv" for path in opened) == 12


def test_watching_writes_again_when_there_is_more(study, tmp_path, monkeypatch):
    out, seen = tmp_path / "r.html", []

    def sleep(seconds):
        seen.append(out.read_text())
        if len(seen) == 1:
            written(study, "mas", 0, learned(5, 0.4), (4,) * 5, (0,) * 5, "digits")
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", sleep)
    last = write(study, out, "--watch")
    assert 'http-equiv="refresh"' in seen[0]
    assert "mas" not in re.findall(r"<tbody>.*", seen[0], flags=re.S)[0].split("</tbody>")[0]
    assert ">13 finished<" in seen[1]
    assert seen[2] == seen[1]  # nothing new, so nothing was written
    assert 'http-equiv="refresh"' not in last


def test_pictures_are_drawn_again_only_for_other_runs(study, monkeypatch):
    from afec.report import page as module

    asked = []
    monkeypatch.setattr(module, "tiles_of", lambda rows: asked.append(len(rows)) or module.NOTHING)
    readings = [read(run.config, run) for run in find_runs(study)]
    cache = {}
    for _ in range(2):
        page(readings, "runs", "afec", cache=cache)
    assert asked == [4]
    page(readings[1:], "runs", "afec", cache=cache)
    assert asked == [4, 4]
    page(readings, "runs", "afec")
    assert asked == [4, 4]


def test_watching_needs_a_page(study, capsys):
    assert main(["report", str(study), "--watch"]) == 2
    assert "give the page to keep fresh, e.g. -o report.html" in capsys.readouterr().err


@pytest.mark.parametrize("figure", [name for name in FIGURES if name not in ("strength", *OF_GAMES, *OF_CLASSES)])
@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_every_figure_is_a_file_too(study, tmp_path, figure, suffix, start):
    out = tmp_path / f"{figure}.{suffix}"
    assert main(["report", str(study), "--figure", figure, "-o", str(out)]) == 0
    assert out.read_bytes().startswith(start)


def test_figures_show_the_means_and_the_spread(study):
    rows = ordered(rows_of([(one.config, one) for one in find_runs(study)]))
    (chart,) = FIGURES["accuracy"](rows).charts
    ours = chart.traces[3]
    assert ours.label == "ewc+afec (λ=30, λ_e=0.1)"
    assert ours.y == pytest.approx([61, 58.5, 56, 53.5, 51])
    assert ours.spread == pytest.approx([1.0] * 5)
    assert "ewc+afec (λ=30, λ_e=0.1)" in draw(chart)
    assert "tasks learned 5: 51.0 ± 1.0 (n 3)" in draw(chart)
    heat = FIGURES["matrix"](rows).charts[3]
    assert heat.values[5] == pytest.approx([41, 46, 51, 56, 61])
    bwt = next(chart for chart in FIGURES["transfer"](rows).charts if chart.title == "BWT")
    assert bwt.traces[3].y[0] == pytest.approx(-12.5)  # 20, 15, 10 and 5 points lost


def test_ticks_are_round_numbers():
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(0.013, 0.021) == [0.014, 0.016, 0.018, 0.02]
    assert ticks(3, 3) != []


def test_latex_is_a_table_that_a_paper_can_take(study):
    text = to_latex(tables_of(rows_of([(one.config, one) for one in find_runs(study)])))
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 3
    assert r"ewc+afec ($\lambda$=30, $\lambda_e$=0.1) & \textbf{51.0 $\pm$ 1.0}" in text
    for block in re.findall(r"\\begin\{tabular\}\{(.*?)\}(.*?)\\end", text, flags=re.S):
        for row in [line for line in block[1].splitlines() if line.endswith(r"\\")]:
            assert len(re.findall(r"(?<!\\)&", row)) == len(block[0]) - 1
    assert not re.findall(r"(?<![\\{a])_(?!e\$)", text)


def test_the_tables_are_left_out_where_they_say_nothing(study):
    rows = ordered(rows_of([(one.config, one) for one in find_runs(study) if one.config.method == "finetune"]))
    assert differences(rows) is None
    assert [cell.best for row in results(rows).rows for cell in row if cell.best] == []
    assert [column.name for column in after_tasks(rows).columns] == ["method", "A2", "A5"]


def test_every_benchmark_of_the_package_can_be_commanded():
    for name in benchmark_names():
        config = resolve(load_benchmark(name), "ewc", sets={"training": {"lr": 0.123}})
        found = command_for(config, [0, 1, 2, 7])
        assert found.exact, found.text
        assert found.text.count("afec run") == 2  # seeds 0 to 2, and 7
