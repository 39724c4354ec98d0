# shellcheck shell=sh
# Sourced by ./run, ./test and ./bench, which set `root` first.
#
#   prepare ENV LOCK [LARGER]   makes $root/ENV hold exactly what LOCK pins, and the project itself, editable;
#                               an ENV that was made from LARGER, a lock that pins the same and more, is made
#                               from that again
#
# When nothing changed since the last time, that is one comparison. What must stay true: `made-from` is
# written last, so an environment without it may be half made, and is made anew.

# The environments are the project's own. Without bytecode in them every start compiles them anew.
unset PYTHONDONTWRITEBYTECODE

say() { printf 'foveate: %s\n' "$*" >&2; }

give_up() {
    say "$@"
    exit 1
}

# What an environment is made from; it keeps a copy. The lock's name is the first line. The root is part of it, since
# environments cannot be moved.
origin() {
    printf '%s\n' "${lock##*/}" "$root"
    cat "$root/pyproject.toml" "$root/tools/setup.sh" "$root/tools/uv.txt" "$lock"
}

is_current() { [ -x "$env/bin/python" ] && origin | cmp -s - "$env/made-from"; }

prepare() {
    env=$root/$1 name=$2
    if [ -n "${3:-}" ] && [ "$(sed -n 1p "$env/made-from" 2>/dev/null)" = "$3" ]; then name=$3; fi
    lock=$root/$name
    if is_current; then return; fi
    (make_current "$1" "$name") || exit 1
}

make_current() {
    python=$(find_python) ||
        give_up 'needs Python 3.11 or newer with pip, and found none (tried python3.11 to python3.14, python3, python)'
    mkdir -p "$root/.tools"
    # One at a time. flock(2) belongs to the open file: it outlives the Python that takes it, and the kernel
    # gives it back when this subshell and what it started are gone, however they went.
    exec 9>"$root/.tools/lock"
    "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' 9>&9
    if is_current; then return; fi
    tell_uv_what_pip_knows
    fetch_uv
    say "installing $2 into $1/"
    if ! [ -f "$env/made-from" ] || ! [ -x "$env/bin/python" ]; then
        rm -rf "$env"
        "$uv" venv --quiet --no-project --python "$python" "$env" || give_up "could not make $1/"
    fi
    rm -f "$env/made-from"
    "$uv" pip sync --quiet --require-hashes --python "$env/bin/python" "$lock" ||
        give_up "could not install $2: is a package index within reach? (uv's message is above)"
    "$uv" pip install --quiet --no-deps --no-build-isolation --python "$env/bin/python" --editable "$root" ||
        give_up "could not install the project itself into $1/ (uv's message is above)"
    origin >"$env/made-from.new"
    mv "$env/made-from.new" "$env/made-from"
}

# The first Python on PATH that is new enough and has pip, or another of the same version that is clearly faster: those
# built without optimisations, as version managers do, take up to twice as long for everything.
find_python() {
    for name in python3.11 python3.12 python3.13 python3.14 python3 python; do
        fastest='' least=0
        old_ifs=$IFS IFS=:
        for folder in $PATH; do
            IFS=$old_ifs
            if ! found=$(measure_python "${folder:-.}/$name"); then continue; fi
            cost=${found%% *}
            if [ -z "$fastest" ] || [ $((cost * 5)) -lt $((least * 4)) ]; then fastest=${found#* } least=$cost; fi
        done
        IFS=$old_ifs
        if [ -n "$fastest" ]; then
            printf '%s\n' "$fastest"
            return
        fi
    done
    return 1
}

# Prints the CPU time of a small loop and the path, if this is a Python that can be used.
measure_python() {
    if ! [ -x "$1" ]; then return 1; fi
    # A file can exist and still not run (a version manager's shim), so it is tried.
    # An active environment can be without pip, and hides the Python that it was made from: that is tried too.
    base=$("$1" -c 'import sys; print(sys._base_executable)' 2>/dev/null) || return 1
    for python in "$1" "$base"; do
        cost=$("$python" -c '
import sys, time
import pip

def run():
    start, table = time.process_time_ns(), {}
    for number in range(20_000):
        table[number % 100] = str(number)
    return time.process_time_ns() - start

if sys.version_info < (3, 11):
    sys.exit(1)
print(min(run() for _ in range(10)) // 1_000)' 2>/dev/null) || continue
        printf '%s %s\n' "$cost" "$python"
        return
    done
    return 1
}

# Sets `uv` to the pinned uv in .tools/, fetched where it is not there yet.
fetch_uv() {
    version=$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' "$root/tools/uv.txt")
    uv=$root/.tools/uv-$version/bin/uv
    if [ -x "$uv" ]; then return; fi
    say "fetching uv $version into .tools/"
    rm -rf "$root"/.tools/uv-*
    # pip's --target goes neither with --user nor with a demand for a virtual environment.
    PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet \
        --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --target "$root/.tools/uv-new" -r "$root/tools/uv.txt" >&2 ||
        give_up "pip could not fetch uv $version: is a package index within reach? (pip's message is above)"
    mv "$root/.tools/uv-new" "$root/.tools/uv-$version"
}

# uv does not read pip's settings, so what the environment tells pip is told to uv, unless it was told already.
tell_uv_what_pip_knows() {
    if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"; fi
    if [ -n "${PIP_EXTRA_INDEX_URL:-}" ]; then export UV_INDEX="${UV_INDEX:-$PIP_EXTRA_INDEX_URL}"; fi
    if [ -n "${PIP_CERT:-}" ]; then export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"; fi
}
