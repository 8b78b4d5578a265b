"""Episodes to a loss: samples, groups, advantages, log-probabilities, losses.

One optimiser step, from rows of the data set to new weights, with the function that does each line:

    while micro-batches of this step are missing:                   trainer.AgentTrainer.next_batches
        if the current round is used up:                            rollout.rounds.Rounds.batches
            specs = tasks x num_generations, each with its seeds    rollout.schedule.Schedule.specs
            generator <- the model's weights, if they have changed  rollout.weight_sync.WeightSync
            for each spec, all at the same time:                    envs.RolloutEngine.run
                messages = environment.reset(task)                  envs.engine.play_episode.play_episode
                prompt = render(messages)                           rollout.token_policy.TokenPolicy.begin
                until the episode ends:
                    ids, logprobs = sample(all ids so far)          generation.contract.Generator.generate
                    message = read tool calls from the ids          chat.chat_format.ChatFormat.parse
                    observation, reward = environment.step(message) envs.tool_env.tool_env.ToolEnv.astep
                    append ids (mask 1), observation ids (mask 0)   rollout.token_policy.TokenConversation.observe
                    or begin a line: a rewritten history            envs.engine.episode_model.EpisodeModel.line
                reward += environment.grade, reward functions       envs.Environment.grade, envs.rewards.Rewards
            groups = episodes of one task with reward and tokens    learning.groups.form_groups
            samples = the traces of each episode                    learning.samples.samples_of
            old_logprobs, ref_logprobs = forward passes, if needed  learning.scoring.Scorer
            rewards -= beta * KL, if kl_in is "reward"              learning.losses.kl_in_reward
            advantages = reward - baseline of its group             learning.advantages.ESTIMATORS
            advantages /= a standard deviation of rewards           learning.advantages.scale_advantages
            batches = samples with a gradient, padded, cut          learning.samples.split_evenly, Batch
    counts = loss tokens and episodes, over all processes           learning.losses.StepCounts
    for each micro-batch of each batch:                             trainer.AgentTrainer.compute_loss
        hidden = model(ids) at the tokens before loss tokens        models.output_head.OutputHead
        logprobs = log softmax(head(hidden) / temperature)          learning.logprobs.token_logprobs
        ratio = exp(logprobs - old_logprobs)                        learning.losses.policy_loss
        weights = function of pi/mu, against the mismatch           learning.corrections.CORRECTIONS
        terms = weights * surrogate(ratio, A) + beta * KL           learning.losses.LOSSES[loss_type].surrogate
        loss = sum of terms / counts of the whole step              learning.losses.LOSSES[loss_type].reduce
        loss.backward()                                             transformers.Trainer
    optimiser step                                                  transformers.Trainer
"""
