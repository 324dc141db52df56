"""Benchmarks as TOML: what they mean, and what is said about every kind of slip."""

import inspect
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import afec
from afec.cli import main
from afec.experiments.games import Games
from afec.experiments.supervised import training_of
from afec.lab import SpecError, benchmark_names, load_benchmark, plan, resolve
from afec.lab.config import grid, parse_set
from afec.lab.spec import load_tuned, merged, parse_benchmark
from afec.methods.expression import METHODS
from afec.nets import NETS
from afec.strategy import Strategy
from afec.streams import STREAMS
from small_lab import TEXT, quick, quick_config, quick_file


def test_every_benchmark_of_the_package_is_valid_for_every_method_at_every_scale():
    assert {"digits", "digits-regression"} <= set(benchmark_names())
    for name in benchmark_names():
        benchmark = load_benchmark(name)
        assert benchmark.description
        assert "smoke" in benchmark.scales
        strategies = {name: record.make for name, record in METHODS.items() if issubclass(record.make, Strategy)}
        refused: set[str] = set()
        if benchmark.kind is Games:
            refused = set(strategies)
        elif benchmark.stream.get("scenario") == "class":
            refused = {name for name, make in strategies.items() if make.needs_heads}
        methods = set(METHODS) - refused
        for scale in benchmark.scales:
            for method in ("finetune", *benchmark.kind.references, *methods, "ewc+afec"):
                resolve(benchmark, method, scale)
        for variant in benchmark.variant:
            assert resolve(benchmark, f"ewc@{variant}").variant == variant


def weights(method, /, **sections):
    """λ and λ_e of a row."""
    settings = quick_config(method, **sections).settings
    return {term: table["forgetting" if term == "afec" else "strength"] for term, table in settings.items()}


def test_scales_variants_sums_and_sets_lie_on_top_of_each_other():
    assert quick_config("ewc").training["max_epochs"] == 2
    assert quick_config("ewc@long").training["max_epochs"] == 4
    assert quick_config("ewc", "tiny").stream["sizes"] == [2, 3]
    assert quick_config("ewc", "tiny").training["max_epochs"] == 1
    assert quick_config("ewc@long", "tiny").training["max_epochs"] == 4
    assert quick_config("ewc@long", "tiny", training={"max_epochs": 9}).training["max_epochs"] == 9
    assert weights("ewc+afec") == {"ewc": 10, "afec": 1}
    assert weights("afec + MAS") == {"mas": 1, "afec": 0.5}
    assert weights("mas+afec", method={"afec": {"forgetting": 7}}) == {"mas": 1, "afec": 7}


def test_a_variant_can_double_what_its_scale_has():
    benchmark = load_benchmark("cifar100-sc")
    epochs = {scale: resolve(benchmark, "ewc", scale).training["max_epochs"] for scale in benchmark.scales}
    assert epochs == {"full": 100, "short": 10, "smoke": 1, "end": 1000, "end-small": 1000}
    for scale, count in epochs.items():
        if scale.startswith("end"):
            continue
        twice = resolve(benchmark, "ewc@equal-compute", scale)
        assert twice.training["max_epochs"] == 2 * count
        assert type(twice.training["max_epochs"]) is int
        assert "*" not in twice.to_toml()
    assert merged({"lr": 0.1, "n": 3}, {"lr": "*0.5", "n": "*1.5"}) == {"lr": 0.05, "n": 4.5}
    assert merged({"name": "a"}, {"name": "*2"}) == {"name": "*2"}  # no number is there
    with pytest.raises(SpecError, match="training.lr_min: Input should be a valid number"):  # the file has no lr_min
        quick_config("ewc", training={"lr_min": "*2"})
    with pytest.raises(SpecError, match="training.max_epochs: .* got 0.6"):
        quick_config("ewc", training={"max_epochs": "*0.3"})


def test_a_scale_can_have_a_variant_of_its_own(tmp_path):
    """Where the plateau rule ends the training, twice the epochs would change nothing: there it is twice the patience."""
    benchmark = load_benchmark("cifar100-sc")
    plain, longer = (resolve(benchmark, name, "end").training for name in ("ewc", "ewc@equal-compute"))
    assert (plain["max_epochs"], plain["patience"], plain["lr_min"]) == (1000, 5, 1e-5)
    assert (longer["max_epochs"], longer["patience"], longer["lr_min"]) == (1000, 10, 1e-5)
    text = TEXT + "\n[scale.tiny.variant.long]\ntraining = { patience = 7 }\n"
    file = quick_file(tmp_path, text)
    found = [resolve(load_benchmark(file), "ewc@long", scale).training for scale in ("full", "tiny")]
    assert [(one["max_epochs"], one["patience"]) for one in found] == [(4, 1), (1, 7)]


