#!/usr/bin/env bash
# Question: does a 7B Llama take full-parameter training steps inside 8 GiB of device and host memory together?
#
# Makes a folder of random weights (strata init), trains 2 steps on random tokens with parameters and optimizer states on the
# drive, prints seconds, bytes and peak resident memory, and removes everything. Run by hand, with nothing else on the machine:
#
#   DIR=/mnt/nvme STATES=narrow bench/capacity_7b.sh
#
# DIR     folder on the drive (default build)         SHAPE   7b, 3b, 1b or tiny (default 7b)
# STATES  narrow: 16-bit remainder and 8-bit moments, 4.03 bytes a parameter; fp32: 12 (default narrow)
# TOKENS  of a step (default 128)                     STEPS   (default 2)
# CLIP    1: clip by the norm, so that gradients wait for it (default 0)
# BUDGET  device and host together, in MiB (default 8192)
# Exit codes: those of strata; 3 where disk or memory would not do; 1 where the peak is above BUDGET and 1 GiB.
set -euo pipefail
cd "$(dirname "$0")/.."
strata=${STRATA:-build/release/bin/strata}
python=.venv/bin/python
dir=${DIR:-build} shape=${SHAPE:-7b} states=${STATES:-narrow} tokens=${TOKENS:-128} steps=${STEPS:-2} clip=${CLIP:-0}
budget=${BUDGET:-8192}

case $shape in
  7b) hidden=4096 inner=11008 layers=32 heads=32 vocab=32000 ;;  # Llama 7B
  3b) hidden=3200 inner=8640 layers=26 heads=32 vocab=32000 ;;   # OpenLLaMA 3B
  1b) hidden=2048 inner=5504 layers=24 heads=32 vocab=32000 ;;
  tiny) hidden=256 inner=704 layers=4 heads=4 vocab=1024 ;;      # to try the script
  *) echo "capacity: SHAPE is 7b, 3b, 1b or tiny, not $shape" >&2; exit 2 ;;
esac
case $states in
  fp32) centibytes=1200 encoding=() ;;
  narrow) centibytes=403 encoding=(--strata.optimizer_states.master remainder --strata.optimizer_states.moments 8bit) ;;
  *) echo "capacity: STATES is fp32 or narrow, not $states" >&2; exit 2 ;;
esac
params=$((layers * (4 * hidden * hidden + 3 * hidden * inner + 2 * hidden) + 2 * vocab * hidden + hidden))
gib() { awk -v b="$1" 'BEGIN { printf "%.1f GiB", b / 2 ^ 30 }'; }

model_bytes=$((2 * params))
swap_bytes=$((params * (200 + centibytes + 200 * clip) / 100))  # weights, states and, with clipping, gradients that wait
need=$(((model_bytes + swap_bytes) / 19 * 20 + 2 ** 30))         # a twentieth of a drive stays free
have=$(df --output=avail -B1 "$dir" | tail -1)
echo "capacity: $params parameters; model $(gib $model_bytes), swap $(gib $swap_bytes); disk: need $(gib $need), have $(gib "$have")"
if [ "$have" -lt "$need" ]; then
  echo "capacity: too little free disk in $dir" >&2
  exit 3
fi
need=$((budget * 2 ** 20 + 2 ** 30))
have=$(($(awk '/MemAvailable/ { print $2 }' /proc/meminfo) * 1024))
echo "capacity: memory: need $(gib $need), have $(gib "$have"); load $(cut -d' ' -f1-3 /proc/loadavg)"
if [ "$have" -lt "$need" ]; then
  echo "capacity: too little memory is available" >&2
  exit 3
fi

work=$(mktemp -d "$dir/strata-capacity-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/swap" "$work/shape"
cat > "$work/shape/config.json" <<JSON
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": $hidden, "intermediate_size": $inner,
 "num_hidden_layers": $layers, "num_attention_heads": $heads, "num_key_value_heads": $heads, "vocab_size": $vocab,
 "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
JSON
PYTHONPATH=tools $python - "$work/data.tok" "$tokens" "$steps" "$vocab" <<'PY'
import sys
import numpy as np
from token_file import SampleStore
path, tokens, steps, vocab = sys.argv[1], *map(int, sys.argv[2:])
store = SampleStore()
for _ in range(steps):
    store.add(np.random.default_rng(len(store)).integers(0, vocab, tokens), np.ones(tokens))
store.write(path)
PY

# measured FILE COMMAND...: runs it; FILE gets "seconds peak_resident_bytes". The peak of a process that this small one started,
# because the kernel lets a program begin with the peak of who started it.
measured() {
  $python -c '
import resource, subprocess, sys, time
start = time.monotonic()
code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as out:
    out.write(f"{time.monotonic() - start:.1f} {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}\n")
sys.exit(code)' "$@"
}

options=(--data "$work/data.tok" --output-dir "$work/out" --max-steps "$steps" --max-seq-length "$tokens"
  --per-device-train-batch-size 1 --max-grad-norm "$clip" --learning-rate 1e-5 --lr-scheduler-type constant --save-strategy no
  --strata.placement.param nvme --strata.placement.optimizer nvme --strata.nvme.paths "$work/swap" "${encoding[@]}")
# Budgets: what the device would like, with plenty of host memory, and the rest for the host; else the least that the plan names.
plan() { "$strata" plan --model "$work/shape" "${options[@]}" --strata.budgets.device "$1MiB" "${@:2}" --json; }
plan $((budget / 2)) > "$work/plan.json"
device=$($python -c 'import json, sys; print(-(-json.load(open(sys.argv[1]))["need"]["device"] // 2**20))' "$work/plan.json")
if ! plan "$device" --strata.budgets.host "$((budget - device))MiB" > /dev/null 2> "$work/plan.txt"; then
  device=$(sed -n 's/.*strata.budgets: {device: \([0-9]*\)MiB.*/\1/p' "$work/plan.txt")
  plan "$device" --strata.budgets.host "$((budget - device))MiB" > /dev/null
fi
echo "capacity: budgets: device $device MiB, host $((budget - device)) MiB"

measured "$work/init.txt" "$strata" init --config "$work/shape/config.json" --out "$work/model"
read -r seconds peak < "$work/init.txt"
echo "capacity: init $seconds s, peak resident $(gib "$peak")"

measured "$work/train.txt" "$strata" train --model "$work/model" "${options[@]}" \
  --strata.budgets.device "${device}MiB" --strata.budgets.host "$((budget - device))MiB"
read -r seconds peak < "$work/train.txt"
$python - "$work/out/metrics.jsonl" "$params" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    step = json.loads(line)
    moved = ", ".join(f"{key} {value / int(sys.argv[2]):.2f}" for key, value in step["bytes"].items())
    print(f"capacity: step {step['step']}: {step['step_seconds']:.1f} s, loss {step['loss']:.3f}; bytes a parameter: {moved}")
PY
echo "capacity: train $seconds s with the start, peak resident $(gib "$peak"), may be $(gib $need); load $(cut -d' ' -f1-3 /proc/loadavg)"
[ "$peak" -le "$need" ]
