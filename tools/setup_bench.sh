#!/usr/bin/env bash
# Makes .cache/bench-venv: DeepSpeed, other optimizers and matplotlib on top of the torch of .venv, and what DeepSpeed's
# asynchronous I/O is compiled with. Idempotent.
set -euo pipefail
cd "$(dirname "$0")/.."

# JIT-compiled at first use: libaio, and Python's headers for the binding.
needed=()
[ -e /usr/include/libaio.h ] || needed+=(libaio-dev)
.venv/bin/python -c 'import os, sysconfig as s; exit(not os.path.exists(s.get_path("include") + "/Python.h"))' ||
  needed+=(python3-dev)
if [ ${#needed[@]} -gt 0 ]; then
  echo "setup: installing system packages: ${needed[*]}"
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo"
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${needed[@]}" >/dev/null
fi

venv=.cache/bench-venv
stamp=$venv/.requirements.sha256
want=$(sha256sum tools/requirements-bench.txt tools/requirements-bench-adam.txt tools/requirements.txt | sha256sum | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$want" ]; then
  echo "setup: making the Python environment of the benches in $venv"
  [ -x $venv/bin/python ] || .venv/bin/python -m venv $venv
  # Packages of .venv are visible here, so torch is neither downloaded nor installed again.
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
    "$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/strata.pth"
  # The accelerator is named, because without it the set-up of DeepSpeed looks for one.
  DS_ACCELERATOR=cpu $venv/bin/pip install --quiet --disable-pip-version-check -r tools/requirements-bench.txt
  $venv/bin/pip install --quiet --disable-pip-version-check --no-deps -r tools/requirements-bench-adam.txt
  echo "$want" > "$stamp"
fi