@pytest.mark.parametrize("first", ["forgetting", "beta"])
def test_of_forgetting_and_beta_the_later_layer_wins(first, tmp_path):
    """They are two names of one thing: each layer's takes the place of the other's below it."""
    second = "beta" if first == "forgetting" else "forgetting"
    text = TEXT.replace("[method.afec]\nforgetting = 1", f"[method.afec]\n{first} = 0.25")
    text = text.replace('[method."mas+afec".afec]\nforgetting = 0.5', f'[method."mas+afec".afec]\n{second} = 0.5')
    text += f"[scale.other]\nmethod = {{ afec = {{ {second} = 0.125 }} }}\n"
    found = parse_benchmark(text, "quick", "quick.toml")

    def weights(method, scale="full", sets=None, tuned=None):
        settings = resolve(found, method, scale, {"method": {"afec": sets or {}}}, tuned).settings["afec"]
        return {key: value for key, value in settings.items() if key in ("beta", "forgetting")}

    assert weights("ewc+afec") == {first: 0.25}
    assert weights("mas+afec") == {second: 0.5}  # the file's for this sum
    assert weights("ewc+afec", "other") == {second: 0.125}
    assert weights("ewc+afec", sets={second: 0.75}) == {second: 0.75}
    assert weights("mas+afec", sets={first: 0.75}) == {first: 0.75}
    (tmp_path / "t.toml").write_text(f"[method.afec]\n{second} = 0.0625\n")
    tuned = load_tuned(tmp_path / "t.toml")
    assert weights("ewc+afec", tuned=tuned) == {second: 0.0625}
    assert weights("ewc+afec", tuned=tuned, sets={first: 0.75}) == {first: 0.75}
    with pytest.raises(SpecError, match="either forgetting .* or beta"):  # both at once in one place are no choice
        weights("ewc+afec", sets={"beta": 0.5, "forgetting": 1})


def test_terms_are_sorted():
    assert quick_config("afec+ewc") == quick_config("ewc+afec")
    assert quick_config("afec+ewc").method == "ewc+afec"


def test_patience_can_be_switched_off():
    assert training_of(quick_config("ewc", training={"patience": "off"}).training)[0].patience is None


def test_every_default_and_what_a_preset_says_is_written_out():
    config = quick_config("ewc+afec", method={"afec": {"preset": "official"}})
    fisher = {"fisher": "auto", "fisher_batch": 20, "fisher_dropout": False}
    assert config.settings == {
        "ewc": {"preset": "default", **fisher, "strength": 10, "decay": "mean"},
        "afec": {
            "preset": "official", "fisher": "batched", "fisher_batch": 20, "fisher_dropout": True,
            "expand_from": "carry", "schedule": "interleaved", "forgetting": 1,
        },
    }  # fmt: skip
    assert config.net == {"name": "digits", "channels": 4, "features": 8, "zero_heads": False, "classifier": "linear"}
    plain = resolve(parse_benchmark(TEXT.replace("tasks = 5\n", "").replace("channels = 4\n", ""), "q", "q"), "ewc")
    for section, record in (("stream", STREAMS["digits"]), ("net", NETS["digits"])):
        defaults = {p.name: p.default for p in inspect.signature(record.make).parameters.values()}
        (missing,) = {"stream": ["tasks"], "net": ["channels"]}[section]
        assert getattr(plain, section)[missing] == defaults[missing]


@pytest.mark.parametrize(
    ("method", "sections"),
    [
        ("ewc", {"method": {"ewc": {"fisher": "auto"}}}),
        ("ewc", {"method": {"ewc": {"preset": "default", "fisher_dropout": False, "fisher_batch": 20}}}),
        ("ewc", {"method": {"ewc": {"strength": 10.0}}}),
        ("si", {"method": {"si": {"clamp": True}}}),
        ("ewc+afec", {"method": {"afec": {"schedule": "sequential"}}}),
        ("ewc", {"net": {"zero_heads": False}}),
        ("ewc", {"training": {"momentum": 0.9}}),
    ],
    ids=str,
)
def test_a_default_that_is_given_is_the_same_run(method, sections):
    assert quick_config(method, **sections).hash == quick_config(method).hash


