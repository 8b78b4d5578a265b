#!/bin/bash
# Train on three machines of a Slurm cluster: the first one trains, all of them hold environments.
#
#     sbatch examples/cluster/slurm.sh
#
# Each machine needs the same Python environment, for instance on a shared file system.
#SBATCH --job-name=gymnast
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --time=04:00:00

set -euo pipefail
export RAY_USAGE_STATS_ENABLED=0
PORT=6379
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ADDRESS=$(srun --nodes=1 --ntasks=1 --nodelist="$HEAD" hostname --ip-address | awk '{print $1}')

# Machines of one cluster share a secret. Nobody else may start code on them.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')

srun --nodes=1 --ntasks=1 --nodelist="$HEAD" \
  ray start --head --node-ip-address="$ADDRESS" --port="$PORT" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$HEAD" \
  ray start --address="$ADDRESS:$PORT" --num-cpus="$SLURM_CPUS_PER_TASK" --block &

# Wait until all machines have joined; then train on the first one.
export RAY_ADDRESS="$ADDRESS:$PORT"
srun --overlap --nodes=1 --ntasks=1 --nodelist="$HEAD" bash -c '
  until [ "$(python -c "import ray; ray.init(logging_level=40); print(sum(n[\"Alive\"] for n in ray.nodes()))")" = "$SLURM_JOB_NUM_NODES" ]; do
    sleep 5
  done
  python examples/calculator.py --hosts auto
'
