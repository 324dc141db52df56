"""Every Python snippet in README and docs runs, in order, page by page; every command is one that exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "results").glob("**/*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)
def test_snippets_run(page, capsys):
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


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "bash")], ids=name)
def test_commands_exist(page):
    """`make` targets are known to make; `python -m` commands and scripts take the options that the page gives them."""
    for line in "".join(blocks(page, "bash")).splitlines():
        command = shlex.split(line, comments=True)
        if not command:
            continue
        if command[0] == "make":
            subprocess.run(["make", "--dry-run", *command[1:]], cwd=ROOT, check=True, capture_output=True)
        elif command[:3] == ["python", "-m", "afec.demo"]:
            from afec.demo.__main__ import parse

            parse(command[3:])
        elif command[0] == "python" and command[1].startswith("bench/"):
            run = subprocess.run([sys.executable, *command[1:], "--help"], cwd=ROOT, capture_output=True, text=True)
            assert run.returncode == 0, run.stderr
            for option in command[2:]:
                assert not option.startswith("--") or option in run.stdout
        else:
            pytest.fail(f"{name(page)} has a command that no test knows: {line}")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{name(page)} links to {target}"
