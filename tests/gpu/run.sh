#!/usr/bin/env bash
# run.sh OUT [--rehearse] [--only NAME ...]: runs the checks of items.py with the programs beside this file. The machine
# needs Python 3.10 or later with the torch that the bundle was built with; no network, no compiler. OUT/figures.json has
# the results.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ $# -ge 1 ]] || { echo "run.sh OUT [--rehearse] [--only NAME ...]" >&2; exit 2; }
python=${MOONSHARD_GPU_PYTHON:-python3}
torch=$("$python" -c 'import importlib.util; print(list(importlib.util.find_spec("torch").submodule_search_locations)[0])')
MOONSHARD_GPU_TORCH=$("$python" -c 'import importlib.metadata; print(importlib.metadata.version("torch"))')
export MOONSHARD_GPU_TORCH
export LD_LIBRARY_PATH="$torch/lib:$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
exec "$python" "$here/items.py" "$here" "$@"
