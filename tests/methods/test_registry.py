"""Methods, nets and streams by name, as `module:Class` and as `file.py:Class`."""

from __future__ import annotations

import textwrap

import pytest
import torch

import afec
from afec.methods.expression import METHODS, check_settings, make_method, name_of, terms_of, whole_settings
from afec.naming import Record, Registry
from afec.nets import NETS, make_backbone
from afec.streams import STREAMS
from afec.testing import check_method

SOURCE = textwrap.dedent(
    '''
    from __future__ import annotations

    import torch

    from afec.guard import Term, option
    from afec.methods.regulariser import Regulariser
    from afec import Gaussian


    class Ridge(Regulariser):
        """Hold every weight alike. More words."""

        name = "ridge"
        floor: float = option(default=1.0, official=2.0, above=0, doc="What every weight counts.")

        def importance(self, task, task_state):
            return {name: torch.full_like(value, self.floor) for name, value in task.values().items()}


    class Plain(Term):
        """A term with a constructor of its own."""

        name = "plain"

        def __init__(self, strength, power=1, params=None):
            super().__init__(params)
            self.strength, self.power = strength, power

        def described(self):
            return f"Plain({self.strength})"

        @property
        def is_off(self):
            return self.strength == 0

        def quadratics(self, task, state, task_state):
            return [(self.strength, task.remembered(Gaussian.isotropic(state["mean"], 1.0)))] if state else []

        def end_task(self, task, state, task_state):
            return {"mean": task.values()}


    class EWC(Ridge):
        name = "ewc"


    def flat(width=3):
        net = torch.nn.Flatten()
        net.out_features = width
        return net


    number = 3
    '''
)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file of a user's, beside which the command is called."""
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "mine.py")


def test_a_method_of_a_users_file_is_found_named_and_added(mine):
    record = METHODS["mine.py:Ridge"]
    assert (record.name, record.description) == ("ridge", "Hold every weight alike. More words.")
    assert record.options == ("strength", "floor", "tolerance", "reference_epochs", "preset")
    assert "mine.py:Ridge" in METHODS
    assert "mine.py:Ridge" not in list(METHODS)  # the listing has our own
    assert terms_of(f"afec + {mine}:Ridge") == (f"{mine}:Ridge", "afec")
    assert name_of("mine.py:Ridge+AFEC") == "ridge+afec"
    for key in ("mine.py:Ridge", "ridge"):
        method = make_method("mine.py:Ridge+afec", {key: {"strength": 2}, "afec": {"forgetting": 1, "epochs": 2}})
        assert repr(method) == "Ridge(strength=2) + AFEC(forgetting=1, epochs=2)"
        assert method.method == "ridge+afec"
    assert whole_settings("mine.py:Ridge", {"strength": 1, "preset": "official"})["floor"] == 2.0
    with pytest.raises(ValueError, match="has no setting 'flor'; did you mean 'floor'"):
        check_settings("mine.py:Ridge", {"flor": 1})


def test_a_term_with_a_constructor_of_its_own_has_settings_too(mine):
    assert METHODS["mine.py:Plain"].options == ("strength", "power")
    assert whole_settings("mine.py:Plain", {"strength": 1}) == {"strength": 1, "power": 1}
    assert repr(make_method("mine.py:Plain", {"plain": {"strength": 1}})) == "Plain(1)"


@pytest.mark.parametrize("name", ["Ridge", "Plain"])
def test_a_method_of_a_users_file_keeps_the_contracts(mine, name):
    assert check_method(METHODS[f"mine.py:{name}"].make).ok


def test_the_default_preview_of_a_regulariser_is_judged(mine, capsys):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    data = (torch.randn(32, 4), torch.randint(0, 3, (32,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for name, judgement in (("Ridge", "too strong"), ("Plain", "not measured")):
        guard = METHODS[f"mine.py:{name}"].make(strength=1e3)
        report = guard.check(model, optimizer, data, torch.nn.CrossEntropyLoss(), seconds=60)
        assert report.verdicts[guard.name].judgement == judgement


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("mine.py:Rigde", "mine.py has no Rigde; did you mean 'Ridge'"),
        ("other.py:Ridge", "there is no file other.py"),
        ("no_such_module:Ridge", "there is no module no_such_module"),
        ("mine.py:", "expected module:Name or path/to/file.py:Name"),
        ("mine.py:number", "is no method: expected a subclass of Term or Strategy; got 3"),
        ("mine.py:flat", "is no method: expected a subclass of Term or Strategy"),
        ("mine.py:EWC", "calls itself 'ewc', which is a method of afec: give it another name"),
        ("mine.py:Ridge+mine.py:Ridge", "has one method twice"),
        ("ewk", "unknown method 'ewk'; did you mean 'ewc'. Known: afec, "),
    ],
)
def test_what_is_not_found_says_why(mine, expression, message):
    with pytest.raises(ValueError, match=message.replace("'. Known", "'[?] Known")):
        terms_of(expression)
    assert "+" in expression or expression not in METHODS


def test_our_own_methods_are_found_by_their_modules_too():
    with pytest.raises(ValueError, match="calls itself 'ewc'"):
        METHODS["afec:EWC"]
    assert METHODS["ewc"].make is afec.EWC


def test_nets_and_streams_of_elsewhere(mine):
    assert NETS["mine.py:flat"].options == ("width",)
    assert make_backbone("mine.py:flat", width=5).out_features == 5
    with pytest.raises(ValueError, match="has no option 'witdh'; did you mean 'width'"):
        make_backbone("mine.py:flat", witdh=5)
    with pytest.raises(ValueError, match="mine.py has no flt; did you mean 'flat'"):
        make_backbone("mine.py:flt")
    assert STREAMS["afec.streams:digits"].options == STREAMS["digits"].options
    assert "folder:somewhere" in STREAMS
    assert "folder:" not in STREAMS
    assert 3 not in STREAMS


def test_a_registry_is_a_mapping_that_can_be_listed():
    known = Registry("fruit", [Record("apple", dict, "red"), Record("pear", list, "green")])
    assert list(known) == ["apple", "pear"]
    assert [record.description for record in known.values()] == ["red", "green"]
    assert "plum" not in known
    with pytest.raises(KeyError):
        known["plum"]
