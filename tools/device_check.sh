#!/usr/bin/env bash
# Checks everything that only a GPU can show, in short parts: tools/device_check.sh --help.
set -euo pipefail
cd "$(dirname "$0")/.."
python=python3
# The one with torch, for the part that measures torch and for torch's libraries.
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
exec "$python" tools/device_check.py "$@"
