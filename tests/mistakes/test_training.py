"""Mistakes in the arguments of a trainer, all told before a model is loaded."""

from __future__ import annotations

import datasets

from gymnast import trainer

from .answering import Mistake, check_answer, mistakes

HEAD = """
from gymnast.envs import ToolEnv
rows = [{"prompt": "a question"}]
table = datasets.Dataset.from_list(rows)
stream = table.to_iterable_dataset()

def train(model="missing/model", *, rows=rows, options={}, **arguments):
    args = GRPOConfig("runs", use_cpu=True, **options)
    GRPOTrainer(model, **{"environment": ToolEnv, "args": args, "train_dataset": rows, **arguments})

"""


@mistakes(
    ("train()", "no folder 'missing/model' here", "not in the cache", "the Hub does not answer"),
    ("train(model='./missing')", "no folder './missing' here", "named like Qwen/Qwen3-0.6B"),
    ("train(model=3)", "model must be the name of a causal language model", "got 3"),
    ("train(rows=datasets.DatasetDict(train=table, test=table))", "the splits 'train', 'test'", "data['train']"),
    (
        "train(rows=stream)",
        "a stream of rows (IterableDataset), which has no length: set max_steps",
        "num_train_epochs",
    ),
    ("train(rows=stream, options={'max_steps': 1, 'shuffle_dataset': True})", "data.shuffle(seed=42, buffer_size="),
    ("train(rows=stream, options={'max_steps': 1, 'save_strategy': 'epoch'})", "no epochs: set save_strategy='steps'"),
    ("train(rows=stream.skip(1), options={'max_steps': 1})", "train_dataset has no rows"),
    ("train(eval_dataset=stream)", "eval_dataset is a stream of rows (IterableDataset)", "list(data.take("),
    ("train(rows=rows[0])", "must be a sequence of rows, such as a list of dicts, got dict"),
    ("train(rows=[])", "train_dataset has no rows"),
    ("train(rows=['What is 1 + 1?'])", "row 0 of train_dataset must be a mapping, got str"),
    ("train(rows=3)", "must be a sequence of rows", "got int"),
    ("train(eval_dataset={'hard': []})", "eval_dataset['hard'] has no rows"),
    ("train(peft_config={'rank': 8})", "peft.LoraConfig has no 'rank'", "it is called r"),
    ("train(peft_config={'lora_alfa': 8})", "no 'lora_alfa'", "did you mean 'lora_alpha'"),
    ("train(peft_config=8)", "peft_config must be a peft.PeftConfig", "or a dict, got 8"),
    ("train(environment=3)", "environment must be an Environment", "got 3"),
    ("train(environment=[ToolEnv])", "environment must be an Environment", "got [<class"),
    ("train(enviroment=ToolEnv)", "no 'enviroment'", "did you mean 'environment'"),
    ("train(args={'max_steps': 1})", "args must be a GRPOConfig, got dict"),
    ("train(args=RLOOConfig('runs', use_cpu=True))", "args must be a GRPOConfig, got RLOOConfig"),
    (
        "train(environment=GRPOConfig('runs', use_cpu=True), args=ToolEnv())",
        "got ToolEnv: the environment stands before",
    ),
    ("train(learning_rate=1e-5)", "it is an option: args=GRPOConfig(learning_rate=...)"),
    ("train(dataset=rows)", "GRPOTrainer has no 'dataset'", "it is called train_dataset"),
    ("train(reward_funcs=[3])", "a reward function must be callable, got int: 3"),
    ("train(callbacks=[3])", "callbacks must be TrainerCallbacks", "got 3"),
    ("train(tools=[print])", "GRPOTrainer has no 'tools'", "environment="),
    ("train(reward_funcs='missing')", "'missing' is the name of no reward model", "or a function"),
)
def test_arguments_of_a_trainer(mistake: Mistake) -> None:
    typed, *expected = mistake
    check_answer((HEAD + typed, *expected), trainer, datasets=datasets)


@mistakes(
    ("num_generation=8", "GRPOConfig has no 'num_generation'", "did you mean 'num_generations'"),
    ("batch_size=8", "no 'batch_size'", "it is called per_device_train_batch_size"),
    ("max_new_tokens=8", "it is called max_completion_length"),
    ("use_vllm=True", "no 'use_vllm'", "generator='vllm'"),
    ("num_generations='8'", "num_generations must be of type int, got str: '8'"),
    ("num_generations=1", "num_generations must be at least 2", "got 1"),
    ("bf16='no'", "bf16 must be True or False, got str: 'no'"),
    ("learning_rate='1e-5'", "learning_rate must be of type float, got str: '1e-5'"),
    ("learning_rate=-1.0", "learning_rate must be", "got -1.0"),
    ("loss_type='ppo'", "loss_type must be one of", "grpo", "got 'ppo'"),
    ("generator='vlm'", "generator must be one of", "vllm", "got 'vlm'"),
    ("temperature=0.0", "temperature must be", "got 0.0"),
    ("epsilon_high=0.28", "epsilon_high has no effect", "num_iterations"),
    ("max_steps=2, max_staleness=1000", "max_staleness=1000 is more than max_steps=2"),
    ("eval_temperature=0.0, num_generations_eval=8", "8 equal episodes of each task", "leave num_generations_eval out"),
    ("optim='adam'", "adam is not a valid OptimizerNames", "adamw_torch"),
    ("save_strategy=False", "False is not a valid SaveStrategy", "'no'"),
    ("on_failure='ignore'", "on_failure", "drop", "got 'ignore'"),
    ("credit='token'", "credit must be", "got 'token'"),
    ("truncated='drop'", "must be one of teach, mask, leave, got 'drop'"),
    ("per_device_train_batch_size=3", "num_generations", "3"),
    ("vllm_gpu_memory_utilization=0.5", "vllm_gpu_memory_utilization", "vllm"),
    ("do_train=True", "no effect in GRPOConfig", "do_train"),
)
def test_options(mistake: Mistake) -> None:
    typed, *expected = mistake
    check_answer((f"GRPOConfig('runs', use_cpu=True, {typed})", *expected), trainer)
