"""Checks that episodes that left a round have no influence: with your own loss, estimator, or whole pipeline.

    LOSSES["mine"] = Loss(...)
    assert conformance.check(loss_type="mine") == []

An episode that leaves a round must not change the gradient of the others. So for each way to leave, the gradient of a
step with the episode is compared with the gradient without it. The model is a table of logits, so a check takes less
than a second.

No episode leaves because of its age: `max_staleness` bounds when an episode may start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ...envs.core import Message, StopReason
from ...envs.engine.rollout_engine import episode_specs
from ...envs.episode import Episode, Failure, Turn
from ...envs.tokens import Tokens, TokenTrace
from ..learning.advantages import ESTIMATORS, this_process_only
from ..learning.comparison import Comparison
from ..learning.corrections import CORRECTIONS
from ..learning.credit import Credit
from ..learning.groups import form_groups
from ..learning.losses import LOSSES, LossInputs, StepCounts, policy_loss
from ..learning.objective import objective
from ..learning.samples import Batch
from ..learning.scoring import Scorer
from ..learning.settings import LearningSettings
from ..models.reference import Reference

VOCABULARY = 12
TOLERANCE = 1e-6
"""Largest difference of two gradients, relative to the largest entry: the order of rows changes the rounding."""

SETTINGS = LearningSettings(
    loss_type="dapo",
    temperature=0.9,
    max_completion_length=32,
    rows_at_once=4,
    max_tokens_per_batch=120,
    is_on_policy=False,
    comparison=Comparison(discount=0.9),
    epsilon_low=0.2,
    epsilon_high=0.3,
    correction="tis",
    correction_bounds=CORRECTIONS["tis"].bounds,
)


class BigramModel(nn.Module):
    """A language model whose logits depend on the last token only; its weights are that table."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(seed)
        self.logits_VV = nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=numbers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return SimpleNamespace(logits=self.logits_VV[input_ids])


Gradient = Callable[[Sequence[Episode], LearningSettings], Tensor]
"""(episodes of a round, settings) -> the gradient of the step that learns from them, as one tensor."""


def step_gradient(episodes: Sequence[Episode], settings: LearningSettings) -> Tensor:
    """Return the gradient of the second of two steps on a round, so that ratios are not 1."""
    model = BigramModel(seed=2)
    reference = Reference(model) if settings.beta else None
    model.load_state_dict(BigramModel().state_dict())  # the policy that played the round
    scorer = Scorer(model=model, settings=settings, reference=reference, gather=this_process_only)
    samples, _ = scorer(form_groups(episodes, settings.truncated)[0])
    with torch.no_grad():
        model.logits_VV.add_(0.3 * BigramModel(seed=1).logits_VV)
    batch = Batch.of(samples, settings)
    sizes = {"loss_tokens": batch.loss_tokens, "sequences": batch.sequences}
    counts = StepCounts(**sizes, batch_loss_tokens=0, batches=1, processes=1)
    for part in batch.micro_batches:
        objective(model, part, settings, counts)[0].backward()
    assert model.logits_VV.grad is not None
    return model.logits_VV.grad


def make_round(*, members: int = 4) -> list[Episode]:
    """Make two groups of episodes of one to three turns, whose tokens have the model's log-probabilities."""
    numbers = torch.Generator().manual_seed(members)
    logprobs_VV = (BigramModel().logits_VV.detach() / SETTINGS.temperature).log_softmax(dim=1)
    episodes = []
    for spec in episode_specs([{"n": 0}, {"n": 1}], group_size=members, seed=0):
        trace = TokenTrace(prompt_ids=[1, 2])
        episode = Episode(spec=spec, stop=StopReason.FINAL_ANSWER, traces=[trace])
        for _ in range(1 + int(torch.randint(3, (), generator=numbers))):
            ids = torch.randint(1, VOCABULARY, (1 + len(episode.turns) + spec.member,), generator=numbers).tolist()
            before = [trace.ids[-1], *ids[:-1]]
            trace.append_sampled(ids, [logprobs_VV[pair].item() for pair in zip(before, ids, strict=True)])
            trace.append_observation(Tokens([3]))
            reward = 0.25 * int(torch.randint(4, (), generator=numbers))
            message: Message = {"role": "assistant", "content": ""}
            episode.turns.append(Turn(message=message, reward=reward, num_tokens=len(ids)))
        episode.reward = 0.5 + episode.environment_reward
        episodes.append(episode)
    return episodes


@dataclass(kw_only=True, slots=True, frozen=True)
class Way:
    """A way in which an episode leaves."""

    spoil: Callable[[Episode], None]  # makes an episode leave
    changes: dict[str, Any] = field(default_factory=dict)  # settings without which no episode leaves in this way
    counts_in_baseline: bool = False
    """Whether its reward still counts in the baseline of its group; then only its tokens must not count."""


def _fail(episode: Episode) -> None:
    episode.fail(Failure(stage="step", type="ValueError", message="", traceback=""))


