"""Run directories are handed around: whatever is in one, the page shows it and never obeys it, and reads nothing else."""

from __future__ import annotations

import json
import os
import re
import warnings
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_study import EVIL, rename

from afec.cli import main
from afec.files import save_tree
from afec.lab import find_runs
from afec.lab.plain import plain_text
from afec.report.html import clean, tag
from afec.report.rows import rows_of
from afec.report.study_tables import tables_of
from afec.report.table import to_latex
from written_runs import learned, written

SECRET = "the secret of another directory"


def page_of(root, tmp_path, *more):
    out = tmp_path / "page" / "r.html"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert main(["report", str(root), "-o", str(out), *(more or ["--no-pictures"])]) == 0
    text = out.read_text(encoding="utf-8")
    assert "<script>window" not in text
    assert text.count("<script>") == text.count("</script>") == 1
    assert "<img src=x" not in text
    assert SECRET not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    return text


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "elsewhere" / "secret.txt"
    file.parent.mkdir()
    file.write_text(f"after,task,name,validation,test,size\n0,1,{SECRET},0.1,0.1,9\n1,1,{SECRET},0.1,0.1,9\n")
    return file


@pytest.fixture
def one(tmp_path):
    root = tmp_path / "runs"
    for seed in (0, 1):
        written(root, "ewc", seed, learned(3, 0.5), (4,) * 3, (0,) * 3, "digits")
    return find_runs(root)[0]


def root_of(run):
    return run.path.parents[3]


@pytest.mark.parametrize("key", ["benchmark", "scale", "method", "variant"])
def test_names_are_shown_and_not_obeyed(one, tmp_path, key):
    rename(one, **{key: EVIL})
    assert "window.hacked=1" in page_of(root_of(one), tmp_path)


def test_names_of_tasks_tracebacks_notes_and_machines(one, tmp_path):
    one.write_scores([replace(score, name=EVIL.replace("\x00", "")) for score in one.scores()])
    one.append_events([{"event": "note", "text": EVIL}])
    (one.path / "env.json").write_text(json.dumps({"host": EVIL, "torch": EVIL, "commit": [EVIL]}))
    other = find_runs(root_of(one))[1]
    (other.path / "DONE").unlink()
    (other.path / "FAILED").write_text(EVIL)
    assert page_of(root_of(one), tmp_path).count("window.hacked=1") >= 3


@pytest.mark.parametrize(
    "name", ["scores.csv", "events.jsonl", "transfer.csv", "env.json", "config.toml", "FAILED", "DONE"]
)
def test_links_out_of_the_directory_are_not_followed(one, tmp_path, secret, name):
    if name == "FAILED":
        (one.path / "DONE").unlink()
    (one.path / name).unlink(missing_ok=True)
    (one.path / name).symlink_to(secret)
    text = page_of(root_of(one), tmp_path)
    if name in ("scores.csv", "events.jsonl", "transfer.csv", "config.toml", "FAILED"):
        assert "is a link; the files of a run are read from its own directory only" in text


