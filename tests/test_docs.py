"""Every Python snippet in README and docs runs, in order, page by page; every command is one that exists.

Commands of `afec` are read as the command line reads them, down to the benchmark, the methods and their settings, and those of
the scale `smoke` are really run. A block that begins with the name of a file, `# mine.toml` or `# mine.py`,
is that file for the page.
"""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from afec.cli import main
from afec.cli.reports import check_arguments
from afec.whole_files import write_text
from small_processes import ForkedCommand

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "results").glob("**/*.md"))]

LAB = ROOT / "docs" / "lab.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def workplace(page, tmp_path, monkeypatch):
    """An empty directory with the files that the page shows."""
    monkeypatch.chdir(tmp_path)
    for block in [*blocks(page, "toml"), *blocks(page, "python")]:
        if named := re.match(r"# ([\w-]+\.(?:toml|py))\n", block):
            (tmp_path / named[1]).write_text(block)
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)
def test_snippets_run(page, capsys, workplace):
    namespace: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, name(page), "exec"), namespace)


def test_the_diff_of_the_readme_is_the_loop_below_it():
    page = ROOT / "README.md"
    (diff,) = blocks(page, "diff")
    loop = blocks(page, "python")[0]
    added = [line[1:].split("#")[0].strip() for line in diff.splitlines() if line.startswith("+")]
    assert len(added) == 2
    assert all(line in loop for line in added)


def commands(page: Path) -> list[list[str]]:
    """The commands of the page's bash blocks, as a shell would split them."""
    text = "".join(blocks(page, "bash")).replace("\\\n", " ")
    found = [command for line in text.splitlines() if (command := shlex.split(line, comments=True))]
    # Under torchrun and Slurm it is the same command.
    return [["afec", *words[words.index("afec") + 1 :]] if words[0] == "torchrun" else words for words in found]


def help_of(script: Path, monkeypatch, capsys) -> str:
    """What the script's --help prints, in this process: it has imported torch already."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", [str(script), "--help"])
        patch.syspath_prepend(script.parent)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
    assert not ended.value.code, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "bash")], ids=name)
def test_commands_exist(page, workplace, monkeypatch, capsys):
    """`make` targets are known to make, scripts take the options that the page gives them, and `afec` reads its arguments."""
    monkeypatch.setattr("afec.cli.work.do", lambda *arguments: None)  # everything but the work
    monkeypatch.setattr("afec.data.store.get", lambda *arguments: True)
    monkeypatch.setattr(
        "afec.cli.work.tune", lambda *arguments: write_text(arguments[-1], "[method.ewc]\nstrength = 1\n")
    )
    monkeypatch.setattr("afec.cli.reports.write", lambda *arguments: None)
    monkeypatch.setattr("afec.cli.reports.report", lambda console, runs, *arguments: check_arguments(*arguments))
    for command in commands(page):
        if command[0] == "make":
            subprocess.run(["make", "--dry-run", *command[1:]], cwd=ROOT, check=True, capture_output=True)
        elif command[0] == "afec":
            if command[1] == "resume":
                Path(next((word for word in command[2:] if not word.startswith("-")), "runs")).mkdir(exist_ok=True)
            assert main(command[1:]) == 0, f"{name(page)}: {' '.join(command)}: {capsys.readouterr().err}"
        elif command[0] == "python" and command[1].startswith(("bench/", "results/", "examples/")):
            known = help_of(ROOT / command[1], monkeypatch, capsys)
            for option in command[2:]:
                assert not option.startswith("--") or option in known
        else:
            pytest.fail(f"{name(page)} has a command that no test knows: {' '.join(command)}")


def smoke_commands(page: Path) -> list[list[str]]:
    return [command for command in commands(page) if command[0] == "afec" and "smoke" in command]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page != LAB and smoke_commands(page)], ids=name)
def test_quick_commands_run(page, workplace, in_process, capsys):
    for command in smoke_commands(page):
        assert main(command[1:]) == 0, f"{' '.join(command)}: {capsys.readouterr().err}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [LAB], ids=name)
def test_quick_commands_run_as_a_user_calls_them(page, workplace):
    """Each in a process of its own, with worker processes; all but the first are forked: the seconds for imports go."""
    first, *others = smoke_commands(page)
    run = subprocess.run([sys.executable, "-m", "afec.cli", *first[1:]], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for command in others:
        process = ForkedCommand(*command[1:])
        said, _ = process.communicate()
        assert process.returncode == 0, said


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if target.startswith("http"):
            continue
        there = page.parent / target if target else page
        assert there.exists(), f"{name(page)} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{name(page)} links to #{anchor} of {name(there.resolve())}"


def anchors(page: Path) -> list[str]:
    """What headings are called in links: lower case, without marks, dashes for blanks."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), flags=re.M)
    return [re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings]


def test_the_pages_make_a_site(tmp_path):
    """`make docs`: strict, so that a page that is in no menu and a link that leads nowhere fail it."""
    pytest.importorskip("mkdocs", reason="mkdocs is part of afec[dev]")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    made = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    assert (tmp_path / "site" / "methods" / "afec" / "index.html").exists()
    menu = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(menu) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("**/*.md"))
