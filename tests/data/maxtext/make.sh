#!/bin/bash
# Makes the profiles of this folder again: `make.sh PYTHON`, a Python >= 3.12 with maxtext 0.2.5.
# What to install is told in README.md. Takes about two minutes; needs no accelerator.
set -euo pipefail
python=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
base=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/maxtext/configs/base.yml

capture() { # capture NAME OPTION...
    local name=$1
    shift
    (cd "$work" && env DECOUPLE_GCLOUD=TRUE JAX_PLATFORMS=cpu \
        XLA_FLAGS=--xla_force_host_platform_device_count=8 \
        JOB_INDEX=0 JOB_COMPLETION_INDEX=0 PROCESSES_IN_JOB=1 JAX_PROCESS_COUNT=1 \
        JAX_COORDINATOR_ADDRESS=localhost \
        "$python" -m maxtext.trainers.pre_train.train "$base" \
        model_name=deepseek3-tiny override_model_config=true run_name="$name" \
        base_output_directory=out hardware=cpu dataset_type=synthetic enable_checkpointing=false \
        steps=6 base_num_decoder_layers=3 first_num_dense_layers=1 vocab_size=512 \
        per_device_batch_size=1 max_target_length=64 attention=dot_product \
        profiler=xplane skip_first_n_steps_for_profiler=3 profiler_steps=2 \
        enable_goodput_recording=false megablox=False "$@")
    gzip -9nc "$work/out/$name"/tensorboard/plugins/profile/*/*.xplane.pb >"$here/$name.xplane.pb.gz"
}

capture deepseek3_tiny_ep8_cf125 \
    ici_fsdp_parallelism=1 ici_expert_parallelism=8 sparse_matmul=False capacity_factor=1.25
capture deepseek3_tiny_fsdp8_ragged_dot \
    ici_fsdp_parallelism=8 ici_expert_parallelism=1 sparse_matmul=True
