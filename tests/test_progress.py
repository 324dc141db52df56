"""The bar of long work is drawn on a terminal only, and draws no random number."""

import random

from afec.progress import progress_bar


def test_where_nobody_looks_nothing_is_written(capsys):
    with progress_bar("decoding", 3) as step:  # standard error is no terminal here
        step("one")
    assert capsys.readouterr() == ("", "")


def test_a_bar_goes_to_standard_error_and_leaves_the_generators_alone(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    random.seed(1)
    expected = random.random()
    random.seed(1)
    with progress_bar("decoding", 2, wanted=True) as step:
        step("file 1")
        step("file 2")
    assert random.random() == expected
    out, error = capsys.readouterr()
    assert out == ""
    assert "decoding" in error
    assert "file 2" in error