def test_what_a_preset_says_is_in_the_hash(monkeypatch):
    before = quick_config("ewc").hash
    assert quick_config("ewc", method={"ewc": {"preset": "official"}}).hash != before
    monkeypatch.setitem(afec.EWC.options, "fisher_batch", replace(afec.EWC.fisher_batch, default=21))
    assert quick_config("ewc").hash != before


FLAGS = [
    (afec.SI, "clamp"), (afec.SI, "half"), (afec.SI, "rewind"), (afec.RWALK, "clamp"), (afec.MAS, "dropout"),
    (afec.EWC, "fisher_dropout"), (afec.AFEC, "fisher_dropout"),
]  # fmt: skip

WEIGHT = {name: "forgetting" if name == "afec" else "strength" for name in METHODS}


@pytest.mark.parametrize(("method", "flag"), FLAGS, ids=lambda value: getattr(value, "name", value))
@pytest.mark.parametrize("word", ["no", "false", 0, 1])
def test_a_flag_is_true_or_false_and_no_word(method, flag, word):
    with pytest.raises(ValueError, match=f"{flag} must be True or False; got {word!r}"):
        method(1.0, **{flag: word})
    with pytest.raises(SpecError, match=f"method {method.name}: .*{flag} must be True or False; got {word!r}"):
        quick_config(method.name, method={method.name: {WEIGHT[method.name]: 1, flag: word}})


@pytest.mark.parametrize("word", ["False", "false", "FALSE"])
def test_a_flag_on_the_command_line_is_what_it_says(word):
    (changes,) = grid([f"method.si.clamp={word}"])
    assert changes == {"method": {"si": {"clamp": False}}}
    assert resolve(quick(), "si", sets=changes).settings["si"]["clamp"] is False
    assert parse_set("method.si.clamp=True,no") == (["method", "si", "clamp"], [True, "no"])


def test_two_benchmarks_of_equal_content_are_both_run(tmp_path):
    files = []
    for name in ("one", "other"):
        (tmp_path / f"{name}.toml").write_text(TEXT)
        files.append(str(tmp_path / f"{name}.toml"))
    jobs = plan(files, ["ewc", "afec+ewc", "ewc+afec"], [0, 1])
    assert [(job.config.benchmark, job.config.method, job.seed) for job in jobs] == [
        (name, method, seed) for seed in (0, 1) for name in ("one", "other") for method in ("ewc", "ewc+afec")
    ]
    assert len({job.config.hash for job in jobs}) == 2


def changed(old, new):
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


