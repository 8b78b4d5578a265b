"""NonFiniteSteps: the treatment of optimiser steps whose loss or gradient is not finite."""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..models.distributed import Processes
from ..options.fields import OnNonFinite

logger = logging.getLogger(__name__)

WINDOW = 20
"""The number of latest optimiser steps among which skipped ones are counted."""

MOST_SKIPPED = 10
"""Training stops when so many steps of the window were skipped, so that nobody pays for a run that learns nothing."""


class NonFiniteError(RuntimeError):
    """Training stopped because a loss or a gradient is not finite; the weights are those from before that step."""


@dataclass(eq=False)
class NonFiniteSteps:
    """Finds the steps whose loss or gradient norm is not finite. All processes find the same ones.

    With fp16 a gradient overflows while the loss scaler looks for its scale. The scaler itself skips such a step, so it
    is not counted here. At a scale of 1 or less the gradient itself is not finite.
    """

    _action: OnNonFinite
    _processes: Processes
    _scaler: Any = None  # the loss scaler of fp16 (`torch.amp.GradScaler`), or None
    _recent: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    steps: int = 0  # of this training, as `skipped`
    skipped: int = 0

    def skips(self, step: int, loss: Tensor, grad_norm: Tensor | float) -> bool:
        """Return whether step `step` (from 1) must leave the weights as they are; every process must call it.

        `loss` () is of this process, `grad_norm` () of the gradient of all processes. Raise a NonFiniteError if they
        are not finite and the action is "stop", or too many of the last steps were skipped.
        """
        norm = torch.as_tensor(grad_norm, device=loss.device)
        wrong: Any = self._processes.sum((~torch.stack([loss.isfinite(), norm.isfinite()])).float())
        wrong_loss, wrong_norm = wrong.tolist()
        is_overflow = self._scaler is not None and self._scaler.get_scale() > 1
        skipped = wrong_loss > 0 or (wrong_norm > 0 and not is_overflow)
        self._recent.append(skipped)
        self.steps += 1
        self.skipped += skipped
        if not skipped:
            return False
        text = f"the update of step {step} is not finite (loss {float(loss):g}, gradient norm {float(norm):g})"
        if self._action == "stop":
            raise NonFiniteError(
                f"{text}, and on_nonfinite='stop'; the weights are those from before it. Look at the rewards and at "
                f"learning_rate, or compute in float32; on_nonfinite='skip' goes on without such steps"
            )
        if sum(self._recent) >= MOST_SKIPPED:
            raise NonFiniteError(
                f"{text}, as were {sum(self._recent)} of the last {len(self._recent)} steps, so this training learns "
                f"next to nothing. Look at the rewards and at learning_rate, or compute in float32"
            )
        logger.warning("%s, so it is skipped: weights and optimiser stay as they are", text)
        return True


def mean_of_taken(loss: float, steps: float, skipped: float) -> float:
    """Return the mean loss of the steps that were taken, from a mean in which those that were skipped count as 0.

    NaN if none was taken.
    """
    if not skipped:
        return loss
    return loss * steps / (steps - skipped) if steps > skipped else math.nan


def spread_nonfinite(loss: Tensor) -> Tensor:
    """Return the same loss, but its gradient is NaN in all weights if it is not finite.

    DeepSpeed takes the step inside the backward pass, and skips it if the gradient is not finite.
    """
    return loss * (1 + 0 * loss.detach())
