"""The training loop: steps, validation, checkpoints, early stopping, divergence guard, averaging."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from glassformer.core.errors import UserError, user_error
from glassformer.data.batching import Batch, StepPlan, plan_batches, split_balanced
from glassformer.evaluation.evaluate import EvaluationConfig, evaluate
from glassformer.evaluation.metrics import is_better, reaches
from glassformer.models.base import Model
from glassformer.tasks.base import Task
from glassformer.training.checkpoints import Checkpoint, CheckpointStore, DamagedCheckpoint, checkpoint_name
from glassformer.training.config import TrainingConfig
from glassformer.training.context import Interrupted, TrainingContext
from glassformer.training.events import EventLog
from glassformer.training.optimizers import Freezing, scale_rates
from glassformer.training.state import TrainingState, Window, random_tensors, refusing_others, restore_random
from glassformer.training.strategies import make_strategy


class Diverged(Exception):
    """The loss is no number, or jumped; the update was not made."""

    def __init__(self, step: int, reason: str, indices: list[int]) -> None:
        self.step, self.reason, self.indices = step, reason, indices
        super().__init__(f"step {step}: {reason}")

    def advice(self, rate: float) -> UserError:
        shown = ", ".join(map(str, self.indices[:8])) + (" …" if len(self.indices) > 8 else "")
        return user_error(
            f"training diverged at step {self.step}: {self.reason} (examples {shown})",
            path="training.optimizer.learning_rate",
            value=rate,
            hint=f"learning_rate={rate / 3:.1g}, more schedule.warmup_steps, model.norm_placement=pre,"
            " or divergence.action=roll-back; the last good checkpoint is kept",
        )


def what_is_wrong(loss: float, norm: float, usual: float | None, spike_factor: float | None) -> str | None:
    """None if the model may learn from a batch with this loss and this norm of the gradient."""
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if not math.isfinite(norm):
        return f"the gradient's norm is {norm}"
    if usual is not None and spike_factor is not None and loss > spike_factor * usual:
        return f"the loss jumped from about {usual:.4g} to {loss:.4g}"
    return None


def mean_of(
    model: Model, store: CheckpointStore, earlier: Sequence[str], group: str, note: Callable[[str], None]
) -> tuple[Model, int]:
    """A copy of the model with the mean of its weights and those of these checkpoints, and of how many."""
    others = []
    for name in earlier:
        try:
            others.append(store.load(name, [group]).tensors[group])
        except DamagedCheckpoint as damage:
            note(f"{damage}; averaging without it")
    averaged = copy.deepcopy(model).requires_grad_(False)
    for name, weight in averaged.state_dict().items():
        weight.copy_(torch.stack([weight, *(t[name].to(weight.device) for t in others)]).mean(0))
    return averaged, len(others) + 1


class Trainer:
    def __init__(
        self,
        task: Task,
        model: Model,
        config: TrainingConfig,
        evaluation: EvaluationConfig,
        seed: int,
        context: TrainingContext | None = None,
    ) -> None:
        self.task = task
        self.model = model
        self.config = config
        self.evaluation = evaluation
        if config.validation_examples is not None:
            self.evaluation = evaluation.model_copy(update={"max_examples": config.validation_examples})
        self.seed = seed
        self.context = context or TrainingContext()
        self.process_group = self.context.process_group
        self.device = next(model.parameters()).device
        averaged = copy.deepcopy(model).requires_grad_(False) if config.ema_decay else None
        self.strategy = make_strategy(model, self.process_group, config)
        self.averaged = averaged and self.strategy.share(averaged)
        self.optimizer = config.optimizer.build(model)
        scale_rates(self.optimizer, model, config.layerwise_lr_decay)
        self.state = TrainingState()
        self.lengths = task.splits["train"].lengths()
        self.steps_per_epoch = len(self.plan(0))
        self.total_steps = config.count_steps(self.steps_per_epoch)
        self.freezing = Freezing(model, config.freeze, config.steps_between_thaws(self.steps_per_epoch))
        self._planned: tuple[int, StepPlan] | None = None
        self._saved: str | None = None
        self._clock = time.perf_counter()
        self._gradient_norm = 0.0

    @property
    def model_in_use(self) -> Model:
        """The averaged weights, where there are any."""
        return self.averaged or self.model

    def fit(self) -> TrainingState:
        """Train to the end, or until asked to stop; `state.ended` says which."""
        self.model.train()
        if self.state.step == 0 and self._saved is None:
            self._look()
        if self.state.step == 0 and self.config.divergence.action == "roll-back":
            self.save()
        self.context.reporter.begin(self.state.step, self.total_steps)
        try:
            while not self._is_over():
                try:
                    self._fit()
                    break
                except Diverged as divergence:
                    self._recover(divergence)
        except Interrupted:
            self.state.ended = ""
            self.save(is_extra=True)
            self.context.heartbeat(self.state)
        finally:
            self.context.reporter.end()
        return self.state

    def _is_over(self) -> bool:
        """Whether a restored run has nothing left to do; its limits may have changed since it was saved."""
        if self._is_validation_missing():
            return False
        had_ended, self.state.ended = self.state.ended, self._reason_to_end()
        if self.state.ended and not had_ended:
            self._saved = None
            self._finish()
            self.save()
        return bool(self.state.ended)

    def _fit(self) -> None:
        self._clock = time.perf_counter()
        if self._is_validation_missing():
            self._saved = None
            if self._is_done_after_step():
                return
        for batches in self._groups():
            self.step(batches)
            if self.state.step % self.config.log_every == 0:
                self._log()
            if self._is_done_after_step():
                return

    def _is_done_after_step(self) -> bool:
        """Validate, look and save, as far as these are due."""
        if self._is_validation_due():
            self.validate()
        if self._is_look_due():
            self._look()
        before, self._clock = self._clock, time.perf_counter()
        self.state.elapsed, is_stopping = self.process_group.largest(
            self.state.elapsed + self._clock - before, self.context.stop_requested()
        )
        self.state.ended = self._reason_to_end()
        if self.state.ended:
            self._finish()
        if self.state.ended or self._is_save_due():
            self.save()
        elif is_stopping:
            self.save(is_extra=True)
        self.context.heartbeat(self.state)
        return bool(self.state.ended or is_stopping)

    def step(self, batches: list[Batch]) -> bool:
        """One update from one or more batches; True at the end of an epoch."""
        started = time.perf_counter()
        state, number = self.state, self.state.step + 1
        self._thaw(number)
        count, tokens = map(int, self._sums((b.target_count(), b.token_count()) for b in batches))
        self.optimizer.zero_grad(set_to_none=True)
        loss, correct = self._sums(
            self.strategy.learn(batches, max(count, 1), self.config.label_smoothing, self._autocast)
        )
        norm = self.strategy.clip(self.config.gradient_clip_norm or math.inf)
        self._guard(number, loss / max(count, 1), norm, batches)
        self._update(number)

        state.step = number
        state.remember_loss(loss / max(count, 1))
        for batch in batches:
            state.order = hashlib.sha256(state.order.encode() + batch.indices.tobytes()).hexdigest()
        seconds = time.perf_counter() - started
        state.tokens, state.seconds = state.tokens + tokens, state.seconds + seconds
        state.window.add(loss, int(correct), count, tokens, seconds)
        self._gradient_norm = norm
        return self._advance_epoch()

    def _sums(self, pairs: Iterable[tuple[float, int]]) -> list[float]:
        """Over the batches of a step and over all ranks."""
        return self.process_group.sum(*(sum(column) for column in zip(*pairs, strict=True)))

    def _thaw(self, step: int) -> None:
        self.freezing.apply(step)
        released = self.freezing.released(step)
        if released:
            frozen = sum(self.freezing.frozen(step).values())
            self._record("unfreeze", step=step, released=released, frozen_parameters=frozen)
            self.context.reporter.note(
                f"step {step}: thawed {', '.join(released)}; {frozen:,} parameters stay frozen"
            )

    def _advance_epoch(self) -> bool:
        self.state.steps_in_epoch += 1
        if self.state.steps_in_epoch < self.steps_per_epoch:
            return False
        self.state.epoch += 1
        self.state.steps_in_epoch = 0
        return True

    def _update(self, number: int) -> None:
        rate = self.rate(number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate_scale"]
        self.optimizer.step()
        if self.averaged is not None and self.config.ema_decay is not None:
            # A short memory at first, so that the random start is soon forgotten.
            decay = min(self.config.ema_decay, number / (number + 10))
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(self.averaged.parameters()), list(self.model.parameters()), 1 - decay
                )

    def rate(self, step: int) -> float:
        """Of the head, and of every layer unless they have rates of their own."""
        factor = self.config.schedule.factor(step, self.total_steps or step)
        return self.config.optimizer.learning_rate * factor * self.state.rate_factor

    def _guard(self, step: int, loss: float, norm: float, batches: list[Batch]) -> None:
        wrong = what_is_wrong(loss, norm, self.state.usual_loss(), self.config.divergence.spike_factor)
        if wrong is not None:
            raise Diverged(step, wrong, [int(index) for batch in batches for index in batch.indices])

    def validate(self, *, can_be_left: bool = True) -> dict[str, float]:
        """Who asks to stop meanwhile does not wait for its end: a resumed run does it anew."""

        def progress(what: str, done: int, total: int) -> None:
            if can_be_left and self.strategy.leaves(self.context.stop_requested()):
                raise Interrupted
            self.context.reporter.measuring(f"validation, {what}", done, total)

        metrics: dict[str, float] = {}
        with contextlib.suppress(Interrupted):
            metrics = evaluate(
                self.model_in_use,
                self.task,
                "validation",
                self.evaluation.during_training(),
                decodes=self.evaluation.decode_during_training,
                progress=progress,
            )
        if any(self.process_group.largest(not metrics)):  # on whichever rank
            raise Interrupted
        state, primary_metric = self.state, self.primary_metric(metrics)
        value = metrics[primary_metric]
        is_best = is_better(primary_metric, value, state.best) or (
            value == state.best and is_better("loss", metrics["loss"], state.best_loss)
        )
        if is_best:
            state.best, state.best_loss, state.best_step = value, metrics["loss"], state.step
        state.validations_without_best = 0 if is_best else state.validations_without_best + 1
        target = self.config.stopping.target
        is_reached = target is not None and reaches(primary_metric, value, target)
        state.targets_in_a_row = state.targets_in_a_row + 1 if is_reached else 0
        state.last_metrics, state.last_validation = metrics, state.step
        self._record("validation", step=state.step, epoch=state.epoch, **metrics)
        self.context.reporter.validated(state.step, metrics, is_best)
        return metrics

    def _is_look_due(self) -> bool:
        return self.context.watch is not None and self.context.watch.is_due(self.state.step)

    def _look(self) -> None:
        watch, store, state = self.context.watch, self.context.store, self.state
        if watch is None:
            return
        self._record("heads", step=state.step, epoch=state.epoch, **watch.look(self.model_in_use))
        if watch.keeps_weights and store is not None:
            weights = {"model": self.strategy.weights(self.model_in_use)}
            name = checkpoint_name(state.step, state.rollbacks)
            store.keep_watched(name, Checkpoint(weights, {"training": state.to_json()}))

    def primary_metric(self, metrics: Mapping[str, float]) -> str:
        return self.task.primary_metric if self.task.primary_metric in metrics else "loss"

    def save(self, *, is_extra: bool = False) -> None:
        name = checkpoint_name(self.state.step, self.state.rollbacks, is_extra=is_extra)
        if self.context.store is None or self._saved == name:
            return
        if self.context.events is not None:
            self.context.events.sync()
        is_best = self.state.best_step == self.state.step
        self.context.store.save(name, self.checkpoint(), is_best=is_best)
        self._saved = name

    def checkpoint(self) -> Checkpoint:
        tensors = {
            "model": self.strategy.weights(self.model),
            "optimizer": self.strategy.optimizer_tensors(self.optimizer),
            "random": self.process_group.gather(random_tensors()),
        }
        if self.averaged is not None:
            tensors["averaged"] = self.strategy.weights(self.averaged)
        seal = self.context.events.seal() if self.context.events else EventLog.NO_SEAL
        return Checkpoint(
            tensors, {"training": self.state.to_json(), **seal, "processes": self.process_group.count}
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        with refusing_others(str(self.context.store.folder) if self.context.store else ""):
            self.strategy.load(self.model, checkpoint.tensors["model"])
            self.strategy.restore_optimizer(self.optimizer, checkpoint.tensors["optimizer"])
            restore_random(self.process_group.own(checkpoint.tensors["random"]))
            if self.averaged is not None and "averaged" in checkpoint.tensors:
                self.strategy.load(self.averaged, checkpoint.tensors["averaged"])
            self.state = TrainingState.from_json(checkpoint.state["training"])
            if self.context.events is not None:
                self.context.events.cut_back(checkpoint.state, self.context.reporter.note)
        self._saved = checkpoint_name(self.state.step, self.state.rollbacks)
        if self.context.store is not None:
            self.context.store.mend_pointers(
                self.state.best_step, self.state.step, self.context.reporter.note
            )
            self.context.store.forget_watched(self.state.step)

    def _recover(self, divergence: Diverged) -> None:
        """As configured: end with advice, or go back to the last checkpoint at half the rate."""
        guard, store = self.config.divergence, self.context.store
        may_return = guard.action == "roll-back" and self.state.rollbacks < guard.max_rollbacks
        newest = None
        if may_return and store is not None:
            newest = store.load_newest(self.context.reporter.note, only_regular=True)
        if newest is None:
            self.state.ended = "diverged"
            self._record("diverged", step=divergence.step, reason=divergence.reason)
            raise divergence.advice(self.config.optimizer.learning_rate)
        rollbacks, rate_factor = self.state.rollbacks + 1, self.state.rate_factor / 2
        self.restore(newest[1])
        self.state.rollbacks, self.state.rate_factor = rollbacks, rate_factor
        self._record(
            "roll-back",
            step=divergence.step,
            to_step=self.state.step,
            reason=divergence.reason,
            rate_factor=rate_factor,
        )
        self.context.reporter.note(
            f"{divergence}; back to step {self.state.step} with {rate_factor:g} of the learning rate"
        )
        self.save()

    def _groups(self) -> Iterator[list[Batch]]:
        """The batches of each step, from where the state stands."""
        while self.total_steps is None or self.state.step < self.total_steps:
            epoch = self.state.epoch
            if self._planned is None or self._planned[0] != epoch:
                self._planned = None  # of many examples, two orders at a time would count
                self._planned = (epoch, self.plan(epoch))
            yield self.batches(self._planned[1][self.state.steps_in_epoch], epoch)

    def batches(self, group: list[np.ndarray], epoch: int) -> list[Batch]:
        """What a step learns from: this process's share of each batch, in parts if it is much work."""
        examples = self.task.splits["train"]
        parts = [
            part
            for indices in group
            for part in split_balanced(examples, indices, self.strategy.parts(self.lengths[indices]))
        ]
        return [self.process_group.part(self.task, indices, epoch).to(self.device) for indices in parts]

    def plan(self, epoch: int) -> StepPlan:
        """The numbers of the examples of each batch of each step of an epoch."""
        batches = plan_batches(
            self.lengths,
            seed=self.seed,
            split="train",
            epoch=epoch,
            batch_size=self.config.batch_size,
            batch_tokens=self.config.batch_tokens,
            drop_last=self.task.drop_last,
        )
        return StepPlan(batches, self.config.gradient_accumulation)

    def _is_validation_due(self) -> bool:
        every, state = self.config.validate_every, self.state
        return state.step > 0 and (state.steps_in_epoch if every is None else state.step % every) == 0

    def _is_validation_missing(self) -> bool:
        """A restored run may have been stopped in the middle of it."""
        return self._is_validation_due() and self.state.last_validation != self.state.step

    def _is_save_due(self) -> bool:
        if self.config.save_every is None:
            return self.state.last_validation == self.state.step
        return self.state.step % self.config.save_every == 0 or self.state.best_step == self.state.step

    def _reason_to_end(self) -> str:
        state, stopping = self.state, self.config.stopping
        if state.last_metrics and state.last_validation == state.step:
            primary_metric, target = self.primary_metric(state.last_metrics), stopping.target
            # The target may have changed since it was reached.
            is_reached = target is not None and reaches(
                primary_metric, state.last_metrics[primary_metric], target
            )
            if is_reached and state.targets_in_a_row >= stopping.times:
                return "target"
            if stopping.patience is not None and state.validations_without_best >= stopping.patience:
                return "patience"
        if self.total_steps is not None and state.step >= self.total_steps:
            return "max_steps" if self.total_steps == self.config.max_steps else "max_epochs"
        if self.config.max_minutes is not None and state.elapsed >= 60 * self.config.max_minutes:
            return "max_minutes"
        return ""

    def _finish(self) -> None:
        if self.state.last_validation != self.state.step:
            self.validate()
        if not self._is_look_due():
            self._look()
        if self.config.average_last is not None and self.context.store is not None:
            self._average_checkpoints(self.context.store, self.config.average_last)
        self._record("end", step=self.state.step, reason=self.state.ended)

    def _average_checkpoints(self, store: CheckpointStore, count: int) -> None:
        """The mean of the last checkpoints' weights, kept if it is better than the best of them."""
        before = self.averaged
        earlier = store.before(checkpoint_name(self.state.step, self.state.rollbacks))[: count - 1]
        group = "model" if before is None else "averaged"
        self.averaged, taken = mean_of(self.model_in_use, store, earlier, group, self.context.reporter.note)
        targets_in_a_row, metrics = self.state.targets_in_a_row, self.state.last_metrics
        self.validate(can_be_left=False)  # what came before it is on record
        self.state.targets_in_a_row = targets_in_a_row  # the reason to end stays one, whatever the average is
        is_kept = self.state.best_step == self.state.step and self.state.validations_without_best == 0
        if not is_kept:
            self.averaged, self.state.last_metrics = before, metrics
        self._record("averaged", step=self.state.step, checkpoints=taken, is_kept=is_kept)

    def _log(self) -> None:
        window, state = self.state.window, self.state
        loss, accuracy = window.loss / max(window.count, 1), window.correct / max(window.count, 1)
        speed = window.tokens / window.seconds if window.seconds else 0.0
        self._record(
            "step",
            step=state.step,
            epoch=state.epoch,
            loss=loss,
            accuracy=accuracy,
            learning_rate=self.rate(state.step),
            gradient_norm=self._gradient_norm,
            order=state.order[:16],
            tokens_per_second=round(speed, 1),
            seconds=round(state.seconds, 3),
        )
        self.context.reporter.step(state.step, loss, accuracy, speed)
        state.window = Window()

    def _record(self, kind: str, **fields: Any) -> None:
        if self.context.events is not None:
            self.context.events.append(kind, **fields)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.config.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()
