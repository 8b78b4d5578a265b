"""LearningSettings: the options that the scorer and the objective read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .advantages import KLIn
from .comparison import Comparison
from .corrections import CORRECTIONS
from .groups import TREATMENTS, Treatments


@dataclass(kw_only=True, slots=True, frozen=True)
class LearningSettings:
    """Options that stay the same for a whole run; `options.derived.learning_settings` builds them.

    Most are options of `AgentConfig`, which has their help texts. A field without a value given is switched off.
    """

    loss_type: str
    temperature: float
    max_completion_length: int
    rows_at_once: int  # in one forward pass of the scorer
    max_tokens_per_batch: int | None = None  # None: no limit
    is_on_policy: bool
    """Whether every sample of a round is used once, before the weights change."""
    samples_all_tokens: bool = True
    """False if top-p, top-k or min-p is on. Then the sampler's log-probabilities are not comparable with ours."""

    truncated: Treatments = field(default_factory=lambda: TREATMENTS)
    comparison: Comparison = Comparison()
    overlong_buffer: int = 0  # 0: no penalty
    overlong_penalty: float = 1.0

    epsilon_low: float  # the option `epsilon`
    epsilon_high: float
    delta: float | None = None
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    entropy_coef: float = 0.0
    top_entropy_quantile: float = 1.0
    beta: float = 0.0
    """At 0 the KL is measured if there is a reference, but not trained on."""
    kl_in: KLIn = "loss"
    use_bias_correction_kl: bool = False
    """Multiply the KL term by the ratio, so that its gradient is the reverse KL's (DeepSeek-V3.2, arXiv 2512.02556)."""
    correction: str = "none"
    correction_bounds: tuple[float, float] = (0.0, math.inf)
    own: Mapping[str, Any] = field(default_factory=dict)
    """The options that a subclass of the configuration adds, by name: a loss of the user's own reads them here."""

    def changed(self, **options: Any) -> LearningSettings:
        """Return the settings with other values of their fields, or of fields of `comparison`."""
        names = {field.name for field in fields(Comparison)}.intersection(options)
        comparison = replace(self.comparison, **{name: options.pop(name) for name in names})
        return replace(self, **{"comparison": comparison, **options})

    @property
    def charges_kl(self) -> bool:
        """Whether the divergence from the reference is taken off the reward."""
        return self.beta != 0 and self.kl_in == "reward"

    @property
    def scores_all(self) -> bool:
        """Whether every sequence needs pi's log-probabilities, before advantages are known."""
        return self.charges_kl or CORRECTIONS[self.correction].keep is not None or self.top_entropy_quantile < 1

    @property
    def always_has_gradient(self) -> bool:
        """Whether an episode with advantage 0 changes the weights, too."""
        return (self.beta != 0 and not self.charges_kl) or self.entropy_coef != 0
