"""Your own loop: two lines are added, the `with` and the guard. Three tasks; accuracy on all of them at the end.

python examples/plain_loop.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import afec


def tasks(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Five classes each, around centres of their own."""
    found = []
    for _ in range(count):
        labels, centres = torch.randint(0, 5, (256,)), torch.randn(5, 20)
        found.append((centres[labels] + torch.randn(256, 20), labels))
    return found


def learn(guard: afec.Guard, epochs: int = 20) -> float:
    """The mean accuracy on all tasks after the last one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer, loss_fn = torch.optim.Adam(model.parameters(), 1e-3), nn.CrossEntropyLoss()
    sequence = tasks()
    for data in sequence:
        loader = DataLoader(TensorDataset(*data), 32, shuffle=True)
        with guard.learning(model, optimizer, loader, loss_fn):  # the only line that your loop did not have
            for _ in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()
    return sum(float((model(x).argmax(1) == y).float().mean()) for x, y in sequence) / len(sequence)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for guard in (afec.EWC(0), afec.EWC(100), afec.EWC(100) + afec.AFEC(10, epochs=20)):
        print(f"{learn(guard):.3f}  {guard}")
