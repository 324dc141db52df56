"""The smallest experiment: a walk to a goal for each task. All that the lab promises must hold for it as well."""

from __future__ import annotations

import random
import time

from afec.experiments import RETURN, Experiment, Progress, Score, StoppedError, TaskRecord


class Walk(Experiment):
    """A point walks to each goal in turn; `rest` holds it at the goals before."""

    score = RETURN
    tasks = ("first goal", "second goal", "third goal")

    def __init__(self, setup, context):
        super().__init__(setup, context)
        self.at, self.steps = 0.0, 0
        self.goals = [random.Random(context.seed * 10 + n).uniform(-9, 9) for n in range(len(self.tasks))]

    def learn(self, number, on_progress):
        while self.steps < self.setup.training["steps"]:
            self.steps += 1
            pull = self.setup.settings.get("rest", {}).get("strength", 0.0)
            self.at += 0.3 * (self.goals[number] - self.at) - 0.3 * pull * (self.at if number else 0)
            time.sleep(self.setup.training.get("seconds", 0))
            on_progress(Progress(number, self.tasks[number], "walk", self.steps, "step", {"distance": abs(self.at)}))
            if self.context.stop.asked:
                raise StoppedError
        taken, self.steps = self.steps, 0
        return TaskRecord(self.tasks[number], taken, 0, 0, taken, {}, {})

    def measure(self, after):
        scores = [-abs(goal - self.at) for goal in self.goals]
        return [Score(after, n + 1, self.tasks[n], value, value, 1) for n, value in enumerate(scores)]

    def state_dict(self):
        return {"at": self.at, "steps": self.steps}

    def load_state_dict(self, state):
        self.at, self.steps = state["at"], state["steps"]
