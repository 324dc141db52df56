"""LoRA in two legs on one adapter: hold what the first leg did to each matrix, ΔW = B·A, while the second is learned.

A small GPT learns to count upwards (its pretraining), then gets an adapter for even steps, then the same adapter for steps of
three. The loss of the first leg after the second: without a guard, on A and B apart, on ΔW, and held to the base model.

    python examples/lora_two_legs.py
"""

import peft
import torch
import transformers

import afec
from afec.integrations.transformers import causal_language_model

WORDS, LENGTH = 32, 12


def counting(step: int) -> torch.Tensor:
    """Sequences that count by `step`, from everywhere."""
    return (torch.arange(WORDS)[:, None] + step * torch.arange(LENGTH)) % WORDS


def train(model: torch.nn.Module, data: torch.Tensor, steps: int, guard: afec.Guard) -> None:
    """A plain loop over one batch."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    batch = {"input_ids": data, "labels": data}
    with guard.learning(model, optimizer, [batch], **causal_language_model()):
        for _ in range(steps):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()


def learn(guard: afec.Guard, steps: int = 60) -> tuple[float, float]:
    """The losses of both legs after the second."""
    transformers.set_seed(0)
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    train(model, counting(1), steps, afec.EWC(0))
    config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    model = peft.get_peft_model(model, config)
    for step in (2, 3):
        train(model, counting(step), steps, guard)
    model.eval()
    with torch.no_grad():
        first, second = (float(model(input_ids=counting(step), labels=counting(step)).loss) for step in (2, 3))
    return first, second


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for guard in (
        afec.EWC(0),
        afec.EWC(1000),
        afec.EWC(1000, on="delta"),
        afec.EWC(1000, on="delta", anchor="base"),
    ):
        first, second = learn(guard)
        print(f"first leg {first:.3f}, second leg {second:.3f}  {guard}")
