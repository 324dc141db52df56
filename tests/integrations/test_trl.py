"""TRL's SFTTrainer takes the same callback, with LoRA as well."""

import pytest
import torch

import afec

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("trl")

from afec.integrations.transformers import GuardCallback  # noqa: E402

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


def learn(folder, strength, lora):
    import datasets
    import trl
    from peft import LoraConfig, get_peft_model

    net, own = model(), afec.EWC(strength)
    if lora:
        net = get_peft_model(net, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    arguments = trl.SFTConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        max_steps=6,
        per_device_train_batch_size=4,
        learning_rate=0.02,
        report_to="none",
        save_strategy="no",
        logging_steps=3,
        disable_tqdm=True,
        max_length=8,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
    )
    for number in (1, 2):
        before = {name: weight.detach().clone() for name, weight in net.named_parameters() if weight.requires_grad}
        trainer = trl.SFTTrainer(
            net,
            arguments,
            train_dataset=datasets.Dataset.from_dict({"text": TEXTS[number]}),
            processing_class=tokenizer(),
            callbacks=[GuardCallback(own)],
        )
        trainer.train()
    assert own.tasks_done == 2
    after = dict(net.named_parameters())
    moved = sum(float((after[name] - value).pow(2).sum()) for name, value in before.items())
    return moved, own, trainer


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_sft_is_held_by_the_guard(lora, tmp_path):
    free, _, _ = learn(tmp_path, 1e-9, lora)
    held, own, trainer = learn(tmp_path, 1e7, lora)
    assert 0 < held < 0.7 * free
    logged = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logged) == 2
    assert all(log["penalty_old"] > 0 for log in logged)
    guarded = own.state_dict()["states"]["ewc"]["mean"]
    assert all("lora_" in name for name in guarded) == lora