SLIPS = {
    "section": (changed("[training]", "[trainig]"), "trainig", "training"),
    "stream option": (changed("tasks = 5", "taks = 5"), "stream.taks", "tasks"),
    "stream name": (changed('[stream]\nname = "digits"', '[stream]\nname = "digit"'), "stream.name", "digits"),
    "net option": (changed("channels = 4", "chanels = 4"), "net.chanels", "channels"),
    "zero heads": (changed("channels = 4", "zero_head = true"), "net.zero_head", "zero_heads"),
    "zero heads' value": (changed("channels = 4", "zero_heads = 1"), "net.zero_heads", "true or false"),
    "net name": (changed('[net]\nname = "digits"', '[net]\nname = "digitz"'), "net.name", "digits"),
    "training key": (changed("batch_size = 16", "batchsize = 16"), "training.batchsize", "batch_size"),
    "training type": (changed("lr = 1e-2", 'lr = "fast"'), "training.lr", "number"),
    "training value": (changed("max_epochs = 2\n", "max_epochs = 0\n"), "training", "at least 1; got 0"),
    "momentum": (changed("patience = 1", "momentum = 1.5"), "toml: training: Schedule needs", "got momentum=1.5"),
    "in a variant": (
        changed("training = { max_epochs = 4 }", "training = { weight_decay = -1 }"), "toml: variant.long.training: Schedule",
        "weight_decay=-1",
    ),
    "no number": (changed("patience = 1", "decay = nan"), "toml: training: Schedule needs", "decay=nan"),
    "name": ('name = "mine"\n' + TEXT, "toml: name: unknown key", "the file name is the benchmark's name"),
    "training choice": (changed("patience = 1", 'optimizer = "adamw"'), "training.optimizer", "'adam' or 'sgd'"),
    "method": (changed("[method.si]", "[method.sy]"), "method.sy", "si"),
    "setting": (changed("strength = 10", "strenght = 10"), "method.ewc", "strength"),
    "setting of a sum": (changed("forgetting = 0.5", "forgeting = 0.5"), 'method."mas+afec".afec', "forgetting"),
    "term of a sum": (changed('"mas+afec".afec', '"mas+afec".afek'), 'method."mas+afec".afek', "afec"),
    "sum": (changed('"mas+afec".afec', '"mas+afek".afec'), "method.mas+afek", "afec"),
    "key of a scale": (changed("stream = { sizes = [2, 3]", "steam = { sizes = [2, 3]"), "scale.tiny.steam", "stream"),
    "option in a scale": (changed("{ sizes = [2, 3]", "{ size = [2, 3]"), "scale.tiny.stream.size", "sizes"),
    "key of a variant": (
        changed("training = { max_epochs = 4 }", "training = { max_epoch = 4 }"), "variant.long.training.max_epoch",
        "max_epochs",
    ),
    "variant of a scale": (
        f"{TEXT}\n[scale.tiny.variant.lon]\ntraining = {{ patience = 7 }}\n", "scale.tiny.",
        "unknown variant 'lon'; did you mean 'long'",
    ),
    "key of a variant of a scale": (
        f"{TEXT}\n[scale.tiny.variant.long]\ntrainig = {{ patience = 7 }}\n", "scale.tiny.variant.long.trainig", "training",
    ),
    "option in a variant of a scale": (
        f"{TEXT}\n[scale.tiny.variant.long]\ntraining = {{ patienc = 7 }}\n", "scale.tiny.variant.long.training.patienc",
        "patience",
    ),
    "missing name": (changed('[net]\nname = "digits"', "[net]"), "net.name", "it is missing"),
    "missing section": (TEXT.replace("[stream]", "[scale.big.stream]"), "stream.name", "it is missing"),
    "table": (changed("[method.si]\nstrength = 1", "[method]\nsi = 3"), "method.si", "dictionary; got 3"),
    "no TOML": (TEXT + "\n[stream", "", "this is no TOML"),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_every_slip_is_named_with_its_file_its_key_and_the_nearest_valid_one(slip, tmp_path, capsys):
    text, key, hint = SLIPS[slip]
    file = quick_file(tmp_path, text)
    assert main(["run", file, "--runs", str(tmp_path / "runs")]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"afec: {file}: ")
    assert shown.err.count("\n") == 1 or slip == "no TOML"
    assert key in shown.err
    assert hint in shown.err
    assert "batch_size" not in shown.err or slip == "training key"  # the section is not poured out
    assert shown.out == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digit"], ["unknown benchmark 'digit'", "did you mean 'digits'?", ".toml"]),
        (["missing.toml"], ["missing.toml: cannot be read"]),
        (["."], ["unknown benchmark '.'"]),
        (["digits", "--scale", "smok"], ["unknown scale of digits 'smok'", "did you mean 'smoke'?", "full"]),
        (["digits", "--method", "ewk"], ["unknown method 'ewk'", "did you mean 'ewc'?", "joint, scratch"]),
        (["digits", "--method", "ewc+afek"], ["unknown method 'afek'", "did you mean 'afec'?", "'ewc+afek'"]),
        (["digits", "--method", "ewc+ewc"], ["'ewc+ewc' has one method twice"]),
        (["digits", "--method", "ewc@equal"], ["unknown variant of digits 'equal'", "did you mean 'equal-compute'?"]),
        (["digits", "--set", "lr=1"], ["--set 'lr=1': expected section.key=value"]),
        (["digits", "--set", "training.lr"], ["--set 'training.lr': expected section.key=value"]),
        (["digits", "--set", "trainig.lr=1"], ["unknown section 'trainig'", "did you mean 'training'?"]),
        (["digits", "--set", "training.l=1"], ["digits: training.l: unknown key", "did you mean 'lr'?"]),
        (["digits", "--set", "training.lr=fast"], ["digits: training.lr", "number", "'fast'"]),
        (["digits", "--set", "training.lr=-1"], ["digits: training", "lr=-1"]),
        (["digits", "--set", "stream.taks=2"], ["digits: stream.taks", "did you mean 'tasks'?"]),
        (["digits", "--set", "stream.name=[1]"], ["digits: "]),
        (["digits", "--set", "net.chanels=2"], ["digits: net.chanels", "did you mean 'channels'?"]),
        (["digits", "--set", "net.zero_heads=yes"], ["digits: net.zero_heads: expected true or false; got 'yes'"]),
        (["digits", "--set", "method.ewc=1"], ["expected method.NAME.setting=value"]),
        (["digits", "--set", "method.ewc.strenght=1"], ["ewc has no setting 'strenght'", "did you mean 'strength'?"]),
        (["digits", "--set", "method.ewc.strength=much"], ["method ewc", "strength"]),
        (["digits", "--set", "method.ewc.strength=-1"], ["method ewc", "strength", "-1"]),
        (["digits", "--set", "training.device=cuda"], ["digits: training", "torch sees no CUDA"]),
        (["digits", "--picture", "a.gif"], ["--picture a.gif: expected a file name that ends in .png, .svg"]),
        (["digits", "digits-regression", "--picture", "a.png"], ["--picture draws one benchmark"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and len(value) < 4 else None,
)
def test_every_slip_on_the_command_line_is_a_message(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["run", *arguments]) == 2
    shown = capsys.readouterr()
    for word in words:
        assert word in shown.err
    assert "Traceback" not in shown.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_text_is_refused(tmp_path, capsys):
    file = tmp_path / "a.toml"
    file.write_bytes(b"\xff\xfe\x00")
    assert main(["run", str(file)]) == 2
    assert "a.toml: cannot be read as a benchmark" in capsys.readouterr().err


# -- method expressions and --set ---------------------------------------------------------------------------------

WORDS = st.sampled_from([*METHODS, "finetune", "joint", "scratch", "EWC", "", " ", "x", "@long", "ewc@long", "@"])


@given(st.one_of(st.text(max_size=12), st.lists(WORDS, max_size=4).map("+".join)))
@example("+")
@example("finetune+ewc")
@example("joint+ewc")
def test_any_method_expression_is_a_configuration_or_a_message(expression):
    try:
        config = resolve(quick(), expression)
    except SpecError:
        return
    assert resolve(quick(), config.label) == config


PLACES = st.sampled_from(
    ["training.lr", "training.patience", "training.compile", "method.ewc.strength", "method.ewc.fisher", "stream.tasks",
     "stream.name", "net.name", "net.channels", "net.zero_heads", "training.batch_size", "method.afec.beta", "a.b", "method"]
)  # fmt: skip
VALUES = st.one_of(
    st.text(max_size=10),
    st.sampled_from(["1", "1,2", "[1,2]", "[1", "{a=1}", "true", "nan", "-inf", '"a,b"', "'", ",", "", "off", "1e999"]),
    st.integers().map(str),
    st.floats().map(str),
)


@given(st.builds("{}={}".format, PLACES, VALUES) | st.text(max_size=20))
@example("training.lr=1979-05-27")
@example("stream.name=[]")
@example("training.batch_size=" + "9" * 5000)
@example("training.lr=" + "[" * 5000)
@example("method.ewc.strength=1\nx=2")
def test_any_set_is_a_configuration_or_a_message(text):
    with suppress(SpecError):
        for changes in grid([text]):
            config = resolve(quick(), "ewc+afec", sets=changes)
            assert type(config).from_toml(config.to_toml()).hash == config.hash


def test_a_set_is_a_grid():
    assert parse_set("method.ewc.strength=10,100") == (["method", "ewc", "strength"], [10, 100])
    assert parse_set("stream.sizes=[2,3],[5,5]") == (["stream", "sizes"], [[2, 3], [5, 5]])
    assert parse_set("training.patience=off") == (["training", "patience"], ["off"])
    assert parse_set("training.optimizer='sgd'") == (["training", "optimizer"], ["sgd"])
    assert grid(["training.lr=1,2", "method.ewc.strength=3,4"]) == [
        {"training": {"lr": lr}, "method": {"ewc": {"strength": strength}}} for lr in (1, 2) for strength in (3, 4)
    ]
    assert grid([]) == [{}]
    assert grid(["training.lr=1", "training.patience=2"]) == [{"training": {"lr": 1, "patience": 2}}]
