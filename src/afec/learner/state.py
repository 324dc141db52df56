"""Whether a saved state fits the learner that it is loaded into; asked before anything of it is loaded."""

from __future__ import annotations

from typing import Any

from afec.nets import MultiHead
from afec.strategy import Strategy

__all__ = ["FORMAT", "check_net", "check_state", "upgraded"]

FORMAT = 2
INSIDE = {"task", "phase", "fit", "weights", "cost", "flight"}


def upgraded(state: Any) -> Any:
    """A state of format 1, which knew guards only, in the present form; anything else as it is."""
    if not isinstance(state, dict) or state.get("format") != 1 or not {"guard", "inside"} <= state.keys():
        return state
    inside = state["inside"]
    if isinstance(inside, dict) and set(inside) == {"task", "phase", "fit", "theta_e", "epochs_theta_e", "measured"}:
        cost = {"epochs": {"theta_e": inside["epochs_theta_e"]}, "measured": inside["measured"]}
        kept = {key: inside[key] for key in ("task", "phase", "fit")}
        inside = {**kept, "weights": inside["theta_e"], "cost": cost, "flight": {}}
    rest = {key: value for key, value in state.items() if key != "guard"}
    return {**rest, "format": FORMAT, "method": state["guard"], "inside": inside}


def check_state(state: Any, strategy: Strategy) -> None:
    """Raise where this is no state, or that of another method."""
    keys = {"format", "seed", "tasks", "net", "heads", "method", "inside"}
    if not isinstance(state, dict) or set(state) != keys or state["format"] != FORMAT:
        found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"this is no state of a Learner (format {FORMAT}): expected {sorted(keys)}, got {found}")
    inside = state["inside"]
    if inside is not None and (not isinstance(inside, dict) or set(inside) != INSIDE):
        raise ValueError(
            f"this is no state of a Learner: what it says about a task in its middle is {type(inside).__name__}"
        )
    saved, here = (state["method"] or {}).get("method", "finetune"), strategy.method
    if saved != here:
        raise ValueError(
            f"the state is of a learner with the method '{saved}', this one has '{here}'; give it that one"
        )


def check_net(state: dict[str, Any], net: MultiHead) -> None:
    """Raise where the state is of another net."""
    saved, here = state["heads"], [head.out_features for head in net.heads]
    if here != saved[: len(here)]:
        raise ValueError(
            f"the state is of a net with heads of sizes {saved}, this one has {here}; give it the net that was saved"
        )
    of_one_task = net.task_prefixes()  # what the state's tasks need beyond the net's is made before it is loaded
    shapes, own = (
        {name: tuple(value.shape) for name, value in weights.items() if not name.startswith(of_one_task)}
        for weights in (state["net"], net.state_dict())
    )
    for name in sorted(shapes.keys() | own.keys()):
        if shapes.get(name) != own.get(name):
            there, present = shapes.get(name, "nothing"), own.get(name, "nothing")
            raise ValueError(
                f"the state is of another net: '{name}' has the shape {there} there and {present} here; "
                "give the learner the net that was saved"
            )
