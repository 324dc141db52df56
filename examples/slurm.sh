#!/usr/bin/env bash
# A study on a Slurm cluster without Ray: every task of the array is the same command on one shared directory.
#   sbatch --array=1-20 examples/slurm.sh study run grid
# The commands divide the runs among them by their locks. One that is stopped (time limit, preemption) leaves checkpoints, and
# whoever comes next goes on from them; submit the same line again until nothing is left.
#SBATCH --job-name=afec
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=2G
#SBATCH --time=12:00:00
#SBATCH --signal=INT@120
#SBATCH --requeue
set -euo pipefail
: "${AFEC_RUNS:=runs}"            # on a file system that all machines share
: "${AFEC_DATA:=data}"            # the datasets, shared or one copy on each machine
export AFEC_DATA OMP_NUM_THREADS=1
exec srun --ntasks=1 afec "$@" --runs "$AFEC_RUNS" --workers "${SLURM_CPUS_PER_TASK:-1}"
