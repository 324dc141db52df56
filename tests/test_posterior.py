"""A posterior as a file: what is in it, what begins from it, and what is refused by name."""

import pytest
import torch
from safetensors import safe_open
from torch import nn

import afec
from afec.cli import main
from afec.files import FileError, load_tree, save_tree
from afec.posterior import Posterior, hash_of
from damaged_files import damaged
from two_tasks import Run, apart, data, exact_fisher, loader, net, plain_loop, plain_loss, sgd


@pytest.fixture
def base():
    """A model that somebody has trained."""
    model = net()
    plain_loop(
        Run(model, torch.optim.SGD(model.parameters(), 0.5), plain_loss, batches=list(loader(data(1)))), epochs=8
    )
    model.zero_grad()
    return model


def measured(model, path, **options):
    guard = afec.EWC(30.0)
    with guard.learning(model, None, data(1), nn.CrossEntropyLoss()):
        pass
    guard.save_posterior(path, **options)
    return guard


def learn(guard, model):
    optimizer = sgd(model)
    with guard.learning(model, optimizer, data(2), nn.CrossEntropyLoss()):
        plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(2)))))


def copy_of(model):
    twin = net()
    twin.load_state_dict(model.state_dict())
    return twin


def test_what_is_in_the_file(base, tmp_path):
    measured(base, tmp_path / "p.safetensors", checkpoint="the base")
    found = Posterior.load(tmp_path / "p.safetensors")
    assert (found.method, found.fisher, found.samples, found.tasks) == ("ewc", "exact", 24, 1)
    assert found.checkpoint == "the base"
    assert found.loss == pytest.approx(plain_loss(base, data(1)).item(), rel=1e-9)
    assert found.weights_hash == hash_of(dict(base.named_parameters()))
    for name, fisher in exact_fisher(base, data(1)[0]).items():
        torch.testing.assert_close(found.precision[name], fisher)
        assert torch.equal(found.mean[name], base.get_parameter(name))
    with safe_open(tmp_path / "p.safetensors", framework="pt") as file:  # as any other reader sees it
        assert torch.equal(file.get_tensor("precision.0.weight"), found.precision["0.weight"])


@pytest.mark.parametrize("mean", [True, False])
def test_others_begin_where_it_was_measured(mean, base, tmp_path):
    own = measured(base, tmp_path / "p.safetensors", mean=mean)
    there, here = copy_of(base), copy_of(base)
    guard = afec.EWC(30.0)
    guard.load_posterior(tmp_path / "p.safetensors", there)
    assert guard.tasks_done == 1
    free = copy_of(base)
    learn(afec.EWC(0), free)
    learn(own, here)
    learn(guard, there)
    assert apart(here, there) == 0
    assert apart(here, free) > 1e-3


def test_a_sum_takes_it_too(base, tmp_path):
    measured(base, tmp_path / "p.safetensors")
    guard = afec.EWC(30.0) + afec.AFEC(4.0, epochs=2)
    guard.load_posterior(tmp_path / "p.safetensors", base)
    optimizer = sgd(base)
    with guard.learning(base, optimizer, data(2), nn.CrossEntropyLoss()) as task:
        assert set(task.task_states["afec"]) >= {"mean", "precision"}  # it is the second task: θ_e is learned


def test_what_is_refused(base, tmp_path):
    path = tmp_path / "p.safetensors"
    own = measured(base, path, mean=False, checkpoint="the base")
    with pytest.raises(ValueError, match=r"weight '0.weight', which this model has not.*another model \(the base\)"):
        afec.EWC(1).load_posterior(path, nn.Linear(4, 3))
    wider = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))
    with pytest.raises(ValueError, match=r"weight '0.weight' has shape \(6, 4\) there and \(7, 4\) in this model"):
        afec.EWC(1).load_posterior(path, wider)
    with pytest.raises(ValueError, match="measured at other weights"):
        afec.EWC(1).load_posterior(path, net())
    with pytest.raises(ValueError, match="posterior of 'ewc', and this guard is 'mas'"):
        afec.MAS(1).load_posterior(path, base)
    with pytest.raises(ValueError, match="measured by the 'exact' Fisher and this guard has fisher='empirical'"):
        afec.EWC(1, fisher="empirical").load_posterior(path, base)
    with pytest.raises(RuntimeError, match="has learned already"):
        own.load_posterior(path, base)
    with pytest.raises(RuntimeError, match="it has learned nothing yet"):
        afec.EWC(1).save_posterior(tmp_path / "q.safetensors")
    tree = load_tree(path)
    save_tree(path, {**tree, "version": 2})
    with pytest.raises(FileError, match="a posterior of version 2, and this afec reads version 1"):
        Posterior.load(path)
    save_tree(path, {"kind": "something"})
    with pytest.raises(FileError, match="it is no posterior"):
        Posterior.load(path)


