"""Training loop: steps, validation, checkpoints, early stopping, divergence guard and weight averaging."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import nn

from glassformer.blocks.layers import Residual
from glassformer.core.errors import UserError, is_out_of_memory, user_error
from glassformer.data.batching import Batch, StepPlan, plan_batches, split_balanced
from glassformer.evaluation.evaluate import EvaluationConfig, evaluate
from glassformer.evaluation.metrics import is_better, reaches
from glassformer.models.base import Model
from glassformer.tasks.base import Task
from glassformer.training.checkpoints import (
    Checkpoint,
    CheckpointStore,
    DamagedCheckpoint,
    SaveTimer,
    checkpoint_name,
)
from glassformer.training.config import TrainingConfig
from glassformer.training.distributed import ProcessGroup
from glassformer.training.events import EventLog
from glassformer.training.optimizers import Freezing, scale_learning_rates
from glassformer.training.progress import Reporter
from glassformer.training.state import StepOutcome, TrainingState, Window, random_tensors, restore_random
from glassformer.training.strategies import IdleBatch, make_strategy

# ---------------------------------------------------------------- services


class Probe(Protocol):
    """Periodic measurement during training that changes neither the model nor any random state."""

    @property
    def keeps_snapshots(self) -> bool:
        """True if the weights are saved as a snapshot at each measurement."""
        ...

    def is_due(self, step: int) -> bool:
        """Return True if the probe measures the model after this step."""
        ...

    def measure(self, model: Model) -> Mapping[str, Any]:
        """Measure the attention heads and return the fields of a `head_probe` event for the event log."""
        ...


class Interrupted(Exception):
    """Exception that ends a validation early on a stop request. A resumed run repeats the validation."""


class StopSignals:
    """Context manager that catches SIGINT and SIGTERM, stores the first signal and ignores later ones."""

    def __init__(self, report: Callable[[str], None] = lambda text: None) -> None:
        self.number: int | None = None
        self.report = report
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            with contextlib.suppress(RuntimeError):  # reentrant call: the signal interrupted a print
                self.report(f"{signal.Signals(number).name}: finishing this step and saving")

    def is_set(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """Exit code of the process: 128 + signal number, or 0 if no signal arrived."""
        return 0 if self.number is None else 128 + self.number


@dataclass
class TrainingContext:
    """Optional services that a Trainer uses: checkpoint store, event log, reporter, probe and others."""

    store: CheckpointStore | None = None
    events: EventLog | None = None
    reporter: Reporter = field(default_factory=Reporter)
    heartbeat: Callable[[TrainingState], None] = lambda state: None
    stop_requested: Callable[[], bool] = lambda: False
    probe: Probe | None = None
    """Measures the model before the first step, after each step for which it is due, and after the last."""
    process_group: ProcessGroup = field(default_factory=ProcessGroup)
    """Processes that train together. Only rank 0 has an event log and a reporter that prints."""


# ---------------------------------------------------------------- loop


class Diverged(Exception):
    """Exception for a loss or gradient that is not finite, or a loss spike. The step changed no weight."""

    def __init__(self, step: int, reason: str, indices: list[int]) -> None:
        self.step, self.reason, self.indices = step, reason, indices
        super().__init__(f"step {step}: {reason}")

    def to_user_error(self, config: TrainingConfig, *, has_post_norm: bool) -> UserError:
        """Return a UserError that describes the divergence and suggests options that prevent it.

        Options that the training already has are not suggested.
        """
        learning_rate = config.optimizer.learning_rate
        options = [f"set learning_rate={learning_rate / 3:.1g}", "raise schedule.warmup_steps"]
        options += ["set model.norm_placement=pre"] if has_post_norm else []
        options += ["set divergence.action=roll-back"] if config.divergence.action != "roll-back" else []
        shown = ", ".join(map(str, self.indices[:8])) + (" …" if len(self.indices) > 8 else "")
        return user_error(
            f"training diverged at step {self.step}: {self.reason} (examples {shown})",
            path="training.optimizer.learning_rate",
            value=learning_rate,
            hint=f"{', or '.join(options)}; the last good checkpoint is intact",
        )


class Trainer:
    """Training loop for one model on one task. Checkpoints save and restore the state of the loop."""

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
        self.averaged = averaged and self.strategy.shard(averaged)
        self.optimizer = config.optimizer.build(model)
        scale_learning_rates(self.optimizer, model, config.layerwise_lr_decay)
        self.state = TrainingState()
        self.lengths = task.splits["train"].lengths()
        self.steps_per_epoch = len(self.plan(0))
        self.total_steps = config.count_steps(self.steps_per_epoch)
        self.freezing = Freezing(model, config.freeze, config.steps_between_unfreezing(self.steps_per_epoch))
        self._planned: tuple[int, StepPlan] | None = None
        self._saved: str | None = None
        self._save_timer = SaveTimer(config.save_minutes, self._checkpoint_bytes())
        self._clock = time.perf_counter()
        self._gradient_norm = 0.0
        self._unread: list[StepOutcome] = []
        self._reads_each_step = self.device.type in ("cpu", "mps")

    @property
    def eval_model(self) -> Model:
        """Model to evaluate: the one with averaged weights if there is one, else the trained model."""
        return self.averaged or self.model

    def fit(self) -> TrainingState:
        """Train until a limit or a stop request; return the state. After a stop, `state.ended` is empty."""
        self.model.train()
        if self.state.step == 0 and self._saved is None:
            self._run_probe()
        if self.state.step == 0 and self.config.divergence.action == "roll-back":
            self.save()
        self.context.reporter.begin(self.state.step, self.total_steps)
        try:
            while not self._has_ended():
                try:
                    self._run_steps()
                    break
                except Diverged as divergence:
                    self._roll_back_or_raise(divergence)
        except Interrupted:
            self.state.ended = ""
            self.save(is_extra=True)
            self.context.heartbeat(self.state)
        finally:
            self.context.reporter.end()
        return self.state

    def _has_ended(self) -> bool:
        """Return True if a limit is reached. A resumed run checks again because limits may have changed."""
        if self._is_validation_missing():
            return False
        had_ended, self.state.ended = self.state.ended, self.reason_to_end()
        if self.state.ended and not had_ended:
            self._saved = None
            self._finish()
            self.save()
        return bool(self.state.ended)

    def _run_steps(self) -> None:
        self._clock = time.perf_counter()
        if self._is_validation_missing():
            self._saved = None
            if self._finish_step():
                return
        for batches in self.step_batches():
            self.step(batches)
            if self.state.step % self.config.log_every == 0:
                self._log_step()
            if self._finish_step():
                return

    def _finish_step(self) -> bool:
        """Run validation, probe and save if they are due. Return True if training ends or must stop here."""
        if self._is_validation_due():
            self.validate()
        if self._is_probe_due():
            self._run_probe()
        before, self._clock = self._clock, time.perf_counter()
        self.state.elapsed, is_stopping = self.process_group.max(
            self.state.elapsed + self._clock - before, self.context.stop_requested()
        )
        self.state.ended = self.reason_to_end()
        if self.state.ended:
            self._finish()
        if self.state.ended or self._is_save_due():
            self.save()
        elif is_stopping or self._save_timer.is_due(self.state.elapsed):
            self.save(is_extra=True)
        self.context.heartbeat(self.state)
        return bool(self.state.ended or is_stopping)

    def step_batches(self) -> Iterator[list[Batch]]:
        """Yield one list of micro-batches per step, from the step after the current one to the last step."""
        while self.total_steps is None or self.state.step < self.total_steps:
            epoch = self.state.epoch
            if self._planned is None or self._planned[0] != epoch:
                self._planned = None  # free the old plan first: two orders of many examples take memory
                self._planned = (epoch, self.plan(epoch))
            yield self.micro_batches(self._planned[1][self.state.steps_in_epoch], epoch)

    def plan(self, epoch: int) -> StepPlan:
        """Return the plan of an epoch: for each step, the indices of the examples in each of its batches."""
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

    def micro_batches(self, batches: list[np.ndarray], epoch: int) -> list[Batch]:
        """Load this process's share of a step's batches, split into micro-batches of about equal work."""
        examples = self.task.splits["train"]
        loaded = []
        for batch in batches:
            count = self.strategy.count_micro_batches(self.lengths[batch])
            loaded += [self._load(indices, epoch) for indices in split_balanced(examples, batch, count)]
        return loaded

    def _load(self, indices: np.ndarray, epoch: int) -> Batch:
        """Load this rank's share of the examples. `batch.indices` lists the examples of all ranks."""
        share = indices[self.process_group.rank :: self.process_group.world_size]
        batch_type = Batch if len(share) else IdleBatch
        batch = self.task.batch("train", share if len(share) else indices[:1], epoch)
        return batch_type(batch.inputs, batch.targets, indices).to(self.device)

    def step(self, batches: list[Batch]) -> None:
        """Run one optimizer step on these micro-batches; raise Diverged on a NaN or spiking loss.

        On a CPU the loss is checked before the weights change. A GPU must not wait for the host: losses are
        read at each logged step, and before a validation or a checkpoint.
        """
        started = time.perf_counter()
        state, number = self.state, self.state.step + 1
        self._unfreeze(number)
        count, tokens = map(int, self._sums((b.target_count(), b.token_count()) for b in batches))
        self.optimizer.zero_grad(set_to_none=True)
        divisor = max(count, 1)
        losses = self.strategy.forward_backward(batches, divisor)
        self.strategy.precision.unscale(self.optimizer)
        norm = self.strategy.clip(self.config.gradient_clip_norm or math.inf)
        self._unread.append(StepOutcome(number, losses, norm, count, [batch.indices for batch in batches]))
        if self._reads_each_step:
            self.read_losses()
        self._update(number)
        state.step = number
        for batch in batches:
            state.order = hashlib.sha256(state.order.encode() + batch.indices.tobytes()).hexdigest()
        if number % self.config.log_every == 0:
            self.read_losses()
        seconds = time.perf_counter() - started
        state.tokens, state.seconds = state.tokens + tokens, state.seconds + seconds
        state.window.tokens, state.window.seconds = (
            state.window.tokens + tokens,
            state.window.seconds + seconds,
        )
        self._advance_epoch()

    def read_losses(self) -> None:
        """Wait for the losses of all steps that have not been read; raise Diverged on a NaN or a spike."""
        unread, self._unread = self._unread, []
        for outcome in unread:
            own_loss, own_correct, norm = outcome.read()
            loss, correct = self._sums([(own_loss, own_correct)])
            mean = loss / max(outcome.count, 1)
            self._check_divergence(outcome.step, mean, norm, outcome.indices)
            self.state.record_loss(mean)
            self.state.window.add(loss, int(correct), outcome.count)
            self._gradient_norm = norm

    def _unfreeze(self, step: int) -> None:
        self.freezing.apply(step)
        released = self.freezing.released(step)
        if released:
            frozen = sum(self.freezing.frozen(step).values())
            self._log_event("unfreeze", step=step, released=released, frozen_parameters=frozen)
            self.context.reporter.info(
                f"step {step}: unfroze {', '.join(released)}; {frozen:,} parameters stay frozen"
            )

    def _sums(self, pairs: Iterable[tuple[float, int]]) -> list[float]:
        """Add up pairs of numbers, one pair per micro-batch, over all ranks. Return the two sums."""
        return self.process_group.sum(*(sum(column) for column in zip(*pairs, strict=True)))

    def _check_divergence(self, step: int, loss: float, norm: float, indices: list[np.ndarray]) -> None:
        """Raise Diverged if the loss or the gradient norm is not finite, or if the loss spikes."""
        typical, spike_factor = self.state.typical_loss(), self.config.divergence.spike_factor
        if not math.isfinite(loss):
            reason = f"the loss is {loss}"
        elif not math.isfinite(norm) and not self.strategy.precision.may_overflow:
            reason = f"the gradient norm is {norm}"
        elif typical is not None and spike_factor is not None and loss > spike_factor * typical:
            reason = f"the loss jumped from about {typical:.4g} to {loss:.4g}"
        else:
            return
        raise Diverged(step, reason, [int(index) for part in indices for index in part])

    def _update(self, number: int) -> None:
        learning_rate = self.learning_rate(number)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group["lr_scale"]
        self.strategy.precision.update(self.optimizer)
        if self.averaged is not None and self.config.ema_decay is not None:
            # A short average at first, so that the random initial weights soon lose influence.
            decay = min(self.config.ema_decay, number / (number + 10))
            averaged, trained = tuple(self.averaged.parameters()), tuple(self.model.parameters())
            with torch.no_grad():
                torch._foreach_lerp_(averaged, trained, 1 - decay)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate for a step, before layer-wise decay."""
        factor = self.config.schedule.factor(step, self.total_steps or step)
        return self.config.optimizer.learning_rate * factor * self.state.lr_factor

    def _advance_epoch(self) -> None:
        self.state.steps_in_epoch += 1
        if self.state.steps_in_epoch >= self.steps_per_epoch:
            self.state.epoch += 1
            self.state.steps_in_epoch = 0

    def _is_validation_due(self) -> bool:
        every, state = self.config.validate_every, self.state
        return state.step > 0 and (state.steps_in_epoch if every is None else state.step % every) == 0

    def _is_validation_missing(self) -> bool:
        """Return True if the validation of the current step is due but was interrupted before a resume."""
        return self._is_validation_due() and self.state.last_validation != self.state.step

    def validate(self, *, can_interrupt: bool = True) -> dict[str, float]:
        """Evaluate on the validation split and return its metrics; raise Interrupted on a stop request."""
        self.read_losses()

        def progress(what: str, done: int, total: int) -> None:
            if can_interrupt and self.strategy.should_interrupt(self.context.stop_requested()):
                raise Interrupted
            self.context.reporter.progress(f"validation, {what}", done, total)

        metrics: dict[str, float] = {}
        with contextlib.suppress(Interrupted):
            metrics = evaluate(
                self.eval_model,
                self.task,
                "validation",
                self.evaluation.during_training(),
                decodes=self.evaluation.decode_during_training,
                progress=progress,
            )
        if any(self.process_group.max(not metrics)):  # interrupted on any rank
            raise Interrupted
        state, selecting_metric = self.state, self.selecting_metric(metrics)
        value = metrics[selecting_metric]
        best_by = selecting_metric if is_better(selecting_metric, value, state.best) else ""
        if value == state.best and is_better("loss", metrics["loss"], state.best_loss):
            best_by = f"loss at equal {selecting_metric}"
        is_best = bool(best_by) or self.uses_last
        if is_best:
            state.best, state.best_loss, state.best_step = value, metrics["loss"], state.step
        state.validations_without_best = 0 if is_best else state.validations_without_best + 1
        state.consecutive_targets = state.consecutive_targets + 1 if self._reaches_target(metrics) else 0
        state.last_metrics, state.last_validation = metrics, state.step
        self._log_event("validation", step=state.step, epoch=state.epoch, **metrics)
        self.context.reporter.validated(state.step, metrics, "" if self.uses_last else best_by)
        return metrics

    @property
    def uses_last(self) -> bool:
        """True if there are too few validation examples to select a checkpoint: the last one counts as best.

        See `training.small_data.min_validation`.
        """
        return len(self.task.splits["validation"]) < (self.config.small_data.min_validation or 0)

    def selecting_metric(self, metrics: Mapping[str, float]) -> str:
        """Return the name of the metric that selects the best checkpoint, as set by `training.best_by`."""
        return "loss" if self.config.best_by == "loss" else self.primary_metric(metrics)

    def primary_metric(self, metrics: Mapping[str, float]) -> str:
        """Return the name of the task's primary metric if `metrics` contains it, else `loss`."""
        return self.task.primary_metric if self.task.primary_metric in metrics else "loss"

    def _reaches_target(self, metrics: Mapping[str, float]) -> bool:
        name, target = self.primary_metric(metrics), self.config.stopping.target
        return target is not None and reaches(name, metrics[name], target)

    def _is_probe_due(self) -> bool:
        return self.context.probe is not None and self.context.probe.is_due(self.state.step)

    def _run_probe(self) -> None:
        probe, store, state = self.context.probe, self.context.store, self.state
        if probe is None:
            return
        self._log_event("head_probe", step=state.step, epoch=state.epoch, **probe.measure(self.eval_model))
        if probe.keeps_snapshots and store is not None:
            weights = {"model": self.strategy.weights(self.eval_model)}
            name = checkpoint_name(state.step, state.rollbacks)
            store.keep_snapshot(name, Checkpoint(weights, {"training": state.to_json()}))

    def reason_to_end(self) -> str:
        """Return the name of the limit that was reached, such as `patience`, or an empty string."""
        state, stopping = self.state, self.config.stopping
        if state.last_metrics and state.last_validation == state.step:
            # The target may have changed since it was reached.
            if self._reaches_target(state.last_metrics) and state.consecutive_targets >= stopping.consecutive:
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
        if not self._is_probe_due():
            self._run_probe()
        if self.config.average_last is not None and self.context.store is not None:
            self._average_checkpoints(self.context.store, self.config.average_last)
        self._log_event("end", step=self.state.step, reason=self.state.ended)

    def _average_checkpoints(self, store: CheckpointStore, count: int) -> None:
        """Average the weights of the last checkpoints. Keep the average if it gives the best validation."""
        before, others = self.averaged, []
        group = "model" if before is None else "averaged"
        for name in store.before(checkpoint_name(self.state.step, self.state.rollbacks))[: count - 1]:
            try:
                others.append(store.load(name, [group]).tensors[group])
            except DamagedCheckpoint as damage:
                self.context.reporter.info(f"{damage}; averaging without this checkpoint")
        self.averaged = copy.deepcopy(self.eval_model).requires_grad_(False)
        for name, weight in self.averaged.state_dict().items():
            weight.copy_(torch.stack([weight, *(t[name].to(weight.device) for t in others)]).mean(0))
        state, metrics = self.state, self.state.last_metrics
        reached = state.consecutive_targets, state.validations_without_best
        self.validate(can_interrupt=False)  # the validation before it is already in the event log
        is_kept = state.best_step == state.step and state.validations_without_best == 0
        # The reason to end stays valid, whatever the average reaches.
        state.consecutive_targets, state.validations_without_best = reached
        if not is_kept:
            self.averaged, self.state.last_metrics = before, metrics
        self._log_event("averaged", step=self.state.step, checkpoints=len(others) + 1, is_kept=is_kept)

    def _is_save_due(self) -> bool:
        if self.config.save_every is None:
            return self.state.last_validation == self.state.step
        return self.state.step % self.config.save_every == 0 or self.state.best_step == self.state.step

    def save(self, *, is_extra: bool = False) -> None:
        """Save a checkpoint, unless the last save had the same name.

        `is_extra` marks a checkpoint that the timer or a stop request caused. Averaging and roll-back ignore
        such checkpoints, so that results do not depend on the clock.
        """
        self.read_losses()
        name = checkpoint_name(self.state.step, self.state.rollbacks, is_extra=is_extra)
        if self.context.store is None or self._saved == name:
            return
        if self.context.events is not None:
            self.context.events.sync()
        started, is_best = time.perf_counter(), self.state.best_step == self.state.step
        self.context.store.save(name, self.checkpoint(), is_best=is_best)
        self._saved = name
        (seconds,) = self.process_group.max(time.perf_counter() - started)
        self._save_timer.saved(self.state.elapsed, seconds)

    def _checkpoint_bytes(self) -> int:
        """Return the approximate size of a checkpoint: weights, two optimizer moments, averaged weights."""
        copies = 3 if self.averaged is None else 4
        return copies * sum(p.numel() * p.element_size() for p in self.model.parameters())

    def checkpoint(self) -> Checkpoint:
        """Return a checkpoint with everything that a bit-identical resume needs, gathered from all ranks."""
        tensors = {
            "model": self.strategy.weights(self.model),
            "optimizer": self.strategy.optimizer_tensors(self.optimizer),
            "random": self.process_group.gather(random_tensors()),
        }
        if self.averaged is not None:
            tensors["averaged"] = self.strategy.weights(self.averaged)
        checksum = self.context.events.checksum() if self.context.events else EventLog.NO_CHECKSUM
        processes = self.process_group.world_size
        about = {**checksum, "processes": processes, "time": time.time()}
        about["precision"] = self.strategy.precision.state()
        return Checkpoint(tensors, {"training": self.state.to_json(), **about})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore weights, optimizer, random-number generators, counters and event log from a checkpoint."""
        store, report = self.context.store, self.context.reporter.info
        self._unread = []
        try:
            self.strategy.load(self.model, checkpoint.tensors["model"])
            self.strategy.restore_optimizer(self.optimizer, checkpoint.tensors["optimizer"])
            restore_random(self.process_group.select_own(checkpoint.tensors["random"]))
            if self.averaged is not None and "averaged" in checkpoint.tensors:
                self.strategy.load(self.averaged, checkpoint.tensors["averaged"])
            self.state = TrainingState.from_json(checkpoint.state["training"])
            self.strategy.precision.restore(checkpoint.state.get("precision") or {})
            if self.context.events is not None:
                self.context.events.restore(checkpoint.state, report)
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
            if is_out_of_memory(error):
                raise
            raise user_error(
                f"the checkpoint does not belong to this run: {error}",
                path=str(store.folder) if store else "",
                hint="restore the run folder from a backup, or train again",
            ) from error
        self._saved = checkpoint_name(self.state.step, self.state.rollbacks)
        self._save_timer.saved(self.state.elapsed)
        if store is not None:
            store.repair_pointers(self.state.best_step, self.state.step, report)
            store.delete_snapshots_after(self.state.step)

    def _roll_back_or_raise(self, divergence: Diverged) -> None:
        """Restore the last checkpoint and halve the learning rate, or raise a UserError if not allowed."""
        guard, store = self.config.divergence, self.context.store
        newest = None
        if guard.action == "roll-back" and self.state.rollbacks < guard.max_rollbacks and store is not None:
            newest = store.load_newest(self.context.reporter.info, only_regular=True)
        if newest is None:
            self.state.ended = "diverged"
            self._log_event("diverged", step=divergence.step, reason=divergence.reason)
            residuals = (module for module in self.model.modules() if isinstance(module, Residual))
            has_post_norm = any(not isinstance(residual.after, nn.Identity) for residual in residuals)
            raise divergence.to_user_error(self.config, has_post_norm=has_post_norm)
        rollbacks, lr_factor = self.state.rollbacks + 1, self.state.lr_factor / 2
        self.restore(newest[1])
        self.state.rollbacks, self.state.lr_factor = rollbacks, lr_factor
        logged = {"to_step": self.state.step, "reason": divergence.reason, "lr_factor": lr_factor}
        self._log_event("roll-back", step=divergence.step, **logged)
        self.context.reporter.info(
            f"{divergence}; rolled back to step {self.state.step}, learning rate multiplied by {lr_factor:g}"
        )
        self.save()

    def _log_step(self) -> None:
        window, state = self.state.window, self.state
        loss, accuracy = window.loss / max(window.count, 1), window.correct / max(window.count, 1)
        is_regression = getattr(self.task.task_type, "is_regression", False)  # it has no accuracy
        speed = window.tokens / window.seconds if window.seconds else 0.0
        self._log_event(
            "step",
            step=state.step,
            epoch=state.epoch,
            loss=loss,
            **({} if is_regression else {"accuracy": accuracy}),
            learning_rate=self.learning_rate(state.step),
            gradient_norm=self._gradient_norm,
            order=state.order[:16],
            tokens_per_second=round(speed, 1),
            seconds=round(state.seconds, 3),
        )
        self.context.reporter.step(state.step, loss, None if is_regression else accuracy, speed)
        state.window = Window()

    def _log_event(self, kind: str, **fields: Any) -> None:
        if self.context.events is not None:
            self.context.events.append(kind, **fields)
