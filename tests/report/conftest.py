"""A study on disk with everything that can happen to a run, and the browser that looks at its page."""

from __future__ import annotations

import shutil

import pytest
from browser import Browser, find_chromium
from small_study import write_study


@pytest.fixture
def study(tmp_path):
    """Twelve finished runs."""
    write_study(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def troubled(study):
    """The same, with one run failed, one unfinished, one damaged and one that is gone."""
    found = {name: sorted((study / "digits" / name).glob("*/seed*")) for name in ("finetune", "ewc", "ewc+afec")}
    (found["finetune"][0] / "DONE").unlink()
    (found["finetune"][0] / "FAILED").write_text("Traceback (most recent call last):\nValueError: the disk is <full>\n")
    (found["finetune"][1] / "DONE").unlink()
    (found["ewc+afec"][2] / "scores.csv").write_text("after,task,name,validation,test,size\n1,1,a,0.5,7.5,9\n")
    shutil.rmtree(found["ewc+afec"][1])
    return study


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One Chromium for all tests; they say why where there is none."""
    binary = find_chromium()
    if binary is None:
        pytest.skip("there is no Chromium: install Debian's package chromium, and these tests open the page in it")
    found = Browser(binary, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()
