"""What a tuning searches: stages, grids and Fisher kinds."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from afec.experiments.games import Games
from afec.experiments.grids import DEFAULTS, NOTHING
from afec.lab import (
    SpecError,
    benchmark_names,
    load_benchmark,
    resolve,
)
from afec.lab.tuning import Plan, planned, stages, trials_of, without_grid
from afec.methods.expression import METHODS
from afec.strategy import Strategy
from small_tuning import bench, how


@pytest.mark.parametrize(
    ("method", "together", "expected"),
    [
        ("ewc", False, [("ewc", ("ewc",))]),
        ("ewc+afec", False, [("ewc", ("ewc",)), ("ewc+afec", ("afec",))]),
        ("afec+ewc", False, [("ewc", ("ewc",)), ("ewc+afec", ("afec",))]),
        ("ewc+afec", True, [("ewc+afec", ("ewc", "afec"))]),
        ("ewc+mas+afec", False, [("ewc+mas", ("ewc", "mas")), ("ewc+mas+afec", ("afec",))]),
        ("afec", False, [("afec", ("afec",))]),
        ("ewc+afec@long", False, [("ewc@long", ("ewc",)), ("ewc+afec@long", ("afec",))]),
        ("mas@long", True, [("mas@long", ("mas",))]),
        ("ewc+recycle", False, [("ewc+recycle", ("ewc", "recycle"))]),
        ("ewc+prior", False, [("ewc", ("ewc",)), ("ewc+prior", ("prior",))]),
        ("ewc+recycle+afec", False, [("ewc+recycle", ("ewc", "recycle")), ("ewc+afec+recycle", ("afec",))]),
        (
            "ewc+afec+prior",
            False,
            [("ewc", ("ewc",)), ("ewc+afec", ("afec",)), ("ewc+afec+prior", ("prior",))],
        ),
    ],
)
def test_the_strength_comes_first_and_without_afec(method, together, expected):
    assert stages(resolve(bench(), method), together=together) == expected


@pytest.mark.parametrize("method", ["finetune", "joint", "scratch"])
def test_what_has_no_strength_is_refused(method):
    with pytest.raises(SpecError, match=f"{method} has nothing to tune; give a method with a strength"):
        planned(how(method))


def test_what_each_stage_searches():
    strengths, forgettings = (1.0, 10.0, 100.0), (0.1, 1.0, 10.0)
    first = ("ewc", {"ewc.strength": strengths})
    assert planned(how()) == [first, ("ewc+afec", {"afec.forgetting": forgettings})]
    assert planned(how(beta=True)) == [first, ("ewc+afec", {"afec.beta": (0.1, 0.5, 0.9)})]
    both = {"ewc.strength": strengths, "afec.forgetting": forgettings}
    assert planned(how(together=True)) == [("ewc+afec", both)]
    assert [trials_of(how(**o)) for o in ({}, {"together": True}, {"trials": 2}, {"trials": 99})] == [6, 9, 4, 6]
    assert [trials_of(how(search="tpe", **o)) for o in ({}, {"together": True}, {"trials": 3})] == [40, 20, 6]


@pytest.mark.parametrize("name", benchmark_names())
def test_the_grids_of_the_package_give_every_method_and_stage_the_same_number_of_trials(name):
    found = load_benchmark(name)
    methods = [name for name in METHODS if name != "afec" and DEFAULTS[name] is not NOTHING]
    if found.kind is Games:
        methods = [name for name in methods if not issubclass(METHODS[name].make, Strategy)]
    elif found.stream.get("scenario", "task") == "task":
        methods = [name for name in methods if not getattr(METHODS[name].make, "needs_classes", False)]
    else:
        methods = [name for name in methods if name in found.method]
    for beta in (False, True):
        spaces = [
            space for m in methods for _, space in planned(Plan(found, f"{m}+afec", "smoke", seeds=(1,), beta=beta))
        ]
        assert len(spaces) == 2 * len(methods)
        assert len({len(values) for space in spaces for values in space.values()}) == 1


def default(method, beta=False, **settings):
    """The default grid of the last term, as a benchmark without grids has it."""
    term = method.split("+")[-1]
    ((key, values),) = planned(how(method, benchmark=bench(""), beta=beta, sets={"method": {term: settings}}))[-1][
        1
    ].items()
    return key, values


def test_a_benchmark_without_grids_has_default_ones_by_the_fisher_kind():
    tens = (1, 10, 100, 1000, 10_000)
    for kind in ("auto", "exact", "sample"):
        assert default("ewc", fisher=kind) == ("ewc.strength", tens)
    assert default("ewc", fisher="empirical") == ("ewc.strength", tuple(100 * value for value in tens))
    assert default("ewc", fisher="batched", fisher_batch=20) == ("ewc.strength", tuple(2000 * value for value in tens))
    assert default("ewc", preset="official") == default("ewc", fisher="batched", fisher_batch=20)
    assert default("mas") == ("mas.strength", (0.1, 1, 10, 100, 1000))
    assert default("ewc+afec") == ("afec.forgetting", (0.01, 0.1, 1, 10, 100))
    assert default("ewc+afec", beta=True) == ("afec.beta", (0.01, 0.1, 0.5, 0.9, 0.99))
    name, values = default("ewc+afec", fisher="batched", fisher_batch=20)
    assert (name, values) == ("afec.forgetting", pytest.approx((0.02, 0.2, 2, 20, 200)))


def test_default_grids_give_every_method_the_same_number_of_trials():
    assert set(DEFAULTS) == set(METHODS)
    lengths = {len(v) for grids in DEFAULTS.values() for grid in grids for k, v in grid.items() if k != "fisher"}
    assert lengths == {5}


def test_a_grid_of_the_benchmark_goes_before_the_default_one():
    only = how("ewc+mas+afec", benchmark=bench("[tune.ewc]\nstrength = [7]\n[tune.afec]\nforgetting = [1]\n"))
    assert planned(only)[0][1]["ewc.strength"] == (7.0,)
    assert without_grid(only) == ["mas"]
    assert without_grid(replace(only, beta=True)) == ["mas", "afec"]  # it has one in λ_e, and none in β


def test_a_method_without_any_grid_is_named(monkeypatch):
    monkeypatch.setitem(DEFAULTS, "mas", ())
    with pytest.raises(SpecError, match=r"quick: there is no grid for mas, .* \[tune.mas\] strength = \[1, 10, 100\]"):
        planned(how("mas", benchmark=bench("")))


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        ("[tune.ewcc]\nstrength = [1]", "quick.toml: tune.ewcc: unknown method 'ewcc'; did you mean 'ewc'"),
        ("[tune.ewc]\nstrenght = [1]", "quick.toml: tune.ewc: ewc has no setting 'strenght'; did you mean 'strength'"),
        ("[tune.ewc]\nstrength = 1", "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ("[tune.ewc]\nstrength = []", "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ("[tune.ewc]\nstrength = [-1]", "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ('[tune.ewc]\nstrength = ["1"]', "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ("[tune.ewc]\nstrength = [true]", "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ("[tune.ewc]\nstrength = [inf]", "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ("[tune.ewc]\nstrength = [1, nan]", "quick.toml: tune.ewc.strength: expected a list of numbers"),
        ("[tune.ewc]\nstrength = [1]\nfisher_batch = 0", "quick.toml: tune.ewc.fisher_batch: expected the number of"),
        ("[tune.ewc]\nstrength = [1]\nfisher_batch = 2.5", "quick.toml: tune.ewc.fisher_batch: expected the number of"),
        (
            '[tune.ewc]\nstrength = [1]\nfisher_batch = "20"',
            "quick.toml: tune.ewc.fisher_batch: expected the number of",
        ),
        (
            "[tune.ewc]\nstrength = [1]\nfisher_batch = true",
            "quick.toml: tune.ewc.fisher_batch: expected the number of",
        ),
        ('[tune.ewc]\nstrength = [1]\nfisher = "exakt"', "quick.toml: tune.ewc.fisher: unknown Fisher kind 'exakt'"),
        ("[tune]\newc = [1]", "quick.toml: tune.ewc"),
    ],
    ids=lambda text: text.replace("\n", " ") if text.startswith("[") else "",
)
def test_a_wrong_grid_is_refused_with_file_and_key(grids, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        bench(grids)


def test_a_beta_of_one_is_refused():
    with pytest.raises(SpecError, match=re.escape("quick: tune.afec.beta: β lies in [0, 1); got [0.5, 1]")):
        planned(how("afec", benchmark=bench("[tune.afec]\nbeta = [0.5, 1]\n"), beta=True))


# -- Fisher kinds -------------------------------------------------------------------------------------------------


def converted(grid, **settings):
    """λ = 3 of this grid under these settings of the run."""
    found = bench(f"[tune.ewc]\nstrength = [3]\n{grid}\n")
    ((_, space),) = planned(Plan(found, "ewc", sets={"method": {"ewc": settings}}))
    ((value,),) = space.values()
    return value


@pytest.mark.parametrize(
    ("grid", "settings", "expected"),
    [
        ('fisher = "empirical"', {"fisher": "empirical"}, 3),
        ('fisher = "empirical"', {"fisher": "batched", "fisher_batch": 20}, 60),
        ('fisher = "empirical"', {"preset": "paper"}, 3),
        ('fisher = "empirical"', {"preset": "official"}, 60),
        ('fisher = "batched"', {"preset": "official"}, 3),
        ('fisher = "batched"', {"fisher": "empirical"}, 3 / 20),
        ('fisher = "batched"\nfisher_batch = 10', {"fisher": "empirical"}, 3 / 10),
        ('fisher = "batched"\nfisher_batch = 10', {"fisher": "batched", "fisher_batch": 20}, 6),
        ('fisher = "batched"\nfisher_batch = 20', {"fisher": "batched", "fisher_batch": 10}, 1.5),
        ('fisher = "exact"', {}, 3),
        ('fisher = "exact"', {"fisher": "sample"}, 3),
        ('fisher = "sample"', {"fisher": "auto"}, 3),
        ('fisher = "auto"', {"fisher": "exact"}, 3),
        ("", {"fisher": "batched"}, 3),  # it does not say what it belongs to
    ],
)
def test_a_grid_is_converted_to_the_kind_of_the_run(grid, settings, expected):
    assert converted(grid, **settings) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("there", "here"), [("exact", "batched"), ("batched", "exact"), ("sample", "empirical"), ("empirical", "auto")]
)
def test_what_cannot_be_converted_is_refused(there, here):
    message = (
        f"quick: the grid of ewc belongs to the `{there}` Fisher, and this run uses `{here}`: their λ are different numbers "
        f'and cannot be converted. Use --set method.ewc.fisher={there}, or a grid with fisher = "{here}"'
    )
    with pytest.raises(SpecError, match=re.escape(message)):
        converted(f'fisher = "{there}"', fisher=here)


def test_beta_is_converted_as_its_lambda_e():
    found = bench('[tune.afec]\nforgetting = [0.25, 1]\nbeta = [0.2, 0.5]\nfisher = "empirical"\n')
    plan = Plan(found, "afec", sets={"method": {"afec": {"fisher": "batched", "fisher_batch": 20}}})
    assert planned(plan) == [("afec", {"afec.forgetting": (5.0, 20.0)})]
    ((_, space),) = planned(replace(plan, beta=True))
    ((low, high),) = space.values()  # λ_e = β/(1−β): 1/4 and 1, times 20
    assert (low, high) == pytest.approx((5 / 6, 20 / 21))


def test_only_strengths_are_converted():
    found = bench('[tune.si]\nstrength = [1]\ndamping = [0.1, 0.2]\n[tune.ewc]\nstrength = [1]\nfisher = "empirical"\n')
    assert planned(Plan(found, "si")) == [("si", {"si.strength": (1.0,), "si.damping": (0.1, 0.2)})]