def test_a_damaged_file_is_refused(base, tmp_path):
    path = tmp_path / "p.safetensors"
    measured(base, path)
    whole = path.read_bytes()
    for how, broken in damaged(whole):
        path.write_bytes(broken)
        if broken != whole:
            with pytest.raises(FileError):
                pytest.fail(f"{how}: {Posterior.load(path)}")


def test_the_command(base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.save(base.state_dict(), "base.pt")
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\nfrom two_tasks import data, net\n\n\ndef base():\n    model = net()\n"
        "    model.load_state_dict(torch.load('base.pt'))\n    return model, data(1), nn.CrossEntropyLoss()\n"
    )
    command = ["posterior", "make", "mine.py:base", "-o", "made.safetensors", "--no-mean", "--checkpoint", "the base"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "exact" in shown
    assert "the base" in shown
    measured(base, tmp_path / "own.safetensors", mean=False)
    one, other = Posterior.load("made.safetensors"), Posterior.load("own.safetensors")
    assert one.mean is None
    assert one.weights_hash == other.weights_hash
    assert all(torch.equal(one.precision[name], value) for name, value in other.precision.items())
    assert main(["posterior", "show", "own.safetensors"]) == 0
    assert "2.bias" in capsys.readouterr().out
    assert main(["posterior", "show", "base.pt"]) == 2
    assert main(["posterior", "make", "mine.py:nothing"]) == 2


TEXT = "one two three four five six seven eight " * 10


def language_model(folder, words=8, tokenizer=True, head=True):
    """A folder as `save_pretrained` leaves it: a GPT-2 of 16 positions, and a tokenizer of numbers."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    sizes = {"vocab_size": words + 1, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    torch.manual_seed(0)
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")
    config.tie_word_embeddings = head
    model = transformers.GPT2LMHeadModel(config)
    (model if head else model.transformer).save_pretrained(folder)
    if tokenizer:
        known = {word: number for number, word in enumerate(["<unknown>", *TEXT.split()[:8]])}
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="<unknown>"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
    return str(folder)


def test_the_command_on_a_folder_of_transformers(tmp_path, capsys):
    """No --length: as many tokens as the model takes. The file is what a guard measures of the same batches by itself."""
    place, text = language_model(tmp_path / "base"), tmp_path / "proxy.txt"
    text.write_text(TEXT)
    made = str(tmp_path / "made.safetensors")
    assert (
        main(["posterior", "make", place, "--text", str(text), "-o", made, "--no-mean", "--fisher", "empirical"]) == 0
    )
    assert "transformer.wte.weight" in capsys.readouterr().out
    found = Posterior.load(made)
    assert (found.samples, found.checkpoint, found.mean) == (5, "base", None)  # 80 tokens, 16 in a sample

    from transformers import GPT2LMHeadModel

    from afec.integrations.transformers import causal_language_model

    model = GPT2LMHeadModel.from_pretrained(place)
    rows = torch.tensor([1 + number % 8 for number in range(80)]).reshape(5, 16)
    guard = afec.EWC(1.0, fisher="empirical")
    with guard.learning(model, None, [{"input_ids": rows, "labels": rows}], **causal_language_model()):
        pass
    for name, value in guard.state_dict()["states"]["ewc"]["precision"].items():
        torch.testing.assert_close(found.precision[name], value)
    assert afec.EWC(30.0).load_posterior(made, GPT2LMHeadModel.from_pretrained(place)).samples == 5


def test_what_the_command_says_of_folders_that_do_not_fit(tmp_path, capsys):
    text, other = tmp_path / "proxy.txt", tmp_path / "latin.txt"
    text.write_text(TEXT)
    other.write_bytes(b"\xff\xfe\xfd")
    base = language_model(tmp_path / "base")
    for words, place, options in [
        ("give --text FILE", base, []),
        ("takes at most 16 tokens", base, ["--text", str(text), "--length", "17"]),
        ("latin.txt is no text in UTF-8", base, ["--text", str(other)]),
        ("has no tokenizer", language_model(tmp_path / "bare", tokenizer=False), ["--text", str(text)]),
        ("lm_head.weight (1 such) is missing", language_model(tmp_path / "body", head=False), ["--text", str(text)]),
        ("a token 8, its model only 5", language_model(tmp_path / "small", words=4), ["--text", str(text)]),
    ]:
        assert main(["posterior", "make", place, *options, "-o", str(tmp_path / "none")]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "none").exists()
