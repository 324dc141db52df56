"""Names in configs: what is said when one is not known, and classes of one's own in the place of a name."""

import pytest

from afec.naming import Record, Registry, check_section, did_you_mean, fault, load_object, unknown, with_defaults


def circle(radius, seed, points=4, colour=None):
    """A circle of points."""
    return radius, seed, points, colour


SHAPES = Registry("shape", [Record("circle", circle, "points on a circle")])


def test_the_nearest_name_is_asked_for_and_no_far_one():
    assert did_you_mean("patiense", ["patience", "lr"]) == "; did you mean 'patience'?"
    assert did_you_mean("zzz", ["patience", "lr"]) == ""
    assert unknown("key", "patiense", ["patience", "lr"]) == (
        "unknown key 'patiense'; did you mean 'patience'? Known: lr, patience"
    )
    assert unknown("key", "zzz", []) == "unknown key 'zzz'. Known: none"


def test_options_are_what_a_config_can_set():
    assert SHAPES["circle"].options == ("radius", "points", "colour")  # the seed is given by the caller
    assert fault("shape", SHAPES, "circle", {"radius": 1}) is None
    assert fault("shape", SHAPES, "cirkle", {}) == ("name", unknown("shape", "cirkle", ["circle"]))
    assert fault("shape", SHAPES, "circle", {"point": 3}) == (
        "point",
        "the shape 'circle' has no option 'point'; did you mean 'points'? It has: radius, points, colour",
    )


def test_a_section_has_a_name_and_gets_its_defaults():
    assert with_defaults(SHAPES, {"name": "circle", "radius": 2}) == {"name": "circle", "points": 4, "radius": 2}
    with pytest.raises(ValueError, match=r"shape\.name: it is missing; known: circle"):
        check_section("shape", SHAPES, {"radius": 1})
    with pytest.raises(ValueError, match=r"shape\.seed: the shape 'circle' has no option 'seed'"):
        check_section("shape", SHAPES, {"name": "circle", "seed": 1})


def test_a_file_of_ones_own_is_imported_once_and_names_what_it_lacks(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text('made = []\n\n\ndef square(side):\n    """A square."""\n\n\nclass Line:\n    name = "circle"\n')
    record = SHAPES[f"{file}:square"]
    assert (record.options, record.description) == (("side",), "A square.")
    assert load_object(f"{file}:made") is load_object(f"{file}:made")
    with pytest.raises(ValueError, match="has no squar; did you mean 'square'"):
        load_object(f"{file}:squar")
    with pytest.raises(ValueError, match="is no shape: expected a class or a function; got \\[\\]"):
        SHAPES[f"{file}:made"]
    lines = Registry("line", [Record("circle", circle, "")], base=(object,))
    with pytest.raises(ValueError, match="calls itself 'circle', which is a line of afec: give it another name"):
        lines[f"{file}:Line"]
    assert f"{file}:nothing" not in SHAPES
    file.with_name("broken.py").write_text("1 / 0\n")
    for _ in range(2):  # a file that has failed is not there half-made
        with pytest.raises(ZeroDivisionError):
            load_object(f"{tmp_path / 'broken.py'}:x")