def _set(**values: Any) -> Callable[[Episode], None]:
    def spoil(episode: Episode) -> None:
        for name, value in values.items():
            setattr(episode, name, value)

    return spoil


def _mismatch(episode: Episode) -> None:
    for trace in episode.traces:
        trace.logprobs[:] = [value - 0.5 for value in trace.logprobs]


_TOO_LONG = {"stop": StopReason.CONTEXT_OVERFLOW, "traces": [], "turns": [], "reward": None}
_GEOMETRIC = {"correction": "geometric_mask", "correction_bounds": CORRECTIONS["geometric_mask"].bounds}
_LEAVES = {"truncated": {StopReason.MAX_TURNS: "leave"}}
_IS_MASKED = {"truncated": {StopReason.MAX_TURNS: "mask"}}
_cut = _set(stop=StopReason.MAX_TURNS)

WAYS: dict[str, Way] = {
    "it failed": Way(spoil=_fail),
    "it has no reward": Way(spoil=_set(reward=None)),
    "it has no sampled token": Way(spoil=_set(traces=[TokenTrace(prompt_ids=[1, 2])], turns=[])),
    "its prompt was too long": Way(spoil=_set(**_TOO_LONG)),
    "its time was over": Way(spoil=_set(stop=StopReason.TIMEOUT)),
    "it was cut, and leaves": Way(spoil=_cut, changes=_LEAVES),
    "it was cut, and is masked": Way(spoil=_cut, changes=_IS_MASKED, counts_in_baseline=True),
    "the correction rejects it": Way(spoil=_mismatch, changes=_GEOMETRIC),
}


def check(
    *,
    loss_type: str = "dapo",
    advantage_estimator: str = "grpo",
    credit: Credit = "episode",
    gradient: Gradient = step_gradient,
    **changes: Any,
) -> list[str]:
    """Return a sentence for each way in which an episode that left has an influence; none if there is no fault.

    Args:
        loss_type: A row of `LOSSES`.
        advantage_estimator: A row of `ESTIMATORS`.
        credit: As the option of this name. A loss with one ratio for each sequence takes "episode" only.
        gradient: Your own pipeline from episodes to a gradient, if you have one.
        changes: As in `LearningSettings.changed`.
    """
    estimator = ESTIMATORS[advantage_estimator]
    settings = SETTINGS.changed(
        loss_type=loss_type,
        advantage_estimator=advantage_estimator,
        credit=credit,
        scale_rewards=estimator.scale,
        normalize_advantages=estimator.whitens,
        correction="tis" if LOSSES[loss_type].is_of_tokens else "none",
    ).changed(**changes)
    faults = [] if loss_type_ignores_rows_without_tokens(settings) else ["a row without loss tokens has an influence"]
    for name, way in WAYS.items():
        changed = settings.changed(**way.changes)
        if way.counts_in_baseline and changed.charges_kl:
            continue  # the divergence of its tokens is a part of the reward that counts
        for members in (4, 2):  # in a group of two, the other member leaves as well
            rows, others = make_round(members=members), make_round(members=members)
            way.spoil(rows[1])
            if way.counts_in_baseline:
                others = [replace(episode) for episode in rows]
                others[1].traces = [_other_tokens(rows[1].traces[0])]
            else:
                del others[1]
            if not _equal(gradient(rows, changed), gradient(others, changed)):
                faults.append(f"an episode left because {name}, and has an influence (group of {members})")
    return faults


def loss_type_ignores_rows_without_tokens(settings: LearningSettings) -> bool:
    """Return whether rows without loss tokens, padding, and masked tokens leave the gradient of a loss as it is."""
    numbers = torch.Generator().manual_seed(0)
    mask_BT = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    logprobs_BT = (-torch.rand(4, 5, generator=numbers)).requires_grad_()
    advantages_BT = torch.randn(4, 1, generator=numbers).expand(4, 5)
    counts = StepCounts(loss_tokens=5, sequences=2, batch_loss_tokens=5, batches=1, processes=1)

    def gradient_of(rows: int) -> Tensor:
        inputs = LossInputs(
            logprobs_BT=logprobs_BT[:rows],
            old_logprobs_BT=logprobs_BT.detach()[:rows] - 0.2,
            mask_BT=mask_BT[:rows],
            advantages_BT=advantages_BT[:rows],
        )
        return torch.autograd.grad(policy_loss(inputs, settings, counts)[0], logprobs_BT)[0]

    return _equal(gradient_of(4), gradient_of(2))


def _other_tokens(trace: TokenTrace) -> TokenTrace:
    """Return a trace with the same number of sampled tokens, but other tokens."""
    other = TokenTrace(prompt_ids=[4])
    other.append_sampled([5] * trace.num_sampled, [-1.0] * trace.num_sampled)
    return other


def _equal(got: Tensor, expected: Tensor) -> bool:
    largest = expected.abs().max().item()
    return torch.isfinite(got).all().item() is True and (got - expected).abs().max().item() <= TOLERANCE * largest
