"""LearningSettings: the options that the scorer and the objective read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .advantages import KLIn, Scale
from .comparison import Comparison
from .corrections import CORRECTIONS
from .credit import Credit
from .groups import Treatments


@dataclass(kw_only=True, slots=True, frozen=True)
class LearningSettings:
    """Options that stay the same for a whole run; `AgentConfig.learning_settings` builds them."""

    loss_type: str  # a row of `LOSSES`
    temperature: float  # logits are divided by it, because tokens were sampled with it
    samples_all_tokens: bool
    """False if top-p, top-k or min-p is on. Then the sampler's log-probabilities are not comparable with ours."""
    is_on_policy: bool  # whether every sample of a round is used once, before the weights change
    epsilon_low: float  # the ratio is clipped at 1 - epsilon_low where the advantage is negative
    epsilon_high: float  # the ratio is clipped at 1 + epsilon_high where the advantage is positive
    delta: float | None  # the ratio itself is at most this, where the advantage is negative; None: no limit
    sapo_temperature_pos: float  # how fast `sapo` fades with the ratio where the advantage is positive
    sapo_temperature_neg: float  # how fast `sapo` fades with the ratio where the advantage is not positive
    beta: float  # Weight of the KL term. At 0 the KL is measured if there is a reference, but not trained on.
    kl_in: KLIn  # whether the divergence from the reference is added to the loss, or subtracted from the reward
    use_bias_correction_kl: bool
    """Multiply the KL term by the ratio, so that its gradient is the reverse KL's (DeepSeek-V3.2, arXiv 2512.02556).

    TRL 1.16 does so by default. It changes the gradient on-policy too: the ratio is 1, but its gradient is not 0.
    """
    entropy_coef: float
    """Weight of the entropy bonus: it times the mean entropy of the step's loss tokens is subtracted from the loss."""
    top_entropy_quantile: float
    """Share of the loss tokens that are learned from: those of highest entropy when their round was played."""
    correction: str  # a row of `CORRECTIONS`
    correction_bounds: tuple[float, float]  # least and largest ratio of the correction
    max_completion_length: int  # most tokens that a completion can have; `dr_grpo` divides by it
    truncated: Treatments  # the treatment of each kind of truncated episode
    advantage_estimator: str  # a row of `ESTIMATORS`
    credit: Credit  # whether a token is judged by the reward of its episode, or by the return of its turn
    discount: float  # the weight of the next turn's return in a turn's return
    scale_rewards: Scale  # which standard deviation advantages are divided by
    normalize_advantages: bool  # whiten the advantages of a round, of all processes
    rows_at_once: int  # rows in one forward pass of the scorer
    max_tokens_per_batch: int | None
    """Tokens of one forward pass, padding included, for the scorer and the loss; None: no limit."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """The options that a subclass of the configuration adds, by name: a loss of the user's own reads them here."""

    @property
    def comparison(self) -> Comparison:
        """How episodes are compared."""
        return Comparison(
            advantage_estimator=self.advantage_estimator,
            scale_rewards=self.scale_rewards,
            normalize_advantages=self.normalize_advantages,
            credit=self.credit,
            discount=self.discount,
        )

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
