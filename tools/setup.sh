#!/usr/bin/env bash
# Installs what the build needs: system packages and the Python environment. Idempotent; prints what it does.
# Works as root or with sudo.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(build-essential cmake ninja-build ccache git python3-venv
  liburing-dev libhwloc-dev libhwy-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libcli11-dev libyaml-cpp-dev libxxhash-dev
  libgloo-dev libgtest-dev libgmock-dev librapidcheck-dev fio strace iproute2)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
# A tool that is on PATH by another way (a newer cmake, a pyenv python) counts as installed.
needed=()
for package in "${missing[@]:-}"; do
  case "$package" in
    '') ;;
    cmake) command -v cmake >/dev/null || needed+=("$package") ;;
    python3-venv) python3 -c 'import venv, ensurepip' 2>/dev/null || needed+=("$package") ;;
    *) needed+=("$package") ;;
  esac
done
if [ ${#needed[@]} -gt 0 ]; then
  echo "setup: installing system packages: ${needed[*]}"
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo"
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${needed[@]}" >/dev/null
else
  echo "setup: system packages are there"
fi

stamp=.venv/.requirements.sha256
want=$(sha256sum tools/requirements.txt | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$want" ]; then
  echo "setup: making the Python environment in .venv (about 5 GB with torch, some minutes)"
  free_kib=$(df --output=avail -k . | tail -1)
  if [ "$free_kib" -lt $((9 * 1024 * 1024)) ]; then
    echo "setup: needs 9 GiB of free disk here, have $((free_kib / 1024 / 1024)) GiB" >&2
    exit 1
  fi
  [ -x .venv/bin/python ] || python3 -m venv .venv
  .venv/bin/pip install --quiet --disable-pip-version-check -r tools/requirements.txt
  echo "$want" > "$stamp"
else
  echo "setup: the Python environment is there"
fi
