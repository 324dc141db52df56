"""A guard in Lightning's Trainer.

    guard = afec.EWC(strength=100)
    for loader in tasks:
        trainer = lightning.Trainer(max_epochs=3, callbacks=[GuardCallback(guard, loss_fn)])
        trainer.fit(module, loader)

Each `fit` is one task: θ_e is learned as training starts, the task is consolidated as it ends. The guard's state is in the
trainer's checkpoints, and `fit(ckpt_path=…)` goes on where the checkpoint was saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from afec.guard import Guard
from afec.integrations.guarded_fit import GuardedFit

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        f"afec.integrations.lightning needs Lightning ({error}): pip install 'afec[lightning]'"
    ) from error

__all__ = ["GuardCallback"]


class GuardCallback(Callback):
    """Makes each `trainer.fit` a task of the guard.

    Args:
        guard: the guard; give the same one to the trainer of the next task.
        loss_fn: a criterion (output, target), or a function (module, batch) → loss without `self.log` in it.
        data: what θ_e and the Fisher are learned from; by default the trainer's own training data.
        clip_pull: whether the trainer's gradient clipping clips the pull as well; by default the task's gradient only.
        epoch_loss: the logged metric, such as `"val_loss"`, that a strength of `auto` follows from epoch to epoch.
        exact_resume: whether a checkpoint from the middle of an epoch is refused where Lightning would begin the data of that
            epoch anew: it can only find the next batch of loaders that have `state_dict` and `load_state_dict`.
        options: as in `guard.learning`: predict, likelihood, split, class_axis, mask, batch_size, progress, train, evaluate.
    """

    def __init__(
        self,
        guard: Guard,
        loss_fn: Any,
        *,
        data: Any = None,
        clip_pull: bool = False,
        epoch_loss: str | None = None,
        exact_resume: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.guard, self.loss_fn, self.data = guard, loss_fn, data
        self.clip_pull, self.epoch_loss, self.exact_resume = clip_pull, epoch_loss, exact_resume
        self._fit = GuardedFit(guard, options)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Expansion, or the rest of the task that the checkpoint was saved in."""
        data = trainer.train_dataloader if self.data is None else self.data
        most = trainer.max_epochs if trainer.max_epochs is not None and trainer.max_epochs > 0 else None
        self._fit.begin(
            trainer.strategy.model or pl_module, trainer.optimizers, data, loss_fn=self.loss_fn, epochs=most
        )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A new epoch of θ_e under the interleaved schedule, a new strength under `auto`."""
        loss = None if self.epoch_loss is None else trainer.callback_metrics.get(self.epoch_loss)
        self._fit.begin_epoch(trainer.current_epoch, None if loss is None else float(loss))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Lightning clips after this."""
        if self.clip_pull and self._fit.open_task is not None:
            self._fit.open_task.pull()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The penalties, as often as the trainer logs."""
        if trainer.log_every_n_steps and trainer.global_step % trainer.log_every_n_steps == 0:
            pl_module.log_dict(self._fit.penalties(), on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Consolidation."""
        self._fit.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The guard is as it was before this fit."""
        self._fit.abort()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuse what would be learned twice, and what never."""
        fit = checkpoint.get("loops", {}).get("fit_loop", {})
        batches = fit.get("epoch_loop.batch_progress", {})
        done = batches.get("current", {}).get("ready", 0)
        known = bool(fit.get("state_dict", {}).get("combined_loader"))  # where the loaders are
        if trainer.training and self.exact_resume and done and not batches.get("is_last_batch") and not known:
            raise ValueError(
                f"this checkpoint was saved after {done} batches of an epoch, and does not say where the data were: Lightning "
                f"would give the first {done} again and never the last. Resume from a checkpoint of the end of an epoch "
                "(ModelCheckpoint(every_n_epochs=1)), and for the next time use a loader with state_dict and load_state_dict "
                "(torchdata's StatefulDataLoader). Where it does not matter, GuardCallback(…, exact_resume=False) goes on"
            )

    def state_dict(self) -> dict[str, Any]:
        """The guard's part of a checkpoint."""
        return self._fit.state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """What `state_dict` gave, from the checkpoint that is resumed."""
        self._fit.resume(state_dict)