def test_a_linked_directory_is_no_run(one, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    written(elsewhere, "mas", 0, learned(3, 0.5), (4,) * 3, (0,) * 3, "digits")
    (root_of(one) / "digits" / "mas").symlink_to(elsewhere / "digits" / "mas")
    assert "mas" not in re.findall(r'<th scope="row">(.*?)</th>', page_of(root_of(one), tmp_path))


def test_weights_behind_a_link_are_not_loaded(tmp_path):
    config, run = written(tmp_path / "runs", "ewc", 0, learned(2, 0.5), benchmark="digits-regression")
    save_tree(tmp_path / "elsewhere.safetensors", {"x": 1})
    (run.path / "learner.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    text = page_of(tmp_path / "runs", tmp_path, "--pictures")
    assert "no picture from the weights" in text
    assert "is a link" in text


def test_a_folder_that_a_run_points_at_is_not_shown(one, tmp_path):
    file = one.path / "config.toml"
    file.write_text(file.read_text().replace('name = "digits"', f'name = "folder:{tmp_path}"', 1))
    assert "is not one of the package&#39;s own" in page_of(root_of(one), tmp_path, "--pictures")


def test_a_benchmark_named_like_a_path_leads_nowhere(one, tmp_path):
    rename(one, benchmark="../../elsewhere")
    outside = tmp_path.parent / "elsewhere"
    assert not outside.exists()
    assert "../../elsewhere" in page_of(root_of(one), tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["scores.csv", "events.jsonl", "config.toml"])
def test_a_pipe_is_not_waited_for(one, tmp_path, name):
    (one.path / name).unlink()
    os.mkfifo(one.path / name)
    assert "is no plain file" in page_of(root_of(one), tmp_path)


@pytest.mark.parametrize(
    ("name", "size"), [("scores.csv", 2**27), ("events.jsonl", 2**33), ("config.toml", 2**33), ("env.json", 2**33)]
)
def test_huge_files_are_not_read(one, tmp_path, name, size):
    os.truncate(one.path / name, size)  # a hole: no disk is filled
    text = page_of(root_of(one), tmp_path)
    assert name == "env.json" or "expected at most" in text


@pytest.mark.parametrize("value", ["nan", "inf", "-0.5", "1e400", "", "0x1p-1", "1_0"])
def test_numbers_that_are_none(one, tmp_path, value):
    file = one.path / "scores.csv"
    file.write_text(re.sub(r"(?m)^(3,1,.*),[\d.]+,(\d+)$", rf"\1,{value},\2", file.read_text()))
    text = page_of(root_of(one), tmp_path)
    assert (
        "nan"
        not in re.findall(r"<main>.*</main>", text, flags=re.S)[0]
        .replace("finance", "")
        .split("config.toml")[0]
        .lower()
    )


def test_json_that_is_no_cost(one, tmp_path):
    for text in (
        '{"cpu_seconds": NaN, "peak_memory_mb": "a lot"}',
        "[" * 100_000,
        '{"cpu_seconds": 1e999}',
        "null",
        "{",
    ):
        (one.path / "DONE").write_text(text)
        (one.path / "env.json").write_text(text)
        page_of(root_of(one), tmp_path)


TOML = st.one_of(
    st.booleans(), st.integers(-(2**40), 2**40), st.floats(), st.text(max_size=20), st.lists(st.integers(), max_size=3)
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25)
@given(
    key=st.sampled_from(["benchmark", "scale", "method", "variant", "name", "strength", "lr", "tasks", "fisher"]),
    value=TOML,
)
def test_any_value_in_a_configuration_is_shown_or_named(one, tmp_path, key, value):
    file = one.path / "config.toml"
    before = file.read_bytes()
    try:
        import tomli_w

        line = tomli_w.dumps({key: value}).strip()
        text = re.sub(rf"(?m)^{key} = .*$", lambda _: line, before.decode(), count=1)
        file.write_bytes(text.encode("utf-8", "replace"))
        page_of(root_of(one), tmp_path)
    finally:
        file.write_bytes(before)


def test_latex_takes_no_orders(one):
    rename(one, title=r"\input{/etc/passwd}$#%&_{}~^", variant="")
    text = to_latex(tables_of(rows_of([(run.config, run) for run in find_runs(root_of(one))])))
    assert r"\input" not in text
    assert r"\textbackslash{}input\{/etc/passwd\}\$\#\%\&\_\{\}\textasciitilde{}\textasciicircum{}" in text


def test_markup_by_hand():
    assert clean("a\x00b\x1b\u202ec\nd") == "a\ufffdb\ufffd\ufffdc\nd"
    assert clean("x" * 50, 10) == "x" * 10 + " …"
    assert clean("\udcff") == "\ufffd"
    assert tag("path", d="M" + "1 2L" * 400).count("1 2L") == 400  # a drawing is not cut
    assert tag("text", "<b>", class_='"', x=1.25) == '<text class="&#34;" x="1.2">&lt;b&gt;</text>'


def test_a_plain_file_is_read(tmp_path):
    file = tmp_path / "a"
    file.write_text("grün")
    assert plain_text(file) == "grün"
    with pytest.raises(OSError, match="expected at most 0"):
        plain_text(file, 3)
    with pytest.raises(OSError, match="no plain file"):
        plain_text(tmp_path)
