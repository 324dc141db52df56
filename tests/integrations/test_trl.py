"""TRL's SFTTrainer takes the same callback, with LoRA as well."""

import warnings

import pytest
import torch

import afec
from small_processes import killed
from two_tasks import equal

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("trl")

from afec.integrations.transformers import GuardCallback  # noqa: E402
from small_trainings import KilledAt  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # TRL warns of much that is its own


def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, max_position_embeddings=16, **sizes))


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz.!?"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


TEXTS = {1: ["a b c d e f g h"] * 8, 2: ["z y x w v u t s"] * 8}


def adapted(lora):
    from peft import LoraConfig, get_peft_model

    net = model()
    adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
    return get_peft_model(net, adapter) if lora else net


def trainer_of(net, own, number, folder, step=0):
    """Of six steps; killed after one of them, if not 0."""
    import datasets
    import trl

    arguments = trl.SFTConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        max_steps=6,
        per_device_train_batch_size=4,
        learning_rate=0.02,
        report_to="none",
        save_steps=2,
        logging_steps=3,
        disable_tqdm=True,
        max_length=8,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
    )
    return trl.SFTTrainer(
        net,
        arguments,
        train_dataset=datasets.Dataset.from_dict({"text": TEXTS[number]}),
        processing_class=tokenizer(),
        callbacks=[GuardCallback(own), KilledAt(step)],
    )


def learn(folder, own, lora, step=0):
    """Two tasks; what the second one has moved, the model, and the second one's trainer."""
    torch.set_num_threads(1)
    net = adapted(lora)
    trainer_of(net, own, 1, folder / "first").train()
    before = {name: weight.detach().clone() for name, weight in net.named_parameters() if weight.requires_grad}
    trainer = trainer_of(net, own, 2, folder / "second", step)
    trainer.train()
    assert own.tasks_done == 2
    after = dict(net.named_parameters())
    moved = sum(float((after[name] - value).pow(2).sum()) for name, value in before.items())
    return moved, net, trainer


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_sft_is_held_by_the_guard(lora, tmp_path):
    free, _, _ = learn(tmp_path / "free", afec.EWC(1e-9), lora)
    own = afec.EWC(1e7)
    held, _, trainer = learn(tmp_path / "held", own, lora)
    assert 0 < held < 0.7 * free
    logged = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logged) == 2
    assert all(log["penalty_old"] > 0 for log in logged)
    guarded = own.state_dict()["states"]["ewc"]["mean"]
    assert all("lora_" in name for name in guarded) == lora


def both():
    return afec.EWC(100) + afec.AFEC(1, epochs=1, optimizer=adam)


def adam(params):
    return torch.optim.Adam(params, 0.02)


def learn_and_die(folder, lora):
    warnings.simplefilter("ignore")
    learn(folder, both(), lora, step=5)


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_killed_in_the_second_task_and_resumed(lora, tmp_path):
    """From the checkpoint of the fourth step, bit for bit, with dropout in the adapter."""
    killed(learn_and_die, tmp_path / "killed", lora)
    wholly = both()
    _, whole, _ = learn(tmp_path / "whole", wholly, lora)
    net, own = adapted(lora), both()
    trainer_of(net, own, 2, tmp_path / "killed" / "second").train(resume_from_checkpoint=True)
    assert own.tasks_done == 2
    assert equal(net, whole)
    for part in ("mean", "precision"):
        for name, value in wholly.state_dict()["states"]["ewc"][part].items():
            assert torch.equal(own.state_dict()["states"]["ewc"][part][name], value)
