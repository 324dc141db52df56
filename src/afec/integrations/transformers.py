"""A guard in Hugging Face's Trainer, and in all that are built on it, such as TRL's SFTTrainer.

    guard = afec.EWC(strength=100)
    for dataset in tasks:
        trainer = transformers.Trainer(model, arguments, train_dataset=dataset, callbacks=[GuardCallback(guard)])
        trainer.train()

Each `train()` is one task: θ_e is learned as training starts, the task is consolidated as it ends. A checkpoint of the trainer
has the guard's state as `guard.safetensors`, and `train(resume_from_checkpoint=…)` goes on where it was saved. After the last
step the consolidated guard is in the output directory, under the same name: `guard.load(path)`.

transformers has no event for a training that raises, and tells callbacks nothing of the checkpoint that it resumes from. So
`Trainer.train` is wrapped, once, when the first GuardCallback is made: trainers without one are not touched by it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from afec.files import FileError, load_tree, save_tree
from afec.guard import Guard
from afec.integrations.guarded_fit import GuardedFit

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise ImportError(
        f"afec.integrations.transformers needs transformers ({error}): pip install 'afec[transformers]'"
    ) from error

__all__ = ["FILE", "GuardCallback", "causal_language_model"]

FILE = "guard.safetensors"


class GuardCallback(TrainerCallback, ExportableState):
    """Makes each `trainer.train()` a task of the guard.

    Args:
        guard: the guard; give the same one to the trainer of the next task.
        loss_fn: a function (model, batch) → loss, by default the loss that the trainer minimises.
        data: what θ_e and the Fisher are learned from; by default the trainer's own training data.
        clip_pull: whether `max_grad_norm` clips the pull as well; by default the task's gradient only.
        options: as in `guard.learning`: predict, likelihood, split, class_axis, mask, batch_size, progress, train, evaluate.
            Of language models and classifiers of transformers predict, likelihood and mask are known.
    """

    def __init__(
        self, guard: Guard, *, loss_fn: Any = None, data: Any = None, clip_pull: bool = False, **options: Any
    ) -> None:
        self.guard, self.loss_fn, self.data, self.clip_pull = guard, loss_fn, data, clip_pull
        self._fit = GuardedFit(guard, options)
        self._trainer: Trainer | None = None  # while it trains
        self._checkpoint: str | None = None  # what it resumes from
        self._eval_loss: float | None = None  # of the latest evaluation
        _let_train_tell()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Expansion, or the rest of the task that the checkpoint was saved in."""
        trainer = self._trainer
        if trainer is None:
            raise RuntimeError("GuardCallback works inside Trainer.train() only; this training was started otherwise")
        if state.is_hyper_param_search:
            raise ValueError(
                "GuardCallback cannot follow hyperparameter_search(): every trial would consolidate its task into the same "
                "guard. Make guard and trainer anew for each trial"
            )
        if self._checkpoint is not None:
            self._resume(Path(self._checkpoint) / FILE)
        loss_fn, options = _reading(trainer) if self.loss_fn is None else (self.loss_fn, {})
        data = kwargs["train_dataloader"] if self.data is None else self.data
        options["epochs"] = max(1, state.num_train_epochs)
        self._fit.begin(trainer.model_wrapped, trainer.optimizer, data, loss_fn=loss_fn, **options)
        if self.clip_pull:
            clip = trainer.accelerator.clip_grad_norm_
            trainer.accelerator.clip_grad_norm_ = functools.partial(self._pull_and_clip, clip)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A new epoch of θ_e under the interleaved schedule, a new strength under `auto`."""
        self._fit.begin_epoch(int(state.epoch or 0), self._eval_loss)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The loss that a strength of `auto` follows."""
        self._eval_loss = kwargs.get("metrics", {}).get("eval_loss", self._eval_loss)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The penalties beside the loss."""
        logs = kwargs.get("logs")
        if logs is not None and "loss" in logs:
            found = self._fit.penalties()
            logs.update(found)
            state.log_history[-1].update(found)  # a copy was put there just before

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Consolidation; the guard is written beside the checkpoints, where there are any."""
        task = self._fit.open_task
        if task is not None and args.load_best_model_at_end and state.best_model_checkpoint is not None:
            task.return_to_bookmark()
        self._fit.end()
        if args.should_save and args.save_strategy != "no":
            self.guard.save(Path(args.output_dir) / FILE)

    def state(self) -> dict[str, Any]:
        """Called by the trainer while it saves a checkpoint, before the file that makes it one: writes the guard's state."""
        trainer = self._trainer
        task = self._fit.open_task
        if trainer is not None and task is not None:
            step = trainer.state.global_step
            if trainer.state.best_global_step == step:
                task.bookmark()
            folder = Path(trainer.args.output_dir) / f"checkpoint-{step}"
            if folder.is_dir():
                save_tree(folder / FILE, self._fit.state())
        return {"args": {}, "attributes": {}}

    # -- around `Trainer.train` -----------------------------------------------------------------------------------

    def _enter(self, trainer: Trainer, checkpoint: str | bool | None) -> None:
        if trainer.args.restore_callback_states_from_checkpoint and checkpoint:
            raise ValueError(
                "restore_callback_states_from_checkpoint=True would make a new GuardCallback without its guard; leave it out: "
                "the guard's state comes back by itself"
            )
        if checkpoint is True:
            checkpoint = get_last_checkpoint(trainer.args.output_dir)
        self._trainer, self._checkpoint, self._eval_loss = trainer, str(checkpoint) if checkpoint else None, None
        callbacks = trainer.callback_handler.callbacks  # those that write logs must come after what is logged
        callbacks.remove(self)
        callbacks.insert(0, self)

    def _leave(self) -> None:
        self._fit.abort()  # nothing is open after a training that ended well
        if self._trainer is not None:
            vars(self._trainer.accelerator).pop("clip_grad_norm_", None)
        self._trainer = self._checkpoint = None

    def _resume(self, path: Path) -> None:
        try:
            self._fit.resume(load_tree(path))
        except FileError as error:
            if path.exists():
                raise
            raise FileError(
                f"{path.parent} has no {FILE}: it was saved without a GuardCallback, so what the guard knew is lost. Resume "
                "without the callback, or from a checkpoint that was saved with it"
            ) from error

    def _pull_and_clip(self, clip: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        assert self._trainer is not None
        self._trainer.accelerator.unscale_gradients()
        if self._fit.open_task is not None:
            self._fit.open_task.pull()
        return clip(parameters, *args, **kwargs)


def _let_train_tell() -> None:
    """`Trainer.train` tells its GuardCallbacks where it resumes from, and when it is over, whatever happens."""
    if getattr(Trainer.train, "tells_guards", False):
        return
    train = Trainer.train

    @functools.wraps(train)
    def telling(self: Trainer, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        callbacks = [one for one in self.callback_handler.callbacks if isinstance(one, GuardCallback)]
        if len(callbacks) > 1:
            raise ValueError(f"{len(callbacks)} GuardCallbacks in one trainer: add the methods instead, one + other")
        for callback in callbacks:
            callback._enter(self, resume_from_checkpoint)
        try:
            return train(self, resume_from_checkpoint, *args, **kwargs)
        finally:
            for callback in callbacks:
                callback._leave()

    telling.tells_guards = True  # type: ignore[attr-defined]
    Trainer.train = telling


# -- what the trainer learns from -------------------------------------------------------------------------------------


def _loss(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    found: Tensor = model(**batch)["loss"]
    return found


def _logits(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    logits: Tensor = model(**{key: value for key, value in batch.items() if key != "labels"})["logits"]
    return logits


def _next_logits(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    return _logits(model, batch)[:, :-1]


def _labelled(batch: Mapping[str, Any]) -> Tensor:
    mask: Tensor = batch["labels"] != -100
    return mask


def _next_labelled(batch: Mapping[str, Any]) -> Tensor:
    return _labelled(batch)[:, 1:]


def causal_language_model() -> dict[str, Any]:
    """What `guard.learning` has to be told of a causal language model of transformers, whose batches have `labels`."""
    return {
        "loss_fn": _loss,
        "predict": _next_logits,
        "likelihood": "categorical",
        "mask": _next_labelled,
        "class_axis": -1,
    }


def _reading(trainer: Trainer) -> tuple[Any, dict[str, Any]]:
    """The loss that a trainer minimises, and what the Fisher kinds need to know of it."""
    # TRL's own loss of SFT is the model's, and counts entropies and tokens on its way.
    own = trainer.compute_loss.__func__ is not Trainer.compute_loss and not _is_sft(trainer)
    if own or trainer.compute_loss_func is not None or trainer.label_smoother is not None:
        return lambda model, batch: trainer.compute_loss(model, dict(batch)), {}
    inner = trainer.accelerator.unwrap_model(trainer.model)
    inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner  # PEFT's
    kind, config = getattr(inner, "loss_type", None), getattr(inner, "config", None)
    if kind == "ForCausalLM" or type(inner).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        options = causal_language_model()
        return options.pop("loss_fn"), options
    if kind in ("ForMaskedLM", "ForTokenClassification"):
        return _loss, {"predict": _logits, "likelihood": "categorical", "mask": _labelled, "class_axis": -1}
    single = getattr(config, "problem_type", None) in (None, "single_label_classification")
    if kind == "ForSequenceClassification" and single and getattr(config, "num_labels", 1) > 1:
        return _loss, {"predict": _logits, "likelihood": "categorical"}
    return _loss, {}


def _is_sft(trainer: Trainer) -> bool:
    known = type(trainer).compute_loss
    return known.__module__ == "trl.trainer.sft_trainer" and getattr(trainer.args, "loss_type", "nll") == "nll"
