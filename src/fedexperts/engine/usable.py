"""Clients' models as they would be used now: evaluated, asked, or handed out."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedexperts.engine.clients import Clients, padded
from fedexperts.engine.cohort import Cohort, Job, Query, Received
from fedexperts.engine.estimate import Estimate
from fedexperts.engine.observer import Evaluation
from fedexperts.engine.phases import phase
from fedexperts.errors import DivergedError, SavedStateError
from fedexperts.methods import Message, Model, Reply, Round, State, part_of


class Usable(Clients):
    """Clients whose models can be used between rounds, each with what the server would send it now."""

    @property
    def everybody(self) -> Sequence[int]:
        """The clients that are evaluated."""
        return list(self.specs)

    @abstractmethod
    def message_for(self, client: int) -> Message:
        """What the server would send to a client now."""

    def train(self, clients: Sequence[int], now: Round) -> tuple[list[Job], list[Reply]]:
        if self.settings.group_size is None:
            self.estimate.fit(clients, now)
        return super().train(clients, now)

    @cached_property
    def estimate(self) -> Estimate:
        return Estimate(self)

    def evaluate(self) -> list[Evaluation]:
        """Every client's model, as it would be used now, on the client's own validation and test data."""
        return self.scores(self.predict_held_out())

    @phase("evaluation")
    def predict_held_out(self) -> list[tuple[Cohort, Tensor]]:
        def predicted(cohorts: list[Cohort]) -> list[tuple[Cohort, Tensor]]:
            held_out = [[self._held_out(client.id) for client in cohort.clients] for cohort in cohorts]
            answers = self.ask(self._predicted_class, cohorts, held_out, self.fleet.has_room_for(len(self.everybody)))
            return [(cohort.absent(), stacked) for cohort, stacked in zip(cohorts, answers, strict=True)]

        return [answer for wave in self.waves.each(self.everybody, predicted) for answer in wave]

    @phase("evaluation")
    def scores(self, answers: list[tuple[Cohort, Tensor]]) -> list[Evaluation]:
        with phase("waiting"):
            there = [(cohort, stacked.cpu().numpy()) for cohort, stacked in answers]
        results = [
            self._score(client.id, predicted)
            for cohort, stacked in there
            for client, predicted in zip(cohort.clients, stacked, strict=True)
        ]
        return sorted(results, key=lambda result: result.client)

    def ask(
        self, function: Any, cohorts: Sequence[Cohort], samples: Sequence[Sequence[np.ndarray]], again: bool = False
    ) -> list[Tensor]:
        """`function(model, x)` of each client's model as it would be used now, for some of its samples.

        `again`: the same is asked round after round, of clients that stay where they are.
        """
        queries = [
            Query(used, function, received, self.to_device(padded(own)), tuple(map(len, own)), again)
            for (used, received), own in zip(map(self._personalised, cohorts), samples, strict=True)
        ]
        return self.executor.map(queries)

    def _personalised(self, cohort: Cohort) -> tuple[Cohort, Received]:
        """The cohort as it would be used now, and what the server would send it."""
        messages = [self.message_for(client.id) for client in cohort.clients]
        changes = [self.method.personalise(own, message) for own, message in zip(cohort.each(), messages, strict=True)]
        self.complete(cohort, changes)
        # Looking must not change a client: what it keeps is replaced in a copy.
        kept, names = self.method.kept(), {name for change in changes for name in change}
        copies = {name: cohort.tensors[name].clone() for name in names if part_of(name) in kept}
        used = replace(cohort, tensors=cohort.tensors | copies)
        used.write(changes)
        return used, Received.of(cohort.clients, list(map(self.method.heard, messages)))

    def _predicted_class(self, model: Model, x: Tensor, received: State) -> Tensor:
        """-1 where the model's answer is not a number."""
        logits = self.method.predict(model, x, received)
        return torch.where(logits.isfinite().all(1), logits.argmax(1), -1)

    def _held_out(self, client: int) -> np.ndarray:
        """A client's validation and test samples, as its data are now."""
        now = self.data_at(max(self.round, 1))[client]
        return np.concatenate([now.validation, now.test])

    def _score(self, client: int, predicted: np.ndarray) -> Evaluation:
        index = self._held_out(client)
        predicted = predicted[: len(index)]
        if (predicted < 0).any():
            raise DivergedError(
                f"{self.specs[client].called}'s model gives no numbers any more after round {self.round}; "
                f"a learning rate below {self.settings.lr:g} may help"
            )
        right = predicted == self.dataset.labels[index]
        cut = len(self.data_at(max(self.round, 1))[client].validation)
        return Evaluation(client, int(right[:cut].sum()), cut, int(right[cut:].sum()), len(index) - cut)

    def client_state(self, client: int) -> State:
        """A client's complete model, as it would be used now."""
        own = self.on_device(self.fleet.program(client).blank() | self.fleet.kept(client))
        return own | self.on_device(self.method.personalise(own, self.message_for(client)))

    def goes_on(self, client: int, before: "Usable") -> None:
        """Let a client begin with the model that it had at the end of another run."""
        fresh, found = self.fleet.fresh(client), before.client_state(client)
        if missing := sorted(n for n, t in found.items() if n not in fresh or fresh[n].shape != t.shape):
            raise SavedStateError(
                f"{self.specs[client].called} cannot go on with its model of the {before.method.name} run: "
                f"{', '.join(missing)} would not fit"
            )
        self.fleet.change(client, fresh | {name: tensor.to(fresh[name]) for name, tensor in found.items()})

    def on_device(self, state: State) -> State:
        return {name: tensor.detach().to(self.device, copy=True) for name, tensor in state.items()}
