"""Lightning: one callback. Two tasks; the accuracy on the first one after the second, without and with a guard.

python examples/lightning_module.py
"""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import afec
from afec.integrations.lightning import GuardCallback


class Classifier(lightning.LightningModule):
    """Nothing in it knows of a guard."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        return self.net(x)

    def training_step(self, batch: tuple, number: int) -> torch.Tensor:
        """The loss."""
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), 1e-3)


def learn(strength: float, epochs: int = 10) -> float:
    """The accuracy on the first task after the second."""
    lightning.seed_everything(0, verbose=False)
    module, guard, tasks = Classifier(), afec.EWC(strength), []
    for _ in range(2):
        labels, centres = torch.randint(0, 5, (256,)), torch.randn(5, 20)
        tasks.append((centres[labels] + torch.randn(256, 20), labels))
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            callbacks=[GuardCallback(guard, nn.CrossEntropyLoss())],  # the only line that you add
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(TensorDataset(*tasks[-1]), 32, shuffle=True))
    x, y = tasks[0]
    return float((module(x).argmax(1) == y).float().mean())


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for strength in (0, 300):
        print(f"strength {strength}: the first task after the second: {learn(strength):.3f}")
